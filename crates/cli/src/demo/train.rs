//! The training program of the demonstration: one worker's part of both runs, written with sessions
//! and tables alone.

use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use slackwater::data_leases::{DataLease, LeasedInput};
use slackwater::table::PushOptions;
use slackwater::{Consistency, Error, Keys, Session, Table, TableSpec, Ticket, UpdaterSpec};

use super::clicks::Clicks;
use super::logistic::{Minibatch, Places};
use super::progress::Progress;
use super::recurrence::Schedule;
use super::{HELD_OUT_ROWS, Training};
use crate::figures::Figures;

const ADAGRAD: UpdaterSpec = UpdaterSpec::Adagrad { rate: 0.05, epsilon: 1e-8 };
/// How many points a loss curve has, about.
const CURVE_POINTS: usize = 60;
/// How many sets of weights may wait for their loss to be computed. Computing one takes far less
/// time than passes between two.
const CURVE_BACKLOG: usize = 8;

/// The results of one of the two runs, which the first worker has in the end.
pub(crate) struct Run {
    pub(crate) slack: u64,
    /// The figures of each worker.
    pub(crate) workers: Vec<Figures>,
    /// Seconds since the start, and the held-out loss of the weights that the first worker read at
    /// that time.
    pub(crate) curve: Vec<(f64, f64)>,
}

impl Run {
    /// The run's name in text and charts.
    pub(crate) fn label(&self) -> String {
        label(self.slack)
    }
}

fn label(slack: u64) -> String {
    if slack == 0 { "lock-step".to_owned() } else { format!("slack {slack}") }
}

/// Rows, and their keys in the order of the table. Pulled and pushed values have this order.
struct Batch {
    rows: Minibatch,
    keys: Keys,
}

impl Batch {
    fn gather(table: &Table<f32>, clicks: &Clicks, rows: impl Iterator<Item = usize>, places: &mut Places) -> Self {
        let mut rows = Minibatch::gather(clicks, rows, places);
        let keys = table.keys(rows.keys());
        rows.arrange(keys.ids(), places);
        Self { rows, keys }
    }
}

/// Trains two models, one in lock-step and one with slack, on the same rows with the same
/// stragglers. Returns both runs to the first worker.
pub(crate) fn train(session: &Session, training: &Training, clicks: &Clicks) -> Result<Option<Vec<Run>>, Error> {
    let worker = session.rank() as usize;
    let workers = session.size().workers as usize;
    let schedule = training.schedule(session.size().workers);
    let slacks = [0, training.slack];
    let tables: Vec<Table<f32>> = slacks.iter().map(|slack| make_weights(session, *slack)).collect::<Result<_, _>>()?;
    let figures_table = session.table::<f64>(Figures::table(slacks.len(), workers))?;

    // In clock c, worker w takes the rows from (c · workers + w) · minibatch on: the same in both
    // runs, and no row twice in one pass.
    let minibatch = training.minibatch as usize;
    let total = training.rows as usize;
    let mut places = Places::new(clicks.features());
    let mut gather = |rows: &mut dyn Iterator<Item = usize>| Batch::gather(&tables[0], clicks, rows, &mut places);
    let rows = |number: usize| (number * minibatch..(number + 1) * minibatch).map(move |row| row % total);
    let clocks = training.clocks as usize;
    let held_out = gather(&mut (total..total + HELD_OUT_ROWS));
    // In an elastic run, workers lease minibatches, so that the others take over those of a lost
    // one.
    let own = (0..clocks)
        .filter(|_| !session.is_elastic())
        .map(|clock| gather(&mut rows(clock * workers + worker)))
        .collect();
    let by_number =
        |number: u64, places: &mut Places| Batch::gather(&tables[0], clicks, &mut rows(number as usize), places);
    let minibatches = if session.is_elastic() {
        Minibatches::Leased { count: (clocks * workers) as u64, features: clicks.features(), gather: &by_number }
    } else {
        Minibatches::Own(own)
    };

    let mut curves = Vec::new();
    for (run, (table, slack)) in tables.iter().zip(slacks).enumerate() {
        let part = Part { session, table, run, minibatches: &minibatches, schedule: &schedule };
        let (figures, curve) = match worker {
            0 => part.run_and_watch(&held_out, Progress::start(&label(slack), training.clocks))?,
            _ => (part.run(|_, _| Ok(()))?, Vec::new()),
        };
        if session.is_draining() {
            // The others go on without this worker and its figures.
            return Ok(None);
        }
        curves.push((slack, curve));
        figures_table.push(&figures_table.keys(&[(run * workers + worker) as u64]), figures.to_row())?.wait()?;
    }
    // After the barrier, the table holds the figures of all workers.
    session.barrier()?;
    if worker != 0 {
        return Ok(None);
    }
    let rows = figures_table.pull(&Keys::run(0..(slacks.len() * workers) as u64))?.wait()?;
    let figures: Vec<Figures> = rows.values().chunks(Figures::width(workers)).map(Figures::from_row).collect();
    let runs = curves.into_iter().zip(figures.chunks(workers));
    Ok(Some(runs.map(|((slack, curve), workers)| Run { slack, workers: workers.to_vec(), curve }).collect()))
}

