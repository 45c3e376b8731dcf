//! The training part of `bench chaos`: logistic regression while faults are injected. It must learn
//! from every row of every epoch once, and reach the same loss as a training without faults.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use launch::OutputTarget;
use serde_json::Value;

use super::cluster::{Cluster, ClusterOptions, HostedProcess, LIMIT, LOOK, SERVERS, WORKERS};
use super::faults::{Fault, Faults, Means, Role, Schedule, Silence, Tally};
use super::starvation::starve;
use crate::learning::Scratch;

/// How far the log-losses of two trainings may differ: the order of steps varies between runs.
const APART: f64 = 0.002;
/// Epochs for each second of `--seconds`, so that a training with faults lasts about that long.
const EPOCHS_A_SECOND: u64 = 8;

/// The settings and data of the trainings.
pub(crate) struct Training {
    scratch: Scratch,
    cluster: ClusterOptions,
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
    pub(crate) tally: Tally,
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
    /// Whether the fault under way may end processes that it does not kill.
    may_end: bool,
    tally: Tally,
}

impl Training {
    /// Prepares trainings on the file `data`. It is decompressed, because workers cannot share a
    /// compressed file in ranges.
    pub(crate) fn new(data: &Path, seconds: u64, cluster: ClusterOptions) -> anyhow::Result<Self> {
        let text = data::read_text(data)?;
        let scratch = Scratch::new()?;
        std::fs::write(scratch.path("rows.libsvm"), &text).context("cannot write the rows of the training")?;
        let rows = text.lines().filter(|line| !line.trim().is_empty()).count() as u64;
        Ok(Self { scratch, cluster, epochs: (seconds * EPOCHS_A_SECOND).max(4), rows })
    }

    /// Rows of all epochs.
    pub(crate) fn rows(&self) -> u64 {
        self.rows * self.epochs
    }

    /// Trains once; faults are injected if there is a `schedule` of them.
    pub(crate) fn run(&self, mut schedule: Option<Schedule>) -> anyhow::Result<Trained> {
        let mut cluster = Cluster::start(self.cluster.clone())?;
        let run = if schedule.is_some() { "disturbed" } else { "undisturbed" };
        let mut crew = Crew {
            training: self,
            run,
            started: 0,
            workers: Vec::new(),
            ended: Vec::new(),
            may_end: false,
            tally: Tally::default(),
        };
        crew.fill_up(&cluster)?;
        crew.begin()?;
        let mut faults = Faults::new(Means { network: self.cluster.network.is_some(), large: false });
        let begin = Instant::now();
        while !crew.is_over()? {
            cluster.check()?;
            ensure!(begin.elapsed() < 10 * LIMIT, "the training does not end within {} s", 10 * LIMIT.as_secs());
            match &mut schedule {
                Some(schedule) => {
                    let fault = schedule.next_fault();
                    let begin = Instant::now();
                    crew.suffer(fault, &mut cluster, schedule).with_context(|| format!("fault {}", fault.name()))?;
                    faults.add(fault, begin.elapsed().as_secs_f64());
                    crew.wait(Duration::from_millis(200 + schedule.below(500) as u64))?;
                }
                None => std::thread::sleep(LOOK),
            }
        }
        let report = crew.report()?;
        let number = |value: &Value| value.as_f64().context("the training's report lacks a figure");
        let log_loss = number(&report["train"]["log_loss"])?;
        let seconds = number(&report["seconds"])?;
        Ok(Trained { log_loss, rows: number(&report["rows"])? as u64, seconds, faults, tally: crew.tally })
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

    /// Starts workers until there are as many as in the beginning. Returns how many were missing.
    fn fill_up(&mut self, cluster: &Cluster) -> anyhow::Result<usize> {
        let missing = WORKERS - self.workers.len();
        (0..missing).try_for_each(|_| self.start_worker(cluster))?;
        Ok(missing)
    }

    /// Whether a worker has ended with success, so that the training is over. Fails if a worker
    /// failed that was not killed, unless it joined when the training was over, or the fault under
    /// way may end processes: then the worker is dropped.
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
            Some((worker, _)) if self.may_end && self.ended.is_empty() => {
                self.workers.retain(|(number, _)| *number != worker);
                Ok(false)
            }
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

    fn suffer(&mut self, fault: Fault, cluster: &mut Cluster, schedule: &mut Schedule) -> anyhow::Result<()> {
        let server = schedule.below(SERVERS);
        let worker = schedule.below(self.workers.len());
        match fault {
            Fault::Kill(Role::Server) => self.lose_server(server, None, cluster),
            Fault::Silence(Role::Server, how) => self.lose_server(server, Some(how), cluster),
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
            Fault::Stall => {
                self.settle(cluster)?;
                cluster.stall()?;
                let ended = self.settle(cluster)?;
                ensure!(ended == 0, "{ended} processes ended because the coordinator was stopped");
                Ok(())
            }
            Fault::Starve => {
                self.settle(cluster)?;
                self.may_end = true;
                let busy = starve()?;
                self.wait(cluster.starvation())?;
                drop(busy);
                self.tally.expelled_by_starvation += self.settle(cluster)?;
                self.may_end = false;
                Ok(())
            }
            Fault::OneWay(direction) => {
                self.settle(cluster)?;
                if self.is_over()? {
                    return Ok(());
                }
                let link = cluster.drop_direction(direction, &self.workers[worker].1, server)?;
                self.may_end = true;
                self.wait(cluster.silence())?;
                self.tally.segments_on_one_way_links += link.end()?.unwrap_or(0);
                self.tally.expelled_by_one_way_links += self.settle(cluster)?;
                self.may_end = false;
                Ok(())
            }
            Fault::KillAmid(_) => bail!("a training has no large table"),
        }
    }

    fn lose_server(&mut self, server: usize, silence: Option<Silence>, cluster: &mut Cluster) -> anyhow::Result<()> {
        cluster.lose_server(server, silence, |_, _| Ok(0.0), || self.is_over()).map(drop)
    }

    /// Starts other processes for those that have ended without being killed, until all are in the
    /// run and every shard has its replicas, or the training is over. Returns how many have ended.
    fn settle(&mut self, cluster: &mut Cluster) -> anyhow::Result<u64> {
        let begin = Instant::now();
        let mut ended = 0;
        while !self.is_over()? {
            let more = cluster.replace_ended()? + self.fill_up(cluster)?;
            ended += more as u64;
            if more == 0 && cluster.is_settled().or_else(|error| if self.is_over()? { Ok(true) } else { Err(error) })? {
                break;
            }
            ensure!(begin.elapsed() < LIMIT, "the training is not whole again within {} s", LIMIT.as_secs());
            std::thread::sleep(LOOK);
        }
        Ok(ended)
    }

    /// Waits until all workers have ended, and returns the report that one of them printed.
    fn report(&mut self) -> anyhow::Result<Value> {
        let begin = Instant::now();
        while self.workers.iter_mut().any(|(_, process)| process.try_wait().is_ok_and(|status| status.is_none())) {
            // A worker that was started when the training was over never finds the run.
            if begin.elapsed() > Duration::from_secs(self.training.cluster.failure_timeout) + Duration::from_secs(5) {
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
