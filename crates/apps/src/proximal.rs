//! ℓ1 logistic regression to the optimum: the delayed block proximal gradient method (Li et al.,
//! OSDI'14, algorithm 3).
//!
//! The weights that minimise Σ loss + λ |w|₁ are sought block by block. In each clock every worker
//! takes the same block of features and pushes its gradient and curvatures; the shards add up what
//! all workers say and make one proximal step (`UpdaterSpec::Proximal`). With slack s the step of a
//! block is sure to be there s + 1 clocks later: then its weights are read, and the scores of the
//! worker's rows brought up to date with them. Asynchronously a worker reads what happens to be
//! there, and goes on. Either way it knows which steps are under way, made without knowing of each
//! other, and the curvatures allow for that:
//!
//!   u_j = Σ_i F(z_i) |x_ij| Σ_k |x_ik|, over all k of the blocks under way, each as often as it is
//!
//! bounds what they can do together, whatever the features have in common: the diagonal dominates.

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

/// What the method has to be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Proximal {
    /// λ₁ of mean loss + λ₁ |w|₁.
    pub l1: f64,
    /// Blocks of features.
    pub blocks: usize,
    /// How fresh weights must be.
    pub consistency: Consistency,
    /// Passes over all blocks at most.
    pub passes: u32,
    /// Ends when the objective is within this share of the optimum.
    pub tolerance: f64,
    /// What shrinks the messages of its table. With `kkt` most passes leave out weights that stay
    /// at zero.
    pub codecs: Codecs,
}

/// The objective and its distance from the optimum are computed after so many passes. The last of
/// them takes all features.
const PASSES_BETWEEN_CHECKS: u32 = 10;
/// η at first. A step twice as long as the bound allows would still not climb; where one does, the
/// next are half as long.
const RATE: f64 = 1.5;

impl Proximal {
    /// Whether a pass takes all features, those too that stay at zero for now.
    fn takes_all(&self, pass: u64) -> bool {
        (pass + 1).is_multiple_of(PASSES_BETWEEN_CHECKS.into()) || pass + 1 == u64::from(self.passes)
    }

    /// A step is made with what all workers say of the same features. So they must all have heard
    /// the same of a block when its turn comes again: what its last step came to, and nothing
    /// later.
    fn check(&self) -> Result<(), TrainError> {
        let agree = self.consistency.bound().is_some_and(|slack| slack < self.blocks.max(1) as u64);
        if self.codecs.filters_by_kkt() && !agree {
            let problem =
                "`kkt` needs workers that agree on what is left out: give a `slack` below the number of blocks";
            return Err(DataError::Setting { problem: problem.to_owned() }.into());
        }
        Ok(())
    }
}

/// How a worker stands after some passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProximalState {
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
    /// Rows are a weight and a zero.
    pub table: Table<f32>,
    /// How far the objective is from the optimum.
    pub gap: Gap,
    /// Whether some worker was told to stop before that was near enough.
    pub stopped: bool,
    /// How much this worker has read, in the one pass that it needs.
    pub progress: data::ReadProgress,
}

/// One worker's part. `watch` is called after each clock, with how the worker stands where that was
/// computed, and may end it for all workers alike, after the same clock. So does a worker that is
/// told to leave: nobody else has its share of the data.
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
    let (all, between) = (u64::from(proximal.passes) * blocks as u64, u64::from(PASSES_BETWEEN_CHECKS) * blocks as u64);
    let (mut clock, mut checked, mut stopped) = (0, 0, false);
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
        // Everybody stands at this clock, and nobody says anything before the next barrier.
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
        // Everybody knows the same, so everybody ends alike.
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
