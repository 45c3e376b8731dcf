//! `train`: trains a model on files, on threads of one process or as a worker of a run.

mod crew;
mod curve;
mod elastic;
mod given;
mod interrupt;
mod job;
mod learn;
mod monitor;
mod progress;
mod reading;
mod report;
mod setting;
mod settings;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use given::{Given, InProcess, InRun};
pub(crate) use job::method;
pub(crate) use reading::{labels, open_alike};
pub(crate) use report::{quality_json, quality_line};
pub(crate) use settings::Settings;

use anyhow::{Context, anyhow, bail};
use apps::model::{Model, ModelTable};
use apps::train::{Data, TrainError};
use interrupt::Interrupt;
use job::{Job, Method};
use learn::{Learned, learn};
use monitor::{Account, Display, TrainingMonitor};
use observe::{Exporter, Metrics};
use report::{Report, Run};
use slackwater::cluster::WaitPolicy;
use slackwater::policy::NumberType;
use slackwater::security::Role;
use slackwater::table::Refusal;
use slackwater::updaters::Updaters;
use slackwater::{Consistency, Keys, RunSize, Session, TableSpec};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use crate::figures::Figures;
use crate::metrics::MetricsOptions;
use crate::security::SecurityOptions;
use crate::totals::{Ranks, Totals};
use crate::{process, replay};

