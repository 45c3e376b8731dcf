//! Tasks: what must happen before each.

use super::leases::PiecePart;
use super::pacing::send;
use super::queue::Obstacle;
use super::stream::ItemKind;
use super::ticket::Pending;
use super::{Batch, PART_COST, PullTarget, Table, TicketId, Worker, touch};
use types::HELD_CLOCKS;
use types::{Clock, Combine, Consistency, PositionRange, Setting, TableId, TableSpec, Time};
use wire::Outbox;
use wire::{Keys, Payload};

/// One thing a program asked for.
pub(super) enum Task {
    Push {
        batch: Batch,
        /// Its parts, where it is of a lease.
        pieces: Vec<PiecePart>,
    },
    /// The second half of a push_pull follows its own push, whatever the rule for reads.
    Pull {
        keys: Keys,
        target: PullTarget,
        own: bool,
    },
    PushPull {
        batch: Batch,
        pieces: Vec<PiecePart>,
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
    Kept {
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

impl Task {
    pub fn cost(&self) -> usize {
        let values = match self {
            Self::Push { batch, .. } | Self::PushPull { batch, .. } => batch.values.bytes.len(),
            Self::Set { values, .. } => values.len(),
            Self::Pull { .. } | Self::Scan { .. } | Self::Kept { .. } | Self::Active { .. } | Self::Tune { .. } => 0,
        };
        values + PART_COST
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

/// A task that waits for others.
pub(super) struct Queued {
    pub ticket: TicketId,
    pub table: TableId,
    pub task: Task,
    /// Those of the tickets it was to run after that may not be finished.
    pub after: Vec<TicketId>,
    /// For a read that follows own pushes: the last part that was made of them, once they have all been cut.
    pub follows: Option<u64>,
}

impl Worker {
    pub(super) fn submit(
        &mut self,
        now: Time,
        table: TableId,
        task: Task,
        after: &[TicketId],
        out: &mut Outbox,
    ) -> TicketId {
        self.tickets += 1;
        let ticket = TicketId(self.tickets);
        let place = self
            .tables
            .get_mut(&table)
            .filter(|table| matches!(table.spec.consistency, Consistency::Delay { .. }))
            .filter(|_| !matches!(task, Task::Tune { .. }))
            .map(|table| {
                table.tasks += 1;
                table.unfinished.insert(table.tasks);
                table.tasks
            });
        let reads = task.is_read();
        self.open_reads += usize::from(reads);
        let lease = match &task {
            Task::Push { batch, .. } | Task::PushPull { batch, .. } => batch.lease,
            _ => None,
        };
        let pending = Pending { parts: 0, failure: None, read: None, table, reads, place, lease };
        self.pending.insert(ticket, pending);
        self.start_or_queue(now, Queued { ticket, table, task, after: after.to_vec(), follows: None }, out);
        if self.pacer.is_some() {
            self.proceed(now, out);
        }
        ticket
    }

    fn start_or_queue(&mut self, now: Time, mut queued: Queued, out: &mut Outbox) {
        let obstacle = self.obstacle(&mut queued);
        if obstacle == Some(Obstacle::Room) {
            self.ask_for_room(now, queued.table, out);
        }
        if let (Some(Obstacle::Held(last)), Some(pacer)) = (obstacle, &mut self.pacer) {
            pacer.expect(queued.table, last);
        }
        match obstacle {
            None => self.start(now, queued, out),
            Some(obstacle) => self.queue.put(queued, obstacle),
        }
    }

    /// The least frontier at which a push to a table whose contributions meet by clock may be sent.
    fn frontier_for_push(&self) -> Clock {
        Clock(self.clock.next().0.saturating_sub(HELD_CLOCKS))
    }

    /// Whether the shards of a table hold contributions of this clock, by what they have told of their frontiers.
    pub(super) fn has_room(&self, table: &Table) -> bool {
        let needed = self.frontier_for_push();
        table.spec.combine == Combine::Each || table.links.iter().all(|link| link.frontier() >= needed)
    }

    fn ask_for_room(&mut self, now: Time, table: TableId, out: &mut Outbox) {
        let (head, needed) = (self.head(), self.frontier_for_push());
        let Some(table) = self.tables.get_mut(&table) else { return };
        for link in table.links.iter_mut().filter(|link| link.frontier() < needed) {
            self.requests += 1;
            if let Some(frame) = link.ask_for_room(head, self.requests, needed) {
                touch(link, now);
                send(&mut self.pacer, frame, out);
            }
        }
    }

    /// A shard has told of its frontier: pushes may have room now.
    pub(super) fn make_room(&mut self, table: TableId) {
        if self.queue.is_crowded() && self.tables.get(&table).is_some_and(|table| self.has_room(table)) {
            self.queue.has_room(table);
        }
    }

    /// What a task waits for, if anything. Once something is out of its way it never stands there again.
    fn obstacle(&self, queued: &mut Queued) -> Option<Obstacle> {
        while let Some(after) = queued.after.last() {
            if self.pending.contains_key(after) {
                return Some(Obstacle::Ticket(*after));
            }
            queued.after.pop();
        }
        let table = self.tables.get(&queued.table)?;
        let spec = &table.spec;
        let waits = match (spec.consistency, spec.combine) {
            // Read-my-writes: what it must hold has to be sent first.
            (Consistency::Bounded { .. }, Combine::Each)
                if queued.task.is_read() && self.queue.has_push_before(queued.table, queued.ticket) =>
            {
                Some(Obstacle::OwnPushes)
            }
            (Consistency::Delay { tau }, _) => {
                let place = self.pending.get(&queued.ticket).and_then(|pending| pending.place);
                place.filter(|place| *place > self.reached(queued.table, tau)).map(Obstacle::Delay)
            }
            _ => None,
        };
        let waits = waits.or_else(|| self.held_before(queued, spec));
        waits.or((queued.task.is_push() && !self.has_room(table)).then_some(Obstacle::Room))
    }

    /// Whether parts of what a read must follow wait for bandwidth.
    fn held_before(&self, queued: &mut Queued, spec: &TableSpec) -> Option<Obstacle> {
        let own = match &queued.task {
            Task::Pull { own: true, .. } => true,
            Task::Push { .. } | Task::PushPull { .. } | Task::Set { .. } | Task::Tune { .. } => false,
            Task::Pull { .. } | Task::Scan { .. } | Task::Kept { .. } | Task::Active { .. } => {
                spec.consistency.bound().is_some()
            }
        };
        let pacer = self.pacer.as_ref().filter(|_| own && spec.combine == Combine::Each)?;
        let last = *queued.follows.get_or_insert(pacer.made());
        let first = pacer.first_of(queued.table);
        first.filter(|first| *first <= last).map(|_| Obstacle::Held(last))
    }

    /// The last place of a table with a delay that may start: task i is issued when its tasks before i − τ are acknowledged.
    fn reached(&self, table: TableId, tau: u64) -> u64 {
        let oldest = self.tables.get(&table).and_then(|table| table.unfinished.first());
        oldest.map_or(u64::MAX, |oldest| oldest.saturating_add(tau))
    }

    /// A ticket is finished: lets go what waited for it.
    pub(super) fn release(&mut self, ticket: TicketId, table: TableId, place: Option<u64>) {
        self.queue.finished(ticket);
        let Some(place) = place else { return };
        if let Some(table) = self.tables.get_mut(&table) {
            table.unfinished.remove(&place);
        }
        if let Some(Consistency::Delay { tau }) = self.spec(table).map(|spec| spec.consistency) {
            self.queue.reached(table, self.reached(table, tau));
        }
    }

    pub(super) fn start_queued(&mut self, now: Time, out: &mut Outbox) {
        while let Some(queued) = self.queue.take_ready() {
            self.start_or_queue(now, queued, out);
        }
    }

    fn start(&mut self, now: Time, queued: Queued, out: &mut Outbox) {
        let Queued { ticket, table, task, .. } = queued;
        self.queue.started(table, ticket);
        match task {
            Task::Push { batch, pieces } => self.start_push(now, ticket, table, &batch, pieces, out),
            Task::Pull { keys, target, own } => {
                self.start_pull(now, ticket, table, &keys, target, own, out);
                if own {
                    self.part_done(ticket, None);
                }
            }
            Task::PushPull { batch, pieces, target } => {
                self.start_push(now, ticket, table, &batch, pieces, out);
                // The pull may have to wait for parts of the push to be sent. Until it starts, it is a part of the ticket.
                if let Some(pending) = self.pending.get_mut(&ticket) {
                    pending.parts += 1;
                }
                let task = Task::Pull { keys: batch.keys, target, own: true };
                self.start_or_queue(now, Queued { ticket, table, task, after: Vec::new(), follows: None }, out);
            }
            Task::Scan { range } => self.start_scan(now, ticket, table, range, out),
            Task::Set { keys, values } => self.start_set(now, ticket, table, &keys, &values, out),
            Task::Kept { keys } => self.start_kept(now, ticket, table, keys.as_ref(), out),
            Task::Active { keys } => self.start_active(now, ticket, table, &keys, out),
            Task::Tune { at, setting } => self.start_tune(now, ticket, table, at, setting, out),
        }
        if self.pending.get(&ticket).is_some_and(|pending| pending.parts == 0) {
            self.complete(ticket);
        }
    }

    fn start_tune(&mut self, now: Time, ticket: TicketId, id: TableId, at: Clock, setting: Setting, out: &mut Outbox) {
        let head = self.head();
        let Some(table) = self.tables.get_mut(&id) else { return };
        for link in &mut table.links {
            touch(link, now);
            send(&mut self.pacer, link.append(head, ItemKind::Tune { ticket, at, setting }), out);
        }
        if let Some(pending) = self.pending.get_mut(&ticket) {
            pending.parts = table.links.len();
        }
    }
}
