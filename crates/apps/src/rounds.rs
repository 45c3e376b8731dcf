//! The training loop that workers run together: read a minibatch, learn from it, end the clock.
//! This file has the loop for fixed shares of the data; `leased.rs` has the one for leased data.
//!
//! With fixed shares it ends for all workers in the same way and at the same clock: at the end of
//! the data, when one is told to stop or to leave, or when one cannot go on with its share. Then
//! the others return an error, too.

use crate::leased::{Leased, make_leased_rounds};
use crate::tally::Tally;
use data::{DataError, DataReader, Loan, Minibatch};
use slackwater::data_leases::DataLease;
use slackwater::{Consistency, Keys, Session, Table, TableSpec};
use std::time::{Duration, Instant};

/// Why a worker stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The worker's data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The run is lost, or refused an operation.
    #[error(transparent)]
    Cluster(#[from] slackwater::Error),
    /// A row has a feature for which the model has no input. Raise the number of inputs, or remove
    /// the feature.
    #[error(
        "a row has a feature with key {key}, but the model has {inputs} inputs, for keys below {inputs}; give it more inputs or remove the feature"
    )]
    Unfit {
        /// The feature's key.
        key: u64,
        /// How many inputs the model has.
        inputs: usize,
    },
    /// This worker was told to leave, and the others go on without it.
    #[error("this worker was told to leave, and the others go on without it")]
    Left,
    /// Another worker could not go on. Its own error says why.
    #[error("another worker could not go on; its own message says why")]
    Other,
}

/// What a worker reports after each minibatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learnt {
    /// The pass over the data, from 0.
    pub epoch: u32,
    /// Examples of the minibatch.
    pub examples: u64,
    /// How many ordinary examples they count for: the sum of their importances. The loss is a sum
    /// over as many.
    pub weight: f64,
    /// Their summed loss under the pulled weights, before this minibatch's update.
    pub loss: f64,
    /// How many clocks the worker was ahead of the frontier that its weights reflect.
    pub staleness: u64,
    /// How many reads of weights were parked until another worker had ended its clock.
    pub parked: u64,
    /// How far this worker has read its data.
    pub progress: data::ReadProgress,
    /// If data is leased: which share (0 to 1) of the whole training was begun before this, by all
    /// workers together.
    pub share: Option<f64>,
}

/// What a worker learns from.
#[derive(Clone, Copy)]
pub enum Data<'a> {
    /// A share of its own. All workers must take part from the beginning to the end.
    Share(&'a DataReader),
    /// Ranges that it leases one by one. Workers may come and go.
    Leased(&'a Leased),
}

impl<'a> From<&'a DataReader> for Data<'a> {
    fn from(reader: &'a DataReader) -> Self {
        Self::Share(reader)
    }
}

impl<'a> From<&'a Leased> for Data<'a> {
    fn from(leased: &'a Leased) -> Self {
        Self::Leased(leased)
    }
}

impl Data<'_> {
    /// How the data is read.
    #[must_use]
    pub fn settings(&self) -> &data::ReaderSettings {
        match self {
            Self::Share(reader) => reader.settings(),
            Self::Leased(leased) => leased.settings(),
        }
    }
}

/// Whether a worker goes on after a minibatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    /// Go on with the next minibatch.
    On,
    /// Stop the training of all workers. What has been learnt is kept.
    Stop,
    /// This worker leaves: training returns [`TrainError::Left`]. When its session is closed, other
    /// workers learn the rest of its leased data. If each worker has a share, this is the same as
    /// [`Go::Stop`].
    Leave,
}

/// What a program reports of one minibatch that it has learnt from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lesson {
    /// The examples' summed loss under the pulled weights, before this minibatch's update.
    pub loss: f64,
    /// How many clocks the worker was ahead of the frontier that its weights reflect.
    pub staleness: u64,
    /// How many reads of weights were parked until another worker had ended its clock.
    pub parked: u64,
}

/// How the training loop ended.
pub struct RoundsEnd {
    /// Whether some worker was told to stop before it had learnt from all its minibatches.
    pub stopped: bool,
    /// How far this worker has read its data.
    pub progress: data::ReadProgress,
    /// If data is leased: what all workers together have learnt from.
    pub tally: Option<Tally>,
}