/// The command `train`: servers and workers are threads of this process.
pub(crate) fn run(InProcess(given): &InProcess) -> anyhow::Result<()> {
    let Some(job) = prepare(given, None)? else { return Ok(()) };
    let metrics = serve_metrics(&job.settings, 0, &SecurityOptions::default())?;
    let interrupt = Interrupt::listen()?;
    let job = &job;
    let interrupt = &interrupt;
    let metrics = metrics.as_ref().map(|(metrics, _)| metrics);
    let learnt = AtomicU64::new(0);
    let sessions = match job.settings.text("record").map(Path::new) {
        Some(folder) => {
            replay::check_folder(folder)?;
            Session::embedded_recorded(job.size(), Updaters::builtin(), WaitPolicy::BLOCKING, folder)?
        }
        None => Session::embedded(job.size())?,
    };
    let worked: Vec<anyhow::Result<()>> = std::thread::scope(|scope| {
        let work = |session| scope.spawn(|| see_through(session, job, interrupt, metrics, &learnt));
        let threads: Vec<_> = sessions.into_iter().map(work).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    // Report the worker that failed by itself, rather than those that failed because of it.
    let mut failures: Vec<anyhow::Error> = worked.into_iter().filter_map(Result::err).collect();
    failures.sort_by_key(is_of_another);
    failures.into_iter().next().map_or(Ok(()), Err)
}

/// One worker in a run of processes. It checks its settings before it joins.
pub(crate) fn work(
    given: &Given,
    security: &SecurityOptions,
    join: impl FnOnce() -> anyhow::Result<Session>,
) -> anyhow::Result<()> {
    // The run's size is not known yet, so any size serves to check the other settings.
    let Some(job) = prepare(given, Some(RunSize { servers: 1, workers: 1 }))? else { return Ok(()) };
    let interrupt = Interrupt::listen()?;
    let mut session = interrupt.unless_told(join)?;
    if matches!(job.method, Method::Proximal(..)) {
        session = process::in_time(session, "training with --updater=proximal")?;
    }
    let begin = || {
        let job = prepare(given, Some(session.size()))?.context("a job")?;
        let metrics = serve_metrics(&job.settings, session.rank(), security)?;
        anyhow::Ok((job, metrics))
    };
    match begin() {
        Ok((job, metrics)) => {
            see_through(session, &job, &interrupt, metrics.as_ref().map(|(metrics, _)| metrics), &AtomicU64::new(0))
        }
        Err(error) => {
            // A worker that joined late has done nothing yet, so the others go on without it.
            if session.joined_late() {
                session.close()?;
            } else {
                session.abandon(&format!("{error:#}"));
            }
            Err(error)
        }
    }
}

/// Serves the metrics of this process if the settings ask for it, at their port + `step`.
fn serve_metrics(
    settings: &Settings,
    step: u32,
    security: &SecurityOptions,
) -> anyhow::Result<Option<(Metrics, Exporter)>> {
    let Some(address) = settings.text("metrics") else { return Ok(None) };
    let hosts = settings.texts("metrics-host").to_vec();
    MetricsOptions { address: address.to_owned(), step, hosts }.serve(security, Role::Worker).map(Some)
}

/// Whether workers may join such a training late. False for wrong settings.
pub(crate) fn takes_late_workers(given: &Given) -> bool {
    given.settle().is_ok_and(|settings| settings.text("updater") != Some("proximal"))
}

/// Prints every setting's value and where it comes from.
pub(crate) fn show(given: &Given) -> anyhow::Result<()> {
    Ok(write!(std::io::stdout(), "{}", given.settle()?)?)
}

/// The checked job, or `None` after showing the settings if only that was asked for.
fn prepare(given: &Given, run: Option<RunSize>) -> anyhow::Result<Option<Job>> {
    if given.show {
        return show(given).map(|()| None);
    }
    let settings = given.settle()?;
    if run.is_some() && settings.text("record").is_some() {
        bail!("in a run of processes, give --record to `launch`, `server` and `worker`, before the `--`");
    }
    let job = Job::new(settings, run)?;
    let inputs = ["data", "test"].map(|name| job.settings.texts(name)).concat();
    let inputs = if inputs.is_empty() { Vec::new() } else { data::files(&inputs)? };
    let out = job.settings.text("out").map(Path::new);
    let plot = job.settings.text("plot").map(Path::new);
    check_output("out", out, &inputs)?;
    check_output("plot", plot, &[&inputs[..], &out.map(Path::to_path_buf).into_iter().collect::<Vec<_>>()].concat())?;
    Ok(Some(job))
}

/// Refuses an output file that cannot be written or would overwrite a needed file, before hours of
/// training.
pub(crate) fn check_output(flag: &str, file: Option<&Path>, needed: &[PathBuf]) -> anyhow::Result<()> {
    let Some(file) = file else { return Ok(()) };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        bail!("--{flag} names a file in {}, and there is no such folder: create it first", folder.display());
    }
    if file.is_dir() {
        bail!("--{flag} names {}, which is a folder; name a file in it", file.display());
    }
    let same = |other: &&PathBuf| {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        real(other) == real(file)
    };
    match needed.iter().find(same) {
        Some(other) => bail!("--{flag} would overwrite {}, which is needed; name another file", other.display()),
        None => Ok(()),
    }
}

/// Whether a failure is only the consequence of another worker's failure.
fn is_of_another(failure: &anyhow::Error) -> bool {
    use slackwater::Error;
    use slackwater::cluster::NodeError;
    let lost = |error: &Error| matches!(error, Error::Run(NodeError::Lost { .. } | NodeError::GivenUp { .. }));
    match failure.downcast_ref() {
        Some(TrainError::Other) => true,
        Some(TrainError::Cluster(error)) => lost(error),
        _ => failure.downcast_ref().is_some_and(lost),
    }
}

/// One worker's training, its result, and its end. If it fails, it tells the other workers why.
fn see_through(
    session: Session,
    job: &Job,
    interrupt: &Interrupt,
    metrics: Option<&Metrics>,
    learnt_here: &AtomicU64,
) -> anyhow::Result<()> {
    let worked = if session.is_elastic() && !matches!(job.method, Method::Proximal(..)) {
        elastic::work_on(&session, job, interrupt, metrics, learnt_here).map(|()| None)
    } else {
        work_on(&session, job, interrupt, metrics, learnt_here)
    };
    match worked {
        Ok(outcome) => {
            session.close()?;
            outcome.map_or(Ok(()), |outcome| outcome.give(job))
        }
        Err(error) => give_up(session, error),
    }
}

/// Ends the session of a worker that cannot go on. It aborts the run with the reason, except in
/// these cases:
/// - Another worker failed: it waits until the coordinator has named that worker, because the
///   coordinator blames the first that aborts the run.
/// - It joined late with settings that differ from the others': it has done nothing yet, and the
///   others go on without it.
/// - It was told to leave: the others do the rest of its work.
fn give_up(session: Session, error: anyhow::Error) -> anyhow::Result<()> {
    use slackwater::Error;
    match error.downcast_ref() {
        Some(TrainError::Left | TrainError::Cluster(Error::Run(slackwater::cluster::NodeError::Leaving))) => {
            session.close()?;
            eprintln!("{}", TrainError::Left);
            return Ok(());
        }
        Some(TrainError::Other) => {
            // The worker that failed reaches no barrier any more.
            let error = session.barrier().err().map_or(error, anyhow::Error::from);
            session.abandon(&format!("{error:#}"));
            return Err(error);
        }
        Some(TrainError::Cluster(Error::Leases { .. } | Error::Table { .. })) if session.joined_late() => {
            session.close()?
        }
        _ => session.abandon(&format!("{error:#}")),
    }
    Err(error)
}

/// Checks that all workers have the same settings, by their hashes in a table.
fn agree(session: &Session, job: &Job) -> anyhow::Result<()> {
    let spec = TableSpec::dense(".settings", session.size().workers.into(), 1).number(NumberType::I64);
    let table = session.table::<i64>(spec.consistency(Consistency::Unbounded))?;
    let mut hasher = DefaultHasher::new();
    job.settings.kept().hash(&mut hasher);
    let rank = u64::from(session.rank());
    table.push(&Keys::run(rank..rank + 1), vec![hasher.finish() as i64])?.wait()?;
    session.barrier()?;
    let all = table.pull(&Keys::run(0..session.size().workers.into()))?.wait()?;
    match all.values().iter().position(|other| *other != all.values()[0]) {
        Some(other) => {
            bail!(
                "worker {other} has other settings than worker 0: give all workers the same program and settings \
                 after `--`"
            )
        }
        None => Ok(()),
    }
}

/// The result of a training: its model and its figures.
struct Outcome {
    model: Model,
    run: Run,
}

impl Outcome {
    /// Refuses a model that was learnt from no rows, or past too many malformed lines.
    fn new(job: &Job, tables: BTreeMap<String, ModelTable>, run: Run) -> anyhow::Result<Self> {
        let Run { account, in_all, stopped, gap, .. } = &run;
        let account = in_all.as_ref().unwrap_or(account);
        let allowed = job.settings.count("skip-bad").unwrap_or(0);
        let epochs = job.settings.count("epochs").unwrap_or(1);
        // Each worker checks its own part; the sum over all workers is known only now.
        if account.bad_rows > allowed as f64 * if gap.is_some() { 1.0 } else { epochs as f64 } {
            bail!(
                "{} malformed lines were skipped in {epochs} epochs, and --skip-bad allows {allowed} in each; no model is written",
                account.bad_rows
            );
        }
        if account.rows == 0.0 && gap.is_none() && !stopped {
            bail!("there are no rows in {}: no model is written", job.settings.texts("data").join(", "));
        }
        let mut settings = job.settings.kept();
        settings.insert("learnt-rows".to_owned(), account.rows.to_string());
        settings.insert("stopped".to_owned(), stopped.to_string());
        Ok(Self { model: Model { settings, tables }, run })
    }

    /// Writes the model and prints the report.
    fn give(self, job: &Job) -> anyhow::Result<()> {
        if let Some(out) = job.settings.text("out") {
            self.model.write(Path::new(out))?;
            if self.run.stopped {
                eprintln!("stopped early: the model learnt so far is written to {out}");
            }
        }
        Report::new(job, &self.model, self.run)?.give()
    }
}

/// Adds advice to a failure with a usual cause.
fn with_advice(error: TrainError) -> anyhow::Error {
    match &error {
        TrainError::Cluster(slackwater::Error::Refused { refusal: Refusal::NotFinite { .. }, .. }) => anyhow!(error).context(
            "the loss is not a finite number any more: use a smaller --rate, or scale the features with --standardise",
        ),
        _ => error.into(),
    }
}

/// One worker's training in a static run. Returns the outcome to the first worker.
fn work_on(
    session: &Session,
    job: &Job,
    interrupt: &Interrupt,
    metrics: Option<&Metrics>,
    learnt_here: &AtomicU64,
) -> anyhow::Result<Option<Outcome>> {
    let rank = session.rank();
    let RunSize { workers, .. } = session.size();
    agree(session, job)?;
    session.limit_bandwidth(job.bandwidth);
    let reader = job.data.for_worker(rank, workers)?;
    let display = (rank == 0).then(|| Display::start(job.method.name(), reader.settings().epochs));
    let mut watch =
        TrainingMonitor::new(session, interrupt, learnt_here, metrics.map(|metrics| metrics.worker(rank)), display);
    let learned = match learn(session, job, Data::Share(&reader), &mut watch) {
        Ok(learned) => learned,
        Err(error) => {
            // Bring the metrics up to date: they matter most after a failure.
            watch.refresh();
            return Err(with_advice(error));
        }
    };
    let Learned { stopped, progress, gap, .. } = learned;
    let tables = if rank == 0 { learned.model()? } else { BTreeMap::new() };
    let (figures, account, curve) = watch.finish(progress);
    let figures_table = session.table::<f64>(Figures::table(1, workers as usize))?;
    let accounts_table = session.table::<f64>(Account::table(workers))?;
    figures_table.push(&figures_table.keys(&[rank.into()]), figures.to_row())?.wait()?;
    accounts_table.push(&accounts_table.keys(&[rank.into()]), account.to_row(&curve))?.wait()?;
    // After the barrier, the tables hold the figures of all workers.
    session.barrier()?;
    if rank != 0 {
        return Ok(None);
    }
    let rows = figures_table.pull(&Keys::run(0..workers.into()))?.wait()?;
    let figures: Vec<Figures> = rows.values().chunks(Figures::width(workers as usize)).map(Figures::from_row).collect();
    let rows = accounts_table.pull(&Keys::run(0..workers.into()))?.wait()?;
    let (account, curve) = Account::together(rows.values());
    let seconds = Totals::of(&figures).seconds;
    let ranks = Ranks::first(workers);
    let codecs = session.codecs();
    let in_all = None;
    let run = Run { workers: figures, ranks, seconds, account, in_all, curve, stopped, gap, codecs };
    Outcome::new(job, tables, run).map(Some)
}
