//! Operations: everything that a program can ask of a table, and what each must wait for.
#![deny(clippy::wildcard_enum_match_arm)]

use super::leases::LeasedPushPart;
use super::pacing::send;
use super::queue::WaitsFor;
use super::stream::StreamMessage;
use super::table::Table;
use super::ticket::PendingTicket;
use super::{Batch, PART_COST, PullTarget, TicketId, Worker};
use lease::LeaseId;
use types::{Clock, Combine, Consistency, HELD_CLOCKS, PositionRange, Setting, TableId, TableSpec, Time};
use wire::{Keys, Outbox, Payload};

/// One operation of a program on a table.
pub(crate) enum Operation {
    Push {
        batch: Batch,
        /// Its parts, where it is made for a data lease.
        leased_parts: Vec<LeasedPushPart>,
    },
    /// `own`: the second half of a push_pull, which follows its own push under any consistency
    /// rule.
    Pull {
        keys: Keys,
        target: PullTarget,
        own: bool,
    },
    PushPull {
        batch: Batch,
        leased_parts: Vec<LeasedPushPart>,
        target: PullTarget,
    },
    Scan {
        range: PositionRange,
    },
    /// Rows as they are kept, in place of those that are there.
    Set {
        keys: Keys,
        values: Payload,
    },
    /// Rows as they are kept; without keys, all that there are.
    RowState {
        keys: Option<Keys>,
    },
    Active {
        keys: Keys,
    },
    Tune {
        at: Clock,
        setting: Setting,
    },
}

impl Operation {
    pub fn cost(&self) -> usize {
        let values = match self {
            Self::Push { batch, .. } | Self::PushPull { batch, .. } => batch.values.bytes.len(),
            Self::Set { values, .. } => values.len(),
            Self::Pull { .. } | Self::Scan { .. } | Self::RowState { .. } | Self::Active { .. } | Self::Tune { .. } => {
                0
            }
        };
        values + PART_COST
    }

    /// The data lease that it is made for.
    fn lease(&self) -> Option<LeaseId> {
        match self {
            Self::Push { batch, .. } | Self::PushPull { batch, .. } => batch.lease,
            Self::Pull { .. }
            | Self::Scan { .. }
            | Self::Set { .. }
            | Self::RowState { .. }
            | Self::Active { .. }
            | Self::Tune { .. } => None,
        }
    }

    /// Whether it changes rows.
    pub fn is_push(&self) -> bool {
        matches!(self, Self::Push { .. } | Self::PushPull { .. } | Self::Set { .. })
    }

    /// Whether it reads rows.
    fn is_read(&self) -> bool {
        !matches!(self, Self::Push { .. } | Self::Set { .. } | Self::Tune { .. })
    }
}

/// An operation that waits.
pub(crate) struct QueuedOperation {
    pub ticket: TicketId,
    pub table: TableId,
    pub operation: Operation,
    /// Those of the tickets it was to run after that may not be finished.
    pub after: Vec<TicketId>,
    /// For a read that follows own pushes: the last part that was made of them, once they have all
    /// been cut.
    pub follows: Option<u64>,
}

impl Worker {
    pub(crate) fn submit(
        &mut self,
        now: Time,
        table: TableId,
        operation: Operation,
        after: &[TicketId],
        out: &mut Outbox,
    ) -> TicketId {
        self.tickets += 1;
        let ticket = TicketId(self.tickets);
        let place = self
            .tables
            .get_mut(&table)
            .filter(|table| matches!(table.spec.consistency, Consistency::Delay { .. }))
            .filter(|_| !matches!(operation, Operation::Tune { .. }))
            .map(|table| {
                table.operations += 1;
                table.unfinished.insert(table.operations);
                table.operations
            });
        let reads = operation.is_read();
        self.open_reads += usize::from(reads);
        let lease = operation.lease();
        let pending = PendingTicket { parts: 0, failure: None, read: None, table, reads, place, lease };
        self.pending.insert(ticket, pending);
        self.start_or_queue(
            now,
            QueuedOperation { ticket, table, operation, after: after.to_vec(), follows: None },
            out,
        );
        if self.pacer.is_some() {
            self.proceed(now, out);
        }
        ticket
    }

