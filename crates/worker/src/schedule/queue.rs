//! Operations that wait, indexed by what they wait for: an event looks only at the operations that
//! it releases.

use crate::leases::LeasedPushPart;
use crate::{Op, PART_COST, PullTarget, TicketId};
use std::collections::{BTreeMap, BTreeSet};
use types::TableId;

/// An operation that waits.
pub(crate) struct QueuedOperation {
    pub ticket: TicketId,
    pub table: TableId,
    pub op: Op,
    /// The memory for the rows that it reads.
    pub target: PullTarget,
    /// For a push of a data lease: its numbered parts.
    pub leased_parts: Vec<LeasedPushPart>,
    /// Whether this is the pull of a push_pull, which follows its own push under any consistency
    /// rule.
    pub own: bool,
    /// The tickets that it must run after, less those known to be finished.
    pub after: Vec<TicketId>,
    /// For a read that follows own pushes: the number of their last part, once all of them are cut
    /// into parts.
    pub follows: Option<u64>,
}

impl QueuedOperation {
    /// The bytes that the operation counts for while it waits.
    pub fn cost(&self) -> usize {
        self.op.value_bytes() + PART_COST
    }
}

/// What an operation waits for first. It may wait for something else next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// This ticket, which it must run after.
    Ticket(TicketId),
    /// A read: earlier pushes of this worker to the table, which wait themselves.
    OwnPushes,
    /// A read: parts of earlier pushes that wait for bandwidth, up to the part of this number.
    Bandwidth(u64),
    /// Earlier operations on a table with a delay. The number is the operation's own place.
    Delay(u64),
    /// A push to a table that combines by clock: its shards hold as many open clocks as they may,
    /// until their frontier moves.
    Frontier,
}

/// The operations that wait.
#[derive(Default)]
pub(crate) struct Queue {
    operations: BTreeMap<TicketId, QueuedOperation>,
    /// The bytes that the waiting operations count for.
    bytes: usize,
    /// Released operations that have not been taken yet.
    ready: BTreeSet<TicketId>,
    by_ticket: BTreeMap<TicketId, Vec<TicketId>>,
    behind_own: BTreeSet<(TableId, TicketId)>,
    behind_bandwidth: BTreeSet<(TableId, u64, TicketId)>,
    by_place: BTreeMap<(TableId, u64), TicketId>,
    behind_frontier: BTreeSet<(TableId, TicketId)>,
    /// Pushes that have not started.
    pushes: BTreeSet<(TableId, TicketId)>,
    /// How often released operations were taken: tests check that it grows linearly.
    #[cfg(test)]
    looks: usize,
}

impl Queue {
    /// Whether no operation waits.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Bytes that the waiting operations hold.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a push to `table` waits that the program submitted before `ticket`.
    pub fn has_push_before(&self, table: TableId, ticket: TicketId) -> bool {
        self.pushes.range((table, TicketId(0))..(table, ticket)).next().is_some()
    }

    /// Queues an operation until what it waits for has happened.
    pub fn put(&mut self, queued: QueuedOperation, waits_for: WaitsFor) {
        let table = queued.table;
        let ticket = queued.ticket;
        match waits_for {
            WaitsFor::Ticket(after) => self.by_ticket.entry(after).or_default().push(ticket),
            WaitsFor::OwnPushes => {
                self.behind_own.insert((table, ticket));
            }
            WaitsFor::Bandwidth(last) => {
                self.behind_bandwidth.insert((table, last, ticket));
            }
            WaitsFor::Delay(place) => {
                self.by_place.insert((table, place), ticket);
            }
            WaitsFor::Frontier => {
                self.behind_frontier.insert((table, ticket));
            }
        }
        self.bytes += queued.cost();
        if queued.op.access().writes() {
            self.pushes.insert((table, ticket));
        }
        self.operations.insert(ticket, queued);
    }

    /// Takes the next released operation. The caller puts it back if it waits for something else.
    pub fn take_ready(&mut self) -> Option<QueuedOperation> {
        let queued = self.operations.remove(&self.ready.pop_first()?)?;
        #[cfg(test)]
        {
            self.looks += 1;
        }
        self.bytes -= queued.cost();
        Some(queued)
    }

    /// An operation has started. Releases the reads behind it, if it was the first waiting push of
    /// its table.
    pub fn started(&mut self, table: TableId, ticket: TicketId) {
        if !self.pushes.remove(&(table, ticket)) {
            return;
        }
        if self.has_push_before(table, ticket) {
            return;
        }
        let first = self.pushes.range((table, ticket)..=(table, TicketId(u64::MAX))).next();
        let until = first.map_or(TicketId(u64::MAX), |(_, first)| *first);
        let free: Vec<_> = self.behind_own.range((table, TicketId(0))..=(table, until)).copied().collect();
        for name in free {
            self.behind_own.remove(&name);
            self.ready.insert(name.1);
        }
    }

    /// Parts of pushes were sent: releases reads that waited for them. `first`: the number of the
    /// table's first part that still waits for bandwidth.
    pub fn gone(&mut self, table: TableId, first: Option<u64>) {
        let until = (table, first.unwrap_or(u64::MAX), TicketId(0));
        while let Some(&name) = self.behind_bandwidth.range((table, 0, TicketId(0))..until).next() {
            self.behind_bandwidth.remove(&name);
            self.ready.insert(name.2);
        }
    }

