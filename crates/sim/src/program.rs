//! What a worker's program does, step by step, and random programs.

use crate::random::Xoshiro256;
use types::{Bandwidth, Consistency, RunSize, Span, TableSpec};
use wire::FeedCursor;

/// A table of the cluster, in the order they were named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableIndex(pub usize);

/// What a push carries.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// The worker's n-th push to a row adds 4ⁿ to the worker's own column, so that a row tells
    /// which pushes it holds.
    Marks,
    /// As marks, but NaN stands in the row of this key.
    MarksWithNan {
        /// The row.
        key: u64,
    },
    /// 1 for every number: what any codec sends as it is, so that a row tells how many pushes it
    /// holds.
    Ones,
    /// These numbers, row after row in the order the keys are given.
    Numbers(Vec<f64>),
}

/// One step of a program. A program whose steps are done waits until everything is answered, and
/// leaves.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Asks for a table, and waits until it is there.
    MakeTable(TableIndex),
    /// Computes for a while.
    Compute(Span),
    /// Pushes; does not wait.
    Push {
        /// Which table.
        table: TableIndex,
        /// Which rows, in any order.
        keys: Vec<u64>,
        /// What.
        write: Write,
        /// Earlier pushes and pulls of this program that it must follow, counted from 0.
        after: Vec<usize>,
    },
    /// Pulls.
    Pull {
        /// Which table.
        table: TableIndex,
        /// Which rows, in any order.
        keys: Vec<u64>,
        /// Earlier pushes and pulls of this program that it must follow, counted from 0.
        after: Vec<usize>,
        /// Whether the program goes on only when the rows are there.
        wait: bool,
        /// Whether every push of every worker was finished before.
        last: bool,
    },
    /// Pulls whatever rows there are in a range of keys, both ends included, and waits for them.
    Scan {
        /// Which table.
        table: TableIndex,
        /// The first key.
        first: u64,
        /// The last key.
        end: u64,
        /// Whether every push of every worker was finished before.
        last: bool,
    },
    /// Sets rows; does not wait.
    Set {
        /// Which table.
        table: TableIndex,
        /// Which rows, in any order.
        keys: Vec<u64>,
        /// As they are to be kept, row after row in the order the keys are given.
        rows: Vec<f64>,
    },
    /// Deletes rows; does not wait.
    Delete {
        /// Which table.
        table: TableIndex,
        /// Which rows, in any order.
        keys: Vec<u64>,
    },
    /// Pulls rows as they are kept, and waits for them.
    PullRowState {
        /// Which table.
        table: TableIndex,
        /// Which rows, in any order.
        keys: Vec<u64>,
        /// Whether every push of every worker was finished before.
        last: bool,
    },
    /// Follows the change feed: waits for a page of each shard, or at the end until no shard has
    /// anything new.
    Follow {
        /// Which table.
        table: TableIndex,
        /// From where on, the first time.
        from: FeedCursor,
        /// Whether every push of every worker was finished before.
        last: bool,
    },
    /// Asks which rows are active, and waits to hear it.
    Ask {
        /// Which table.
        table: TableIndex,
        /// Which rows, in any order.
        keys: Vec<u64>,
    },
    /// Changes the learning rate from this clock on.
    Tune {
        /// Which table.
        table: TableIndex,
        /// The new rate.
        rate: f64,
    },
    /// Goes on at another step, if the worker's clock is this one or a later one: somebody who
    /// comes late does no more than the others.
    JumpFrom {
        /// The clock.
        clock: u64,
        /// Which step of the program, counted from 0.
        to: usize,
    },
    /// Leases a data set and learns from it until all of it is committed, by whomever.
    Learn(Lessons),
    /// Bounds what the worker sends, or lifts the bound.
    Limit(Option<Bandwidth>),
    /// Ends the clock, once everything asked for has been sent.
    EndClock,
    /// Waits until everything is answered.
    WaitUntilIdle,
    /// Waits until everybody is here.
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

    /// A pull after which the program goes on at once.
    #[must_use]
    pub fn pull_later(table: TableIndex, keys: &[u64]) -> Self {
        Self::Pull { table, keys: keys.to_vec(), after: Vec::new(), wait: false, last: false }
    }

    /// A read of the final state.
    #[must_use]
    pub fn pull_last(table: TableIndex, keys: &[u64]) -> Self {
        Self::Pull { table, keys: keys.to_vec(), after: Vec::new(), wait: true, last: true }
    }
}

/// A data set of minibatches that count: each adds one to each of its keys, and no two of an epoch
/// have a key in common. So when all is committed every key counts the epochs, if every example has
/// counted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lessons {
    /// Where they are counted.
    pub table: TableIndex,
    /// Ranges of the input.
    pub ranges: u64,
    /// Minibatches in each.
    pub minibatches: u64,
    /// Keys of each minibatch, all of them examples.
    pub keys: u64,
    /// How often all of it is learnt.
    pub epochs: u32,
    /// Minibatches that a worker of average speed puts into a clock.
    pub per_clock: u32,
    /// Leases that a worker asks for at once.
    pub at_once: u64,
}

impl Lessons {
    /// The keys of one minibatch of a range.
    #[must_use]
    pub fn minibatch(&self, range: u64, minibatch: u64) -> Vec<u64> {
        let first = (range * self.minibatches + minibatch) * self.keys;
        (first..first + self.keys).collect()
    }

    /// All keys there are.
    #[must_use]
    pub fn all_keys(&self) -> Vec<u64> {
        (0..self.ranges * self.minibatches * self.keys).collect()
    }
}

/// Xoshiro256 programs: in each clock some computing, pulls and pushes on random keys, one worker
/// now and then far behind.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Clocks of every worker.
    pub clocks: u64,
    /// Pushes and pulls in a clock.
    pub tasks: u64,
    /// The key space; small, so that rows collide.
    pub keys: Vec<u64>,
    /// How often a pull is waited for at once.
    pub waits: f64,
    /// How often a push holds a NaN.
    pub nan: f64,
    /// What the other pushes carry.
    pub write: Write,
}

impl Default for Workload {
    fn default() -> Self {
        Self { clocks: 5, tasks: 4, keys: (0..8).collect(), waits: 0.7, nan: 0.0, write: Write::Marks }
    }
}

impl Workload {
    /// The steps of one clock on one table, its end not among them.
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

    /// The steps that bring every update of the clocks before into view and read it all.
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

    /// As [`Workload::programs`], where the last worker comes late, and leaves out what the others
    /// have done by then.
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
