//! ℓ1 logistic regression to the optimum: the delayed block proximal gradient method (Li et al., OSDI'14, algorithm 3).
//!
//! The weights that minimise Σ loss + λ |w|₁ are sought block by block. In each clock every worker takes the same block of
//! features and pushes its gradient and curvatures; the shards add up what all workers say and make one proximal step
//! (`UpdaterSpec::Proximal`). With slack s the step of a block is sure to be there s + 1 clocks later: then its weights are
//! read, and the scores of the worker's rows brought up to date with them. So the steps of s + 1 blocks are under way at
//! once, made without knowing of each other. The curvatures allow for that:
//!
//!   u_j = Σ_i F(z_i) |x_ij| Σ_k |x_ik|   over all k of the last s + 1 blocks
//!
//! bounds what they can do together, whatever the features have in common: the diagonal dominates.

mod columns;
mod gap;

use crate::logistic::log_loss;
use crate::model::ModelTable;
use crate::train::{Go, TrainError};
use columns::Columns;
use data::Reader;
use gap::Certificate;
pub use gap::Gap;
use slackwater::{Combine, Consistency, Keys, NumberType, Reduce, Session, Table, TableSpec, Tickets, UpdaterSpec};

/// What the method has to be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Proximal {
    /// λ₁ of mean loss + λ₁ |w|₁.
    pub l1: f64,
    /// Blocks of features.
    pub blocks: usize,
    /// Clocks that a worker may be ahead of the slowest; a whole pass at most, so that no step is made twice.
    pub slack: u64,
    /// Passes over all blocks at most.
    pub passes: u32,
    /// Ends when the objective is within this share of the optimum.
    pub tolerance: f64,
}

/// The objective and its distance from the optimum are computed after so many passes.
const PASSES_BETWEEN_CHECKS: u32 = 10;
/// How far a score is thought to move in a step: the curvature is the greatest within that distance.
const REACH: f64 = 0.5;
/// η at first. A step twice as long as the bound allows would still not climb; where one does, the next are half as long.
const RATE: f64 = 1.5;

/// F(z): the greatest curvature of the logistic loss within `REACH` of a score.
fn curvature(score: f64) -> f64 {
    let beyond = score.abs() - REACH;
    if beyond <= 0.0 { 0.25 } else { 1.0 / (2.0 + beyond.exp() + (-beyond).exp()) }
}

/// How a worker stands after some passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// How many passes are behind it.
    pub pass: u32,
    /// How many of its examples it has gone through since the last time.
    pub examples: u64,
    /// The summed loss of as many examples, under the weights at hand.
    pub loss: f64,
    /// The most clocks that it was ahead of what it read, since the last time.
    pub staleness: u64,
    /// Reads that were held back until another worker had ended its clock, since the last time.
    pub parked: u64,
    /// The objective, and how far it is from the optimum.
    pub gap: Gap,
}

/// The weights of a table that this method has learnt, without those that are zero.
pub fn weights(table: &Table<f32>) -> Result<ModelTable, slackwater::Error> {
    let both = ModelTable::pull(table)?;
    let mut weights = ModelTable { width: 1, ..ModelTable::default() };
    for (key, row) in both.keys.iter().zip(both.values.chunks_exact(2)).filter(|(_, row)| row[0] != 0.0) {
        weights.keys.push(*key);
        weights.values.push(row[0]);
    }
    Ok(weights)
}

/// What a worker comes back with.
pub struct Solved {
    /// Rows are a weight and the gradient it last met.
    pub table: Table<f32>,
    /// How far the objective is from the optimum.
    pub gap: Gap,
    /// Whether some worker was told to stop before that was near enough.
    pub stopped: bool,
    /// How much this worker has read, in the one pass that it needs.
    pub progress: data::Progress,
}

