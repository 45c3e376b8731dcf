//! What the programs did and saw, in order: all that a checker may look at.

use crate::program::TableIndex;
use std::collections::{BTreeMap, BTreeSet};
use types::{
    Clock, Key, NodeId, Placement, Plan, PlanNumber, Position, PositionRange, ShardId, TableId, TableSpec, Time,
};
use wire::{FailedClock, Refusal};
use worker::{Notice, TicketId};

/// What a read brought.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadRecord {
    /// The keys, in the table's order.
    pub keys: Vec<u64>,
    /// Row after row.
    pub values: Vec<f64>,
    /// The frontier the rows are said to reflect.
    pub clock: Clock,
    /// Clocks that were failed for everybody.
    pub failed: Vec<FailedClock>,
    /// How many rows came from the worker's cache.
    pub cached_rows: usize,
}

/// Something a program did or saw.
#[derive(Clone, Debug, PartialEq)]
pub enum HistoryEvent {
    /// A push was made.
    Pushed {
        /// Which table.
        table: TableIndex,
        /// The worker's clock.
        clock: Clock,
        /// Its name.
        ticket: TicketId,
        /// The keys, in the table's order.
        keys: Vec<u64>,
        /// For each key, which of the worker's pushes to it this is, from 0; empty where it does
        /// not mark.
        marks: Vec<u32>,
        /// Row after row.
        values: Vec<f64>,
        /// What it was to run after.
        after: Vec<TicketId>,
    },
    /// Rows were set.
    RowsSet {
        /// Which table.
        table: TableIndex,
        /// Its name.
        ticket: TicketId,
        /// The keys, in the table's order.
        keys: Vec<u64>,
        /// Row after row, as they are to be kept.
        values: Vec<f64>,
    },
    /// Rows were deleted.
    RowsDeleted {
        /// Which table.
        table: TableIndex,
        /// The worker's clock.
        clock: Clock,
        /// Its name.
        ticket: TicketId,
        /// The keys, in the table's order.
        keys: Vec<u64>,
    },
    /// Rows were read as they are kept.
    RowStateReturned {
        /// Which table.
        table: TableIndex,
        /// The keys, in the table's order.
        keys: Vec<u64>,
        /// Row after row.
        values: Vec<f64>,
        /// Whether every push of every worker was finished before.
        last: bool,
    },
    /// A push, set or delete was finished: every part applied, held for its clock, or refused.
    PushDone {
        /// Which.
        ticket: TicketId,
        /// Why a part was refused.
        refusal: Option<Refusal>,
    },
    /// A read was asked for.
    PullIssued {
        /// Which table.
        table: TableIndex,
        /// The reader's clock.
        clock: Clock,
        /// Its name.
        ticket: TicketId,
        /// The keys, in the table's order; empty for a scan.
        keys: Vec<u64>,
        /// What it was to run after.
        after: Vec<TicketId>,
        /// Whether every push of every worker was finished before.
        last: bool,
    },
    /// The rows are there.
    PullReturned {
        /// Which.
        ticket: TicketId,
        /// What they are.
        read: ReadRecord,
    },
    /// There are no rows.
    PullFailed {
        /// Which.
        ticket: TicketId,
        /// Why.
        refusal: Refusal,
    },
    /// The worker was told which rows are active.
    Told {
        /// Which table.
        table: TableIndex,
        /// The keys it had asked about, in the table's order, and whether each is active.
        active: Vec<(u64, bool)>,
        /// The frontier that this is said to reflect.
        clock: Clock,
    },
    /// A page of the change feed came.
    Followed {
        /// Which table.
        table: TableIndex,
        /// The positions of the shard.
        range: PositionRange,
        /// Whether what the program knew of the shard is void.
        starts_over: bool,
        /// The keys of rows that changed.
        keys: Vec<u64>,
        /// Row after row.
        values: Vec<f64>,
        /// The keys of rows that were deleted.
        deleted: Vec<u64>,
    },
    /// The feed was followed until no shard had anything new, after every push of every worker.
    FollowedToTheEnd {
        /// Which table.
        table: TableIndex,
    },
    /// A setting was changed.
    Tuned {
        /// Which table.
        table: TableIndex,
        /// The first clock it holds for.
        clock: Clock,
        /// The new rate.
        rate: f64,
    },
    /// A clock ended.
    ClockEnded {
        /// Which.
        clock: Clock,
    },
    /// The worker stands at a barrier.
    BarrierReached {
        /// Which.
        number: u64,
    },
    /// The worker went on from it.
    BarrierPassed {
        /// Which.
        number: u64,
    },
    /// The worker was told whom it waits for.
    Noticed(Notice),
    /// A table could not be made.
    TableRefused {
        /// Why.
        problem: String,
    },
    /// The frame of a task on one row left the worker for the first time.
    TaskSent {
        /// Which table.
        table: TableIndex,
        /// The row, which names the task where each task has a row of its own.
        row: u64,
    },
    /// The shard's answer to it arrived for the first time.
    TaskAnswered {
        /// Which table.
        table: TableIndex,
        /// The row.
        row: u64,
    },
    /// The worker came in the middle of the run.
    Joined {
        /// Its first clock.
        clock: Clock,
    },
    /// The run was over before the worker came.
    TurnedAway,
    /// The worker was gone without a word.
    Crashed,
    /// The worker finished its program and said goodbye.
    Left,
}

/// How rows of a table are named and how wide they are.
#[derive(Clone, Copy)]
pub(crate) struct Placed {
    pub placement: Placement,
    pub width: usize,
}

impl Placed {
    pub fn of(spec: &TableSpec) -> Self {
        Self { placement: spec.shape.placement(), width: spec.width as usize }
    }

    pub fn key(self, position: Position) -> Key {
        self.placement.key(position)
    }
}

