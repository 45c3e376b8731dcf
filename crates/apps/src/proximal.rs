//! ℓ1 logistic regression to the optimum: the delayed block proximal gradient method (Li et al.,
//! OSDI'14, algorithm 3).
//!
//! It finds the weights that minimise Σ loss + λ |w|₁, block by block:
//! 1. In each clock every worker takes the same block of features, and pushes its gradient and
//!    curvatures.
//! 2. The shards add up the pushes of all workers and make one proximal step
//!    (`UpdaterSpec::Proximal`).
//! 3. With slack s, the step of a block is sure to be made s + 1 clocks later. Then the worker
//!    reads the block's weights, and updates the scores of its rows. Without a bound, a worker
//!    reads the weights that are there, and goes on.
//!
//! A worker knows which steps are under way: pushed, but not read yet. Each of them was computed
//! without the others, and the curvatures allow for that. Let k run over all features of the blocks
//! under way, a block counting as often as it is under way. Then
//!
//!   u_j = Σ_i F(z_i) |x_ij| Σ_k |x_ik|
//!
//! bounds the joint effect of these steps, for any correlation of the features (diagonal
//! dominance).

mod blocks;
mod columns;
mod gap;
mod halt;
mod worker;

use crate::logistic::log_loss;
use crate::model::ModelTable;
use crate::shrink::shrunk;
use crate::train::{Go, TrainError};
use blocks::Take;
use columns::ExampleColumns;
use data::{DataError, DataReader};
use gap::Certificate;
pub use gap::Gap;
use halt::Halt;
use slackwater::policy::{Codecs, Combine, NumberType, Reduce};
use slackwater::{Consistency, Keys, Session, Table, TableSpec, UpdaterSpec};
use worker::ProximalWorker;

/// The settings of the method.
#[derive(Clone, Debug, PartialEq)]
pub struct Proximal {
    /// λ₁ in mean loss + λ₁ |w|₁.
    pub l1: f64,
    /// How many blocks the features are divided into.
    pub blocks: usize,
    /// How fresh the weights that a worker reads must be.
    pub consistency: Consistency,
    /// At most so many passes over all blocks.
    pub passes: u32,
    /// Training ends when the objective is within this share of the optimum.
    pub tolerance: f64,
    /// The codecs of its table. With `kkt`, most passes leave out weights that stay at zero.
    pub codecs: Codecs,
}

/// The objective and its gap to the optimum are computed after every so many passes. The last of
/// these passes takes all features.
const PASSES_BETWEEN_CHECKS: u32 = 10;
/// The first η. A step of up to twice the length that the bound gives cannot raise the objective.
/// If the objective rises even so, η is halved.
const RATE: f64 = 1.5;

impl Proximal {
    /// Whether a pass takes all features, including those that stay at zero for now.
    fn takes_all(&self, pass: u64) -> bool {
        (pass + 1).is_multiple_of(PASSES_BETWEEN_CHECKS.into()) || pass + 1 == u64::from(self.passes)
    }

    /// Refuses settings under which workers may disagree on the active set. A step needs the pushes
    /// of all workers for the same features. So when a block's turn comes again, all workers must
    /// have read the same of it: the result of its last step, and nothing later.
    fn check(&self) -> Result<(), TrainError> {
        let agree = self.consistency.bound().is_some_and(|slack| slack < self.blocks.max(1) as u64);
        if self.codecs.filters_by_kkt() && !agree {
            let problem = "`kkt` needs workers that agree on the active set: give a `slack` below the number of blocks";
            return Err(DataError::Setting { problem: problem.to_owned() }.into());
        }
        Ok(())
    }
}

/// What a worker reports after each check of the gap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProximalState {
    /// How many passes it has made.
    pub pass: u32,
    /// How many examples it has gone through since the last report.
    pub examples: u64,
    /// The summed loss of as many examples, under the current weights.
    pub loss: f64,
    /// The most clocks that it was ahead of the frontier that its reads reflect, since the last
    /// report.
    pub staleness: u64,
    /// How many reads were parked until another worker had ended its clock, since the last report.
    pub parked: u64,
    /// The objective, and its gap to the optimum.
    pub gap: Gap,
}

/// The weights of a table that this method has learnt, without zeros.
pub fn weights(table: &Table<f32>) -> Result<ModelTable, slackwater::Error> {
    let both = ModelTable::pull(table)?;
    let mut weights = ModelTable { width: 1, ..ModelTable::default() };
    for (key, row) in both.keys.iter().zip(both.values.chunks_exact(2)).filter(|(_, row)| row[0] != 0.0) {
        weights.keys.push(*key);
        weights.values.push(row[0]);
    }
    Ok(weights)
}