/// Runs one worker's training loop over all minibatches of `data`, and returns when every worker
/// has finished.
/// - `prepare` runs in the reader's thread, on each minibatch.
/// - `learn` pulls, computes and pushes, for a lease if the data is leased. The clock ends after
///   it.
/// - `watch` gets a report of each minibatch, and may end the loop early, for all workers.
///
/// If one worker cannot go on with its share, all workers return an error.
pub fn make_rounds<P: Default + Send + 'static>(
    session: &Session,
    consistency: Consistency,
    data: Data<'_>,
    prepare: impl FnMut(&Minibatch, &mut P) + Send + 'static,
    mut learn: impl FnMut(&Loan<P>, Option<&DataLease>) -> Result<Lesson, TrainError>,
    mut watch: impl FnMut(Learnt) -> Go,
) -> Result<RoundsEnd, TrainError> {
    let reader = match data {
        Data::Share(reader) => reader,
        Data::Leased(leased) => return make_leased_rounds(session, leased, prepare, learn, watch),
    };
    let number = session.unique_number();
    let finished = session.table::<i64>(finished(number, consistency))?;
    let mut stop = Stop::new(session, number)?;
    let paced = consistency.bound().is_none();
    let mut passes =
        Passes { session, stop: stop.clone(), left: if paced { reader.settings().epochs } else { 0 }, ended: 0 };
    let rounds = || {
        let mut batches = reader.prepared(prepare)?;
        while let Some(batch) = batches.next() {
            let batch = batch?;
            passes.reach(batch.epoch())?;
            let Lesson { loss, staleness, parked } = learn(&batch, None)?;
            session.clock()?;
            let learnt = Learnt {
                epoch: batch.epoch(),
                examples: batch.rows() as u64,
                weight: weight_of(&batch),
                loss,
                staleness,
                parked,
                progress: batches.progress(),
                share: None,
            };
            let go = watch(learnt);
            if stop.after(if session.is_draining() { Go::Leave } else { go })? != Go::On {
                break;
            }
        }
        Ok(batches.progress())
    };
    let progress = match rounds() {
        Ok(progress) => progress,
        Err(error) => {
            // Tells the others, so that they do not wait for this worker and do not take the model
            // for complete. If this fails, too, the run is lost, and they get that error.
            let told = stop.say(FAILED).and_then(|()| passes.end());
            told.and_then(|()| keep_time(session, &finished)).and_then(|()| align_clocks(session)).ok();
            return Err(error);
        }
    };
    passes.end()?;
    keep_time(session, &finished)?;
    align_clocks(session)?;
    match stop.heard()? {
        [_, failed] if failed > 0 => Err(TrainError::Other),
        [told, _] => Ok(RoundsEnd { stopped: told > 0, progress, tally: None }),
    }
}

/// How many ordinary examples a minibatch counts for.
pub(crate) fn weight_of(batch: &Minibatch) -> f64 {
    let sum = |importances: &[f32]| importances.iter().map(|importance| f64::from(*importance)).sum();
    batch.importances().map_or(batch.rows() as f64, sum)
}

/// Lets workers wait for each other between two passes over the data, in runs without a bound on
/// staleness. Without this, the fastest worker would finish all its passes early, and the last
/// updates would all come from the slowest worker's share.
///
/// A worker that has to stop says so before the barrier that ends its pass. Between that barrier
/// and the next one no worker says anything. So all workers read the same there, and agree on
/// whether more barriers follow.
struct Passes<'a> {
    session: &'a Session,
    stop: Stop,
    /// How many passes still end with a barrier.
    left: u32,
    /// How many passes have ended.
    ended: u32,
}

