//! The schedule: operations that wait, and the order between operations.
//!
//! An operation starts when all of these hold:
//! - the tickets that it must run after are finished;
//! - for a read that promises read-my-writes: the pushes before it have started, and none of their
//!   parts waits for bandwidth;
//! - on a table with delay τ, for the operation at place i: the operations before place i − τ are
//!   acknowledged;
//! - for a push to a table that combines by clock: its shards take pushes of this clock.
//!
//! A condition that has been met once never holds the operation back again.

pub(crate) mod delay;
pub(crate) mod queue;

use crate::TicketId;
use crate::op::Access;
use crate::send::Link;
use crate::tickets::{TicketPurpose, Tickets};
use delay::DelayedOperations;
use queue::{Queue, QueuedOperation, WaitsFor};
use std::collections::BTreeMap;
use types::{Clock, Consistency, HELD_CLOCKS, TableId, TableSpec};

/// The least frontier at which shards take a push of a worker at `clock`, if the table combines by
/// clock.
pub(crate) fn frontier_for_push(clock: Clock) -> Clock {
    Clock(clock.next().0.saturating_sub(HELD_CLOCKS))
}

/// Operations that wait, and pushes that the program hands over part by part.
#[derive(Default)]
pub(crate) struct Schedule {
    queue: Queue,
    /// Pushes that the program hands over part by part, with their tables. A clock must not end in
    /// the middle of one.
    begun: Vec<(TicketId, TableId)>,
    /// Operations on each table with a delay.
    delayed: BTreeMap<TableId, DelayedOperations>,
}

impl Schedule {
    /// Notes an operation that is submitted. Returns its place among the operations of a table with
    /// a delay.
    pub fn submit(&mut self, table: TableId, spec: &TableSpec, access: Access) -> Option<u64> {
        match spec.consistency {
            Consistency::Delay { tau } if access != Access::Neither => {
                Some(self.delayed.entry(table).or_insert_with(|| DelayedOperations::new(tau)).submit())
            }
            Consistency::Delay { .. } | Consistency::Bounded { .. } | Consistency::Unbounded => None,
        }
    }

    /// What an operation waits for, if anything. Once that has happened, the operation never waits
    /// for it again. `may_push`: whether the shards of its table take pushes of this clock.
    pub fn waits_for(
        &self,
        queued: &mut QueuedOperation,
        spec: &TableSpec,
        tickets: &Tickets,
        link: &Link,
        may_push: impl FnOnce() -> bool,
    ) -> Option<WaitsFor> {
        while let Some(after) = queued.after.last() {
            if !tickets.is_finished(*after) {
                return Some(WaitsFor::Ticket(*after));
            }
            queued.after.pop();
        }
        let waits = match spec.consistency {
            // Read-my-writes: the pushes that the read must hold go first.
            Consistency::Bounded { .. } => {
                let follows = spec.reads_own_pushes() && queued.op.access().reads();
                let waits = follows && self.queue.has_push_before(queued.table, queued.ticket);
                waits.then_some(WaitsFor::OwnPushes)
            }
            Consistency::Delay { .. } => {
                let place = tickets.purpose(queued.ticket).and_then(|purpose| purpose.place);
                let reached = self.delayed.get(&queued.table).map_or(u64::MAX, DelayedOperations::reached);
                place.filter(|place| *place > reached).map(WaitsFor::Delay)
            }
            Consistency::Unbounded => None,
        };
        let waits = waits.or_else(|| waits_for_bandwidth(queued, spec, link));
        waits.or_else(|| (queued.op.access().writes() && !may_push()).then_some(WaitsFor::Frontier))
    }

    /// Queues an operation until what it waits for has happened.
    pub fn put(&mut self, queued: QueuedOperation, waits_for: WaitsFor) {
        self.queue.put(queued, waits_for);
    }

    /// Takes the next released operation. The caller puts it back if it waits for something else.
    pub fn take_ready(&mut self) -> Option<QueuedOperation> {
        self.queue.take_ready()
    }

    /// Whether a released operation has not been taken yet.
    pub fn has_ready(&self) -> bool {
        self.queue.has_ready()
    }

    /// An operation has started: releases reads that waited for this push.
    pub fn started(&mut self, table: TableId, ticket: TicketId) {
        self.queue.started(table, ticket);
    }

    /// A ticket is finished: releases the operations that run after it, and those that it delayed.
    pub fn finished(&mut self, ticket: TicketId, purpose: &TicketPurpose) {
        self.queue.finished(ticket);
        let Some(place) = purpose.place else { return };
        if let Some(operations) = self.delayed.get_mut(&purpose.table) {
            operations.finished(place);
            self.queue.reached(purpose.table, operations.reached());
        }
    }

    /// Parts of pushes were sent: releases reads that waited for them. `first`: the number of the
    /// table's first part that still waits for bandwidth.
    pub fn gone(&mut self, table: TableId, first: Option<u64>) {
        self.queue.gone(table, first);
    }

    /// A shard has told its frontier: releases pushes to the table that wait for it, if its shards
    /// take them now.
    pub fn frontier_moved(&mut self, table: TableId, may_push: impl FnOnce() -> bool) {
        if self.queue.has_pushes_behind_frontier() && may_push() {
            self.queue.may_push(table);
        }
    }

    /// The program begins a push that it hands over part by part.
    pub fn begin(&mut self, ticket: TicketId, table: TableId) {
        self.begun.push((ticket, table));
    }

    /// Whether the program has begun a push and not ended it.
    pub fn has_begun(&self, ticket: TicketId, table: TableId) -> bool {
        self.begun.contains(&(ticket, table))
    }

    /// The program has handed over every part of a push. Returns whether it had begun one.
    pub fn end(&mut self, ticket: TicketId) -> bool {
        let index = self.begun.iter().position(|(begun, _)| *begun == ticket);
        index.map(|index| self.begun.swap_remove(index)).is_some()
    }

    /// Whether no operation waits.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether every operation has started and every push is handed over, so that a clock may end.
    pub fn is_flushed(&self) -> bool {
        self.queue.is_empty() && self.begun.is_empty()
    }

    /// Bytes that the waiting operations hold.
    pub fn bytes(&self) -> usize {
        self.queue.bytes()
    }

    /// How often released operations were taken.
    #[cfg(test)]
    pub fn looks(&self) -> usize {
        self.queue.looks()
    }
}

/// What a read waits for if parts of the pushes that it must follow wait for bandwidth.
fn waits_for_bandwidth(queued: &mut QueuedOperation, spec: &TableSpec, link: &Link) -> Option<WaitsFor> {
    let follows = match queued.op.access() {
        Access::Read => queued.own || spec.consistency.bound().is_some(),
        Access::Write | Access::WriteRead | Access::Neither => false,
    };
    let made = link.last_part().filter(|_| follows && !spec.combine.holds_clocks())?;
    let last = *queued.follows.get_or_insert(made);
    let first = link.first_waiting(queued.table);
    first.filter(|first| *first <= last).map(|_| WaitsFor::Bandwidth(last))
}

#[cfg(test)]
mod tests;