fn make_weights(session: &Session, slack: u64) -> Result<Table<f32>, Error> {
    let spec = TableSpec::sparse(&format!("weights, {}", label(slack)), 1);
    session.table(spec.consistency(Consistency::slack(slack)).updater(ADAGRAD))
}

/// The minibatches of a run.
enum Minibatches<'a> {
    /// This worker's minibatches, one for each clock.
    Own(Vec<Batch>),
    /// Minibatches that all workers lease by their numbers, and gather when they have the lease.
    Leased { count: u64, features: usize, gather: &'a dyn Fn(u64, &mut Places) -> Batch },
}

/// A worker's part of one run.
struct Part<'a> {
    session: &'a Session,
    table: &'a Table<f32>,
    /// The index of the run.
    run: usize,
    minibatches: &'a Minibatches<'a>,
    schedule: &'a Schedule,
}

impl Part<'_> {
    /// Runs clock after clock, from a barrier at the start to a barrier at the end. It calls `look`
    /// with the clock and the time since the start: within each clock, and once more after all
    /// workers have finished.
    fn run(&self, mut look: impl FnMut(usize, Duration) -> Result<(), Error>) -> Result<Figures, Error> {
        let session = self.session;
        let mut figures = Figures::new(session.size().workers as usize);
        session.barrier()?;
        let start = Instant::now();
        let times = session.time_breakdown();
        let traffic = session.traffic();
        match self.minibatches {
            Minibatches::Own(batches) => {
                let mut last_push = None;
                for (clock, batch) in batches.iter().enumerate().take_while(|_| !session.is_draining()) {
                    last_push = Some(self.learn(clock, batch, None, &mut figures, || look(clock, start.elapsed()))?);
                    session.clock()?;
                }
                last_push.map(|push| push.wait()).transpose()?;
            }
            Minibatches::Leased { count, features, gather } => {
                let mut places = Places::new(*features);
                let mut leases = session.leases(&format!("demo {}", self.run), &LeasedInput::new(*count))?;
                let mut clock = 0;
                while let Some(lease) = leases.next_lease()? {
                    let batch = gather(lease.range(), &mut places);
                    drop(self.learn(clock, &batch, Some(&lease), &mut figures, || look(clock, start.elapsed()))?);
                    leases.commit(lease)?;
                    session.clock()?;
                    clock += 1;
                    if session.is_draining() {
                        break;
                    }
                }
            }
        }
        figures.account(start.elapsed(), (&times, &session.time_breakdown()), (traffic, session.traffic()));
        if session.is_draining() {
            return Ok(figures);
        }
        session.barrier()?;
        look(self.schedule.clocks(), start.elapsed())?;
        Ok(figures)
    }

    /// Learns from one minibatch, in the time that the schedule gives it.
    fn learn(
        &self,
        clock: usize,
        batch: &Batch,
        lease: Option<&DataLease>,
        figures: &mut Figures,
        look: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Ticket<()>, Error> {
        let Self { session, table, schedule, .. } = *self;
        let rows = table.pull(&batch.keys)?.wait()?;
        let admitted = Instant::now();
        figures.count_read(rows.staleness());
        look()?;
        let mut gradient = Vec::new();
        batch.rows.gradient(rows.values(), &mut gradient);
        let examples = if lease.is_some() { batch.rows.rows() as u64 } else { 1 };
        let push = table.push_opts(&batch.keys, gradient, PushOptions { examples, lease, ..PushOptions::default() })?;
        // A worker that takes over another's minibatches runs past the end of the schedule.
        let duration = schedule.duration(session.rank() as usize, clock % schedule.clocks());
        std::thread::sleep(duration.saturating_sub(admitted.elapsed()));
        Ok(push)
    }

    /// The first worker's part: now and then, it also pulls the weights of the held-out rows. A
    /// separate thread computes their loss, so that the run is not slowed.
    fn run_and_watch(&self, held_out: &Batch, mut progress: Progress) -> Result<(Figures, Vec<(f64, f64)>), Error> {
        let clocks = self.schedule.clocks();
        let every = clocks.div_ceil(CURVE_POINTS);
        std::thread::scope(|scope| {
            let (weights, arriving) = sync_channel::<(usize, Duration, Vec<f32>)>(CURVE_BACKLOG);
            let watcher = scope.spawn(move || {
                let mut curve = Vec::new();
                for (clock, time, weights) in arriving {
                    let loss = held_out.rows.loss(&weights);
                    progress.reach(clock as u64, time, loss);
                    curve.push((time.as_secs_f64(), loss));
                }
                progress.finish();
                curve
            });
            let figures = self.run(|clock, time| {
                if clock.is_multiple_of(every) || clock == clocks {
                    let rows = self.table.pull(&held_out.keys)?.wait()?;
                    // The watcher stops receiving only if it panics; joining it then shows the
                    // panic.
                    weights.send((clock.min(clocks), time, rows.into_values())).ok();
                }
                Ok(())
            })?;
            drop(weights);
            let curve = watcher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok((figures, curve))
        })
    }
}
