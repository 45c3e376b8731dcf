//! `train`: learns a sparse model from files, on threads of one process or on processes anywhere.

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
use slackwater::table::Refusal;
use slackwater::updaters::Updaters;
use slackwater::{Consistency, Keys, RunSize, Session, TableSpec};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use crate::figures::Figures;
use crate::totals::{Ranks, Totals};
use crate::{process, replay};

/// The command `train`: servers and workers are threads of this process.
pub(crate) fn run(InProcess(given): &InProcess) -> anyhow::Result<()> {
    let Some(job) = prepare(given, None)? else { return Ok(()) };
    let metrics = job.settings.text("metrics").map(|address| serve_metrics(address, 0)).transpose()?;
    let interrupt = Interrupt::listen()?;
    let (job, interrupt, metrics) = (&job, &interrupt, metrics.as_ref().map(|(metrics, _)| metrics));
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
    // The worker that says why comes before those that only know that another one does.
    let mut failures: Vec<anyhow::Error> = worked.into_iter().filter_map(Result::err).collect();
    failures.sort_by_key(is_of_another);
    failures.into_iter().next().map_or(Ok(()), Err)
}

/// One worker in a run of processes: what it is to do is checked before it joins.
pub(crate) fn work(given: &Given, join: impl FnOnce() -> anyhow::Result<Session>) -> anyhow::Result<()> {
    // What stands to be settled by the run is; here it only matters that the rest makes sense.
    let Some(job) = prepare(given, Some(RunSize { servers: 1, workers: 1 }))? else { return Ok(()) };
    let interrupt = Interrupt::listen()?;
    let mut session = interrupt.unless_told(join)?;
    if matches!(job.method, Method::Proximal(..)) {
        session = process::in_time(session, "training by proximal steps, which shares out its data by rank,")?;
    }
    let begin = || {
        let job = prepare(given, Some(session.size()))?.context("a job")?;
        let metrics = job.settings.text("metrics").map(|address| serve_metrics(address, session.rank())).transpose()?;
        anyhow::Ok((job, metrics))
    };
    match begin() {
        Ok((job, metrics)) => {
            see_through(session, &job, &interrupt, metrics.as_ref().map(|(metrics, _)| metrics), &AtomicU64::new(0))
        }
        Err(error) => {
            // One that came later has done nothing yet: the others go on.
            if session.joined_late() {
                session.close()?;
            } else {
                session.abandon(&format!("{error:#}"));
            }
            Err(error)
        }
    }
}

/// Whether workers may come to such a training while it is under way. Settings that make no sense
/// take nobody.
pub(crate) fn takes_late_workers(given: &Given) -> bool {
    given.settle().is_ok_and(|settings| settings.text("updater") != Some("proximal"))
}

/// Prints what the settings come to, and where each is from.
pub(crate) fn show(given: &Given) -> anyhow::Result<()> {
    Ok(write!(std::io::stdout(), "{}", given.settle()?)?)
}

/// What is to be done, all checked; nothing if the settings were only to be shown.
fn prepare(given: &Given, run: Option<RunSize>) -> anyhow::Result<Option<Job>> {
    if given.show {
        return show(given).map(|()| None);
    }
    let settings = given.settle()?;
    if run.is_some() && settings.text("record").is_some() {
        bail!("`record` is said to `launch`, `server` and `worker` in a run of processes, before the `--`");
    }
    let job = Job::new(settings, run)?;
    let inputs = ["data", "test"].map(|name| job.settings.texts(name)).concat();
    let inputs = if inputs.is_empty() { Vec::new() } else { data::files(&inputs)? };
    let (out, plot) = (job.settings.text("out").map(Path::new), job.settings.text("plot").map(Path::new));
    check_output("out", out, &inputs)?;
    check_output("plot", plot, &[&inputs[..], &out.map(Path::to_path_buf).into_iter().collect::<Vec<_>>()].concat())?;
    Ok(Some(job))
}

/// Refuses to write where nothing can be written, or over a file that is needed. Hours later would
/// be a bad time to find out.
pub(crate) fn check_output(flag: &str, file: Option<&Path>, needed: &[PathBuf]) -> anyhow::Result<()> {
    let Some(file) = file else { return Ok(()) };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        bail!("--{flag} names a file in {}, and there is no such folder", folder.display());
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

/// Whether a failure only says that another worker's is the reason.
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

/// One worker's work. If it fails, the others are told why rather than left to think that this one
/// has finished.
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

/// A worker cannot go on: the others are told why, unless it alone is to blame. One that came later
/// and does not fit to what the others do has done nothing yet, and one that was told to leave has
/// left its part to them.
fn give_up(session: Session, error: anyhow::Error) -> anyhow::Result<()> {
    use slackwater::Error;
    match error.downcast_ref() {
        Some(TrainError::Left | TrainError::Cluster(Error::Run(slackwater::cluster::NodeError::Leaving))) => {
            session.close()?;
            eprintln!("{}", TrainError::Left);
            return Ok(());
        }
        Some(TrainError::Cluster(Error::Leases { .. } | Error::Table { .. })) if session.joined_late() => {
            session.close()?
        }
        _ => session.abandon(&format!("{error:#}")),
    }
    Err(error)
}

/// Makes sure that all workers were told to do the same.
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
            bail!("worker {other} was told to do something else than worker 0: give all the same words after `--`")
        }
        None => Ok(()),
    }
}

