//! The rounds that workers make together: read a minibatch, learn from it, end the clock; and how
//! they come to an end, all alike, whoever was told to stop or could not go on.

use crate::leased::{Leased, make_leased_rounds};
use crate::tally::Tally;
use data::{DataError, DataReader, Loan, Minibatch};
use slackwater::data_leases::DataLease;
use slackwater::{Consistency, Keys, Session, Table, TableSpec};
use std::time::{Duration, Instant};

/// Why a worker stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// Its data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The cluster is gone, or refuses.
    #[error(transparent)]
    Cluster(#[from] slackwater::Error),
    /// A row has a feature for which there is no input. Say that there are more, or leave the
    /// feature out.
    #[error("a row has a feature with key {key}, and there are {inputs} inputs, for keys below that")]
    Unfit {
        /// The key.
        key: u64,
        /// How many inputs there are.
        inputs: usize,
    },
    /// It was told to leave, and the others go on without it.
    #[error("this worker was told to leave, and the others go on without it")]
    Left,
    /// Another worker cannot go on, and says why.
    #[error("another worker could not go on, and says why")]
    Other,
}

/// What a worker has just learnt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learnt {
    /// The pass over the data, from 0.
    pub epoch: u32,
    /// Examples of the minibatch.
    pub examples: u64,
    /// How many ordinary examples they count for: the loss is a sum over as many.
    pub weight: f64,
    /// Their summed loss under the weights that were pulled, before they were learnt from.
    pub loss: f64,
    /// How many clocks the worker was ahead of what it read.
    pub staleness: u64,
    /// Reads of weights that were held back until another worker had ended its clock.
    pub parked: u64,
    /// How far the reading of the data has come.
    pub progress: data::ReadProgress,
    /// Which share of the whole training was begun before this, where data is leased: by all
    /// workers together.
    pub share: Option<f64>,
}

/// What a worker learns from.
#[derive(Clone, Copy)]
pub enum Data<'a> {
    /// A share that is its own. All workers must be there from the beginning to the end.
    Share(&'a DataReader),
    /// What it is granted, range by range. Workers may come and go.
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
    /// How it is read.
    #[must_use]
    pub fn settings(&self) -> &data::ReaderSettings {
        match self {
            Self::Share(reader) => reader.settings(),
            Self::Leased(leased) => leased.settings(),
        }
    }
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    /// With the next minibatch.
    On,
    /// No further, for all workers: what has been learnt is kept.
    Stop,
    /// No further, for this worker: it fails with [`TrainError::Left`], and when its session is
    /// closed others learn what it has left of leased data. Where each worker has a share, it is
    /// the same as to stop.
    Leave,
}

/// What a worker has learnt from one minibatch, as its program sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lesson {
    /// The examples' summed loss under the weights that were pulled, before they were learnt from.
    pub loss: f64,
    /// How many clocks the worker was ahead of what it read.
    pub staleness: u64,
    /// Reads of weights that were held back until another worker had ended its clock.
    pub parked: u64,
}

/// How the rounds have ended.
pub struct RoundsEnd {
    /// Whether some worker was told to stop before it had learnt from all its minibatches.
    pub stopped: bool,
    /// How far this worker's reading has come.
    pub progress: data::ReadProgress,
    /// What all workers have learnt from, where data is leased.
    pub tally: Option<Tally>,
}

/// One worker's rounds: all minibatches of `data`, each prepared in the reader's thread, and learnt
/// from by `learn`, which pulls and pushes, for a lease if the data is leased; the clock ends after
/// each. Returns when every worker is through. `watch` is told of each minibatch, and may end it
/// early, for all workers alike. If one cannot go on with its share, none does.
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
            let (epoch, examples, progress) = (batch.epoch(), batch.rows() as u64, batches.progress());
            let (weight, share) = (weight_of(&batch), None);
            let learnt = Learnt { epoch, examples, weight, loss, staleness, parked, progress, share };
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
            // Others must not wait for this worker, nor take what they learn for the whole. If this
            // fails, too, the run is lost, as they will see.
            let told = stop.say(FAILED).and_then(|()| passes.end());
            told.and_then(|()| keep_time(session, &finished)).and_then(|()| coordinator_address(session)).ok();
            return Err(error);
        }
    };
    passes.end()?;
    keep_time(session, &finished)?;
    coordinator_address(session)?;
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

/// Workers without a bound wait for each other between two passes over the data. Otherwise the
/// fastest would be through with all its passes early, and the last to learn would be the slowest
/// one's share alone.
///
/// Whoever has to stop says so before the barrier that ends its pass. Between it and the next one
/// nobody says anything, so everybody hears the same there, and comes to further barriers or not.
struct Passes<'a> {
    session: &'a Session,
    stop: Stop,
    /// How many barriers are to come.
    left: u32,
    ended: u32,
}

impl Passes<'_> {
    /// Ends as many passes as come before this one, or all of them if somebody has to stop.
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

/// How workers tell each other to stop: a row of two counts, of those that were told to and of
/// those that had to.
#[derive(Clone)]
struct Stop {
    table: Table<i64>,
    looked: Instant,
}

const TOLD: [i64; 2] = [1, 0];
const FAILED: [i64; 2] = [0, 1];
/// How often a worker looks whether another has stopped.
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

    /// What is to be done after a clock, if this worker itself would do as `go` says.
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

/// Brings all workers to the clock of the one that is furthest: then whatever one of them reads
/// next, it waits for none.
fn coordinator_address(session: &Session) -> Result<(), slackwater::Error> {
    let (own, workers) = (u64::from(session.rank()), u64::from(session.size().workers));
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

/// How many workers have learnt from all their minibatches.
fn finished(number: u64, consistency: Consistency) -> TableSpec {
    TableSpec::dense(&format!(".finished {number}"), 1, 1)
        .number(slackwater::policy::NumberType::I64)
        .consistency(consistency)
}

/// Ends clock after clock until everybody has finished: others may have more minibatches, and must
/// not wait at the bound for a worker that has none.
fn keep_time(session: &Session, finished: &Table<i64>) -> Result<(), slackwater::Error> {
    finished.push(&Keys::run(0..1), vec![1])?.wait()?;
    if finished.spec().consistency.bound().is_none() {
        return Ok(());
    }
    loop {
        session.clock()?;
        let rows = finished.pull(&Keys::run(0..1))?.wait()?;
        if rows.values()[0] >= i64::from(session.size().workers) {
            // Somebody may stand at a read that waits for the end of this clock, or of the next:
            // its last read, a clock before or, if that was of its last minibatch, two, was
            // answered when everybody was at most as many clocks short of what this one needs.
            session.clock()?;
            return session.clock();
        }
    }
}
