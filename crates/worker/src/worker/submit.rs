//! Submits an operation: checks it, finds what it must wait for, and starts it.
#![deny(clippy::wildcard_enum_match_arm)]

use super::Worker;
use crate::schedule::frontier_for_push;
use crate::schedule::queue::{QueuedOperation, WaitsFor};
use crate::send::message::StreamMessage;
use crate::tickets::{ClosedTicket, TicketPurpose};
use crate::{Op, PullTarget, TableFailure, TicketId};
use types::{Setting, TableId, Time};
use wire::{Outbox, Refusal};

impl Worker {
    /// Starts an operation, or queues it until the tickets in `after` are finished and the table's
    /// consistency rule allows it. Refuses an operation that does not fit the table before it sends
    /// anything.
    ///
    /// `into`: memory for exactly the rows of a pull or a push_pull. Without it, the worker makes
    /// the memory. Other operations drop it.
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
        lease.map_or(Ok(()), |lease| self.leases.check(lease))?;
        let leased_parts = op.batch().map(|batch| self.number_leased_parts(table, batch)).unwrap_or_default();
        let access = op.access();
        let place = self.tables.get(&table).and_then(|known| self.schedule.submit(table, &known.spec, access));
        let ticket = self.tickets.open(TicketPurpose { table, reads: access.reads(), place, lease }, 0);
        let queued = QueuedOperation {
            ticket,
            table,
            op,
            target,
            leased_parts,
            own: false,
            after: after.to_vec(),
            follows: None,
        };
        self.start_or_queue(now, queued, out);
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
            Some(waits_for) => self.schedule.put(queued, waits_for),
        }
    }

    fn request_frontier(&mut self, now: Time, table: TableId, out: &mut Outbox) {
        let head = self.head();
        let needed = frontier_for_push(self.clock);
        let Some(table) = self.tables.get_mut(&table) else { return };
        for stream in table.streams.iter_mut().filter(|stream| stream.frontier() < needed) {
            if let Some(frame) = stream.request_frontier(head, self.requests.next(), needed) {
                stream.touch(now);
                self.link.send(frame, out);
            }
        }
    }

    /// A shard has told its frontier: releases the pushes that wait for it, if they may go now.
    pub(super) fn frontier_moved(&mut self, id: TableId) {
        let tables = &self.tables;
        let clock = self.clock;
        self.schedule.frontier_moved(id, || tables.get(&id).is_some_and(|table| table.may_push(clock)));
    }

    /// What an operation waits for, if anything.
    fn what_it_waits_for(&self, queued: &mut QueuedOperation) -> Option<WaitsFor> {
        let table = self.tables.get(&queued.table)?;
        self.schedule.waits_for(queued, &table.spec, &self.tickets, &self.link, || table.may_push(self.clock))
    }

    /// Counts a part of a ticket as done, or refused.
    pub(super) fn part_done(&mut self, ticket: TicketId, refusal: Option<Refusal>) {
        let closed = self.tickets.part_done(ticket, refusal);
        self.closed(closed);
    }

    /// If a ticket was closed: releases the operations that waited for it, tells its lease, and
    /// counts its staleness.
    fn closed(&mut self, closed: Option<ClosedTicket>) {
        let Some(ClosedTicket { ticket, purpose, staleness }) = closed else { return };
        self.schedule.finished(ticket, &purpose);
        purpose.lease.into_iter().for_each(|lease| self.leases.finished(lease));
        if let Some(staleness) = staleness {
            let most = self.counts.staleness.len() - 1;
            self.counts.staleness[most.min(staleness as usize)] += 1;
        }
    }

    pub(super) fn start_queued(&mut self, now: Time, out: &mut Outbox) {
        while let Some(queued) = self.schedule.take_ready() {
            self.start_or_queue(now, queued, out);
        }
    }

    fn start(&mut self, now: Time, queued: QueuedOperation, out: &mut Outbox) {
        let QueuedOperation { ticket, table, op, target, leased_parts, own, .. } = queued;
        self.schedule.started(table, ticket);
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
                // The pull may have to wait until all parts of the push are sent. Until it starts,
                // it counts as a part of the ticket.
                self.tickets.add_parts(ticket, 1);
                let op = Op::Pull { keys: batch.keys };
                let pull = QueuedOperation {
                    ticket,
                    table,
                    op,
                    target,
                    leased_parts: Vec::new(),
                    own: true,
                    after: Vec::new(),
                    follows: None,
                };
                self.start_or_queue(now, pull, out);
            }
            Op::Scan { range, row_state } => self.start_scan(now, ticket, table, range, row_state, out),
            Op::Follow { cursor, first } => self.start_follow(now, ticket, table, cursor, first, out),
            Op::Set { keys, values } => self.start_set(now, ticket, table, &keys, &values.bytes, out),
            Op::Delete { keys } => self.start_delete(now, ticket, table, &keys, out),
            Op::RowState { keys } => self.start_row_state(now, ticket, table, &keys, out),
            Op::Active { keys } => self.start_active(now, ticket, table, &keys, out),
            Op::Tune { setting } => self.start_tune(now, ticket, table, setting, out),
        }
        let closed = self.tickets.close_if_done(ticket);
        self.closed(closed);
    }

    fn start_tune(&mut self, now: Time, ticket: TicketId, id: TableId, setting: Setting, out: &mut Outbox) {
        let head = self.head();
        // This is the clock it was submitted in, because no clock ends while an operation waits.
        let at = self.clock;
        let Some(table) = self.tables.get_mut(&id) else { return };
        for stream in &mut table.streams {
            stream.touch(now);
            self.link.send(stream.append(head, StreamMessage::Tune { ticket, at, setting }), out);
        }
        self.tickets.add_parts(ticket, table.streams.len());
    }
}

#[cfg(test)]
mod tests;
