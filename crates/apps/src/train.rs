//! The loop that every program shares: read a minibatch, pull its weights, learn, push, end the clock.

use crate::gather::{Gather, Gathered};
use crate::program::{Program, Weights};
use crate::scaling::Scaling;
use data::{DataError, Reader};
use slackwater::{Consistency, Initial, Session, Table, TableSpec, UpdaterSpec};
use std::time::{Duration, Instant};

/// How weights follow gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// FTRL-proximal: the one for ℓ1. Learns from sums over the minibatch.
    Ftrl {
        /// α
        rate: f64,
        /// β
        beta: f64,
    },
    /// Steps that shrink with the gradients a weight has seen. Learns from means over the minibatch, as the next two do.
    Adagrad {
        /// η
        rate: f64,
    },
    /// Steps along running means.
    Adam {
        /// η
        rate: f64,
    },
    /// Plain steps.
    Sgd {
        /// η
        rate: f64,
    },
}

/// What all programs have to be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// How weights follow gradients.
    pub rule: Rule,
    /// λ₁ of mean loss + λ₁ |w| + λ₂ w²/2, for ftrl alone. λ₂ is said by the program, for each of its tables: ftrl applies it
    /// exactly, the others to the features that a minibatch has.
    pub l1: f64,
    /// How fresh weights must be.
    pub consistency: Consistency,
    /// Whether there is a constant term.
    pub bias: bool,
}

/// Why a worker stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// Its data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The cluster is gone, or refuses.
    #[error(transparent)]
    Cluster(#[from] slackwater::Error),
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
    /// Their summed loss under the weights that were pulled, before they were learnt from.
    pub loss: f64,
    /// How many clocks the worker was ahead of what it read.
    pub staleness: u64,
    /// Reads of weights that were held back until another worker had ended its clock.
    pub parked: u64,
    /// How far the reading of the data has come.
    pub progress: data::Progress,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    /// With the next minibatch.
    On,
    /// No further: what has been learnt is kept.
    Stop,
}

impl Training {
    /// The spec of one of a program's tables.
    #[must_use]
    pub fn spec(&self, weights: &Weights) -> TableSpec {
        let adagrad = |rate| UpdaterSpec::Adagrad { rate, epsilon: 1e-8 };
        let updater = match self.rule {
            // Its weights are computed from sums of gradients, so they cannot start from anything but zero.
            Rule::Ftrl { rate, .. } if weights.initial != Initial::Zero => adagrad(rate),
            Rule::Ftrl { rate, beta } => UpdaterSpec::Ftrl { rate, beta, l1: self.l1, l2: weights.l2 },
            Rule::Adagrad { rate } => adagrad(rate),
            Rule::Adam { rate } => UpdaterSpec::Adam { rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
            Rule::Sgd { rate } => UpdaterSpec::Sgd { rate },
        };
        let spec = TableSpec::sparse(weights.name, weights.width).initial(weights.initial);
        spec.consistency(self.consistency).updater(updater)
    }

    /// Makes a program's tables, or finds them where another worker has made them.
    pub fn tables(&self, session: &Session, program: &dyn Program) -> Result<Vec<Table<f32>>, slackwater::Error> {
        program.tables().iter().map(|weights| session.table(self.spec(weights))).collect()
    }
}

/// What a worker comes back with.
pub struct Trained {
    /// The program's tables.
    pub tables: Vec<Table<f32>>,
    /// Whether some worker was told to stop before it had learnt from all its minibatches.
    pub stopped: bool,
    /// How far this worker's reading has come.
    pub progress: data::Progress,
}

/// One worker's part of the training: learns from all minibatches of `reader`, on a scale if there is one, and
/// returns when every worker has. `watch` is told of each, and may end it early, for all workers
/// alike. If one cannot go on, none does.
pub fn train(
    session: &Session,
    program: &dyn Program,
    training: &Training,
    scaling: Option<&Scaling>,
    reader: &Reader,
    mut watch: impl FnMut(Learnt) -> Go,
) -> Result<Trained, TrainError> {
    let tables = training.tables(session, program)?;
    let turn = session.turn();
    let finished = session.table::<i64>(finished(turn, training.consistency))?;
    let mut stop = Stop::new(session, turn)?;
    let paced = training.consistency.bound().is_none();
    let mut passes =
        Passes { session, stop: stop.clone(), left: if paced { reader.settings().epochs } else { 0 }, ended: 0 };
    let learner = Learner { session, program, training, scaling, tables: &tables };
    let learnt = learner.learn(reader, &mut passes, |learnt| stop.after(watch(learnt)));
    let progress = match learnt {
        Ok(progress) => progress,
        Err(error) => {
            // Others must not wait for this worker, nor take what they learn for the whole. If this fails, too, the run is
            // lost, as they will see.
            let told = stop.say(FAILED).and_then(|()| passes.end());
            told.and_then(|()| keep_time(session, &finished)).and_then(|()| meet(session)).ok();
            return Err(error);
        }
    };
    passes.end()?;
    keep_time(session, &finished)?;
    meet(session)?;
    match stop.heard()? {
        [_, failed] if failed > 0 => Err(TrainError::Other),
        [told, _] => Ok(Trained { tables, stopped: told > 0, progress }),
    }
}

/// Workers without a bound wait for each other between two passes over the data. Otherwise the fastest would be through with
/// all its passes early, and the last to learn would be the slowest one's share alone.
///
/// Whoever has to stop says so before the barrier that ends its pass. Between it and the next one nobody says anything, so
/// everybody hears the same there, and comes to further barriers or not.
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

struct Learner<'a> {
    session: &'a Session,
    program: &'a dyn Program,
    training: &'a Training,
    scaling: Option<&'a Scaling>,
    tables: &'a [Table<f32>],
}

