//! How an operation is submitted, what it must wait for, and how it is started.
#![deny(clippy::wildcard_enum_match_arm)]

use super::Worker;
use super::table::Table;
use crate::leases::LeasedPushPart;
use crate::op::Access;
use crate::queue::WaitsFor;
use crate::send::message::StreamMessage;
use crate::tickets::{ClosedTicket, TicketPurpose};
use crate::{Op, PART_COST, PullTarget, TableFailure, TicketId};
use types::{Clock, Combine, Consistency, HELD_CLOCKS, Setting, TableId, TableSpec, Time};
use wire::{Outbox, Refusal};

/// An operation that waits.
pub(crate) struct QueuedOperation {
    pub ticket: TicketId,
    pub table: TableId,
    pub op: Op,
    /// Where the rows go that it reads.
    pub target: PullTarget,
    /// Its parts, where it is made for a data lease.
    pub leased_parts: Vec<LeasedPushPart>,
    /// Whether it is the second half of a push_pull, which follows its own push under any
    /// consistency rule.
    pub own: bool,
    /// Those of the tickets it was to run after that may not be finished.
    pub after: Vec<TicketId>,
    /// For a read that follows own pushes: the last part that was made of them, once they have all
    /// been cut.
    pub follows: Option<u64>,
}

impl QueuedOperation {
    /// What it costs while it waits, in bytes.
    pub fn cost(&self) -> usize {
        self.op.value_bytes() + PART_COST
    }
}

impl Worker {
    /// Starts an operation, or has it wait: for the tickets in `after`, and for what the table's
    /// consistency rule asks. Refuses it before anything is sent if it does not fit the table.
    ///
    /// `into`: where the rows of a pull or a push_pull go, with room for exactly these rows;
    /// without it, memory that is made here. Other operations have no use for it, and drop it.
    pub fn submit(
        &mut self,
        now: Time,
        table: TableId,
        op: Op,
        into: Option<PullTarget>,
        after: &[TicketId],
        out: &mut Outbox,
    ) -> Result<TicketId, TableFailure> {
        let spec = self.known(table)?;
        op.check(spec)?;
        let target = op.target(spec, into)?;
        let lease = op.lease();
        lease.map_or(Ok(()), |lease| self.check_lease(lease))?;
        let leased_parts = op.batch().map(|batch| self.number_leased_parts(table, batch)).unwrap_or_default();
        let access = op.access();
        let place = self
            .tables
            .get_mut(&table)
            .filter(|table| matches!(table.spec.consistency, Consistency::Delay { .. }))
            .filter(|_| access != Access::Neither)
            .map(|table| {
                table.operations += 1;
                table.unfinished.insert(table.operations);
                table.operations
            });
        let ticket = self.tickets.open(TicketPurpose { table, reads: access.reads(), place, lease }, 0);
        let (after, own, follows) = (after.to_vec(), false, None);
        self.start_or_queue(now, QueuedOperation { ticket, table, op, target, leased_parts, own, after, follows }, out);
        if self.link.is_bounded() {
            self.proceed(now, out);
        }
        Ok(ticket)
    }

    fn start_or_queue(&mut self, now: Time, mut queued: QueuedOperation, out: &mut Outbox) {
        let waits_for = self.what_it_waits_for(&mut queued);
        if waits_for == Some(WaitsFor::Frontier) {
            self.request_frontier(now, queued.table, out);
        }
        if let Some(WaitsFor::Bandwidth(last)) = waits_for {
            self.link.expect(queued.table, last);
        }
        match waits_for {
            None => self.start(now, queued, out),
            Some(waits_for) => self.queue.put(queued, waits_for),
        }
    }

    /// The least frontier at which a push to a table that combines by clock may be sent.
    fn frontier_for_push(&self) -> Clock {
        Clock(self.clock.next().0.saturating_sub(HELD_CLOCKS))
    }

    /// Whether the shards of a table take pushes of this clock, by what they have told of their
    /// frontiers.
    pub(crate) fn may_push(&self, table: &Table) -> bool {
        let needed = self.frontier_for_push();
        table.spec.combine == Combine::Each || table.streams.iter().all(|stream| stream.frontier() >= needed)
    }

    fn request_frontier(&mut self, now: Time, table: TableId, out: &mut Outbox) {
        let (head, needed) = (self.head(), self.frontier_for_push());
        let Some(table) = self.tables.get_mut(&table) else { return };
        for stream in table.streams.iter_mut().filter(|stream| stream.frontier() < needed) {
            if let Some(frame) = stream.request_frontier(head, self.requests.next(), needed) {
                stream.touch(now);
                self.link.send(frame, out);
            }
        }
    }

    /// A shard has told of its frontier: pushes that wait for it may go now.
    pub(crate) fn frontier_moved(&mut self, table: TableId) {
        if self.queue.has_pushes_behind_frontier() && self.tables.get(&table).is_some_and(|table| self.may_push(table))
        {
            self.queue.may_push(table);
        }
    }

