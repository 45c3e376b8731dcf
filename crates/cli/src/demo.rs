//! `demo`: shows what slack gains. It trains a model twice, once in lock-step and once with slack,
//! while workers are slowed at random.
//!
//! The same program runs on threads of one process and on processes of a run: [`train`] uses only a
//! session.

mod clicks;
mod logistic;
mod progress;
mod recurrence;
mod report;
mod train;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::value_parser;
use slackwater::cluster::NodeError;
use slackwater::{Error, RunSize, Session};

use crate::launch;
use crate::logs::Form;

use clicks::Clicks;
use recurrence::Schedule;
use report::Report;

/// How many rows are kept for measuring the loss. No worker trains on them.
const HELD_OUT_ROWS: usize = 10_000;

/// The settings of `demo` in one process.
#[derive(clap::Args)]
pub(crate) struct DemoOptions {
    /// How many servers hold the weights.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = value_parser!(u32).range(1..=64))]
    servers: u32,
    /// How many workers train.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Run as processes with two replicas of each shard, and kill a server and a worker during the
    /// run: the run goes on.
    #[arg(long)]
    kill: bool,
    #[command(flatten)]
    training: Training,
}

/// The settings of the training, in one process and in a run of processes.
#[derive(clap::Args)]
pub(crate) struct Training {
    /// How many clocks a worker may run ahead of the slowest, in the second run.
    #[arg(long, value_name = "CLOCKS", default_value_t = 3, value_parser = value_parser!(u64).range(1..=1000))]
    slack: u64,
    /// How many clocks each worker runs for.
    #[arg(long, value_name = "COUNT", default_value_t = 250, value_parser = value_parser!(u64).range(1..=1_000_000))]
    clocks: u64,
    /// How many rows a worker computes a gradient from in a clock. With the defaults, 4 workers
    /// use each row once.
    #[arg(long, value_name = "ROWS", default_value_t = 200, value_parser = value_parser!(u64).range(1..=1_000_000))]
    minibatch: u64,
    /// The seed of the rows and of which worker is slow in which clock. The same seed gives the
    /// same data on every machine.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many milliseconds a clock takes a worker that is not slowed. The worker computes, and
    /// sleeps for the rest.
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = value_parser!(u64).range(1..=60_000))]
    base_ms: u64,
    /// How many times as long a clock takes the worker that is slowed in it.
    #[arg(long, value_name = "TIMES", default_value_t = 3, value_parser = value_parser!(u32).range(1..=1000))]
    factor: u32,
    /// How many rows to train on. 10,000 more are made, to measure the loss on.
    #[arg(long, default_value_t = 200_000, value_parser = value_parser!(u64).range(1..=100_000_000))]
    rows: u64,
    /// How many features there are. A row has 15 to 25 of them; few are frequent, most are rare.
    #[arg(long, default_value_t = 100_000, value_parser = value_parser!(u64).range(100..=100_000_000))]
    features: u64,
    /// Draw both loss curves into this file (SVG).
    #[arg(long, value_name = "FILE", default_value = "demo.svg")]
    out: PathBuf,
    /// Print every figure and both curves as JSON, rather than a table.
    #[arg(long)]
    json: bool,
}

impl Training {
    /// These settings as the words of a command line.
    fn words(&self) -> Vec<OsString> {
        let Self { slack, clocks, minibatch, seed, base_ms, factor, rows, features, out, json } = self;
        let mut words = vec!["demo".to_owned(), format!("--slack={slack}"), format!("--clocks={clocks}")];
        words.extend([format!("--minibatch={minibatch}"), format!("--seed={seed}"), format!("--base-ms={base_ms}")]);
        words.extend([format!("--factor={factor}"), format!("--rows={rows}"), format!("--features={features}")]);
        words.extend(json.then(|| "--json".to_owned()));
        let words = words.into_iter().map(OsString::from);
        // As a word of its own: a file name need not be UTF-8.
        words.chain(["--out".into(), out.clone().into_os_string()]).collect()
    }

    /// The approximate time of the run in lock-step.
    fn lock_step(&self) -> Duration {
        Duration::from_millis(self.base_ms * self.clocks * u64::from(self.factor))
    }

    fn clicks(&self) -> Clicks {
        Clicks::generate(self.seed, self.rows as usize + HELD_OUT_ROWS, self.features as usize)
    }

    fn schedule(&self, workers: u32) -> Schedule {
        let base = Duration::from_millis(self.base_ms);
        Schedule::random(self.seed, workers as usize, self.clocks as usize, base, self.factor)
    }
}

/// The command `demo`. Servers and workers are threads of this process, or processes with --kill.
pub(crate) fn run(options: &DemoOptions, log_form: Form) -> anyhow::Result<()> {
    let DemoOptions { servers, workers, kill, training } = options;
    if *kill {
        // Workers make the rows before the training begins.
        let begin = Duration::from_secs(2);
        let length = training.lock_step();
        let kills = [
            (begin + length / 4, "server 1".to_owned()),
            (begin + length / 2, format!("worker {}", workers.saturating_sub(1).max(1))),
        ];
        return launch::demonstrate(((*servers).max(3), (*workers).max(2)), training.words(), &kills, log_form);
    }
    let clicks = training.clicks();
    let sessions = Session::embedded(RunSize { servers: *servers, workers: *workers })?;
    let worked: Vec<anyhow::Result<()>> = std::thread::scope(|scope| {
        let work = |session| scope.spawn(|| work_on(session, training, &clicks));
        let threads: Vec<_> = sessions.into_iter().map(work).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    worked.into_iter().collect()
}

/// One worker of the demonstration in a run of processes.
pub(crate) fn work(session: Session, training: &Training) -> anyhow::Result<()> {
    work_on(session, training, &training.clicks())
}

fn work_on(session: Session, training: &Training, clicks: &Clicks) -> anyhow::Result<()> {
    let size = session.size();
    let runs = match train::train(&session, training, clicks) {
        // The worker was told to leave: its operations fail, and it has nothing to report.
        Err(Error::Run(NodeError::Leaving)) => None,
        runs => runs?,
    };
    session.close()?;
    // Only the first worker has the figures of all workers.
    let Some(runs) = runs else { return Ok(()) };
    let report = Report::new(training, size, clicks, runs);
    // Not `print!`, which panics when the reader has closed the output.
    match training.json {
        true => writeln!(std::io::stdout(), "{}", report.to_json())?,
        false => write!(std::io::stdout(), "{report}")?,
    }
    let out = &training.out;
    std::fs::write(out, report.chart().to_svg())
        .with_context(|| format!("cannot write the chart to {}; name another file with --out", out.display()))?;
    if !training.json {
        writeln!(std::io::stdout(), "\nBoth loss curves are drawn in {}.", out.display())?;
    }
    Ok(())
}
