//! `bench large`: the long work of a server, one phase at a time, while a worker pushes.
//!
//! A table of one shard is made with drawn initial values, checkpointed, restored and backfilled
//! to a second server. In each phase a worker pushes in a closed loop, one push at a time. The
//! benchmark reports the longest time without an acknowledgement and the rate of pushes, beside
//! the rate with nothing else to do. It fails if any node is given up.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use launch::{PlannedProcess, Process, RunPlan, Start};
use slackwater::monitor::{MemberState, Status, status};
use slackwater::policy::Initial;
use slackwater::security::Access;
use slackwater::{Connect, Keys, Session, Table, TableSpec, UpdaterSpec};
use types::SplitMix64;

use super::measure::{Format, Report};
use crate::learning::Scratch;

/// The longest wait for a phase: ten times what one takes.
const LIMIT: Duration = Duration::from_secs(1800);
/// Time between two looks whether a phase is over.
const LOOK: Duration = Duration::from_millis(20);

/// Numbers of a row. With its Adagrad state a row takes 8 KiB.
const COLUMNS: u64 = 1024;
const ROW_BYTES: u64 = COLUMNS * 4 * 2;
/// Rows of one push: 256 KiB of gradients.
const PUSHED_ROWS: u64 = 64;
/// Rows of the small table that is pushed to while the large one is not there.
const SMALL_ROWS: u64 = 1024;

/// The settings of `bench large`.
#[derive(clap::Args)]
pub struct LargeBench {
    /// Gibibytes of the shard: weights and Adagrad state, half each. A backfill holds them twice,
    /// and a checkpoint takes them once on disk.
    #[arg(long, value_name = "GIBIBYTES", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=4096))]
    gigabytes: u64,
    /// A node that is silent for this many seconds is given up.
    #[arg(long, value_name = "SECONDS", default_value = "2s", value_parser = whole_seconds)]
    failure_timeout: Duration,
    /// For how many seconds the undisturbed rate is measured.
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
}

/// Reads `2` or `2s`.
fn whole_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.strip_suffix('s').unwrap_or(text).parse::<u64>();
    let seconds = seconds.ok().filter(|seconds| (1..=3600).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "a whole number of seconds, from 1 to 3600".to_owned())
}

/// The command `bench large`.
pub(crate) fn run(options: &LargeBench) -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    let folder = scratch.path("checkpoints");
    let checkpoints = folder.to_str().context("the path of the temporary folder is not UTF-8")?;
    let mut report = Report::default();
    report.number("shard_gib", options.gigabytes as f64);
    report.number("failure_timeout_s", options.failure_timeout.as_secs_f64());
    // Three runs, so that no phase runs beside another.
    make_and_backfill(options, &mut report)?;
    checkpoint(options, checkpoints, &folder, &mut report)?;
    restore(options, checkpoints, &mut report)?;
    Ok(report.print(if options.json { Format::Json } else { Format::Table })?)
}

fn large(options: &LargeBench) -> TableSpec {
    let rows = (options.gigabytes << 30) / ROW_BYTES;
    let initial = Initial::Normal { seed: 1, scale: 0.05 };
    let updater = UpdaterSpec::Adagrad { rate: 1e-3, epsilon: 1e-8 };
    TableSpec::dense("large", rows, COLUMNS as u32).updater(updater).initial(initial)
}

/// A table that no checkpoint keeps.
fn small() -> TableSpec {
    TableSpec::dense(".small", SMALL_ROWS, COLUMNS as u32)
}

fn make_and_backfill(options: &LargeBench, report: &mut Report) -> anyhow::Result<()> {
    let mut run = Run::start(options, 2, Vec::new())?;
    let session = run.session()?;
    let table = session.table::<f32>(small())?;
    let made = run.phase(&session, &table, "make", report, || Ok(session.table::<f32>(large(options))?))?;
    let backfilled = || {
        let second = run.start_server()?;
        run.wait_for_replicas()?;
        Ok(second)
    };
    let second = run.phase(&session, &made, "backfill", report, backfilled)?;
    run.processes.push(second);
    run.finish(session)
}

