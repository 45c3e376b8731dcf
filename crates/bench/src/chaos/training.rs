//! A training that is disturbed: it must learn from every row of every epoch once, and come to the
//! same loss as without.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use launch::OutputTarget;
use serde_json::Value;

use super::cluster::{Cluster, HostedProcess, LIMIT, LOOK, SERVERS, WORKERS};
use super::faults::{Fault, Faults, Role};
use super::network::Network;
use crate::learning::Scratch;
use types::SplitMix64;

/// How far the losses of two trainings may be apart: steps meet in another order each time.
const APART: f64 = 0.002;
/// Epochs for each second that things go wrong, so that it lasts about as long with faults.
const EPOCHS_A_SECOND: u64 = 8;

/// What is learnt, again and again.
pub(crate) struct Training {
    scratch: Scratch,
    failure_timeout: u64,
    network: Option<Network>,
    epochs: u64,
    /// Of an epoch.
    rows: u64,
}

/// What a training came to.
pub(crate) struct Trained {
    pub(crate) log_loss: f64,
    pub(crate) rows: u64,
    pub(crate) seconds: f64,
    pub(crate) faults: Faults,
}

/// The workers of one training.
struct Crew<'a> {
    training: &'a Training,
    /// Which training it is, for the names of its files.
    run: &'a str,
    started: u64,
    workers: Vec<(u64, HostedProcess)>,
    /// Those that have ended well: the training is over.
    ended: Vec<u64>,
}

impl Training {
    /// Learns from this file, which is unpacked first: compressed, it could not be shared.
    pub(crate) fn new(
        data: &Path,
        seconds: u64,
        failure_timeout: u64,
        network: Option<Network>,
    ) -> anyhow::Result<Self> {
        let text = data::read_text(data)?;
        let scratch = Scratch::new()?;
        std::fs::write(scratch.path("rows.libsvm"), &text).context("cannot write the rows to learn from")?;
        let rows = text.lines().filter(|line| !line.trim().is_empty()).count() as u64;
        Ok(Self { scratch, failure_timeout, network, epochs: (seconds * EPOCHS_A_SECOND).max(4), rows })
    }

    /// Rows to learn from, each as often as there are epochs.
    pub(crate) fn rows(&self) -> u64 {
        self.rows * self.epochs
    }

    /// Trains, while things go wrong if there is something to draw them from.
    pub(crate) fn run(&self, mut random: Option<&mut SplitMix64>) -> anyhow::Result<Trained> {
        let mut cluster = Cluster::start(self.failure_timeout, self.network.clone())?;
        let run = if random.is_some() { "disturbed" } else { "undisturbed" };
        let mut crew = Crew { training: self, run, started: 0, workers: Vec::new(), ended: Vec::new() };
        (0..WORKERS).try_for_each(|_| crew.start_worker(&cluster))?;
        crew.begin()?;
        let mut faults = Faults::default();
        let begin = Instant::now();
        while !crew.is_over()? {
            cluster.check()?;
            ensure!(begin.elapsed() < 10 * LIMIT, "the training does not come to an end");
            match &mut random {
                Some(random) => {
                    let (fault, begin) = (Fault::draw(random, cluster.can_cut()), Instant::now());
                    crew.suffer(fault, &mut cluster, random)?;
                    faults.add(fault, begin.elapsed().as_secs_f64());
                    crew.wait(Duration::from_millis(200 + random.below(500)))?;
                }
                None => std::thread::sleep(LOOK),
            }
        }
        let report = crew.report()?;
        let number = |value: &Value| value.as_f64().context("a training without figures");
        let (log_loss, seconds) = (number(&report["train"]["log_loss"])?, number(&report["seconds"])?);
        Ok(Trained { log_loss, rows: number(&report["rows"])? as u64, seconds, faults })
    }

    /// Fails if one has not come to the end that the other has come to.
    pub(crate) fn compare(&self, with: &Trained, without: &Trained) -> anyhow::Result<()> {
        for (trained, how) in [(with, "with"), (without, "without")] {
            let (rows, expected) = (trained.rows, self.rows());
            ensure!(rows == expected, "{rows} rows were learnt from {how} faults, and there are {expected}");
        }
        let (one, other) = (with.log_loss, without.log_loss);
        ensure!((one - other).abs() < APART, "the log-loss is {one} with faults, and {other} without");
        Ok(())
    }
}