/// What there is to show for it.
struct Outcome {
    model: Model,
    run: Run,
}

impl Outcome {
    /// Refuses what is no model to be kept.
    fn new(job: &Job, tables: BTreeMap<String, ModelTable>, run: Run) -> anyhow::Result<Self> {
        let Run { account, in_all, stopped, gap, .. } = &run;
        let account = in_all.as_ref().unwrap_or(account);
        let (allowed, epochs) =
            (job.settings.count("skip-bad").unwrap_or(0), job.settings.count("epochs").unwrap_or(1));
        // Each worker minds its own part; what all of them have skipped is known only now.
        if account.bad_rows > allowed as f64 * if gap.is_some() { 1.0 } else { epochs as f64 } {
            bail!(
                "{} malformed lines were skipped in {epochs} epochs, and --skip-bad allows {allowed} in each; no model is written",
                account.bad_rows
            );
        }
        if account.rows == 0.0 && gap.is_none() && !stopped {
            bail!(
                "there are no rows in {}: nothing was learnt, and no model is written",
                job.settings.texts("data").join(", ")
            );
        }
        let mut settings = job.settings.kept();
        settings.insert("learnt-rows".to_owned(), account.rows.to_string());
        settings.insert("stopped".to_owned(), stopped.to_string());
        Ok(Self { model: Model { settings, tables }, run })
    }

    fn give(self, job: &Job) -> anyhow::Result<()> {
        if let Some(out) = job.settings.text("out") {
            self.model.write(Path::new(out))?;
            if self.run.stopped {
                eprintln!("stopped early: what was learnt so far is written to {out}");
            }
        }
        Report::new(job, &self.model, self.run)?.give()
    }
}

/// Serves the metrics of this process, `step` ports after the one given.
pub(crate) fn serve_metrics(address: &str, step: u32) -> anyhow::Result<(Metrics, Exporter)> {
    let wrong = || format!("--metrics {address}: write address:port, such as 127.0.0.1:9100");
    let addresses: Vec<SocketAddr> = address.to_socket_addrs().with_context(wrong)?.collect();
    let stepped = |mut address: SocketAddr| {
        let port = if address.port() == 0 {
            Some(0)
        } else {
            u16::try_from(step).ok().and_then(|step| address.port().checked_add(step))
        };
        address.set_port(port?);
        Some(address)
    };
    let addresses: Option<Vec<SocketAddr>> = addresses.into_iter().map(stepped).collect();
    let addresses = addresses.with_context(|| format!("--metrics {address}: there is no port {step} further"))?;
    let metrics = Metrics::new();
    let exporter = Exporter::start(&addresses[..], metrics.clone()).with_context(|| {
        format!("cannot serve metrics at {address}{}", if step == 0 { String::new() } else { format!(" + {step}") })
    })?;
    eprintln!("metrics are at http://{}/metrics", exporter.address());
    Ok((metrics, exporter))
}

/// What to do about a failure that has a usual reason.
fn with_advice(error: TrainError) -> anyhow::Error {
    match &error {
        TrainError::Cluster(slackwater::Error::Refused { refusal: Refusal::NotFinite { .. }, .. }) => anyhow!(error).context(
            "the loss is no number any more; take a smaller --rate, or bring features to one scale by --standardise",
        ),
        _ => error.into(),
    }
}

/// Returns the outcome to the first worker.
fn work_on(
    session: &Session,
    job: &Job,
    interrupt: &Interrupt,
    metrics: Option<&Metrics>,
    learnt_here: &AtomicU64,
) -> anyhow::Result<Option<Outcome>> {
    let (rank, RunSize { workers, .. }) = (session.rank(), session.size());
    agree(session, job)?;
    session.limit_bandwidth(job.bandwidth);
    let reader = job.data.for_worker(rank, workers)?;
    let display = (rank == 0).then(|| Display::start(job.method.name(), reader.settings().epochs));
    let mut watch =
        TrainingMonitor::new(session, interrupt, learnt_here, metrics.map(|metrics| metrics.worker(rank)), display);
    let learned = match learn(session, job, Data::Share(&reader), &mut watch) {
        Ok(learned) => learned,
        Err(error) => {
            // What it came to is asked for all the more where it fails.
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
    // Behind the barrier everybody's figures are in their tables.
    session.barrier()?;
    if rank != 0 {
        return Ok(None);
    }
    let rows = figures_table.pull(&Keys::run(0..workers.into()))?.wait()?;
    let figures: Vec<Figures> = rows.values().chunks(Figures::width(workers as usize)).map(Figures::from_row).collect();
    let rows = accounts_table.pull(&Keys::run(0..workers.into()))?.wait()?;
    let (account, curve) = Account::together(rows.values());
    let (seconds, ranks) = (Totals::of(&figures).seconds, Ranks::first(workers));
    let (codecs, in_all) = (session.codecs(), None);
    let run = Run { workers: figures, ranks, seconds, account, in_all, curve, stopped, gap, codecs };
    Outcome::new(job, tables, run).map(Some)
}
