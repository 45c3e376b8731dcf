//! Programs of workers: the list of steps that a program can take, and random programs.

use crate::random::Xoshiro256;
use types::{Bandwidth, Consistency, RunSize, Span, TableSpec};
use wire::FeedCursor;

/// A table of the cluster: its index in the order in which tables were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableIndex(pub usize);

/// The numbers of a push.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// The worker's n-th push to a row adds 4ⁿ to the worker's own column. So a row tells which
    /// pushes it holds.
    Marks,
    /// As `Marks`, with NaN in the row of this key.
    MarksWithNan {
        /// The key.
        key: u64,
    },
    /// 1 for every number, which any codec sends exactly. So a row tells how many pushes it holds.
    Ones,
    /// These numbers, row after row, in the order in which the keys are given.
    Numbers(Vec<f64>),
}

/// One step of a program. After its last step a program waits until everything is answered, and its
/// worker leaves.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Asks for a table, and waits until it is made.
    MakeTable(TableIndex),
    /// Computes for this long.
    Compute(Span),
    /// Pushes, and does not wait.
    Push {
        /// The table.
        table: TableIndex,
        /// The rows, in any order.
        keys: Vec<u64>,
        /// The numbers.
        write: Write,
        /// Earlier pushes and pulls of this program that it must follow, counted from 0.
        after: Vec<usize>,
    },
    /// Pulls.
    Pull {
        /// The table.
        table: TableIndex,
        /// The rows, in any order.
        keys: Vec<u64>,
        /// Earlier pushes and pulls of this program that it must follow, counted from 0.
        after: Vec<usize>,
        /// Whether the program waits for the rows.
        wait: bool,
        /// Whether every push of every worker was finished before.
        last: bool,
    },
    /// Pulls all rows that exist in a range of keys, both ends included, and waits for them.
    Scan {
        /// The table.
        table: TableIndex,
        /// The first key.
        first: u64,
        /// The last key.
        end: u64,
        /// Whether every push of every worker was finished before.
        last: bool,
    },
    /// Sets rows, and does not wait.
    Set {
        /// The table.
        table: TableIndex,
        /// The rows, in any order.
        keys: Vec<u64>,
        /// The row state, row after row, in the order in which the keys are given.
        rows: Vec<f64>,
    },
    /// Deletes rows, and does not wait.
    Delete {
        /// The table.
        table: TableIndex,
        /// The rows, in any order.
        keys: Vec<u64>,
    },
    /// Pulls row state, and waits for it.
    PullRowState {
        /// The table.
        table: TableIndex,
        /// The rows, in any order.
        keys: Vec<u64>,
        /// Whether every push of every worker was finished before.
        last: bool,
    },
    /// Follows the change feed: waits for a page of each shard or, at the end of the program, until
    /// no shard has anything new.
    Follow {
        /// The table.
        table: TableIndex,
        /// Where the feed begins, the first time.
        from: FeedCursor,
        /// Whether every push of every worker was finished before.
        last: bool,
    },
    /// Asks which rows are active, and waits for the answer.
    Ask {
        /// The table.
        table: TableIndex,
        /// The rows, in any order.
        keys: Vec<u64>,
    },
    /// Changes the learning rate from this clock on.
    Tune {
        /// The table.
        table: TableIndex,
        /// The new rate.
        rate: f64,
    },
    /// Goes on at another step if the worker is at this clock or a later one: a worker that joins
    /// late ends as many clocks as the others, and no more.
    JumpFrom {
        /// The clock.
        clock: u64,
        /// The step to go on at, counted from 0.
        to: usize,
    },
    /// Leases a data set and learns from it until all of its leases are committed, by any worker.
    Learn(Lessons),
    /// Bounds the worker's bandwidth, or lifts the bound.
    Limit(Option<Bandwidth>),
    /// Waits until everything asked for is sent, then ends the clock.
    EndClock,
    /// Waits until everything is answered.
    WaitUntilIdle,
    /// Waits at a barrier for all other workers.
    Barrier,
}

impl Action {
    /// A push that follows nothing.
    #[must_use]
    pub fn push(table: TableIndex, keys: &[u64], write: Write) -> Self {
        Self::Push { table, keys: keys.to_vec(), write, after: Vec::new() }
    }

    /// A pull that the program waits for.
    #[must_use]
    pub fn pull(table: TableIndex, keys: &[u64]) -> Self {
        Self::Pull { table, keys: keys.to_vec(), after: Vec::new(), wait: true, last: false }
    }

    /// A pull that the program does not wait for.
    #[must_use]
    pub fn pull_later(table: TableIndex, keys: &[u64]) -> Self {
        Self::Pull { table, keys: keys.to_vec(), after: Vec::new(), wait: false, last: false }
    }

    /// A final read: every push of every worker is finished before.
    #[must_use]
    pub fn pull_last(table: TableIndex, keys: &[u64]) -> Self {
        Self::Pull { table, keys: keys.to_vec(), after: Vec::new(), wait: true, last: true }
    }
}

