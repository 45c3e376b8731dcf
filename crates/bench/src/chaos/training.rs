//! The training part of `bench chaos`: logistic regression while faults are injected. It must learn
//! from every row of every epoch once, and reach the same loss as a training without faults.

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

/// How far the log-losses of two trainings may differ: the order of steps varies between runs.
const APART: f64 = 0.002;
/// Epochs for each second of `--seconds`, so that a training with faults lasts about that long.
const EPOCHS_A_SECOND: u64 = 8;

/// The settings and data of the trainings.
pub(crate) struct Training {
    scratch: Scratch,
    failure_timeout: u64,
    network: Option<Network>,
    epochs: u64,
    /// Rows of one epoch.
    rows: u64,
}

/// The result of a training.
pub(crate) struct Trained {
    pub(crate) log_loss: f64,
    pub(crate) rows: u64,
    pub(crate) seconds: f64,
    pub(crate) faults: Faults,
}

/// The workers of one training.
struct Crew<'a> {
    training: &'a Training,
    /// The name of the training, in the names of its files.
    run: &'a str,
    /// How many workers were started. The next one gets this number.
    started: u64,
    /// The workers that were not killed: number and process.
    workers: Vec<(u64, HostedProcess)>,
    /// Workers that have ended with success. With the first of them, the training is over.
    ended: Vec<u64>,
}

impl Training {
    /// Prepares trainings on the file `data`. It is decompressed, because workers cannot share a
    /// compressed file in ranges.
    pub(crate) fn new(
        data: &Path,
        seconds: u64,
        failure_timeout: u64,
        network: Option<Network>,
    ) -> anyhow::Result<Self> {
        let text = data::read_text(data)?;
        let scratch = Scratch::new()?;
        std::fs::write(scratch.path("rows.libsvm"), &text).context("cannot write the rows of the training")?;
        let rows = text.lines().filter(|line| !line.trim().is_empty()).count() as u64;
        Ok(Self { scratch, failure_timeout, network, epochs: (seconds * EPOCHS_A_SECOND).max(4), rows })
    }

    /// Rows of all epochs.
    pub(crate) fn rows(&self) -> u64 {
        self.rows * self.epochs
    }

    /// Trains once; faults are injected if there is a `random` to draw them from.
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
            ensure!(begin.elapsed() < 10 * LIMIT, "the training does not end within {} s", 10 * LIMIT.as_secs());
            match &mut random {
                Some(random) => {
                    let fault = Fault::draw(random, cluster.can_cut());
                    let begin = Instant::now();
                    crew.suffer(fault, &mut cluster, random)?;
                    faults.add(fault, begin.elapsed().as_secs_f64());
                    crew.wait(Duration::from_millis(200 + random.below(500)))?;
                }
                None => std::thread::sleep(LOOK),
            }
        }
        let report = crew.report()?;
        let number = |value: &Value| value.as_f64().context("the training's report lacks a figure");
        let log_loss = number(&report["train"]["log_loss"])?;
        let seconds = number(&report["seconds"])?;
        Ok(Trained { log_loss, rows: number(&report["rows"])? as u64, seconds, faults })
    }

    /// Fails unless both trainings learnt from all rows and their log-losses agree.
    pub(crate) fn compare(&self, with: &Trained, without: &Trained) -> anyhow::Result<()> {
        for (trained, how) in [(with, "with"), (without, "without")] {
            let rows = trained.rows;
            let expected = self.rows();
            ensure!(rows == expected, "the training {how} faults learnt from {rows} rows instead of {expected}");
        }
        let one = with.log_loss;
        let other = without.log_loss;
        ensure!(
            (one - other).abs() < APART,
            "the log-loss is {one} with faults and {other} without: more than {APART} apart"
        );
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
        let printed = File::create(self.file(worker, "json"))?;
        let log = File::create(self.file(worker, "log"))?;
        let process = cluster.start_worker(program, |start| {
            start.env("SLACKWATER_LOG", "info").stdout(OutputTarget::File(printed)).stderr(OutputTarget::File(log))
        })?;
        self.workers.push((worker, process));
        Ok(())
    }

    /// Waits until every worker works. Before a run has begun, it does not survive a fault.
    fn begin(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        let works = |log: std::path::PathBuf| std::fs::read_to_string(log).is_ok_and(|said| said.contains("working"));
        while !(0..self.started).all(|worker| works(self.file(worker, "log"))) {
            ensure!(begin.elapsed() < LIMIT, "the training does not begin within {} s", LIMIT.as_secs());
            self.is_over()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Whether a worker has ended with success, so that the training is over. Fails if a worker
    /// failed that was not killed, unless it joined when the training was over.
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
                let log = std::fs::read_to_string(self.file(worker, "log")).unwrap_or_default();
                // A run that is over refuses a new worker before the others have ended.
                if log.contains("the run is over") {
                    return Ok(false);
                }
                bail!("worker process {worker} ended although the benchmark did not kill it: {status}\n{log}")
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

    /// Waits until all workers have ended, and returns the report that one of them printed.
    fn report(&mut self) -> anyhow::Result<Value> {
        let begin = Instant::now();
        while self.workers.iter_mut().any(|(_, process)| process.try_wait().is_ok_and(|status| status.is_none())) {
            // A worker that was started when the training was over never finds the run.
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
        bail!("no worker has printed a report of the training")
    }
}
