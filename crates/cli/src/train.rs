//! `train`: learns a sparse model from files, on threads of one process or on processes anywhere.

mod curve;
mod given;
mod interrupt;
mod job;
mod learn;
mod progress;
mod reading;
mod report;
mod setting;
mod settings;
mod value;
mod watch;

pub use given::{Given, InProcess, InRun};
pub use job::method;
pub use reading::{labels, open_alike};
pub use report::{quality_json, quality_line};
pub use settings::Settings;

use anyhow::{Context, bail};
use apps::model::Model;
use apps::train::TrainError;
use interrupt::Interrupt;
use job::Job;
use learn::{Learned, learn};
use observe::{Exporter, Metrics};
use report::{Report, Run};
use slackwater::{Session, Shape};
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use watch::{Account, Display, Watch};

use crate::figures::Figures;

/// The command `train`: servers and workers are threads of this process.
pub fn run(InProcess(given): &InProcess) -> anyhow::Result<()> {
    let Some(job) = prepare(given, None)? else { return Ok(()) };
    let metrics = job.settings.text("metrics").map(|address| serve_metrics(address, 0)).transpose()?;
    let interrupt = Interrupt::listen()?;
    let (job, interrupt, metrics) = (&job, &interrupt, metrics.as_ref().map(|(metrics, _)| metrics));
    let learnt = AtomicU64::new(0);
    let sessions = Session::embedded(job.shape())?;
    let worked: Vec<anyhow::Result<()>> = std::thread::scope(|scope| {
        let work = |session| scope.spawn(|| work_on(session, job, interrupt, metrics, &learnt));
        let threads: Vec<_> = sessions.into_iter().map(work).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    // The worker that says why comes before those that only know that another one does.
    let mut failures: Vec<anyhow::Error> = worked.into_iter().filter_map(Result::err).collect();
    failures.sort_by_key(|failure| matches!(failure.downcast_ref(), Some(TrainError::Other)));
    failures.into_iter().next().map_or(Ok(()), Err)
}

/// One worker in a run of processes: what it is to do is checked before it joins.
pub fn work(given: &Given, join: impl FnOnce() -> anyhow::Result<Session>) -> anyhow::Result<()> {
    // What stands to be settled by the run is; here it only matters that the rest makes sense.
    if prepare(given, Some(Shape { servers: 1, workers: 1 }))?.is_none() {
        return Ok(());
    }
    let interrupt = Interrupt::listen()?;
    let session = join()?;
    let begin = || {
        let job = prepare(given, Some(session.shape()))?.context("a job")?;
        let metrics = job.settings.text("metrics").map(|address| serve_metrics(address, session.rank())).transpose()?;
        anyhow::Ok((job, metrics))
    };
    match begin() {
        Ok((job, metrics)) => {
            work_on(session, &job, &interrupt, metrics.as_ref().map(|(metrics, _)| metrics), &AtomicU64::new(0))
        }
        Err(error) => {
            // Gone without a goodbye: so the others do not take it for one that has finished.
            std::mem::forget(session);
            Err(error)
        }
    }
}

/// What is to be done, all checked; nothing if the settings were only to be shown.
fn prepare(given: &Given, run: Option<Shape>) -> anyhow::Result<Option<Job>> {
    let settings = given.settle()?;
    if given.show {
        write!(std::io::stdout(), "{settings}")?;
        return Ok(None);
    }
    let job = Job::new(settings, run)?;
    // Hours later would be a bad time to find that there is no such folder.
    for name in ["out", "plot"] {
        let folder = job.settings.text(name).and_then(|file| Path::new(file).parent());
        if let Some(folder) = folder.filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
            bail!("--{name} names a file in {}, and there is no such folder", folder.display());
        }
    }
    Ok(Some(job))
}

/// Serves the metrics of this process, `step` ports after the one given.
fn serve_metrics(address: &str, step: u32) -> anyhow::Result<(Metrics, Exporter)> {
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
    let addresses = addresses.with_context(|| format!("--metrics {address}: there is no port for worker {step}"))?;
    let metrics = Metrics::new();
    let exporter = Exporter::start(&addresses[..], metrics.clone()).with_context(|| {
        format!("cannot serve metrics at {address}{}", if step == 0 { String::new() } else { format!(" + {step}") })
    })?;
    eprintln!("metrics are at http://{}/metrics", exporter.address());
    Ok((metrics, exporter))
}

fn work_on(
    session: Session,
    job: &Job,
    interrupt: &Interrupt,
    metrics: Option<&Metrics>,
    learnt_here: &AtomicU64,
) -> anyhow::Result<()> {
    let (rank, Shape { workers, .. }) = (session.rank(), session.shape());
    let reader = job.data.for_worker(rank, workers)?;
    let display = (rank == 0).then(|| Display::start(job.method.name(), reader.settings().epochs));
    let mut watch = Watch::new(&session, interrupt, learnt_here, metrics.map(|metrics| metrics.worker(rank)), display);
    let learned = learn(&session, job, &reader, &mut watch);
    if matches!(learned, Err(TrainError::Cluster(slackwater::Error::Refused { .. }))) {
        watch.refused();
    }
    let Learned { tables, stopped, progress, gap } = learned?;
    let (figures, account, curve) = watch.finish(progress);
    let figures_table = session.table::<f64>(Figures::table(1, workers as usize))?;
    let accounts_table = session.table::<f64>(Account::table(workers))?;
    figures_table.push(&figures_table.keys(&[rank.into()]), figures.to_row())?.wait()?;
    accounts_table.push(&accounts_table.keys(&[rank.into()]), account.to_row(&curve))?.wait()?;
    // Behind the barrier everybody's figures are in their tables.
    session.barrier()?;
    if rank != 0 {
        return Ok(session.close()?);
    }
    let rows = figures_table.pull_range(0..workers.into())?.wait()?;
    let figures = rows.values().chunks(Figures::width(workers as usize)).map(Figures::from_row).collect();
    let rows = accounts_table.pull_range(0..workers.into())?.wait()?;
    let (account, curve) = Account::together(rows.values());
    session.close()?;
    let mut settings = job.settings.kept();
    settings.insert("learnt-rows".to_owned(), account.rows.to_string());
    settings.insert("stopped".to_owned(), stopped.to_string());
    let model = Model { settings, tables };
    if let Some(out) = job.settings.text("out") {
        model.write(Path::new(out))?;
        if stopped {
            eprintln!("stopped early: what was learnt so far is written to {out}");
        }
    }
    Report::new(job, &model, Run { workers: figures, account, curve, stopped, gap })?.give()
}