/// One line of the history.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// When.
    pub at: Time,
    /// Whose program.
    pub worker: u32,
    /// What.
    pub event: HistoryEvent,
}

/// A server acknowledged or answered, as the head of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSaid {
    /// When.
    pub at: Time,
    /// Of which table.
    pub table: TableId,
    /// Which shard.
    pub shard: ShardId,
    /// Who.
    pub server: NodeId,
    /// By which plan.
    pub plan: PlanNumber,
}

/// Everything the programs did and saw.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// The seed, to name it.
    pub seed: u64,
    /// Where keys live.
    pub plan: Plan,
    /// The tables.
    pub specs: Vec<TableSpec>,
    /// In the order they happened.
    pub entries: Vec<Entry>,
    /// What servers said as heads, in order.
    pub heads: Vec<HeadSaid>,
    /// When the run ended.
    pub ended: Time,
}

/// What became of one row of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was acknowledged.
    Accepted,
    /// Its part was refused.
    Refused,
    /// The history does not tell: not finished, or another part of the batch was refused.
    Unknown,
}

/// One row of one push, as a checker wants it.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    pub clock: Clock,
    /// Which line of the history made it.
    pub made: usize,
    pub fate: Fate,
}

/// A read with the lines that made and finished it.
pub struct FinishedRead<'a> {
    pub worker: u32,
    pub table: TableIndex,
    pub reader: Clock,
    pub issued: usize,
    pub returned: usize,
    pub last: bool,
    /// Whether it asked for whatever rows there are in a range.
    pub scan: bool,
    /// The reader's clock when the rows came.
    pub ended: Clock,
    /// How many shards the rows came from.
    pub shards: usize,
    pub read: &'a ReadRecord,
}

impl History {
    /// Workers that were there from the beginning.
    pub(crate) fn starters(&self) -> impl Iterator<Item = u32> + '_ {
        let joined = |entry: &Entry| {
            matches!(entry.event, HistoryEvent::Joined { .. } | HistoryEvent::TurnedAway).then_some(entry.worker)
        };
        let later: BTreeSet<u32> = self.entries.iter().filter_map(joined).collect();
        (0..self.plan.workers.len() as u32).filter(move |worker| !later.contains(worker))
    }

    pub(crate) fn shard(&self, table: TableIndex, key: u64) -> ShardId {
        let shape = self.specs[table.0].shape;
        let position = shape.placement().position(Key(key));
        let shards = self.plan.shards(shape);
        shards.iter().find(|placed| placed.range.contains(position)).map_or(ShardId(0), |placed| placed.shard)
    }

    /// What became of every push, by worker and ticket.
    pub(crate) fn refusals(&self) -> BTreeMap<(u32, TicketId), Option<&Refusal>> {
        self.entries
            .iter()
            .filter_map(|entry| match &entry.event {
                HistoryEvent::PushDone { ticket, refusal } => Some(((entry.worker, *ticket), refusal.as_ref())),
                _ => None,
            })
            .collect()
    }

    /// Every marking push to a table by (worker, key): index n is the n-th.
    pub(crate) fn marks(&self, of: TableIndex) -> BTreeMap<(u32, u64), Vec<Mark>> {
        let refusals = self.refusals();
        let placement = self.specs[of.0].shape.placement();
        let mut marks: BTreeMap<(u32, u64), Vec<Mark>> = BTreeMap::new();
        for (made, entry) in self.entries.iter().enumerate() {
            let HistoryEvent::Pushed { table, clock, ticket, keys, marks: numbers, .. } = &entry.event else {
                continue;
            };
            if *table != of || numbers.is_empty() {
                continue;
            }
            for key in keys {
                let fate = match refusals.get(&(entry.worker, *ticket)) {
                    None => Fate::Unknown,
                    Some(None) => Fate::Accepted,
                    Some(Some(Refusal::NotFinite { position })) => {
                        // A batch has one value that is not finite: the part it is in is refused,
                        // and no other.
                        let bad = self.shard(of, placement.key(*position).0);
                        if bad == self.shard(of, *key) { Fate::Refused } else { Fate::Accepted }
                    }
                    Some(Some(_)) if keys.len() == 1 => Fate::Refused,
                    Some(Some(_)) => Fate::Unknown,
                };
                marks.entry((entry.worker, *key)).or_default().push(Mark { clock: *clock, made, fate });
            }
        }
        marks
    }

    /// Every read that returned.
    pub(crate) fn reads(&self) -> Vec<FinishedRead<'_>> {
        let mut issued = BTreeMap::new();
        let mut reads = Vec::new();
        let mut clocks: BTreeMap<u32, Clock> = BTreeMap::new();
        for (line, entry) in self.entries.iter().enumerate() {
            match &entry.event {
                HistoryEvent::PullIssued { table, clock, ticket, last, keys, .. } => {
                    issued.insert((entry.worker, *ticket), (line, *table, *clock, *last, keys.is_empty()));
                }
                HistoryEvent::PullReturned { ticket, read } => {
                    let Some((issued, table, reader, last, scan)) = issued.remove(&(entry.worker, *ticket)) else {
                        continue;
                    };
                    let worker = entry.worker;
                    let ended = clocks.get(&worker).copied().unwrap_or_default();
                    let shards: BTreeSet<ShardId> = read.keys.iter().map(|key| self.shard(table, *key)).collect();
                    let shards = shards.len();
                    reads.push(FinishedRead {
                        worker,
                        table,
                        reader,
                        issued,
                        returned: line,
                        last,
                        scan,
                        ended,
                        shards,
                        read,
                    });
                }
                HistoryEvent::ClockEnded { clock } => {
                    clocks.insert(entry.worker, clock.next());
                }
                _ => {}
            }
        }
        reads
    }
}