    /// What an operation waits for, if anything. Once that has happened, it never waits for it
    /// again.
    fn what_it_waits_for(&self, queued: &mut QueuedOperation) -> Option<WaitsFor> {
        while let Some(after) = queued.after.last() {
            if !self.tickets.is_finished(*after) {
                return Some(WaitsFor::Ticket(*after));
            }
            queued.after.pop();
        }
        let table = self.tables.get(&queued.table)?;
        let spec = &table.spec;
        let waits = match (spec.consistency, spec.combine) {
            // Read-my-writes: what it must hold has to be sent first.
            (Consistency::Bounded { .. }, Combine::Each)
                if queued.op.access().reads() && self.queue.has_push_before(queued.table, queued.ticket) =>
            {
                Some(WaitsFor::OwnPushes)
            }
            (Consistency::Delay { tau }, _) => {
                let place = self.tickets.purpose(queued.ticket).and_then(|purpose| purpose.place);
                place.filter(|place| *place > self.reached(queued.table, tau)).map(WaitsFor::Delay)
            }
            _ => None,
        };
        let waits = waits.or_else(|| self.waits_for_bandwidth(queued, spec));
        waits.or((queued.op.access().writes() && !self.may_push(table)).then_some(WaitsFor::Frontier))
    }

    /// Whether parts of pushes that a read must follow wait for bandwidth.
    fn waits_for_bandwidth(&self, queued: &mut QueuedOperation, spec: &TableSpec) -> Option<WaitsFor> {
        let follows = match queued.op.access() {
            Access::Read => queued.own || spec.consistency.bound().is_some(),
            Access::Write | Access::WriteRead | Access::Neither => false,
        };
        let made = self.link.last_part().filter(|_| follows && spec.combine == Combine::Each)?;
        let last = *queued.follows.get_or_insert(made);
        let first = self.link.first_waiting(queued.table);
        first.filter(|first| *first <= last).map(|_| WaitsFor::Bandwidth(last))
    }

    /// The last place of a table with a delay that may start: operation i starts when the
    /// operations before i − τ are acknowledged.
    fn reached(&self, table: TableId, tau: u64) -> u64 {
        let oldest = self.tables.get(&table).and_then(|table| table.unfinished.first());
        oldest.map_or(u64::MAX, |oldest| oldest.saturating_add(tau))
    }

    /// A part of a ticket is done, or refused.
    pub(crate) fn part_done(&mut self, ticket: TicketId, refusal: Option<Refusal>) {
        let closed = self.tickets.part_done(ticket, refusal);
        self.closed(closed);
    }

    /// A ticket may be closed: then operations that waited for it may start, and its lease has one
    /// push less to wait for.
    fn closed(&mut self, closed: Option<ClosedTicket>) {
        let Some(ClosedTicket { ticket, purpose, staleness }) = closed else { return };
        self.queue.finished(ticket);
        purpose.lease.into_iter().for_each(|lease| self.leases.finished(lease));
        if let Some(staleness) = staleness {
            let most = self.counts.staleness.len() - 1;
            self.counts.staleness[most.min(staleness as usize)] += 1;
        }
        let Some(place) = purpose.place else { return };
        let Some(table) = self.tables.get_mut(&purpose.table) else { return };
        table.unfinished.remove(&place);
        if let Consistency::Delay { tau } = table.spec.consistency {
            self.queue.reached(purpose.table, self.reached(purpose.table, tau));
        }
    }

    pub(crate) fn start_queued(&mut self, now: Time, out: &mut Outbox) {
        while let Some(queued) = self.queue.take_ready() {
            self.start_or_queue(now, queued, out);
        }
    }

    fn start(&mut self, now: Time, queued: QueuedOperation, out: &mut Outbox) {
        let QueuedOperation { ticket, table, op, target, leased_parts, own, .. } = queued;
        self.queue.started(table, ticket);
        match op {
            Op::Push { batch } => self.start_push(now, ticket, table, &batch, leased_parts, out),
            Op::Pull { keys } => {
                self.start_pull(now, ticket, table, &keys, target, own, out);
                if own {
                    self.part_done(ticket, None);
                }
            }
            Op::PushPull { batch } => {
                self.start_push(now, ticket, table, &batch, leased_parts, out);
                // The pull may have to wait for parts of the push to be sent. Until it starts, it
                // counts as a part of the ticket.
                self.tickets.add_parts(ticket, 1);
                let op = Op::Pull { keys: batch.keys };
                let (leased_parts, own, after, follows) = (Vec::new(), true, Vec::new(), None);
                let pull = QueuedOperation { ticket, table, op, target, leased_parts, own, after, follows };
                self.start_or_queue(now, pull, out);
            }
            Op::Scan { range, row_state } => self.start_scan(now, ticket, table, range, row_state, out),
            Op::Set { keys, values } => self.start_set(now, ticket, table, &keys, &values.bytes, out),
            Op::RowState { keys } => self.start_row_state(now, ticket, table, &keys, out),
            Op::Active { keys } => self.start_active(now, ticket, table, &keys, out),
            Op::Tune { setting } => self.start_tune(now, ticket, table, setting, out),
        }
        let closed = self.tickets.close_if_done(ticket);
        self.closed(closed);
    }

    fn start_tune(&mut self, now: Time, ticket: TicketId, id: TableId, setting: Setting, out: &mut Outbox) {
        // The clock it was submitted in: no clock ends while an operation waits.
        let (head, at) = (self.head(), self.clock);
        let Some(table) = self.tables.get_mut(&id) else { return };
        for stream in &mut table.streams {
            stream.touch(now);
            self.link.send(stream.append(head, StreamMessage::Tune { ticket, at, setting }), out);
        }
        self.tickets.add_parts(ticket, table.streams.len());
    }
}