/// A data set whose minibatches count: each adds 1 to each of its keys, and no two minibatches of
/// an epoch share a key. So if every example counts once in each epoch, every key ends at the
/// number of epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lessons {
    /// The table that counts.
    pub table: TableIndex,
    /// The number of ranges of the input.
    pub ranges: u64,
    /// The number of minibatches in a range.
    pub minibatches: u64,
    /// The number of keys in a minibatch: each is an example.
    pub keys: u64,
    /// The number of epochs.
    pub epochs: u32,
    /// How many minibatches a worker of average speed pushes in a clock.
    pub per_clock: u32,
    /// How many leases a worker asks for at once.
    pub at_once: u64,
}

impl Lessons {
    /// The keys of one minibatch of a range.
    #[must_use]
    pub fn minibatch(&self, range: u64, minibatch: u64) -> Vec<u64> {
        let first = (range * self.minibatches + minibatch) * self.keys;
        (first..first + self.keys).collect()
    }

    /// All keys of the data set.
    #[must_use]
    pub fn all_keys(&self) -> Vec<u64> {
        (0..self.ranges * self.minibatches * self.keys).collect()
    }
}

/// Random programs: each clock computes for a while, pushes to random keys and pulls random keys.
/// Now and then a worker falls far behind.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The number of clocks of every worker.
    pub clocks: u64,
    /// The number of pushes and pulls in a clock.
    pub tasks: u64,
    /// The keys. There are few, so that workers push to the same rows.
    pub keys: Vec<u64>,
    /// The probability that the program waits for a pull.
    pub waits: f64,
    /// The probability that a push holds a NaN.
    pub nan: f64,
    /// The numbers of all other pushes.
    pub write: Write,
}

impl Default for Workload {
    fn default() -> Self {
        Self { clocks: 5, tasks: 4, keys: (0..8).collect(), waits: 0.7, nan: 0.0, write: Write::Marks }
    }
}

impl Workload {
    /// The steps of one clock on one table, without its end.
    pub fn clock(&self, random: &mut Xoshiro256, table: TableIndex) -> Vec<Action> {
        let straggles = random.chance(0.1);
        let mut steps = vec![Action::Compute(Span(random.below(if straggles { 40_000_000 } else { 3_000_000 })))];
        for _ in 0..self.tasks {
            let keys = random.some_of(&self.keys, 0.4);
            if random.chance(0.5) {
                let write = if random.chance(self.nan) {
                    Write::MarksWithNan { key: keys[random.below(keys.len() as u64) as usize] }
                } else {
                    self.write.clone()
                };
                steps.push(Action::push(table, &keys, write));
            } else if random.chance(self.waits) {
                steps.push(Action::pull(table, &keys));
            } else {
                steps.push(Action::pull_later(table, &keys));
            }
        }
        steps
    }

    /// The last steps of a program: end clocks until every update is visible, and read all keys.
    #[must_use]
    pub fn ending(&self, spec: &TableSpec, table: TableIndex) -> Vec<Action> {
        let slack = match spec.consistency {
            Consistency::Bounded { slack, .. } => slack,
            Consistency::Unbounded | Consistency::Delay { .. } => 0,
        };
        let mut steps = vec![Action::EndClock; slack as usize + 1];
        steps.extend([Action::WaitUntilIdle, Action::Barrier, Action::pull_last(table, &self.keys)]);
        steps
    }

    /// A program for every worker on one table, from making it to reading its final state.
    #[must_use]
    pub fn programs(&self, seed: u64, size: RunSize, table: TableIndex, spec: &TableSpec) -> Vec<Vec<Action>> {
        let mut random = Xoshiro256::new(seed ^ 0x5EED_0F00);
        let program = |random: &mut Xoshiro256| {
            let mut steps = vec![Action::MakeTable(table)];
            for _ in 0..self.clocks {
                steps.extend(self.clock(random, table));
                steps.push(Action::EndClock);
            }
            steps.extend(self.ending(spec, table));
            steps
        };
        (0..size.workers).map(|_| program(&mut random)).collect()
    }

    /// As [`Workload::programs`], for a last worker that joins late and skips the clocks that the
    /// others have done by then.
    #[must_use]
    pub fn programs_with_a_late_one(
        &self,
        seed: u64,
        size: RunSize,
        table: TableIndex,
        spec: &TableSpec,
    ) -> Vec<Vec<Action>> {
        let mut programs = self.programs(seed, size, table, spec);
        let ending = self.ending(spec, table).len();
        if let Some(late) = programs.last_mut() {
            let mut random = Xoshiro256::new(seed ^ 0x1A7E);
            let mut steps = vec![Action::MakeTable(table)];
            let mut jumps = Vec::new();
            for _ in 0..self.clocks {
                jumps.push(steps.len());
                steps.push(Action::WaitUntilIdle);
                steps.extend(self.clock(&mut random, table));
                steps.push(Action::EndClock);
            }
            let to = steps.len();
            jumps.into_iter().for_each(|at| steps[at] = Action::JumpFrom { clock: self.clocks, to });
            steps.extend(late.split_off(late.len() - ending));
            *late = steps;
        }
        programs
    }
}