/// One worker's part. `watch` is called after each pass, with how the worker stands where that was computed, and may end it
/// for all workers alike.
pub fn train(
    session: &Session,
    proximal: &Proximal,
    reader: &Reader,
    mut watch: impl FnMut(Option<State>) -> Go,
) -> Result<Solved, TrainError> {
    let blocks = proximal.blocks.max(1);
    let (columns, progress) = Columns::read(reader, blocks)?;
    let examples = count_examples(session, columns.labels.len())?;
    let slack = proximal.slack.min(blocks as u64 - 1);
    let l1 = proximal.l1 * examples;
    let spec = TableSpec::sparse("proximal", 2)
        .consistency(Consistency::slack(slack))
        .combine(Combine::Clock(Reduce::Sum))
        .updater(UpdaterSpec::Proximal { rate: RATE, l1 });
    let table = session.table::<f32>(spec)?;
    let mut worker = Worker::new(&columns, &table, blocks, slack as usize + 1);
    let mut certificate = Certificate::new(session, &table, l1)?;
    let stop = Stop::new(session, slack)?;
    let (mut rate, mut last, mut go, mut stopped) = (RATE, 0, Go::On, false);
    let mut gap = Gap { objective: f64::INFINITY, bound: f64::NEG_INFINITY, examples };
    for pass in 0..proximal.passes {
        stop.tell(pass, go)?;
        for block in 0..blocks {
            worker.read(worker.before(block))?;
            worker.step(block)?;
            session.clock()?;
        }
        stopped = stop.is_told(pass)?;
        if stopped || (pass + 1).is_multiple_of(PASSES_BETWEEN_CHECKS) || pass + 1 == proximal.passes {
            // Once these clocks have ended, a read holds every step that was made.
            for _ in 0..=slack {
                session.clock()?;
            }
            worker.catch_up()?;
            let before = std::mem::replace(&mut gap, certificate.check(session, &columns, &worker.scores, examples)?);
            if gap.objective > before.objective {
                rate /= 2.0;
                if session.rank() == 0 {
                    table.set_rate(rate)?.wait()?;
                }
            }
            let passes = u64::from(pass + 1 - last);
            last = pass + 1;
            let own: f64 = worker.scores.iter().zip(&columns.labels).map(|(z, y)| log_loss(*z, *y)).sum();
            let examples = passes * columns.labels.len() as u64;
            let (staleness, parked) = (std::mem::take(&mut worker.staleness), std::mem::take(&mut worker.parked));
            go = watch(Some(State { pass: pass + 1, examples, loss: own * passes as f64, staleness, parked, gap }));
            // Everybody knows the same, so everybody ends alike.
            if stopped || gap.relative() <= proximal.tolerance {
                break;
            }
        } else {
            go = watch(None);
        }
    }
    session.barrier()?;
    Ok(Solved { table, gap, stopped, progress })
}

/// How workers tell each other to stop: a row for each pass, of how many were told to before it.
struct Stop(Table<i64>);

impl Stop {
    fn new(session: &Session, slack: u64) -> Result<Self, slackwater::Error> {
        let spec = TableSpec::sparse(&format!("proximal stop {}", session.turn()), 1).number(NumberType::I64);
        Ok(Self(session.table(spec.consistency(Consistency::slack(slack)))?))
    }

    /// Before the first clock of a pass.
    fn tell(&self, pass: u32, go: Go) -> Result<(), slackwater::Error> {
        if go == Go::Stop {
            self.0.push(&self.0.keys(&[pass.into()]), vec![1])?.wait()?;
        }
        Ok(())
    }

    /// After the last clock of a pass, which is more than `slack` clocks after the first: everybody reads the same.
    fn is_told(&self, pass: u32) -> Result<bool, slackwater::Error> {
        Ok(self.0.pull(&self.0.keys(&[pass.into()]))?.wait()?.values()[0] > 0)
    }
}

/// How many examples all workers have together.
fn count_examples(session: &Session, own: usize) -> Result<f64, slackwater::Error> {
    let table = session
        .table::<i64>(TableSpec::dense(&format!("examples {}", session.turn()), 1, 1).number(NumberType::I64))?;
    table.push_range(0..1, vec![own as i64])?.wait()?;
    session.barrier()?;
    Ok(table.pull_range(0..1)?.wait()?.values()[0] as f64)
}

/// What a worker knows: its rows' scores under the weights as it last read them.
struct Worker<'a> {
    columns: &'a Columns,
    table: &'a Table<f32>,
    /// Of each block: its keys in the table's order, and the column of each.
    keys: Vec<(Keys, Vec<usize>)>,
    /// Of each column, as last read.
    weights: Vec<f32>,
    /// Of each row: Σ w x.
    scores: Vec<f64>,
    /// Of each row: the derivative of its loss by its score, and F of it.
    slopes: Vec<[f32; 2]>,
    /// Rows whose score has changed since that was computed, and whether each row is one of them.
    changed: Vec<u32>,
    is_changed: Vec<bool>,
    /// Of each row: Σ |x| over the blocks that are under way together.
    loads: Vec<f32>,
    together: usize,
    /// Whether `loads` holds a whole window.
    loaded: bool,
    /// Since the last check: the most clocks that a read was behind, and how many were held back.
    staleness: u64,
    parked: u64,
}

