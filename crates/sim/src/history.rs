//! The history of a run: what the programs did and saw, in order. Checkers look at nothing else.

use crate::program::TableIndex;
use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, Key, NodeId, Plan, PlanNumber, PositionRange, ShardId, TableId, TableSpec, Time};
use wire::{FailedClock, Refusal};
use worker::{Notice, TicketId};

/// The answer of a read.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadRecord {
    /// The keys, in the table's order.
    pub keys: Vec<u64>,
    /// The numbers, row after row.
    pub values: Vec<f64>,
    /// The frontier that the rows reflect, as reported.
    pub clock: Clock,
    /// The failed clocks that the reader was told of.
    pub failed: Vec<FailedClock>,
    /// How many rows came from the worker's cache.
    pub cached_rows: usize,
}

/// Something that a program did or saw.
#[derive(Clone, Debug, PartialEq)]
pub enum HistoryEvent {
    /// The program pushed.
    Pushed {
        /// The table.
        table: TableIndex,
        /// The worker's clock.
        clock: Clock,
        /// Its ticket.
        ticket: TicketId,
        /// The keys, in the table's order.
        keys: Vec<u64>,
        /// For each key: which of the worker's marking pushes to it this is, from 0. Empty if the
        /// push does not mark.
        marks: Vec<u32>,
        /// The numbers, row after row.
        values: Vec<f64>,
        /// The operations that it had to follow.
        after: Vec<TicketId>,
    },
    /// The program set rows.
    RowsSet {
        /// The table.
        table: TableIndex,
        /// Its ticket.
        ticket: TicketId,
        /// The keys, in the table's order.
        keys: Vec<u64>,
        /// The row state, row after row.
        values: Vec<f64>,
    },
    /// The program deleted rows.
    RowsDeleted {
        /// The table.
        table: TableIndex,
        /// The worker's clock.
        clock: Clock,
        /// Its ticket.
        ticket: TicketId,
        /// The keys, in the table's order.
        keys: Vec<u64>,
    },
    /// A read of row state returned.
    RowStateReturned {
        /// The table.
        table: TableIndex,
        /// The keys, in the table's order.
        keys: Vec<u64>,
        /// The row state, row after row.
        values: Vec<f64>,
        /// Whether every push of every worker was finished before.
        last: bool,
    },
    /// A push, set or delete was finished: every part was applied, held for its clock, or refused.
    PushDone {
        /// Its ticket.
        ticket: TicketId,
        /// Why a part was refused. None if no part was.
        refusal: Option<Refusal>,
    },
    /// The program asked for a read.
    PullIssued {
        /// The table.
        table: TableIndex,
        /// The reader's clock.
        clock: Clock,
        /// Its ticket.
        ticket: TicketId,
        /// The keys, in the table's order. Empty for a scan.
        keys: Vec<u64>,
        /// The operations that it had to follow.
        after: Vec<TicketId>,
        /// Whether every push of every worker was finished before.
        last: bool,
    },
    /// A read returned.
    PullReturned {
        /// Its ticket.
        ticket: TicketId,
        /// The answer.
        read: ReadRecord,
    },
    /// A read failed.
    PullFailed {
        /// Its ticket.
        ticket: TicketId,
        /// Why a shard refused it.
        refusal: Refusal,
    },
    /// The worker was told which rows are active.
    Told {
        /// The table.
        table: TableIndex,
        /// The keys that it had asked about, in the table's order, and whether each is active.
        active: Vec<(u64, bool)>,
        /// The frontier that the answer reflects, as reported.
        clock: Clock,
    },
    /// A page of the change feed came.
    Followed {
        /// The table.
        table: TableIndex,
        /// The positions of the shard.
        range: PositionRange,
        /// Whether the feed of the shard starts over: the program must forget what it knew of it.
        starts_over: bool,
        /// The keys of rows that changed.
        keys: Vec<u64>,
        /// Their numbers, row after row.
        values: Vec<f64>,
        /// The keys of rows that were deleted.
        deleted: Vec<u64>,
    },
    /// The program followed the feed until no shard had anything new, after every push of every
    /// worker.
    FollowedToTheEnd {
        /// The table.
        table: TableIndex,
    },
    /// The program changed the learning rate.
    Tuned {
        /// The table.
        table: TableIndex,
        /// The first clock that it holds for.
        clock: Clock,
        /// The new rate.
        rate: f64,
    },
    /// The worker ended a clock.
    ClockEnded {
        /// The clock.
        clock: Clock,
    },
    /// The worker reached a barrier.
    BarrierReached {
        /// The barrier's number.
        number: u64,
    },
    /// The worker passed a barrier.
    BarrierPassed {
        /// The barrier's number.
        number: u64,
    },
    /// The worker was told whom it waits for.
    Noticed(Notice),
    /// A table could not be made.
    TableRefused {
        /// Why the coordinator refused it.
        problem: String,
    },
    /// The frame of a task on one row left the worker for the first time.
    TaskSent {
        /// The table.
        table: TableIndex,
        /// The row. It names the task if each task has a row of its own.
        row: u64,
    },
    /// The shard's answer to a task on one row arrived for the first time.
    TaskAnswered {
        /// The table.
        table: TableIndex,
        /// The row.
        row: u64,
    },
    /// The worker joined while the run lasted.
    Joined {
        /// Its first clock.
        clock: Clock,
    },
    /// The run was over before the worker could join.
    TurnedAway,
    /// The worker crashed, or was expelled.
    Crashed,
    /// The worker finished its program and said goodbye.
    Left,
}

