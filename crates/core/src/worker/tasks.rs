//! Tasks: what must happen before each, and how it is cut into parts and sent.

use super::calls::check_keys;
use super::copies::Answer;
use super::leases::PiecePart;
use super::pacing::{Held, PACED_BYTES, send};
use super::queue::Obstacle;
use super::stream::{ItemKind, ReadKeys, Reading, frame_bytes};
use super::ticket::{Pending, PendingRead};
use super::upward::Encoded;
use super::{Batch, PART_COST, PullTarget, ShardLink, Table, TableFailure, Ticket, Worker, touch};
use crate::Outbox;
use crate::bounds::HELD_CLOCKS;
use codec::Share;
use std::ops::Range;
use types::{Clock, Combine, Consistency, NumberType, PositionRange, Setting, Source, TableId, TableSpec, Time};
use wire::{Bits, Keys, LeasedPiece, Payload, Slice, Wants};

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
            Self::Pull { .. } | Self::Scan { .. } | Self::Active { .. } | Self::Tune { .. } => 0,
        };
        values + PART_COST
    }

    /// Whether it changes rows.
    pub fn is_push(&self) -> bool {
        matches!(self, Self::Push { .. } | Self::PushPull { .. })
    }

    /// Whether it reads rows.
    fn is_read(&self) -> bool {
        matches!(self, Self::Pull { .. } | Self::PushPull { .. } | Self::Scan { .. } | Self::Active { .. })
    }
}

/// A task that waits for others.
pub(super) struct Queued {
    pub ticket: Ticket,
    pub table: TableId,
    pub task: Task,
    /// Those of the tickets it was to run after that may not be finished.
    pub after: Vec<Ticket>,
    /// For a read that follows own pushes: the last part that was made of them, once they have all been cut.
    pub follows: Option<u64>,
}

impl Worker {
    pub(super) fn submit(
        &mut self,
        now: Time,
        table: TableId,
        task: Task,
        after: &[Ticket],
        out: &mut Outbox,
    ) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
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
    fn has_room(&self, table: &Table) -> bool {
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
            Task::Push { .. } | Task::PushPull { .. } | Task::Tune { .. } => false,
            Task::Pull { .. } | Task::Scan { .. } | Task::Active { .. } => spec.consistency.bound().is_some(),
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
    pub(super) fn release(&mut self, ticket: Ticket, table: TableId, place: Option<u64>) {
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
            Task::Active { keys } => self.start_active(now, ticket, table, &keys, out),
            Task::Tune { at, setting } => self.start_tune(now, ticket, table, at, setting, out),
        }
        if self.pending.get(&ticket).is_some_and(|pending| pending.parts == 0) {
            self.complete(ticket);
        }
    }

    fn start_push(
        &mut self,
        now: Time,
        ticket: Ticket,
        id: TableId,
        batch: &Batch,
        pieces: Vec<PiecePart>,
        out: &mut Outbox,
    ) {
        let Some(table) = self.tables.get_mut(&id) else { return };
        let row_bytes = table.spec.row_bytes();
        if batch.lease.is_some() {
            for PiecePart { rows, piece, examples } in pieces {
                let values = batch.values.bytes.slice(rows.start * row_bytes..rows.end * row_bytes);
                self.push_part(now, ticket, id, batch.keys.slice(rows), values, Some((piece, examples)), out);
            }
            return;
        }
        table.links.iter_mut().for_each(|link| link.untold = link.untold.saturating_add(batch.examples));
        for rows in self.parts(id, &batch.keys) {
            let values = batch.values.bytes.slice(rows.start * row_bytes..rows.end * row_bytes);
            self.push_rows(now, ticket, id, &batch.keys, rows, values, out);
        }
    }

    /// How a list falls into parts: whole rows of one shard each, in the order of the list.
    #[must_use]
    pub fn parts(&self, table: TableId, keys: &Keys) -> Vec<Range<usize>> {
        let Some(table) = self.tables.get(&table) else { return Vec::new() };
        let mut rows = keys.rows_per_part(table.spec.number, table.spec.width);
        if self.pacer.is_some() {
            rows = rows.min((PACED_BYTES / table.spec.row_bytes()).max(1));
        }
        let cut = |link: &ShardLink| keys.parts(link.placed.range, rows);
        table.links.iter().flat_map(cut).collect()
    }