    fn start_or_queue(&mut self, now: Time, mut queued: QueuedOperation, out: &mut Outbox) {
        let waits_for = self.what_it_waits_for(&mut queued);
        if waits_for == Some(WaitsFor::Frontier) {
            self.request_frontier(now, queued.table, out);
        }
        if let (Some(WaitsFor::Bandwidth(last)), Some(pacer)) = (waits_for, &mut self.pacer) {
            pacer.expect(queued.table, last);
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
            self.requests += 1;
            if let Some(frame) = stream.request_frontier(head, self.requests, needed) {
                stream.touch(now);
                send(&mut self.pacer, frame, out);
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
            if self.pending.contains_key(after) {
                return Some(WaitsFor::Ticket(*after));
            }
            queued.after.pop();
        }
        let table = self.tables.get(&queued.table)?;
        let spec = &table.spec;
        let waits = match (spec.consistency, spec.combine) {
            // Read-my-writes: what it must hold has to be sent first.
            (Consistency::Bounded { .. }, Combine::Each)
                if queued.operation.is_read() && self.queue.has_push_before(queued.table, queued.ticket) =>
            {
                Some(WaitsFor::OwnPushes)
            }
            (Consistency::Delay { tau }, _) => {
                let place = self.pending.get(&queued.ticket).and_then(|pending| pending.place);
                place.filter(|place| *place > self.reached(queued.table, tau)).map(WaitsFor::Delay)
            }
            _ => None,
        };
        let waits = waits.or_else(|| self.waits_for_bandwidth(queued, spec));
        waits.or((queued.operation.is_push() && !self.may_push(table)).then_some(WaitsFor::Frontier))
    }

    /// Whether parts of pushes that a read must follow wait for bandwidth.
    fn waits_for_bandwidth(&self, queued: &mut QueuedOperation, spec: &TableSpec) -> Option<WaitsFor> {
        let own = match &queued.operation {
            Operation::Pull { own: true, .. } => true,
            Operation::Push { .. } | Operation::PushPull { .. } | Operation::Set { .. } | Operation::Tune { .. } => {
                false
            }
            Operation::Pull { .. } | Operation::Scan { .. } | Operation::RowState { .. } | Operation::Active { .. } => {
                spec.consistency.bound().is_some()
            }
        };
        let pacer = self.pacer.as_ref().filter(|_| own && spec.combine == Combine::Each)?;
        let last = *queued.follows.get_or_insert(pacer.made());
        let first = pacer.first_of(queued.table);
        first.filter(|first| *first <= last).map(|_| WaitsFor::Bandwidth(last))
    }

    /// The last place of a table with a delay that may start: operation i starts when the
    /// operations before i − τ are acknowledged.
    fn reached(&self, table: TableId, tau: u64) -> u64 {
        let oldest = self.tables.get(&table).and_then(|table| table.unfinished.first());
        oldest.map_or(u64::MAX, |oldest| oldest.saturating_add(tau))
    }

    /// A ticket is finished: operations that waited for it may start.
    pub(crate) fn release(&mut self, ticket: TicketId, table: TableId, place: Option<u64>) {
        self.queue.finished(ticket);
        let Some(place) = place else { return };
        if let Some(table) = self.tables.get_mut(&table) {
            table.unfinished.remove(&place);
        }
        if let Some(Consistency::Delay { tau }) = self.spec(table).map(|spec| spec.consistency) {
            self.queue.reached(table, self.reached(table, tau));
        }
    }

    pub(crate) fn start_queued(&mut self, now: Time, out: &mut Outbox) {
        while let Some(queued) = self.queue.take_ready() {
            self.start_or_queue(now, queued, out);
        }
    }

    fn start(&mut self, now: Time, queued: QueuedOperation, out: &mut Outbox) {
        let QueuedOperation { ticket, table, operation, .. } = queued;
        self.queue.started(table, ticket);
        match operation {
            Operation::Push { batch, leased_parts } => self.start_push(now, ticket, table, &batch, leased_parts, out),
            Operation::Pull { keys, target, own } => {
                self.start_pull(now, ticket, table, &keys, target, own, out);
                if own {
                    self.part_done(ticket, None);
                }
            }
            Operation::PushPull { batch, leased_parts, target } => {
                self.start_push(now, ticket, table, &batch, leased_parts, out);
                // The pull may have to wait for parts of the push to be sent. Until it starts, it
                // counts as a part of the ticket.
                if let Some(pending) = self.pending.get_mut(&ticket) {
                    pending.parts += 1;
                }
                let operation = Operation::Pull { keys: batch.keys, target, own: true };
                self.start_or_queue(
                    now,
                    QueuedOperation { ticket, table, operation, after: Vec::new(), follows: None },
                    out,
                );
            }
            Operation::Scan { range } => self.start_scan(now, ticket, table, range, out),
            Operation::Set { keys, values } => self.start_set(now, ticket, table, &keys, &values, out),
            Operation::RowState { keys } => self.start_row_state(now, ticket, table, keys.as_ref(), out),
            Operation::Active { keys } => self.start_active(now, ticket, table, &keys, out),
            Operation::Tune { at, setting } => self.start_tune(now, ticket, table, at, setting, out),
        }
        if self.pending.get(&ticket).is_some_and(|pending| pending.parts == 0) {
            self.complete(ticket);
        }
    }

    fn start_tune(&mut self, now: Time, ticket: TicketId, id: TableId, at: Clock, setting: Setting, out: &mut Outbox) {
        let head = self.head();
        let Some(table) = self.tables.get_mut(&id) else { return };
        for stream in &mut table.streams {
            stream.touch(now);
            send(&mut self.pacer, stream.append(head, StreamMessage::Tune { ticket, at, setting }), out);
        }
        if let Some(pending) = self.pending.get_mut(&ticket) {
            pending.parts = table.streams.len();
        }
    }
}
