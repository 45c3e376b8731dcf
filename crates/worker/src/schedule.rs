//! The schedule: operations that wait their turn, and the order between operations.
//!
//! An operation starts when nothing holds it back:
//! - the tickets that it was to run after are finished;
//! - a read that promises its worker's own writes follows the pushes before it: they have started,
//!   and none of their parts waits for bandwidth;
//! - on a table with a delay, the operations before its place less the delay are acknowledged;
//! - on a table that combines by clock, its shards may hold a push of this clock.
//!
//! What has released an operation once never holds it back again.

pub(crate) mod delay;
pub(crate) mod queue;

use crate::TicketId;
use crate::op::Access;
use crate::send::Link;
use crate::tickets::{TicketPurpose, Tickets};
use delay::DelayedOperations;
use queue::{Queue, QueuedOperation, WaitsFor};
use std::collections::BTreeMap;
use types::{Clock, Combine, Consistency, HELD_CLOCKS, TableId, TableSpec};

/// The least frontier at which shards of a table that combines by clock take pushes of a worker at
/// `clock`.
pub(crate) fn frontier_for_push(clock: Clock) -> Clock {
    Clock(clock.next().0.saturating_sub(HELD_CLOCKS))
}

/// Operations that wait, and pushes that are being handed over.
#[derive(Default)]
pub(crate) struct Schedule {
    queue: Queue,
    /// Pushes that are being handed over part by part, and their tables: a clock must not end in
    /// the middle of one.
    begun: Vec<(TicketId, TableId)>,
    /// By table, those with a delay.
    delayed: BTreeMap<TableId, DelayedOperations>,
}

impl Schedule {
    /// An operation is submitted. Returns its place among the operations of a table with a delay.
    pub fn submit(&mut self, table: TableId, spec: &TableSpec, access: Access) -> Option<u64> {
        match spec.consistency {
            Consistency::Delay { tau } if access != Access::Neither => {
                Some(self.delayed.entry(table).or_insert_with(|| DelayedOperations::new(tau)).submit())
            }
            Consistency::Delay { .. } | Consistency::Bounded { .. } | Consistency::Unbounded => None,
        }
    }

    /// What an operation waits for, if anything. Once that has happened, it never waits for it
    /// again. `may_push`: whether the shards of its table take pushes of this clock.
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
        let waits = match (spec.consistency, spec.combine) {
            // Read-my-writes: what it must hold has to be sent first.
            (Consistency::Bounded { .. }, Combine::Each)
                if queued.op.access().reads() && self.queue.has_push_before(queued.table, queued.ticket) =>
            {
                Some(WaitsFor::OwnPushes)
            }
            (Consistency::Delay { .. }, _) => {
                let place = tickets.purpose(queued.ticket).and_then(|purpose| purpose.place);
                let reached = self.delayed.get(&queued.table).map_or(u64::MAX, DelayedOperations::reached);
                place.filter(|place| *place > reached).map(WaitsFor::Delay)
            }
            _ => None,
        };
        let waits = waits.or_else(|| waits_for_bandwidth(queued, spec, link));
        waits.or_else(|| (queued.op.access().writes() && !may_push()).then_some(WaitsFor::Frontier))
    }

    /// An operation waits.
    pub fn put(&mut self, queued: QueuedOperation, waits_for: WaitsFor) {
        self.queue.put(queued, waits_for);
    }

    /// The next operation that was released. It is put back if it waits for something else.
    pub fn take_ready(&mut self) -> Option<QueuedOperation> {
        self.queue.take_ready()
    }

    /// Whether an operation was released since they were last looked at.
    pub fn has_ready(&self) -> bool {
        self.queue.has_ready()
    }

    /// An operation has started: reads may follow its pushes.
    pub fn started(&mut self, table: TableId, ticket: TicketId) {
        self.queue.started(table, ticket);
    }

    /// A ticket is finished: what was to run after it, and what it delayed, may start.
    pub fn finished(&mut self, ticket: TicketId, purpose: &TicketPurpose) {
        self.queue.finished(ticket);
        let Some(place) = purpose.place else { return };
        if let Some(operations) = self.delayed.get_mut(&purpose.table) {
            operations.finished(place);
            self.queue.reached(purpose.table, operations.reached());
        }
    }

    /// Parts of pushes have gone: this is the first one of the table that still waits for
    /// bandwidth.
    pub fn gone(&mut self, table: TableId, first: Option<u64>) {
        self.queue.gone(table, first);
    }

    /// Shards have told of their frontiers: pushes to a table that wait for them start if the
    /// shards take them by now.
    pub fn frontier_moved(&mut self, table: TableId, may_push: impl FnOnce() -> bool) {
        if self.queue.has_pushes_behind_frontier() && may_push() {
            self.queue.may_push(table);
        }
    }

    /// A push is begun whose parts are handed over one by one.
    pub fn begin(&mut self, ticket: TicketId, table: TableId) {
        self.begun.push((ticket, table));
    }

    /// Whether a push was begun and not ended.
    pub fn has_begun(&self, ticket: TicketId, table: TableId) -> bool {
        self.begun.contains(&(ticket, table))
    }

    /// Every part of a push was handed over. Returns whether it had begun.
    pub fn end(&mut self, ticket: TicketId) -> bool {
        let index = self.begun.iter().position(|(begun, _)| *begun == ticket);
        index.map(|index| self.begun.swap_remove(index)).is_some()
    }

    /// Whether no operation waits.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether everything that was asked for has started and been handed over, so that a clock may
    /// end.
    pub fn is_flushed(&self) -> bool {
        self.queue.is_empty() && self.begun.is_empty()
    }

    /// Bytes that the waiting operations hold.
    pub fn bytes(&self) -> usize {
        self.queue.bytes()
    }

    /// How often operations were looked at again.
    #[cfg(test)]
    pub fn looks(&self) -> usize {
        self.queue.looks()
    }
}

/// Whether parts of pushes that a read must follow wait for bandwidth.
fn waits_for_bandwidth(queued: &mut QueuedOperation, spec: &TableSpec, link: &Link) -> Option<WaitsFor> {
    let follows = match queued.op.access() {
        Access::Read => queued.own || spec.consistency.bound().is_some(),
        Access::Write | Access::WriteRead | Access::Neither => false,
    };
    let made = link.last_part().filter(|_| follows && spec.combine == Combine::Each)?;
    let last = *queued.follows.get_or_insert(made);
    let first = link.first_waiting(queued.table);
    first.filter(|first| *first <= last).map(|_| WaitsFor::Bandwidth(last))
}

#[cfg(test)]
mod tests;