/// The result of [`train`].
pub struct Solved {
    /// The table that was learnt. A row is a weight and a zero.
    pub table: Table<f32>,
    /// The last computed gap between the objective and the optimum.
    pub gap: Gap,
    /// Whether a worker was told to stop before the gap was small enough.
    pub stopped: bool,
    /// How far this worker has read its data, in the one pass that it needs.
    pub progress: data::ReadProgress,
}

/// Runs one worker's part of the method.
///
/// `watch` is called after each clock, and with a report after each check. It may end the training
/// for all workers, after the same clock. A worker that is told to leave ends the training, too,
/// because no other worker has its share of the data.
pub fn train(
    session: &Session,
    proximal: &Proximal,
    reader: &DataReader,
    mut watch: impl FnMut(Option<ProximalState>) -> Go,
) -> Result<Solved, TrainError> {
    proximal.check()?;
    let mut watch = |state| {
        let go = watch(state);
        if session.is_draining() { Go::Leave } else { go }
    };
    let blocks = proximal.blocks.max(1);
    let (columns, progress) = ExampleColumns::read(reader, blocks)?;
    let examples = count_examples(session, columns.labels.len())?;
    let l1 = proximal.l1 * examples;
    let spec = TableSpec::sparse("proximal", 2)
        .consistency(proximal.consistency)
        .combine(Combine::Clock(Reduce::Sum))
        .updater(UpdaterSpec::Proximal { rate: RATE, l1 });
    let table = session.table::<f32>(shrunk(spec, &proximal.codecs))?;
    let mut worker = ProximalWorker::new(session, &columns, &table, blocks);
    let mut certificate = Certificate::new(session, &table, l1)?;
    let mut halt = Halt::new(session)?;
    let mut rate = RATE;
    let mut gap = Gap { objective: f64::INFINITY, bound: f64::NEG_INFINITY, examples };
    let all = u64::from(proximal.passes) * blocks as u64;
    let between = u64::from(PASSES_BETWEEN_CHECKS) * blocks as u64;
    let mut clock = 0;
    let mut checked = 0;
    let mut stopped = false;
    while clock < all && !stopped {
        loop {
            halt.begin()?;
            let take = if proximal.takes_all(clock / blocks as u64) { Take::All } else { Take::Active };
            worker.step((clock % blocks as u64) as usize, take)?;
            session.clock()?;
            clock += 1;
            if clock == all || clock.is_multiple_of(between) || halt.after(watch(None))? != Go::On {
                break;
            }
        }
        worker.settle()?;
        // All workers are at this clock, and none says anything before the next barrier.
        session.barrier()?;
        stopped = halt.is_told()?;
        let before = std::mem::replace(&mut gap, certificate.check(session, &columns, &worker.scores, examples)?);
        if gap.objective > before.objective {
            rate /= 2.0;
            if session.rank() == 0 {
                table.set_rate(rate)?.wait()?;
            }
        }
        let rows = columns.labels.len() as u64;
        let seen = |clocks: u64| (u128::from(clocks) * u128::from(rows) / blocks as u128) as u64;
        let own: f64 = worker.scores.iter().zip(&columns.labels).map(|(z, y)| log_loss(*z, *y)).sum();
        let state = ProximalState {
            pass: clock.div_ceil(blocks as u64) as u32,
            examples: seen(clock) - seen(checked),
            loss: own * (clock - checked) as f64 / blocks as f64,
            staleness: std::mem::take(&mut worker.staleness),
            parked: std::mem::take(&mut worker.parked),
            gap,
        };
        checked = clock;
        if watch(Some(state)) != Go::On {
            halt.tell()?;
        }
        // All workers have the same gap, so all of them end here.
        if gap.relative() <= proximal.tolerance {
            break;
        }
    }
    session.barrier()?;
    Ok(Solved { table, gap, stopped, progress })
}

/// How many examples all workers have together.
fn count_examples(session: &Session, own: usize) -> Result<f64, slackwater::Error> {
    let table = session.table::<i64>(
        TableSpec::dense(&format!(".examples {}", session.unique_number()), 1, 1).number(NumberType::I64),
    )?;
    table.push(&Keys::run(0..1), vec![own as i64])?.wait()?;
    session.barrier()?;
    Ok(table.pull(&Keys::run(0..1))?.wait()?.values()[0] as f64)
}