impl Learner<'_> {
    fn learn(
        &self,
        reader: &Reader,
        passes: &mut Passes<'_>,
        mut watch: impl FnMut(Learnt) -> Result<Go, slackwater::Error>,
    ) -> Result<data::Progress, TrainError> {
        let Self { session, program, training, scaling, tables } = *self;
        let shapes = program.tables();
        let mut gather = Gather::new(tables[0].spec().shape.placement(), training.bias, scaling);
        let mut weights: Vec<Vec<f32>> = vec![Vec::new(); tables.len()];
        let mut gradients: Vec<Vec<f32>> = vec![Vec::new(); tables.len()];
        let mut batches = reader.prepared(move |batch, gathered: &mut Gathered| gather.gather(batch, gathered))?;
        while let Some(batch) = batches.next() {
            let batch = batch?;
            passes.reach(batch.epoch())?;
            let examples = batch.prepared().examples(&batch);
            let count = examples.len() as u64;
            let mut pulls = Vec::new();
            for ((table, weights), shape) in tables.iter().zip(&mut weights).zip(&shapes) {
                weights.resize(examples.keys.len() * shape.width as usize, 0.0);
                let target = std::mem::take(weights);
                pulls.push(table.pull_into(examples.keys, target, &slackwater::Tickets::none())?);
            }
            let (mut staleness, mut parked) = (0, 0);
            for (pull, weights) in pulls.into_iter().zip(&mut weights) {
                let rows = pull.wait()?;
                staleness = staleness.max(rows.staleness());
                parked += u64::from(rows.waited_for().is_some());
                *weights = rows.into_values();
            }
            for (gradients, weights) in gradients.iter_mut().zip(&weights) {
                gradients.clear();
                gradients.resize(weights.len(), 0.0);
            }
            let views: Vec<&[f32]> = weights.iter().map(Vec::as_slice).collect();
            let loss = program.learn(&examples, &views, &mut gradients);
            for (((table, gradients), weights), shape) in tables.iter().zip(&mut gradients).zip(&weights).zip(&shapes) {
                if !matches!(table.spec().updater, UpdaterSpec::Ftrl { .. }) {
                    let (share, l2) = (1.0 / count as f32, shape.l2 as f32);
                    gradients.iter_mut().zip(weights).for_each(|(gradient, w)| *gradient = *gradient * share + l2 * w);
                }
                // A refused push is told by the end of the clock.
                drop(table.push_after(examples.keys, gradients.as_slice(), count, &slackwater::Tickets::none())?);
            }
            session.clock()?;
            let progress = batches.progress();
            if watch(Learnt { epoch: batch.epoch(), examples: count, loss, staleness, parked, progress })? == Go::Stop {
                break;
            }
        }
        Ok(batches.progress())
    }
}

/// How workers tell each other to stop: a row of two counts, of those that were told to and of those that had to.
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
    fn new(session: &Session, turn: u64) -> Result<Self, slackwater::Error> {
        let spec = TableSpec::dense(&format!("stopped {turn}"), 1, 2).number(slackwater::NumberType::I64);
        let table = session.table(spec.consistency(Consistency::Unbounded))?;
        Ok(Self { table, looked: Instant::now() })
    }

    fn say(&self, word: [i64; 2]) -> Result<(), slackwater::Error> {
        self.table.push_range(0..1, word.to_vec())?.wait()
    }

    fn heard(&self) -> Result<[i64; 2], slackwater::Error> {
        let rows = self.table.pull_range(0..1)?.wait()?;
        Ok([rows.values()[0], rows.values()[1]])
    }

    /// What is to be done after a clock, if this worker itself would do as `go` says.
    fn after(&mut self, go: Go) -> Result<Go, slackwater::Error> {
        if go == Go::Stop {
            self.say(TOLD)?;
        } else if self.looked.elapsed() > LOOK {
            self.looked = Instant::now();
            return Ok(if self.heard()? == [0, 0] { Go::On } else { Go::Stop });
        }
        Ok(go)
    }
}

/// Brings all workers to the clock of the one that is furthest: then whatever one of them reads next, it waits for none.
fn meet(session: &Session) -> Result<(), slackwater::Error> {
    let (own, workers) = (u64::from(session.rank()), u64::from(session.shape().workers));
    let spec = TableSpec::dense(&format!("clocks {}", session.turn()), workers, 1).number(slackwater::NumberType::I64);
    let clocks = session.table::<i64>(spec.consistency(Consistency::Unbounded))?;
    clocks.push_range(own..own + 1, vec![session.now().0 as i64])?.wait()?;
    session.barrier()?;
    let furthest = clocks.pull_range(0..workers)?.wait()?.values().iter().copied().max().unwrap_or(0);
    while (session.now().0 as i64) < furthest {
        session.clock()?;
    }
    session.barrier()
}

/// How many workers have learnt from all their minibatches.
fn finished(turn: u64, consistency: Consistency) -> TableSpec {
    TableSpec::dense(&format!("finished {turn}"), 1, 1).number(slackwater::NumberType::I64).consistency(consistency)
}

/// Ends clock after clock until everybody has finished: others may have more minibatches, and must not wait at the bound for
/// a worker that has none.
fn keep_time(session: &Session, finished: &Table<i64>) -> Result<(), slackwater::Error> {
    finished.push_range(0..1, vec![1])?.wait()?;
    if finished.spec().consistency.bound().is_none() {
        return Ok(());
    }
    loop {
        session.clock()?;
        let rows = finished.pull_range(0..1)?.wait()?;
        if rows.values()[0] >= i64::from(session.shape().workers) {
            // Somebody may stand one clock further, at a read that waits for the end of this one: its last read, a clock
            // before, was answered when everybody was at most a clock short of what this one needs.
            return session.clock();
        }
    }
}