    /// Begins a push whose values are handed over part by part with [`Worker::push_rows`] and ended with
    /// [`Worker::end_push`]. Only where nothing must come before it: else there is nothing to begin.
    pub fn begin_push(&mut self, table: TableId, keys: &Keys, examples: u64) -> Result<Option<Ticket>, TableFailure> {
        let spec = self.known(table)?;
        check_keys(spec, keys)?;
        let delayed = matches!(spec.consistency, Consistency::Delay { .. });
        if delayed || !self.tables.get(&table).is_some_and(|table| self.has_room(table)) {
            return Ok(None);
        }
        self.begun += 1;
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let (failure, read, reads, place, lease) = (None, None, false, None, None);
        self.pending.insert(ticket, Pending { parts: 1, failure, read, table, reads, place, lease });
        if let Some(table) = self.tables.get_mut(&table) {
            table.links.iter_mut().for_each(|link| link.untold = link.untold.saturating_add(examples));
        }
        Ok(Some(ticket))
    }

    /// Pushes one of the [`Worker::parts`] of a list.
    #[expect(clippy::too_many_arguments, reason = "a part is named by its list, its rows and its ticket")]
    pub fn push_rows(
        &mut self,
        now: Time,
        ticket: Ticket,
        id: TableId,
        keys: &Keys,
        rows: Range<usize>,
        values: Payload,
        out: &mut Outbox,
    ) {
        self.push_part(now, ticket, id, keys.slice(rows), values, None, out);
    }

    /// Pushes the rows of one shard, with its name and its examples where it is of a lease.
    #[expect(clippy::too_many_arguments, reason = "a part is named by its rows, its ticket and its place in a lease")]
    fn push_part(
        &mut self,
        now: Time,
        ticket: Ticket,
        id: TableId,
        keys: Slice,
        values: Payload,
        leased: Option<(LeasedPiece, u64)>,
        out: &mut Outbox,
    ) {
        let Some(table) = self.tables.get_mut(&id) else { return };
        let first = keys.position(0);
        let Some(shard) = table.links.iter().position(|link| link.placed.range.contains(first)) else { return };
        let significance = if self.pacer.is_some() { table.significance(&keys, &values) } else { 0.0 };
        let encoded = table.upward.encode(&keys, values);
        let mut plain = None;
        if let (Some(cache), Combine::Each) = (&mut table.cache, table.spec.combine) {
            if !encoded.formats.leaves_values() {
                plain = table.upward.decode(&encoded, keys.len());
            }
            cache.pushed(&keys, plain.as_ref().unwrap_or(&encoded.values));
        }
        let Encoded { values, formats } = encoded;
        let (lease, examples) = leased.unzip();
        let item = ItemKind::Push { ticket, keys, values, formats, plain, lease };
        self.unacknowledged_bytes += item.kept() + PART_COST;
        self.counts.parts += 1;
        if let Some(pending) = self.pending.get_mut(&ticket) {
            pending.parts += 1;
        }
        self.send_item(now, id, shard, item, examples, significance, out);
    }

    /// Sends a push to a shard, or holds it until there is bandwidth. With examples of its own, or with those that the shard was not told
    /// of.
    #[expect(clippy::too_many_arguments, reason = "what is sent, where, and when")]
    pub(super) fn send_item(
        &mut self,
        now: Time,
        id: TableId,
        shard: usize,
        item: ItemKind,
        examples: Option<u64>,
        significance: f64,
        out: &mut Outbox,
    ) {
        let mut head = self.head();
        let Some(table) = self.tables.get_mut(&id) else { return };
        let Some(link) = table.links.get_mut(shard) else { return };
        head.examples = examples.unwrap_or_else(|| std::mem::take(&mut link.untold));
        if let Some(pacer) = &mut self.pacer {
            // Sums are the same in any order.
            let ordered = table.spec.combine == Combine::Each && !table.spec.updater.is_additive();
            let number = pacer.hold(Held { table: id, shard, head, item, significance, ordered });
            self.send_paced(now, out);
            let waits = self.pacer.as_ref().is_some_and(|pacer| pacer.has(number));
            self.counts.waited += u64::from(waits);
            return;
        }
        touch(link, now);
        let frame = link.append_held(head, item);
        self.rate.sent(now, frame_bytes(&frame) as u64);
        out.send(frame);
    }