impl Crew<'_> {
    fn file(&self, worker: u64, what: &str) -> std::path::PathBuf {
        self.training.scratch.path(&format!("{}-{worker}.{what}", self.run))
    }

    fn start_worker(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        let mut program: Vec<OsString> = ["train", "logistic", "--slack=3", "--json"].map(OsString::from).into();
        let rows = self.training.scratch.path("rows.libsvm").display().to_string();
        program.extend([format!("--data={rows}").into(), format!("--epochs={}", self.training.epochs).into()]);
        let worker = self.started;
        self.started += 1;
        let (printed, said) = (File::create(self.file(worker, "json"))?, File::create(self.file(worker, "log"))?);
        let process = cluster.start_worker(program, |start| {
            start.env("SLACKWATER_LOG", "info").stdout(OutputTarget::File(printed)).stderr(OutputTarget::File(said))
        })?;
        self.workers.push((worker, process));
        Ok(())
    }

    /// Waits until everybody works: nothing is done without before a run has begun.
    fn begin(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        let works = |log: std::path::PathBuf| std::fs::read_to_string(log).is_ok_and(|said| said.contains("working"));
        while !(0..self.started).all(|worker| works(self.file(worker, "log"))) {
            ensure!(begin.elapsed() < LIMIT, "the training does not begin");
            self.is_over()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Whether a worker has ended well. Fails if one has ended otherwise that nobody killed, unless
    /// it came when it was over.
    fn is_over(&mut self) -> anyhow::Result<bool> {
        let mut failed = None;
        for (worker, process) in &mut self.workers {
            match process.try_wait()? {
                Some(status) if status.success() && !self.ended.contains(worker) => self.ended.push(*worker),
                Some(status) if !status.success() => failed = Some((*worker, status)),
                _ => {}
            }
        }
        match failed {
            Some((worker, status)) if self.ended.is_empty() => {
                let said = std::fs::read_to_string(self.file(worker, "log")).unwrap_or_default();
                // Whoever is turned away because it is over is so before the others have ended.
                if said.contains("the run is over") {
                    return Ok(false);
                }
                bail!("worker process {worker} ended, which nobody killed: {status}\n{said}")
            }
            _ => Ok(!self.ended.is_empty()),
        }
    }

    fn wait(&mut self, length: Duration) -> anyhow::Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < length && !self.is_over()? {
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn suffer(&mut self, fault: Fault, cluster: &mut Cluster, random: &mut SplitMix64) -> anyhow::Result<()> {
        let server = random.below(SERVERS as u64) as usize;
        let worker = random.below(self.workers.len() as u64) as usize;
        let lose_server = |cluster: &mut Cluster, silence, crew: &mut Self| {
            cluster.lose_server(server, silence, |_, _| Ok(0.0), || crew.is_over()).map(drop)
        };
        match fault {
            Fault::Kill(Role::Server) => lose_server(cluster, None, self),
            Fault::Silence(Role::Server, how) => lose_server(cluster, Some(how), self),
            Fault::Kill(Role::Worker) => {
                drop(self.workers.swap_remove(worker));
                self.start_worker(cluster)
            }
            Fault::Silence(Role::Worker, how) => {
                let (_, mut silent) = self.workers.swap_remove(worker);
                silent.fall_silent(how)?;
                self.start_worker(cluster)?;
                self.wait(cluster.silence())?;
                if self.is_over()? { Ok(()) } else { silent.go_on_and_end(how) }
            }
        }
    }

    /// What was printed, when all have ended.
    fn report(&mut self) -> anyhow::Result<Value> {
        let begin = Instant::now();
        while self.workers.iter_mut().any(|(_, process)| process.try_wait().is_ok_and(|status| status.is_none())) {
            // One that was started when it was over looks for it in vain.
            if begin.elapsed() > Duration::from_secs(self.training.failure_timeout) + Duration::from_secs(5) {
                break;
            }
            std::thread::sleep(LOOK);
        }
        for worker in 0..self.started {
            let printed = std::fs::read_to_string(self.file(worker, "json")).unwrap_or_default();
            if let Ok(report) = serde_json::from_str(&printed) {
                return Ok(report);
            }
        }
        bail!("no worker has printed what the training came to")
    }
}