impl Passes<'_> {
    /// Ends the passes before this one, or all of them if a worker has to stop.
    fn reach(&mut self, pass: u32) -> Result<(), slackwater::Error> {
        while self.left > 0 && self.ended < pass {
            self.session.barrier()?;
            self.ended += 1;
            self.left = if self.stop.heard()? == [0, 0] { self.left - 1 } else { 0 };
            self.session.barrier()?;
        }
        Ok(())
    }

    /// Ends all passes.
    fn end(&mut self) -> Result<(), slackwater::Error> {
        self.reach(u32::MAX)
    }
}

/// How workers tell each other to stop: a table with one row of two counts, of the workers that
/// were told to stop and of those that failed.
#[derive(Clone)]
struct Stop {
    table: Table<i64>,
    /// When this worker last read the table.
    looked: Instant,
}

/// What a worker adds to the row if it is told to stop.
const TOLD: [i64; 2] = [1, 0];
/// What a worker adds to the row if it fails.
const FAILED: [i64; 2] = [0, 1];
/// A worker checks whether another has stopped at most this often.
const LOOK: Duration = Duration::from_millis(200);

impl Stop {
    fn new(session: &Session, number: u64) -> Result<Self, slackwater::Error> {
        let spec = TableSpec::dense(&format!(".stopped {number}"), 1, 2).number(slackwater::policy::NumberType::I64);
        let table = session.table(spec.consistency(Consistency::Unbounded))?;
        Ok(Self { table, looked: Instant::now() })
    }

    fn say(&self, word: [i64; 2]) -> Result<(), slackwater::Error> {
        self.table.push(&Keys::run(0..1), word.to_vec())?.wait()
    }

    fn heard(&self) -> Result<[i64; 2], slackwater::Error> {
        let rows = self.table.pull(&Keys::run(0..1))?.wait()?;
        Ok([rows.values()[0], rows.values()[1]])
    }

    /// Decides how this worker goes on after a clock, if its own wish is `go`.
    fn after(&mut self, go: Go) -> Result<Go, slackwater::Error> {
        if go != Go::On {
            self.say(TOLD)?;
        } else if self.looked.elapsed() > LOOK {
            self.looked = Instant::now();
            return Ok(if self.heard()? == [0, 0] { Go::On } else { Go::Stop });
        }
        Ok(go)
    }
}

/// Brings all workers to the clock of the one that is furthest ahead, so that none waits for
/// another in its next read.
fn align_clocks(session: &Session) -> Result<(), slackwater::Error> {
    let own = u64::from(session.rank());
    let workers = u64::from(session.size().workers);
    let spec = TableSpec::dense(&format!(".clocks {}", session.unique_number()), workers, 1)
        .number(slackwater::policy::NumberType::I64);
    let clocks = session.table::<i64>(spec.consistency(Consistency::Unbounded))?;
    clocks.push(&Keys::run(own..own + 1), vec![session.now().0 as i64])?.wait()?;
    session.barrier()?;
    let furthest = clocks.pull(&Keys::run(0..workers))?.wait()?.values().iter().copied().max().unwrap_or(0);
    while (session.now().0 as i64) < furthest {
        session.clock()?;
    }
    session.barrier()
}

/// The table that counts the workers that have learnt from all their minibatches.
fn finished(number: u64, consistency: Consistency) -> TableSpec {
    TableSpec::dense(&format!(".finished {number}"), 1, 1)
        .number(slackwater::policy::NumberType::I64)
        .consistency(consistency)
}

/// Ends clock after clock until every worker has finished. Others may have more minibatches, and
/// must not wait at the bound for a worker that has none left.
fn keep_time(session: &Session, finished: &Table<i64>) -> Result<(), slackwater::Error> {
    finished.push(&Keys::run(0..1), vec![1])?.wait()?;
    if finished.spec().consistency.bound().is_none() {
        return Ok(());
    }
    loop {
        session.clock()?;
        let rows = finished.pull(&Keys::run(0..1))?.wait()?;
        if rows.values()[0] >= i64::from(session.size().workers) {
            // Another worker may be waiting in a read for the end of this clock, or of the next.
            // Its read before that was one clock earlier, or two if it was for its last minibatch.
            // That read was answered when every worker was at most as many clocks short of what the
            // waiting read needs. So two more clocks are enough.
            session.clock()?;
            return session.clock();
        }
    }
}
