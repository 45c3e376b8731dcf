//! A worker's training in an elastic run: the worker leases its data, and one of the workers that
//! are there at the end writes the model and the report.

use super::crew::{Crew, Muster};
use super::job::Job;
use super::learn::learn;
use super::monitor::{Account, Display, TrainingMonitor};
use super::{Interrupt, Outcome, with_advice};
use apps::leased::{Leased, PER_CLOCK};
use apps::once::once;
use apps::tally::{Counted, now};
use apps::train::Data;
use observe::Metrics;
use slackwater::{RunSize, Session};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::AtomicU64;

use super::report::Run;

/// Settings that may differ when a run resumes from a checkpoint. Within one run, data leases check
/// that all workers have the same epochs and clocks.
const MAY_CHANGE: [&str; 4] = ["servers", "workers", "epochs", "per-clock"];

/// A hash of the settings that all workers must share, whatever the run's size was when they
/// joined.
fn settings_hash(job: &Job) -> u64 {
    let mut settings = job.settings.kept();
    settings.retain(|name, _| !MAY_CHANGE.contains(&name.as_str()));
    let mut hasher = DefaultHasher::new();
    settings.hash(&mut hasher);
    hasher.finish()
}

/// What all workers have learnt from, and their loss over time, in seconds since `begun`.
fn account(points: &[Counted], begun: f64) -> (Account, Vec<(f64, f64)>) {
    let all = points.iter().copied().fold(Counted::default(), Counted::and);
    let curve = points.iter().filter(|point| point.weight > 0.0);
    let curve = curve.map(|point| ((point.time / point.weight - begun).max(0.0), point.loss / point.weight));
    let mut curve: Vec<(f64, f64)> = curve.collect();
    curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    (account_of(all), curve)
}

fn account_of(counted: Counted) -> Account {
    Account { rows: counted.examples, minibatches: counted.minibatches, bad_rows: counted.bad_rows }
}

/// One worker's training. When it returns, one of the workers has written the model and the report.
pub(crate) fn work_on(
    session: &Session,
    job: &Job,
    interrupt: &Interrupt,
    metrics: Option<&Metrics>,
    learnt_here: &AtomicU64,
) -> anyhow::Result<()> {
    let rank = session.rank();
    let RunSize { workers, .. } = session.size();
    session.limit_bandwidth(job.bandwidth);
    let begun = now();
    let per_clock = job.settings.count("per-clock").map_or(PER_CLOCK, |minibatches| minibatches as u32);
    let leased = Leased::of(&job.data, settings_hash(job))?.per_clock(per_clock);
    if rank == 0 && leased.ranges() < u64::from(workers) {
        eprintln!(
            "note: the input can be cut into {} only, for {workers} workers: compressed files and small files stay \
             whole; use plain files or more files",
            if leased.ranges() == 1 { "1 range".to_owned() } else { format!("{} ranges", leased.ranges()) }
        );
    }
    let display = (rank == 0).then(|| Display::start(job.method.name(), leased.settings().epochs));
    let mut watch =
        TrainingMonitor::new(session, interrupt, learnt_here, metrics.map(|metrics| metrics.worker(rank)), display);
    let learned = match learn(session, job, Data::Leased(&leased), &mut watch) {
        Ok(learned) => learned,
        Err(error) => {
            // Bring the metrics up to date: they matter most after a failure.
            watch.refresh();
            return Err(with_advice(error));
        }
    };
    let (figures, _, _) = watch.finish(learned.progress);
    let crew = Crew::open(session)?;
    crew.add(rank, begun, figures)?;
    let written = once(session, || {
        let points = learned.tally.iter().map(|tally| tally.read()).collect::<Result<Vec<_>, _>>()?.concat();
        let in_all = learned.tally.as_ref().map(|tally| tally.read_all()).transpose()?.map(account_of);
        let Muster { workers, ranks, begun } = crew.muster()?;
        // The workers that began the training may all be gone.
        let first = points.first().map_or(begun, |point| point.time / point.weight.max(1.0));
        let begun = begun.min(first);
        let (account, curve) = account(&points, begun);
        let seconds = now() - begun;
        let codecs = session.codecs();
        let stopped = learned.stopped;
        let gap = None;
        let run = Run { workers, ranks, seconds, account, in_all, curve, stopped, gap, codecs };
        Outcome::new(job, learned.model()?, run)?.give(job)
    });
    written.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_adds_up_counts_and_sorts_the_curve_by_time() {
        let point = |time: f64, loss: f64| Counted {
            weight: 2.0,
            examples: 2.0,
            loss,
            time: 2.0 * time,
            ..Counted::minibatch(2, 2.0, 0.0)
        };
        let (account, curve) = account(&[point(105.0, 4.0), point(103.0, 6.0), point(99.0, 8.0)], 100.0);
        assert_eq!((account.rows, account.minibatches), (6.0, 3.0));
        assert_eq!(curve, [(0.0, 4.0), (3.0, 3.0), (5.0, 2.0)]);
    }
}