    /// Every part of a push that was begun has been handed over.
    pub fn end_push(&mut self, ticket: Ticket) {
        self.begun -= 1;
        self.part_done(ticket, None);
    }

    fn start_tune(&mut self, now: Time, ticket: Ticket, id: TableId, at: Clock, setting: Setting, out: &mut Outbox) {
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

    #[expect(clippy::too_many_arguments, reason = "a read is named by its ticket, its rows and where they go")]
    fn start_pull(
        &mut self,
        now: Time,
        ticket: Ticket,
        id: TableId,
        keys: &Keys,
        mut target: PullTarget,
        own: bool,
        out: &mut Outbox,
    ) {
        let reader = self.clock;
        let head = self.head();
        let Some(table) = self.tables.get_mut(&id) else { return };
        let row_bytes = table.spec.row_bytes();
        let Known { clock, misses, stale } = table.answer(self.source, keys, reader, &mut target);
        let failed =
            if clock < Clock(u64::MAX) || !stale.is_empty() { table.failed_in_view(reader) } else { Vec::new() };
        let missed = misses.as_ref().map_or(keys.len(), Vec::len);
        // Those that steps bring up to date are copies, too, but cost a round trip.
        let cached_rows = keys.len() - missed;
        self.counts.rows_read += keys.len() as u64;
        self.counts.rows_cached += (cached_rows - stale.len()) as u64;
        let steps = table.follows_steps();
        let mut parts = 0;
        let wanted = misses.as_ref().map_or_else(|| keys.clone(), |misses| keys.select(misses));
        let overdue = keys.select(&stale);
        let rows_per_part = wanted.rows_per_part(table.spec.number, table.spec.width);
        for (shard, link) in table.links.iter_mut().enumerate() {
            let mut readings = Vec::new();
            let late = overdue.within(link.placed.range);
            if let (Some(copies), false) = (&table.copies, late.is_empty()) {
                let wanted = late.len() as u64;
                let keys = ReadKeys::Steps { keys: overdue.slice(late.clone()), rows: stale[late].to_vec() };
                readings.push((keys, Some((copies.step(shard), wanted))));
            }
            for rows in wanted.parts(link.placed.range, rows_per_part) {
                let (slice, row) = (wanted.slice(rows.clone()), rows.start);
                let keys = match &misses {
                    Some(misses) => ReadKeys::Scattered { keys: slice, rows: misses[rows].to_vec() },
                    None => ReadKeys::Straight { keys: slice, row },
                };
                readings.push((keys, steps.then_some((0, 0))));
            }
            for (keys, steps) in readings {
                self.requests += 1;
                let mut reading = read_of(&table.spec, link, ticket, reader, keys);
                reading.steps = steps;
                if own && table.spec.combine == Combine::Each {
                    reading.after = link.last();
                }
                touch(link, now);
                link.read(head, self.requests, reading).into_iter().for_each(|frame| out.send(frame));
                parts += 1;
            }
        }
        if let Some(pending) = self.pending.get_mut(&ticket) {
            pending.parts += parts;
            pending.read = Some(PendingRead {
                target,
                active: Bits::none(0),
                row_bytes,
                clock,
                reader,
                released_by: None,
                failed,
                cached_rows,
                found: Vec::new(),
            });
        }
    }

    fn start_scan(&mut self, now: Time, ticket: Ticket, id: TableId, range: PositionRange, out: &mut Outbox) {
        let reader = self.clock;
        let head = self.head();
        let Some(table) = self.tables.get_mut(&id) else { return };
        let mut parts = 0;
        let mut found = Vec::new();
        for link in &mut table.links {
            let first = range.first.max(link.placed.range.first);
            let last = range.last.min(link.placed.range.last);
            if first > last {
                continue;
            }
            self.requests += 1;
            let keys = ReadKeys::Scan { range: PositionRange { first, last }, shard: parts };
            let reading = read_of(&table.spec, link, ticket, reader, keys);
            touch(link, now);
            link.read(head, self.requests, reading).into_iter().for_each(|frame| out.send(frame));
            found.push((Vec::new(), Vec::new()));
            parts += 1;
        }
        let target = match table.spec.number {
            NumberType::F32 => PullTarget::F32(Vec::new()),
            NumberType::F64 => PullTarget::F64(Vec::new()),
            NumberType::I64 => PullTarget::I64(Vec::new()),
        };
        if let Some(pending) = self.pending.get_mut(&ticket) {
            pending.parts = parts;
            let row_bytes = table.spec.row_bytes();
            pending.read = Some(PendingRead {
                target,
                active: Bits::none(0),
                row_bytes,
                clock: Clock(u64::MAX),
                reader,
                released_by: None,
                failed: Vec::new(),
                cached_rows: 0,
                found,
            });
        }
    }
}

/// What copies say to a read: what they have put into its target is not part of it.
struct Known {
    /// The smallest frontier among those rows.
    clock: Clock,
    /// By place, rows to be read; `None` for all.
    misses: Option<Vec<u32>>,
    /// By place, copies that steps will bring up to date.
    stale: Vec<u32>,
}

impl Table {
    /// Answers a read from copies as far as the table's rule admits.
    fn answer(&mut self, source: Source, keys: &Keys, reader: Clock, target: &mut PullTarget) -> Known {
        let nothing = || Known { clock: Clock(u64::MAX), misses: None, stale: Vec::new() };
        self.pulls += 1;
        if let (Some(copies), true) = (&self.copies, self.follows_steps()) {
            let Answer { clock, stale, absent } = copies.read(keys, reader, target.bytes_mut());
            // With many misses the whole list goes by its signature.
            if absent.len() * 4 > keys.len() {
                return nothing();
            }
            let misses = Some(absent);
            return Known { clock: clock.unwrap_or(Clock(u64::MAX)), misses, stale };
        }
        let Some(cache) = &self.cache else { return nothing() };
        if let Some(share) = self.skips
            && !skips(source, self.pulls, share)
        {
            return nothing();
        }
        let mut misses = Vec::new();
        let clock = cache.read(keys, reader, target.bytes_mut(), &mut misses);
        // A few misses are asked for by themselves; with many, the whole list goes by its signature.
        if misses.len() * 4 > keys.len() {
            return nothing();
        }
        Known { clock: clock.unwrap_or(Clock(u64::MAX)), misses: Some(misses), stale: Vec::new() }
    }
}

/// Whether this pull is one of the share that older copies may answer: a draw of its own for each.
fn skips(source: Source, pull: u64, share: Share) -> bool {
    let mut bits = source.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ pull.wrapping_mul(0xD1B5_4A32_D192_ED03);
    bits = (bits ^ (bits >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    bits ^= bits >> 32;
    ((bits >> 11) as f64) < share.percent() / 100.0 * (1u64 << 53) as f64
}

/// A part of a read at `reader`'s clock. Where the rule promises read-my-writes, it follows what was pushed before it.
pub(super) fn read_of(spec: &TableSpec, link: &ShardLink, ticket: Ticket, reader: Clock, keys: ReadKeys) -> Reading {
    let own = matches!((spec.consistency, spec.combine), (Consistency::Bounded { .. }, Combine::Each));
    let after = if own { link.last() } else { 0 };
    Reading {
        ticket,
        clock: reader,
        after,
        subscribe: spec.consistency.is_eager(),
        steps: None,
        wants: Wants::Values,
        keys,
    }
}
