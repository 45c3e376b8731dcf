//! Operations that wait, indexed by what they wait for: an event looks only at the operations that
//! it releases.

use super::TicketId;
use crate::worker::QueuedOperation;
use std::collections::{BTreeMap, BTreeSet};
use types::TableId;

/// What an operation waits for first. It may wait for something else next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// A ticket that it was to run after.
    Ticket(TicketId),
    /// Earlier pushes of this worker to the table, which a read must follow and which wait
    /// themselves.
    OwnPushes,
    /// Parts of them that wait for bandwidth: the last one made before it.
    Bandwidth(u64),
    /// Earlier operations on a table with a delay: its own place among them.
    Delay(u64),
    /// For a push to a table that combines by clock: its shards hold as many clocks as they may
    /// until their frontier moves.
    Frontier,
}

/// The operations that wait.
#[derive(Default)]
pub(crate) struct Queue {
    operations: BTreeMap<TicketId, QueuedOperation>,
    bytes: usize,
    /// Those that were released, to be looked at again.
    ready: BTreeSet<TicketId>,
    by_ticket: BTreeMap<TicketId, Vec<TicketId>>,
    behind_own: BTreeSet<(TableId, TicketId)>,
    behind_bandwidth: BTreeSet<(TableId, u64, TicketId)>,
    by_place: BTreeMap<(TableId, u64), TicketId>,
    behind_frontier: BTreeSet<(TableId, TicketId)>,
    /// Pushes among the operations.
    pushes: BTreeSet<(TableId, TicketId)>,
    /// Operations looked at again, to see that this grows with their number and not its square.
    #[cfg(test)]
    pub looks: usize,
}

impl Queue {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Bytes that the waiting operations hold.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a push to `table` that was asked for before `ticket` waits.
    pub fn has_push_before(&self, table: TableId, ticket: TicketId) -> bool {
        self.pushes.range((table, TicketId(0))..(table, ticket)).next().is_some()
    }

    /// An operation waits.
    pub fn put(&mut self, queued: QueuedOperation, waits_for: WaitsFor) {
        let (table, ticket) = (queued.table, queued.ticket);
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

    /// The next operation that was released. It is put back if it waits for something else.
    pub fn take_ready(&mut self) -> Option<QueuedOperation> {
        let queued = self.operations.remove(&self.ready.pop_first()?)?;
        #[cfg(test)]
        {
            self.looks += 1;
        }
        self.bytes -= queued.cost();
        Some(queued)
    }

    /// An operation that was taken has started.
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

    /// Parts of pushes have gone: this is the first one of the table that still waits for
    /// bandwidth.
    pub fn gone(&mut self, table: TableId, first: Option<u64>) {
        let until = (table, first.unwrap_or(u64::MAX), TicketId(0));
        while let Some(&name) = self.behind_bandwidth.range((table, 0, TicketId(0))..until).next() {
            self.behind_bandwidth.remove(&name);
            self.ready.insert(name.2);
        }
    }

    /// Whether an operation was released since they were last looked at.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A ticket is finished.
    pub fn finished(&mut self, ticket: TicketId) {
        self.ready.extend(self.by_ticket.remove(&ticket).into_iter().flatten());
    }

    /// The operations of a table with a delay may start as far as this place.
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

    /// The shards of a table take pushes of this clock.
    pub fn may_push(&mut self, table: TableId) {
        while let Some(&name) = self.behind_frontier.range((table, TicketId(0))..=(table, TicketId(u64::MAX))).next() {
            self.behind_frontier.remove(&name);
            self.ready.insert(name.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TABLE, ones, worker_with_table};
    use crate::{Op, Worker, testing};
    use types::{Consistency, TableSpec, Time};
    use wire::{Keys, Message, Outbox};

    fn worker(consistency: Consistency) -> Worker {
        worker_with_table(TableSpec::dense("t", 1, 1).consistency(consistency), 1)
    }

    fn push(worker: &mut Worker, after: &[TicketId], out: &mut Outbox) -> TicketId {
        worker.submit(Time(0), TABLE, Op::Push { batch: ones(Keys::run(0..1), 1, 1) }, None, after, out).expect("fits")
    }

    fn pull(worker: &mut Worker, out: &mut Outbox) -> TicketId {
        worker.submit(Time(0), TABLE, Op::Pull { keys: Keys::run(0..1) }, None, &[], out).expect("fits")
    }

    fn acknowledge(worker: &mut Worker, through: u64, out: &mut Outbox) {
        testing::acknowledge(worker, Time(0), 0, through, Vec::new(), out);
    }

    fn sent(out: &mut Outbox) -> (usize, usize) {
        let frames: Vec<_> = out.drain().collect();
        let pulls = frames.iter().filter(|frame| matches!(frame.message, Message::Pull(_))).count();
        (frames.len() - pulls, pulls)
    }

    /// Many operations that wait are released one by one: each is looked at a few times.
    #[test]
    fn what_waits_is_looked_at_only_when_it_may_go() {
        const MANY: usize = 2_000;
        let bounded = Consistency::slack(0);
        // (how each waits, the rule, whether it names the operation before it or the first)
        for (what, rule, in_a_row) in [
            ("each after the one before", bounded, true),
            ("all after the first", bounded, false),
            ("delay 0", Consistency::Delay { tau: 0 }, false),
        ] {
            let mut worker = worker(rule);
            let mut out = Outbox::new();
            let first = push(&mut worker, &[], &mut out);
            let mut before = first;
            for _ in 1..MANY {
                before = push(&mut worker, &[if in_a_row { before } else { first }], &mut out);
            }
            assert_eq!(sent(&mut out), (1, 0), "{what}: the others wait");
            let mut pushes = 1;
            for through in 1..=MANY as u64 {
                acknowledge(&mut worker, through, &mut out);
                pushes += sent(&mut out).0;
            }
            assert_eq!(pushes, MANY, "{what}: all are sent");
            assert!(worker.is_idle() && worker.queue.bytes() == 0, "{what}");
            assert!(worker.queue.looks <= 2 * MANY, "{what}: {} looks at {MANY} operations", worker.queue.looks);
        }
    }

    #[test]
    fn a_read_follows_own_pushes_that_wait_and_no_later_ones() {
        let mut worker = worker(Consistency::slack(0));
        let mut out = Outbox::new();
        let first = push(&mut worker, &[], &mut out);
        let second = push(&mut worker, &[first], &mut out);
        pull(&mut worker, &mut out);
        push(&mut worker, &[second], &mut out);
        pull(&mut worker, &mut out);
        assert_eq!(sent(&mut out), (1, 0));
        acknowledge(&mut worker, 1, &mut out);
        assert_eq!(sent(&mut out), (1, 1), "the second push, and the read behind it");
        acknowledge(&mut worker, 2, &mut out);
        assert_eq!(sent(&mut out), (1, 1));
        assert_eq!(worker.queue.looks, 4);
    }
}