fn checkpoint(options: &LargeBench, location: &str, folder: &Path, report: &mut Report) -> anyhow::Result<()> {
    let checkpoints = [format!("--checkpoint={location}"), "--checkpoint-every=0.01".to_owned()];
    let run = Run::start(options, 1, checkpoints.to_vec())?;
    let session = run.session()?;
    let table = session.table::<f32>(large(options))?;
    // A checkpoint begins when the clock moves, so none disturbs the undisturbed rate.
    run.phase(&session, &table, "checkpoint", report, || wait_for_manifest(folder))?;
    report.number("checkpoint_server_peak_gib", run.peak_gib()?);
    run.finish(session)
}

fn restore(options: &LargeBench, location: &str, report: &mut Report) -> anyhow::Result<()> {
    let run = Run::start(options, 1, vec![format!("--resume={location}")])?;
    let session = run.session()?;
    let table = session.table::<f32>(small())?;
    run.phase(&session, &table, "restore", report, || Ok(session.table::<f32>(large(options))?))?;
    report.number("restore_server_peak_gib", run.peak_gib()?);
    run.finish(session)
}

/// A coordinator and a server of one shard, as processes; the worker is this process.
struct Run {
    plan: RunPlan,
    undisturbed: Duration,
    /// The coordinator, the first server, and those that came later.
    processes: Vec<Process>,
}

impl Run {
    fn start(options: &LargeBench, replicas: u32, coordinator: Vec<String>) -> anyhow::Result<Self> {
        let address = slackwater::cluster::free_address()?.to_string();
        let shards = "--shards-per-server=1".to_owned();
        let plan = RunPlan {
            replicas: Some(replicas),
            failure_timeout: options.failure_timeout,
            common: vec!["--insecure".into()],
            coordinator: coordinator.into_iter().chain([shards]).map(Into::into).collect(),
            ..RunPlan::new(&address, 1, 1)
        };
        let processes = vec![start(&plan.coordinator())?, start(&plan.server(None))?];
        Ok(Self { plan, undisturbed: Duration::from_secs(options.seconds), processes })
    }

    fn start_server(&self) -> anyhow::Result<Process> {
        start(&self.plan.server(None))
    }

    fn connect(&self) -> Connect {
        let RunPlan { coordinator_address, failure_timeout, .. } = &self.plan;
        Connect {
            failure_timeout: *failure_timeout,
            join_limit: LIMIT,
            access: Access::Insecure,
            ..Connect::to(coordinator_address)
        }
    }

    fn session(&self) -> anyhow::Result<Session> {
        Ok(Session::connect(&self.connect())?)
    }

    /// Measures pushes to a table, first undisturbed and then while `work` lasts. Reports them
    /// under `name`.
    fn phase<R>(
        &self,
        session: &Session,
        table: &Table<f32>,
        name: &str,
        report: &mut Report,
        work: impl FnOnce() -> anyhow::Result<R>,
    ) -> anyhow::Result<R> {
        let undisturbed = || {
            std::thread::sleep(self.undisturbed);
            Ok(())
        };
        let (before, ()) = push_while(table, None, undisturbed)?;
        let (during, result) = push_while(table, Some(session), work).with_context(|| format!("phase {name}"))?;
        self.check_members()?;
        report.number(&format!("{name}_s"), during.seconds);
        report.number(&format!("{name}_longest_pause_s"), during.longest_pause);
        report.number(&format!("{name}_undisturbed_longest_pause_s"), before.longest_pause);
        report.number(&format!("{name}_pushes_per_s"), during.rate());
        report.number(&format!("{name}_rate_over_undisturbed"), during.rate() / before.rate());
        Ok(result)
    }

    /// Waits until each shard has two whole replicas and every server goes by the plan.
    fn wait_for_replicas(&self) -> anyhow::Result<()> {
        let is_whole = |status: &Status| {
            let mut chains = status.plan.chains.iter();
            status.adopting.is_empty() && chains.all(|chain| chain.replicas.len() == 2 && chain.backfilling.is_empty())
        };
        wait_until("the second replica is whole", || Ok(is_whole(&status(&self.connect())?)))
    }