impl<'a> Worker<'a> {
    fn new(columns: &'a Columns, table: &'a Table<f32>, blocks: usize, together: usize) -> Self {
        let keys_of = |block: usize| {
            let span = columns.block(block);
            let keys = table.keys(&columns.keys[span.clone()]);
            let column = |key: u64| span.start + columns.keys[span.clone()].partition_point(|other| *other < key);
            let order = keys.ids().map(column).collect();
            (keys, order)
        };
        let rows = columns.labels.len();
        let mut worker = Self {
            columns,
            table,
            keys: (0..blocks).map(keys_of).collect(),
            weights: vec![0.0; columns.keys.len()],
            scores: vec![0.0; rows],
            slopes: vec![[0.0; 2]; rows],
            changed: (0..rows as u32).collect(),
            is_changed: vec![true; rows],
            loads: vec![0.0; rows],
            together: together.min(blocks),
            loaded: false,
            staleness: 0,
            parked: 0,
        };
        worker.find_slopes();
        worker
    }

    /// Computes the slopes of rows whose scores have changed.
    fn find_slopes(&mut self) {
        for row in self.changed.drain(..).map(|row| row as usize) {
            let (label, score) = (f64::from(self.columns.labels[row]), self.scores[row]);
            self.slopes[row] = [(-label / (1.0 + (label * score).exp())) as f32, curvature(score) as f32];
            self.is_changed[row] = false;
        }
    }

    /// The block whose step is sure to be made when `block` is taken, and was not sure before.
    fn before(&self, block: usize) -> usize {
        (block + self.keys.len() - self.together) % self.keys.len()
    }

    /// Pushes a block's gradient and curvatures.
    fn step(&mut self, block: usize) -> Result<(), slackwater::Error> {
        self.load(block);
        let (keys, order) = &self.keys[block];
        let mut pushed = Vec::with_capacity(2 * order.len());
        for &column in order {
            let (mut gradient, mut bound) = (0.0, 0.0);
            for (row, value) in self.columns.column(column) {
                let [slope, curvature] = self.slopes[row];
                gradient += f64::from(slope * value);
                bound += f64::from(curvature * value.abs() * self.loads[row]);
            }
            pushed.extend([gradient as f32, bound as f32]);
        }
        let examples = if block == 0 { self.columns.labels.len() as u64 } else { 0 };
        // Refused pushes are told by the end of the clock.
        drop(self.table.push_after(keys, pushed, examples, &Tickets::none())?);
        Ok(())
    }

    /// Brings the scores up to date with a block's weights.
    fn read(&mut self, block: usize) -> Result<(), slackwater::Error> {
        let (keys, order) = &self.keys[block];
        let rows = self.table.pull(keys)?.wait()?;
        self.staleness = self.staleness.max(rows.staleness());
        self.parked += u64::from(rows.waited_for().is_some());
        for (&column, row) in order.iter().zip(rows.values().chunks_exact(2)) {
            let change = f64::from(row[0]) - f64::from(self.weights[column]);
            if change != 0.0 {
                self.weights[column] = row[0];
                for (row, value) in self.columns.column(column) {
                    self.scores[row] += change * f64::from(value);
                    if !std::mem::replace(&mut self.is_changed[row], true) {
                        self.changed.push(row as u32);
                    }
                }
            }
        }
        self.find_slopes();
        Ok(())
    }

    /// Reads all blocks.
    fn catch_up(&mut self) -> Result<(), slackwater::Error> {
        (0..self.keys.len()).try_for_each(|block| self.read(block))
    }

    /// Lets the window of blocks that are under way together end with `block`.
    fn load(&mut self, block: usize) {
        let blocks = self.keys.len();
        if self.together == blocks && self.loaded {
            return;
        }
        // Anew once a pass: adding and taking away would let errors of rounding grow.
        if block == 0 || !self.loaded {
            self.loads.fill(0.0);
            (0..self.together).for_each(|back| self.add_load((block + blocks - back) % blocks, 1.0));
            self.loaded = true;
        } else {
            self.add_load(block, 1.0);
            self.add_load(self.before(block), -1.0);
        }
    }

    fn add_load(&mut self, block: usize, sign: f32) {
        for column in self.columns.block(block) {
            for (row, value) in self.columns.column(column) {
                self.loads[row] += sign * value.abs();
            }
        }
    }
}