/// One line of the history.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// When it happened.
    pub at: Time,
    /// The worker that ran the program.
    pub worker: u32,
    /// What happened.
    pub event: HistoryEvent,
}

/// A server acknowledged pushes or answered a read, as the head of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSaid {
    /// When it did.
    pub at: Time,
    /// The table.
    pub table: TableId,
    /// The shard.
    pub shard: ShardId,
    /// The server.
    pub server: NodeId,
    /// The plan under which it did.
    pub plan: PlanNumber,
}

/// Everything that the programs did and saw in a run.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// The seed of the run.
    pub seed: u64,
    /// The first plan, with all workers that ever join: it says which shard a key is in.
    pub plan: Plan,
    /// The specs of the tables, by [`TableIndex`].
    pub specs: Vec<TableSpec>,
    /// The lines, in the order in which they happened.
    pub entries: Vec<Entry>,
    /// Which servers answered as heads, in order.
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
    /// The history does not tell: the push is not finished, another part of its batch was refused,
    /// or its worker was expelled.
    Unknown,
}

/// One row of one marking push.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    pub clock: Clock,
    /// The line of the history that made it.
    pub made: usize,
    pub fate: Fate,
}

/// A read that returned.
pub struct FinishedRead<'a> {
    pub worker: u32,
    pub table: TableIndex,
    /// The reader's clock when it asked.
    pub reader: Clock,
    /// The line of the history that asked for it.
    pub issued: usize,
    /// The line of the history that returned it.
    pub returned: usize,
    /// Whether it is a final read: every push of every worker was finished before.
    pub last: bool,
    /// Whether it is a scan.
    pub scan: bool,
    /// The reader's clock when the rows came.
    pub ended: Clock,
    /// How many shards the rows came from.
    pub shards: usize,
    pub read: &'a ReadRecord,
}

impl History {
    /// The workers that were in the run from the beginning.
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

    /// Why each finished push was refused, by worker and ticket. None where it was not.
    pub(crate) fn refusals(&self) -> BTreeMap<(u32, TicketId), Option<&Refusal>> {
        self.entries
            .iter()
            .filter_map(|entry| match &entry.event {
                HistoryEvent::PushDone { ticket, refusal } => Some(((entry.worker, *ticket), refusal.as_ref())),
                _ => None,
            })
            .collect()
    }

    /// The marking pushes to a table, by worker and key: index n is the n-th push.
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
                        // Programs put at most one value that is not finite in a batch: only the
                        // part with that value is refused.
                        let bad = self.shard(of, placement.key(*position).0);
                        if bad == self.shard(of, *key) { Fate::Refused } else { Fate::Accepted }
                    }
                    // The shard no longer knows which items of an expelled worker it has applied:
                    // an item whose acknowledgement was lost is refused, too.
                    Some(Some(Refusal::Expelled)) => Fate::Unknown,
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