    /// Whether a released operation has not been taken yet.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A ticket is finished: releases the operations that run after it.
    pub fn finished(&mut self, ticket: TicketId) {
        self.ready.extend(self.by_ticket.remove(&ticket).into_iter().flatten());
    }

    /// Releases the operations of a table with a delay up to this place.
    pub fn reached(&mut self, table: TableId, place: u64) {
        while let Some((&name, &ticket)) = self.by_place.range((table, 0)..=(table, place)).next() {
            self.by_place.remove(&name);
            self.ready.insert(ticket);
        }
    }

    /// Whether a push waits for the frontier of its shards.
    pub fn has_pushes_behind_frontier(&self) -> bool {
        !self.behind_frontier.is_empty()
    }

    /// The shards of a table take pushes of this clock: releases those that wait for it.
    pub fn may_push(&mut self, table: TableId) {
        while let Some(&name) = self.behind_frontier.range((table, TicketId(0))..=(table, TicketId(u64::MAX))).next() {
            self.behind_frontier.remove(&name);
            self.ready.insert(name.1);
        }
    }

    /// How often released operations were taken.
    #[cfg(test)]
    pub fn looks(&self) -> usize {
        self.looks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ones;
    use types::NumberType;
    use wire::Keys;

    const TABLE: TableId = TableId(1);

    type Event = fn(&mut Queue);

    fn operation(ticket: u64, op: Op) -> QueuedOperation {
        QueuedOperation {
            ticket: TicketId(ticket),
            table: TABLE,
            op,
            target: PullTarget::empty(NumberType::F32),
            leased_parts: Vec::new(),
            own: false,
            after: Vec::new(),
            follows: None,
        }
    }

    fn push(ticket: u64) -> QueuedOperation {
        operation(ticket, Op::Push { batch: ones(Keys::run(0..2), 1, 1) })
    }

    fn pull(ticket: u64) -> QueuedOperation {
        operation(ticket, Op::Pull { keys: Keys::run(0..2) })
    }

    fn ready(queue: &mut Queue) -> Vec<u64> {
        std::iter::from_fn(|| queue.take_ready()).map(|queued| queued.ticket.0).collect()
    }

    #[test]
    fn queue_releases_only_the_operations_that_wait_for_an_event() {
        let other = TableId(2);
        // (the event, the operations that it releases)
        let cases: [(Event, &[u64]); 7] = [
            (|queue| queue.finished(TicketId(1)), &[11, 12]),
            (|queue| queue.finished(TicketId(9)), &[]),
            (|queue| queue.gone(TABLE, Some(8)), &[13]),
            (|queue| queue.gone(TABLE, None), &[13, 14]),
            (|queue| queue.reached(TABLE, 4), &[15]),
            (|queue| queue.may_push(TABLE), &[17]),
            (|queue| [TableId(0), TableId(2)].into_iter().for_each(|table| queue.may_push(table)), &[]),
        ];
        for (index, (happens, released)) in cases.into_iter().enumerate() {
            let mut queue = Queue::default();
            queue.put(push(11), WaitsFor::Ticket(TicketId(1)));
            queue.put(push(12), WaitsFor::Ticket(TicketId(1)));
            queue.put(pull(13), WaitsFor::Bandwidth(7));
            queue.put(pull(14), WaitsFor::Bandwidth(8));
            queue.put(push(15), WaitsFor::Delay(4));
            queue.put(push(16), WaitsFor::Delay(5));
            queue.put(push(17), WaitsFor::Frontier);
            queue.gone(other, None);
            queue.reached(other, u64::MAX);
            assert!(!queue.has_ready(), "events of another table release nothing");
            happens(&mut queue);
            assert_eq!(
                (queue.has_ready(), ready(&mut queue)),
                (!released.is_empty(), released.to_vec()),
                "case {index}"
            );
        }
    }

    #[test]
    fn queue_keeps_reads_behind_the_pushes_submitted_before_them() {
        let mut queue = Queue::default();
        queue.put(push(1), WaitsFor::Ticket(TicketId(100)));
        queue.put(push(2), WaitsFor::Ticket(TicketId(101)));
        queue.put(pull(3), WaitsFor::OwnPushes);
        queue.put(push(4), WaitsFor::Ticket(TicketId(102)));
        queue.put(pull(5), WaitsFor::OwnPushes);
        let before = [1, 2, 3, 4, 5].map(|ticket| queue.has_push_before(TABLE, TicketId(ticket)));
        assert_eq!(before, [false, true, true, true, true]);
        // (the ticket that is finished, the operation that starts, the reads that it releases)
        for (finished, starts, released) in [(101, 2, vec![]), (100, 1, vec![3]), (102, 4, vec![5])] {
            queue.finished(TicketId(finished));
            assert_eq!(ready(&mut queue), [starts]);
            queue.started(TABLE, TicketId(starts));
            assert_eq!(ready(&mut queue), released, "after {starts} has started");
        }
        assert!(queue.is_empty() && queue.bytes() == 0);
    }

    #[test]
    fn queue_counts_the_bytes_of_operations_that_wait() {
        let mut queue = Queue::default();
        queue.put(push(1), WaitsFor::Frontier);
        queue.put(pull(2), WaitsFor::OwnPushes);
        assert_eq!(queue.bytes(), 8 + 2 * PART_COST);
        queue.may_push(TABLE);
        assert!(queue.take_ready().is_some_and(|queued| queued.cost() == 8 + PART_COST));
        assert_eq!((queue.bytes(), queue.is_empty()), (PART_COST, false));
    }
}