    /// Fails if a node was given up.
    fn check_members(&self) -> anyhow::Result<()> {
        for member in status(&self.connect())?.members {
            if let MemberState::Lost { reason } = member.state {
                bail!("{} was given up: {reason}", member.node);
            }
        }
        Ok(())
    }

    /// The most memory that the first server has held.
    fn peak_gib(&self) -> anyhow::Result<f64> {
        let path = format!("/proc/{}/status", self.processes[1].id());
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        Ok(peak.context("the kernel does not report VmHWM")?.trim().parse::<f64>()? / f64::from(1 << 20))
    }

    fn finish(mut self, session: Session) -> anyhow::Result<()> {
        session.close()?;
        for process in &mut self.processes {
            process.end_within(Duration::from_secs(10));
        }
        Ok(())
    }
}

fn start(planned: &PlannedProcess) -> anyhow::Result<Process> {
    Ok(Start::this_program(&planned.name)?.args(&planned.arguments).env("SLACKWATER_LOG", "warn").spawn()?)
}

fn wait_for_manifest(folder: &Path) -> anyhow::Result<()> {
    wait_until("the checkpoint is published", || {
        let Ok(checkpoints) = std::fs::read_dir(folder) else { return Ok(false) };
        let mut manifests =
            checkpoints.filter_map(Result::ok).map(|checkpoint| checkpoint.path().join("manifest.json"));
        Ok(manifests.any(|manifest| manifest.exists()))
    })
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !is_so()? {
        ensure!(begin.elapsed() < LIMIT, "gave up waiting until {what}, after {} s", LIMIT.as_secs());
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// What a closed loop of pushes met.
struct Pushes {
    acknowledged: u64,
    seconds: f64,
    longest_pause: f64,
}

impl Pushes {
    fn rate(&self) -> f64 {
        self.acknowledged as f64 / self.seconds
    }
}

/// Pushes to random places of a table, one push at a time, until `work` is done. With a session,
/// each push is a clock.
fn push_while<R>(
    table: &Table<f32>,
    clocks: Option<&Session>,
    work: impl FnOnce() -> anyhow::Result<R>,
) -> anyhow::Result<(Pushes, R)> {
    let over = AtomicBool::new(false);
    let values = vec![1e-3f32; (PUSHED_ROWS * COLUMNS) as usize];
    let places = (table.spec().shape.extent().last.0 + 1) / PUSHED_ROWS;
    let pushing = || -> anyhow::Result<Pushes> {
        let mut random = SplitMix64::new(1);
        let begin = Instant::now();
        let mut last = begin;
        let mut longest_pause = Duration::ZERO;
        let mut acknowledged = 0;
        while !over.load(Ordering::Relaxed) {
            let first = random.below(places) * PUSHED_ROWS;
            table.push(&Keys::run(first..first + PUSHED_ROWS), &values)?.wait()?;
            acknowledged += 1;
            let now = Instant::now();
            longest_pause = longest_pause.max(now - last);
            last = now;
            clocks.map_or(Ok(()), Session::clock)?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        Ok(Pushes { acknowledged, seconds, longest_pause: longest_pause.as_secs_f64() })
    };
    std::thread::scope(|scope| {
        let pushes = scope.spawn(pushing);
        let done = work();
        over.store(true, Ordering::Relaxed);
        let pushes = pushes.join().map_err(|_| anyhow!("the pushing thread panicked"))?;
        Ok((pushes?, done?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_timeout_is_a_number_of_seconds_with_or_without_its_unit() {
        for (text, seconds) in [("2s", Some(2)), ("1", Some(1)), ("0s", None), ("2ms", None), ("", None)] {
            assert_eq!(whole_seconds(text).ok(), seconds.map(Duration::from_secs), "{text}");
        }
    }
}
