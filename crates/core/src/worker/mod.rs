//! The worker machine: tickets, the streams to every shard, the cache, and what must happen before what.

mod cache;
mod stream;
mod ticket;

use crate::Outbox;
use cache::{AnyCache, Arrival};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use stream::{ItemKind, ReadKeys, Reading, ShardLink};
pub use ticket::{Failure, Notice, Outcome, PullTarget, ReadRows, Ticket};
use ticket::{Pending, PendingRead};
use types::{
    CacheSpec, Clock, Combine, Consistency, NodeId, NumberType, Plan, PositionRange, Setting, Source, Span, TableId,
    TableSpec, Time, WorkerId,
};
use wire::{Control, Frame, Head, Keys, Message, Payload, Pulled, Refreshed, Refusal, ResendReason, Signature};

/// What an unacknowledged part costs beside its values, in bytes, so that many tiny ones are bounded too.
const PART_COST: usize = 512;

/// Values of a batch and what they are.
#[derive(Clone, Debug)]
pub struct Values {
    /// The type of the numbers.
    pub number: NumberType,
    /// Row after row.
    pub bytes: Payload,
}

/// Sorted unique keys and their values, row after row: the only unit of writing.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Which rows.
    pub keys: Keys,
    /// What for each of them.
    pub values: Values,
    /// How many examples the values were computed from.
    pub examples: u64,
}

/// How a worker behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerSettings {
    /// Send again what was not answered for this long. `None` where the transport loses nothing while it is connected.
    pub resend_after: Option<Span>,
}

/// What a worker has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    /// Parts of pushes sent for the first time.
    pub parts: u64,
    /// Frames sent again.
    pub resent: u64,
    /// Rows read.
    pub rows_read: u64,
    /// Rows read that the cache answered.
    pub rows_cached: u64,
    /// Refreshes that arrived.
    pub refreshes: u64,
    /// Reads by how many clocks the reader was ahead of what it read; the last counts all that are further.
    pub staleness: [u64; 16],
}

/// Why a call is refused before anything is sent.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TableFailure {
    /// The keys were put in another order than the table's.
    #[error("these keys were made for a table in another order; make them with this table's keys()")]
    Placement,
    /// The worker has left the run.
    #[error("this worker has left the run; open a new session")]
    Left,
    /// The batch does not fit the table.
    #[error("{}", refusal.describe(table, *placement))]
    Unfit {
        /// The table's name.
        table: String,
        /// Its order, to name keys.
        placement: types::Placement,
        /// What does not fit.
        refusal: Refusal,
    },
}

enum Task {
    Push { batch: Batch },
    Pull { keys: Keys, target: PullTarget },
    PushPull { batch: Batch, target: PullTarget },
    Scan { range: PositionRange },
    Tune { at: Clock, setting: Setting },
}

impl Task {
    fn cost(&self) -> usize {
        let values = match self {
            Self::Push { batch } | Self::PushPull { batch, .. } => batch.values.bytes.len(),
            Self::Pull { .. } | Self::Scan { .. } | Self::Tune { .. } => 0,
        };
        values + PART_COST
    }
}

struct Queued {
    ticket: Ticket,
    table: TableId,
    task: Task,
    after: Vec<Ticket>,
}

struct Table {
    spec: TableSpec,
    links: Vec<ShardLink>,
    cache: Option<Box<dyn AnyCache>>,
    /// For a table with a delay: tasks issued or queued so far, and those not finished.
    tasks: u64,
    unfinished: BTreeSet<u64>,
}

/// A worker's side of every table.
pub struct Worker {
    id: WorkerId,
    source: Source,
    plan: Plan,
    settings: WorkerSettings,
    clock: Clock,
    tables: BTreeMap<TableId, Table>,
    /// Tables asked for and not made yet.
    asked: BTreeMap<String, TableSpec>,
    made: BTreeMap<String, Result<TableId, String>>,
    tickets: u64,
    requests: u64,
    pending: BTreeMap<Ticket, Pending>,
    finished: BTreeMap<Ticket, Result<Outcome, (TableId, Failure)>>,
    /// Tickets that nobody will ask for.
    detached: BTreeSet<Ticket>,
    unreported: Vec<(TableId, Failure)>,
    queued: VecDeque<Queued>,
    /// Pushes that are being handed over part by part: a clock must not end in the middle of one.
    begun: usize,
    unacknowledged_bytes: usize,
    /// The same for tasks that wait for others.
    queued_bytes: usize,
    left: bool,
    barrier: u64,
    barrier_passed: u64,
    asked_control: Time,
    notices: Vec<Notice>,
    counts: WorkerCounts,
}

impl Worker {
    /// Worker `id` of the plan.
    #[must_use]
    pub fn new(id: WorkerId, plan: Plan, settings: WorkerSettings) -> Self {
        let source = plan.workers.get(id.0 as usize).copied().unwrap_or_default();
        Self {
            id,
            source,
            plan,
            settings,
            clock: Clock(0),
            tables: BTreeMap::new(),
            asked: BTreeMap::new(),
            made: BTreeMap::new(),
            tickets: 0,
            requests: 0,
            pending: BTreeMap::new(),
            finished: BTreeMap::new(),
            detached: BTreeSet::new(),
            unreported: Vec::new(),
            queued: VecDeque::new(),
            begun: 0,
            unacknowledged_bytes: 0,
            queued_bytes: 0,
            left: false,
            barrier: 0,
            barrier_passed: 0,
            asked_control: Time(0),
            notices: Vec::new(),
            counts: WorkerCounts::default(),
        }
    }

    /// Its rank.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// Its clock.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> &WorkerCounts {
        &self.counts
    }

    fn head(&self) -> Head {
        let mut head = Head::plain(NodeId::from(self.id), NodeId::Coordinator);
        head.plan = self.plan.number;
        head.source = self.source;
        head.clock = self.clock;
        head
    }

    fn control(&self, control: Control, out: &mut Outbox) {
        out.send(Frame { head: self.head(), message: Message::Control(control) });
    }

    // ── Tables and barriers ─────────────────────────────────────────────────────────────────────────────────────

    /// Asks for a table. [`Worker::table`] tells when it is there.
    pub fn make_table(&mut self, spec: TableSpec, out: &mut Outbox) {
        self.made.remove(&spec.name);
        self.control(Control::MakeTable { spec: spec.clone() }, out);
        self.asked.insert(spec.name.clone(), spec);
    }

    /// The table asked for by that name, once the coordinator has answered.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&Result<TableId, String>> {
        self.made.get(name)
    }

    /// The spec of a table that was made.
    #[must_use]
    pub fn spec(&self, table: TableId) -> Option<&TableSpec> {
        self.tables.get(&table).map(|table| &table.spec)
    }

    /// Takes part in a table. Only what the program asked for gets a cache.
    fn attach(&mut self, id: TableId, spec: TableSpec, asked: bool, out: &mut Outbox) {
        if let Some(table) = self.tables.get_mut(&id) {
            if let (CacheSpec::Rows { max_rows }, None, true) = (table.spec.cache, &table.cache, asked) {
                table.cache = Some(cache::make(&table.spec, max_rows, table.links.len()));
            }
            return;
        }
        let placed = self.plan.shards(spec.shape);
        let cache = match spec.cache {
            CacheSpec::Rows { max_rows } if asked => Some(cache::make(&spec, max_rows, placed.len())),
            _ => None,
        };
        let links = placed.into_iter().map(|placed| ShardLink::new(placed, id, spec.number)).collect();
        let mut table = Table { spec, links, cache, tasks: 0, unfinished: BTreeSet::new() };
        // A table made in the middle of a run: nothing of the earlier clocks is missing from it.
        if let Some(last) = self.clock.0.checked_sub(1) {
            let mut head = self.head();
            head.clock = Clock(last);
            table.links.iter_mut().for_each(|link| out.send(link.append(head, ItemKind::Marker)));
        }
        self.tables.insert(id, table);
    }

    /// Stands at the next barrier; [`Worker::barrier_passed`] tells when everybody does.
    pub fn barrier(&mut self, out: &mut Outbox) -> u64 {
        self.barrier += 1;
        self.control(Control::Barrier { number: self.barrier }, out);
        self.barrier
    }

    /// Whether everybody has reached that barrier.
    #[must_use]
    pub fn barrier_passed(&self, number: u64) -> bool {
        self.barrier_passed >= number
    }

    // ── Pushes, pulls and clocks ────────────────────────────────────────────────────────────────────────────────

    /// Pushes a batch, after the tickets named.
    pub fn push(
        &mut self,
        now: Time,
        table: TableId,
        batch: Batch,
        after: &[Ticket],
        out: &mut Outbox,
    ) -> Result<Ticket, TableFailure> {
        self.check_batch(table, &batch)?;
        Ok(self.submit(now, table, Task::Push { batch }, after, out))
    }

    /// Pulls rows into `target`, after the tickets named. The target must hold exactly those rows.
    pub fn pull(
        &mut self,
        now: Time,
        table: TableId,
        keys: Keys,
        mut target: PullTarget,
        after: &[Ticket],
        out: &mut Outbox,
    ) -> Result<Ticket, TableFailure> {
        self.check_target(table, &keys, &mut target)?;
        let after = self.after_own(table, after);
        Ok(self.submit(now, table, Task::Pull { keys, target }, &after, out))
    }

    /// Pushes a batch and pulls the same rows into `target`, with the push in them where the table combines `each`: one
    /// task and one ticket, which fails if any part of the push is refused.
    pub fn push_pull(
        &mut self,
        now: Time,
        table: TableId,
        batch: Batch,
        mut target: PullTarget,
        after: &[Ticket],
        out: &mut Outbox,
    ) -> Result<Ticket, TableFailure> {
        self.check_batch(table, &batch)?;
        self.check_target(table, &batch.keys, &mut target)?;
        let after = self.after_own(table, after);
        Ok(self.submit(now, table, Task::PushPull { batch, target }, &after, out))
    }

    fn check_batch(&self, table: TableId, batch: &Batch) -> Result<(), TableFailure> {
        let spec = self.known(table)?;
        check_keys(spec, &batch.keys)?;
        let unfit = |refusal| unfit(spec, refusal);
        if batch.values.number != spec.number {
            return Err(unfit(Refusal::WrongNumber { expected: spec.number, found: batch.values.number }));
        }
        let expected = (batch.keys.len() as u64).saturating_mul(spec.row_bytes() as u64);
        if batch.values.bytes.len() as u64 != expected {
            return Err(unfit(Refusal::WrongLength { expected, found: batch.values.bytes.len() as u64 }));
        }
        Ok(())
    }

    fn check_target(&self, table: TableId, keys: &Keys, target: &mut PullTarget) -> Result<(), TableFailure> {
        let spec = self.known(table)?;
        check_keys(spec, keys)?;
        let found = match &target {
            PullTarget::F32(_) => NumberType::F32,
            PullTarget::F64(_) => NumberType::F64,
            PullTarget::I64(_) => NumberType::I64,
        };
        if found != spec.number {
            return Err(unfit(spec, Refusal::WrongNumber { expected: spec.number, found }));
        }
        let expected = (keys.len() as u64).saturating_mul(spec.row_bytes() as u64);
        let length = target.bytes_mut().len() as u64;
        if length != expected {
            return Err(unfit(spec, Refusal::WrongLength { expected, found: length }));
        }
        Ok(())
    }

    /// Pulls whatever rows a dense or ordered table has in a range.
    pub fn scan(
        &mut self,
        now: Time,
        table: TableId,
        range: PositionRange,
        after: &[Ticket],
        out: &mut Outbox,
    ) -> Result<Ticket, TableFailure> {
        let spec = self.known(table)?;
        if spec.shape.placement() != types::Placement::Ordered {
            return Err(unfit(spec, Refusal::NotOrdered));
        }
        let after = self.after_own(table, after);
        Ok(self.submit(now, table, Task::Scan { range }, &after, out))
    }

    /// Read-my-writes: a read follows the table's pushes that still wait for others.
    fn after_own(&self, table: TableId, after: &[Ticket]) -> Vec<Ticket> {
        let bounded = self.spec(table).is_some_and(|spec| matches!(spec.consistency, Consistency::Bounded { .. }));
        let own = |queued: &&Queued| {
            bounded && queued.table == table && matches!(queued.task, Task::Push { .. } | Task::PushPull { .. })
        };
        after.iter().copied().chain(self.queued.iter().filter(own).map(|queued| queued.ticket)).collect()
    }

    /// Changes a setting of the table's updater for updates made from this clock on.
    pub fn tune(
        &mut self,
        now: Time,
        table: TableId,
        setting: Setting,
        out: &mut Outbox,
    ) -> Result<Ticket, TableFailure> {
        self.known(table)?;
        let at = self.clock;
        Ok(self.submit(now, table, Task::Tune { at, setting }, &[], out))
    }

    fn known(&self, table: TableId) -> Result<&TableSpec, TableFailure> {
        if self.left {
            return Err(TableFailure::Left);
        }
        self.spec(table).ok_or_else(|| TableFailure::Unfit {
            table: format!("number {}", table.0),
            placement: types::Placement::Ordered,
            refusal: Refusal::UnknownTable,
        })
    }

    /// Whether everything asked for has been sent, so that a clock may end.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.queued.is_empty() && self.begun == 0
    }

    /// Whether something sent to `node` has not been answered.
    #[must_use]
    pub fn waits_for(&self, node: NodeId) -> bool {
        let links = self.tables.values().flat_map(|table| &table.links);
        links.filter(|link| link.placed.owner == node).any(|link| !link.is_idle())
    }

    /// Ends the clock: a marker goes to every shard of every table. Call when [`Worker::is_flushed`].
    pub fn end_clock(&mut self, now: Time, out: &mut Outbox) {
        let head = self.head();
        for link in self.tables.values_mut().flat_map(|table| &mut table.links) {
            touch(link, now);
            out.send(link.append(head, ItemKind::Marker));
        }
        self.clock = self.clock.next();
    }

    /// Whether every push, marker and read has been answered.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.tables.values().flat_map(|table| &table.links).all(ShardLink::is_idle)
    }

    /// Bytes of pushes that are not acknowledged, or wait to be sent: what a caller should bound.
    #[must_use]
    pub fn unacknowledged_bytes(&self) -> usize {
        self.unacknowledged_bytes + self.queued_bytes
    }

    /// Says goodbye. Call when idle.
    pub fn leave(&mut self, out: &mut Outbox) {
        self.left = true;
        self.control(Control::Bye, out);
    }

    fn submit(&mut self, now: Time, table: TableId, task: Task, after: &[Ticket], out: &mut Outbox) -> Ticket {
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
        let pending = Pending { parts: 0, failure: None, read: None, table, place };
        self.pending.insert(ticket, pending);
        let queued = Queued { ticket, table, task, after: after.to_vec() };
        if self.may_start(&queued) {
            self.start(now, queued, out);
        } else {
            self.queued_bytes += queued.task.cost();
            self.queued.push_back(queued);
        }
        ticket
    }

    fn may_start(&self, queued: &Queued) -> bool {
        if queued.after.iter().any(|ticket| self.pending.contains_key(ticket)) {
            return false;
        }
        let Some(table) = self.tables.get(&queued.table) else { return true };
        let Consistency::Delay { tau } = table.spec.consistency else { return true };
        // Task i is issued when its tasks before i − τ are acknowledged.
        let place = self.pending.get(&queued.ticket).and_then(|pending| pending.place).unwrap_or(0);
        table.unfinished.first().is_none_or(|oldest| oldest.saturating_add(tau) >= place)
    }

    fn start_queued(&mut self, now: Time, out: &mut Outbox) {
        while let Some(next) = self.queued.iter().position(|queued| self.may_start(queued)) {
            if let Some(queued) = self.queued.remove(next) {
                self.queued_bytes -= queued.task.cost();
                self.start(now, queued, out);
            }
        }
    }

    fn start(&mut self, now: Time, queued: Queued, out: &mut Outbox) {
        let Queued { ticket, table, task, .. } = queued;
        match task {
            Task::Push { batch } => self.start_push(now, ticket, table, &batch, out),
            Task::Pull { keys, target } => self.start_pull(now, ticket, table, &keys, target, out),
            Task::PushPull { batch, target } => {
                self.start_push(now, ticket, table, &batch, out);
                self.start_pull(now, ticket, table, &batch.keys, target, out);
            }
            Task::Scan { range } => self.start_scan(now, ticket, table, range, out),
            Task::Tune { at, setting } => self.start_tune(now, ticket, table, at, setting, out),
        }
        if self.pending.get(&ticket).is_some_and(|pending| pending.parts == 0) {
            self.complete(ticket);
        }
    }

    fn start_push(&mut self, now: Time, ticket: Ticket, id: TableId, batch: &Batch, out: &mut Outbox) {
        let Some(table) = self.tables.get_mut(&id) else { return };
        let row_bytes = table.spec.row_bytes();
        table.links.iter_mut().for_each(|link| link.untold += batch.examples);
        for rows in self.parts(id, &batch.keys) {
            let values = batch.values.bytes.slice(rows.start * row_bytes..rows.end * row_bytes);
            self.push_rows(now, ticket, id, &batch.keys, rows, values, out);
        }
    }

    /// How a list falls into parts: whole rows of one shard each, in the order of the list.
    #[must_use]
    pub fn parts(&self, table: TableId, keys: &Keys) -> Vec<Range<usize>> {
        let Some(table) = self.tables.get(&table) else { return Vec::new() };
        let rows = keys.rows_per_part(table.spec.number, table.spec.width);
        let cut = |link: &ShardLink| {
            let within = keys.within(link.placed.range);
            within.clone().step_by(rows).map(move |start| start..within.end.min(start + rows))
        };
        table.links.iter().flat_map(cut).collect()
    }

    /// Begins a push whose values are handed over part by part with [`Worker::push_rows`] and ended with
    /// [`Worker::end_push`]. Only where nothing must come before it: else there is nothing to begin.
    pub fn begin_push(&mut self, table: TableId, keys: &Keys, examples: u64) -> Result<Option<Ticket>, TableFailure> {
        let spec = self.known(table)?;
        check_keys(spec, keys)?;
        if matches!(spec.consistency, Consistency::Delay { .. }) {
            return Ok(None);
        }
        self.begun += 1;
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.pending.insert(ticket, Pending { parts: 1, failure: None, read: None, table, place: None });
        if let Some(table) = self.tables.get_mut(&table) {
            table.links.iter_mut().for_each(|link| link.untold += examples);
        }
        Ok(Some(ticket))
    }

    /// Pushes one of the [`Worker::parts`] of a list.
    #[expect(clippy::too_many_arguments, reason = "a part is named by its list, its rows and its ticket")]
    pub fn push_rows(
        &mut self,
        now: Time,
        ticket: Ticket,
        table: TableId,
        keys: &Keys,
        rows: Range<usize>,
        values: Payload,
        out: &mut Outbox,
    ) {
        let head = self.head();
        let Some(table) = self.tables.get_mut(&table) else { return };
        let first = keys.position(rows.start);
        let Some(link) = table.links.iter_mut().find(|link| link.placed.range.contains(first)) else { return };
        let keys = keys.slice(rows);
        if let (Some(cache), Combine::Each) = (&mut table.cache, table.spec.combine) {
            cache.pushed(&keys, &values);
        }
        self.unacknowledged_bytes += values.len() + PART_COST;
        self.counts.parts += 1;
        touch(link, now);
        out.send(link.append(head, ItemKind::Push { ticket, keys, values }));
        if let Some(pending) = self.pending.get_mut(&ticket) {
            pending.parts += 1;
        }
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
            out.send(link.append(head, ItemKind::Tune { ticket, at, setting }));
        }
        if let Some(pending) = self.pending.get_mut(&ticket) {
            pending.parts = table.links.len();
        }
    }

    fn start_pull(
        &mut self,
        now: Time,
        ticket: Ticket,
        id: TableId,
        keys: &Keys,
        mut target: PullTarget,
        out: &mut Outbox,
    ) {
        let reader = self.clock;
        let head = self.head();
        // Parts of its own push are under way: whatever the rule for reads, this one follows them.
        let pushes = self.pending.get(&ticket).is_some_and(|pending| pending.parts > 0);
        let Some(table) = self.tables.get_mut(&id) else { return };
        let row_bytes = table.spec.row_bytes();
        let mut misses = Vec::new();
        let mut clock = Clock(u64::MAX);
        if let Some(cache) = &table.cache {
            clock = cache.read(keys, reader, target.bytes_mut(), &mut misses).unwrap_or(clock);
        }
        let missed = if table.cache.is_some() { misses.len() } else { keys.len() };
        // A few misses are asked for by themselves; with many, the whole list goes by its signature.
        let some = table.cache.is_some() && missed * 4 <= keys.len();
        let cached_rows = if some { keys.len() - missed } else { 0 };
        if !some {
            clock = Clock(u64::MAX);
        }
        self.counts.rows_read += keys.len() as u64;
        self.counts.rows_cached += cached_rows as u64;
        let wanted = if some { keys.select(&misses) } else { keys.clone() };
        let rows_per_part = wanted.rows_per_part(table.spec.number, table.spec.width);
        let mut parts = 0;
        for link in &mut table.links {
            let within = wanted.within(link.placed.range);
            for start in within.clone().step_by(rows_per_part) {
                let rows = start..within.end.min(start + rows_per_part);
                let slice = wanted.slice(rows.clone());
                let keys = if some {
                    ReadKeys::Scattered { keys: slice, rows: misses[rows].to_vec() }
                } else {
                    ReadKeys::Straight { keys: slice, row: start }
                };
                self.requests += 1;
                let mut reading = read_of(&table.spec, link, ticket, reader, keys);
                if pushes && table.spec.combine == Combine::Each {
                    reading.after = link.last();
                }
                touch(link, now);
                out.send(link.read_frame(head, self.requests, &reading));
                link.reads.insert(self.requests, reading);
                parts += 1;
            }
        }
        if let Some(pending) = self.pending.get_mut(&ticket) {
            pending.parts += parts;
            pending.read = Some(PendingRead {
                target,
                row_bytes,
                clock,
                reader,
                released_by: None,
                failed: Vec::new(),
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
            out.send(link.read_frame(head, self.requests, &reading));
            link.reads.insert(self.requests, reading);
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

    // ── Tickets ─────────────────────────────────────────────────────────────────────────────────────────────────

    /// What a ticket brought, once it is finished. Asking again gives nothing.
    pub fn take(&mut self, ticket: Ticket) -> Option<Result<Outcome, (TableId, Failure)>> {
        self.finished.remove(&ticket)
    }

    /// Whether a ticket is finished, taken or not.
    #[must_use]
    pub fn is_finished(&self, ticket: Ticket) -> bool {
        !self.pending.contains_key(&ticket)
    }

    /// Nobody will ask for this ticket. Should it fail, [`Worker::take_unreported`] tells.
    pub fn detach(&mut self, ticket: Ticket) {
        match self.finished.remove(&ticket) {
            Some(Err(failure)) => self.unreported.push(failure),
            Some(Ok(_)) => {}
            None if self.pending.contains_key(&ticket) => {
                self.detached.insert(ticket);
            }
            None => {}
        }
    }

    /// Failures of tickets that nobody asked for.
    pub fn take_unreported(&mut self) -> Vec<(TableId, Failure)> {
        std::mem::take(&mut self.unreported)
    }

    /// Who is waited for, as shards and the coordinator have said since the last time.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    fn part_done(&mut self, ticket: Ticket, refusal: Option<Refusal>) {
        let Some(pending) = self.pending.get_mut(&ticket) else { return };
        pending.parts -= 1;
        if let Some(refusal) = refusal {
            pending.failure.get_or_insert(Failure { refusal });
        }
        if pending.parts == 0 {
            self.complete(ticket);
        }
    }

    fn complete(&mut self, ticket: Ticket) {
        let Some(pending) = self.pending.remove(&ticket) else { return };
        if let Some(place) = pending.place
            && let Some(table) = self.tables.get_mut(&pending.table)
        {
            table.unfinished.remove(&place);
        }
        let result = match (pending.failure, pending.read) {
            (Some(failure), _) => Err((pending.table, failure)),
            (None, None) => Ok(Outcome::Done),
            (None, Some(read)) => {
                let mut rows = read.finish();
                if rows.clock == Clock(u64::MAX) {
                    rows.clock = rows.reader;
                }
                let behind = rows.reader.0.saturating_sub(rows.clock.0).min(15);
                self.counts.staleness[behind as usize] += 1;
                Ok(Outcome::Rows(rows))
            }
        };
        if self.detached.remove(&ticket) {
            if let Err(failure) = result {
                self.unreported.push(failure);
            }
        } else {
            self.finished.insert(ticket, result);
        }
    }

    // ── What arrives ────────────────────────────────────────────────────────────────────────────────────────────

    /// Takes what arrived.
    pub fn handle(&mut self, now: Time, frame: Frame, out: &mut Outbox) {
        let Frame { head, message } = frame;
        match message {
            Message::Acked(acked) => {
                let Some(link) = self.link(acked.table, acked.shard) else { return };
                touch(link, now);
                for item in link.finish(acked.through) {
                    let refusal = acked.refused.iter().find(|refused| refused.number == item.number);
                    if let (Some(_), ItemKind::Push { keys, .. }) = (refusal, &item.kind)
                        && let Some(cache) = self.tables.get_mut(&acked.table).and_then(|table| table.cache.as_mut())
                    {
                        cache.refused(keys);
                    }
                    self.item_done(item.kind, refusal.map(|refused| refused.refusal.clone()));
                }
            }
            Message::Resend(resend) => self.resend(now, &resend, out),
            Message::Pulled(pulled) => self.pulled(now, &head, &pulled, out),
            Message::PullRefused(refused) => {
                let sender = self.head();
                let Some(link) = self.link(refused.table, refused.shard) else { return };
                touch(link, now);
                let Some(reading) = link.reads.remove(&refused.request) else { return };
                if let Refusal::UnknownKeys { signature } = refused.refusal {
                    link.forget(Signature(signature));
                    out.send(link.read_frame(sender, refused.request, &reading));
                    link.reads.insert(refused.request, reading);
                } else {
                    self.part_done(reading.ticket, Some(refused.refusal));
                }
            }
            Message::Waiting(waiting) => {
                let Some(table) = self.tables.get(&waiting.table) else { return };
                self.notices.push(Notice::Read { table: table.spec.name.clone(), on: waiting.on });
            }
            Message::Refresh(refresh) => self.refreshed(&head, &refresh, out),
            Message::Control(control) => self.controlled(control, out),
            Message::Push(_) | Message::Marker(_) | Message::Tune(_) | Message::Pull(_) | Message::Refreshed(_) => {}
        }
        self.start_queued(now, out);
    }

    fn link(&mut self, table: TableId, shard: types::ShardId) -> Option<&mut ShardLink> {
        self.tables.get_mut(&table)?.links.get_mut(shard.0 as usize)
    }

    fn item_done(&mut self, kind: ItemKind, refusal: Option<Refusal>) {
        match kind {
            ItemKind::Push { ticket, values, .. } => {
                self.unacknowledged_bytes -= values.len() + PART_COST;
                self.part_done(ticket, refusal);
            }
            ItemKind::Tune { ticket, .. } => self.part_done(ticket, refusal),
            ItemKind::Marker => {}
        }
    }

    fn resend(&mut self, now: Time, resend: &wire::Resend, out: &mut Outbox) {
        let head = self.head();
        let Some(link) = self.link(resend.table, resend.shard) else { return };
        touch(link, now);
        if let ResendReason::UnknownKeys { signature } = resend.reason {
            link.forget(Signature(signature));
        }
        let frames = link.resend(head, resend.next);
        self.counts.resent += frames.len() as u64;
        frames.into_iter().for_each(|frame| out.send(frame));
    }

    fn pulled(&mut self, now: Time, head: &Head, pulled: &Pulled, out: &mut Outbox) {
        let sender = self.head();
        let Some(table) = self.tables.get_mut(&pulled.table) else { return };
        let Some(link) = table.links.get_mut(pulled.shard.0 as usize) else { return };
        touch(link, now);
        let Some(mut reading) = link.reads.remove(&pulled.request) else { return };
        let row_bytes = table.spec.row_bytes();
        let rows = reading.keys.slice().map_or(pulled.positions.len() / 8, wire::Slice::len);
        if pulled.values.len() != rows * row_bytes {
            let refusal =
                Refusal::WrongLength { expected: (rows * row_bytes) as u64, found: pulled.values.len() as u64 };
            return self.part_done(reading.ticket, Some(refusal));
        }
        if let (Some(cache), Some(keys)) = (&mut table.cache, reading.keys.slice())
            && pulled.contains >= link.acknowledged
        {
            let arrival = arrival(link, head.clock, keys, &pulled.values, pulled.contains, table.spec.combine);
            cache.store(&arrival, pulled.chain);
        }
        if let Some(read) = self.pending.get_mut(&reading.ticket).and_then(|pending| pending.read.as_mut()) {
            fill(read, &reading.keys, pulled);
            read.clock = read.clock.min(head.clock);
            read.released_by = pulled.released_by.or(read.released_by);
            // Each shard tells of its own; a clock is named once.
            let new = |failed: &&wire::FailedClock| read.failed.iter().all(|known| known.clock != failed.clock);
            let new: Vec<_> = pulled.failed.iter().filter(new).cloned().collect();
            read.failed.extend(new);
        }
        if let (ReadKeys::Scan { range, .. }, Some(next)) = (&mut reading.keys, pulled.more) {
            range.first = next;
            self.requests += 1;
            out.send(link.read_frame(sender, self.requests, &reading));
            link.reads.insert(self.requests, reading);
            return;
        }
        self.part_done(reading.ticket, None);
    }

    fn refreshed(&mut self, head: &Head, refresh: &wire::Refresh, out: &mut Outbox) {
        let mut reply = self.head();
        let Some(table) = self.tables.get_mut(&refresh.table) else { return };
        let Some(link) = table.links.get(refresh.shard.0 as usize) else { return };
        self.counts.refreshes += 1;
        reply.to = link.placed.owner;
        let receipt =
            Refreshed { table: refresh.table, shard: refresh.shard, chain: refresh.chain, link: refresh.link };
        out.send(Frame { head: reply, message: Message::Refreshed(receipt) });
        let Some(cache) = &mut table.cache else { return };
        let Some(positions) = refresh.positions.numbers::<u64>() else { return };
        if refresh.values.len() != positions.len() * table.spec.row_bytes() {
            return;
        }
        let owned = |position: &u64| link.placed.range.contains(types::Position(*position));
        if !positions.first().is_none_or(owned) || !positions.last().is_none_or(owned) {
            return;
        }
        let Ok(keys) = Keys::at(table.spec.shape.placement(), positions) else { return };
        let keys = keys.slice(0..keys.len());
        let arrival = arrival(link, head.clock, &keys, &refresh.values, refresh.contains, table.spec.combine);
        cache.refresh(&arrival, refresh.chain, refresh.link, refresh.contains >= link.acknowledged);
    }

    fn controlled(&mut self, control: Control, out: &mut Outbox) {
        match control {
            Control::TableMade { table, name } => {
                if let Some(spec) = self.asked.remove(&name) {
                    self.attach(table, spec, true, out);
                    self.made.insert(name, Ok(table));
                }
            }
            Control::AddTable { table, spec } => {
                self.attach(table, spec, false, out);
                self.control(Control::TableAdded { table, problem: None }, out);
            }
            Control::TableRefused { name, problem } if self.asked.remove(&name).is_some() => {
                self.made.insert(name, Err(problem));
            }
            Control::BarrierPassed { number } => self.barrier_passed = self.barrier_passed.max(number),
            Control::BarrierWaiting { on, .. } => self.notices.push(Notice::Barrier { on }),
            _ => {}
        }
    }

    /// A connection to `node` is there again: whatever may have been lost with the old one is sent again.
    pub fn reconnected(&mut self, now: Time, node: NodeId, out: &mut Outbox) {
        let head = self.head();
        if node == NodeId::Coordinator {
            return self.ask_again(out);
        }
        for link in self.tables.values_mut().flat_map(|table| &mut table.links).filter(|link| link.placed.owner == node)
        {
            touch(link, now);
            let mut frames = link.resend(head, 0);
            frames.extend(link.resend_reads(head));
            self.counts.resent += frames.len() as u64;
            frames.into_iter().for_each(|frame| out.send(frame));
        }
    }

    fn ask_again(&self, out: &mut Outbox) {
        for spec in self.asked.values() {
            self.control(Control::MakeTable { spec: spec.clone() }, out);
        }
        if self.barrier > self.barrier_passed {
            self.control(Control::Barrier { number: self.barrier }, out);
        }
    }

    /// Time has passed: over a transport that loses messages, what was not answered is sent again.
    pub fn tick(&mut self, now: Time, out: &mut Outbox) {
        let Some(after) = self.settings.resend_after else { return };
        if now.since(self.asked_control) >= after {
            self.asked_control = now;
            self.ask_again(out);
        }
        let overdue: BTreeSet<NodeId> = self
            .tables
            .values()
            .flat_map(|table| &table.links)
            .filter(|link| !link.is_idle() && now.since(link.moved) >= after)
            .map(|link| link.placed.owner)
            .collect();
        for node in overdue {
            self.reconnected(now, node, out);
        }
    }
}

fn touch(link: &mut ShardLink, now: Time) {
    link.moved = now;
}

fn unfit(spec: &TableSpec, refusal: Refusal) -> TableFailure {
    TableFailure::Unfit { table: spec.name.clone(), placement: spec.shape.placement(), refusal }
}

fn check_keys(spec: &TableSpec, keys: &Keys) -> Result<(), TableFailure> {
    if keys.placement() != spec.shape.placement() {
        return Err(TableFailure::Placement);
    }
    let last = keys.len().checked_sub(1).map(|last| keys.position(last));
    match last.filter(|last| *last > spec.shape.extent().last) {
        Some(position) => Err(unfit(spec, Refusal::OutOfRange { position })),
        None => Ok(()),
    }
}

/// A part of a read at `reader`'s clock. Where the rule promises read-my-writes, it follows what was pushed before it.
fn read_of(spec: &TableSpec, link: &ShardLink, ticket: Ticket, reader: Clock, keys: ReadKeys) -> Reading {
    let own = matches!((spec.consistency, spec.combine), (Consistency::Bounded { .. }, Combine::Each));
    let after = if own { link.last() } else { 0 };
    Reading { ticket, clock: reader, after, subscribe: spec.consistency.is_eager(), keys }
}

/// Rows for the cache, with the own pushes that they lack.
fn arrival<'a>(
    link: &'a ShardLink,
    frontier: Clock,
    keys: &'a wire::Slice,
    values: &'a Payload,
    contains: u64,
    combine: Combine,
) -> Arrival<'a> {
    let later = link.unacknowledged.iter().filter(|item| item.number > contains && combine == Combine::Each);
    let later = later.filter_map(|item| match &item.kind {
        ItemKind::Push { keys, values, .. } => Some((keys, values)),
        _ => None,
    });
    Arrival { shard: link.placed.shard.0 as usize, frontier, keys, values, later: later.collect() }
}

/// Puts the rows of one part where the caller wants them.
fn fill(read: &mut PendingRead, keys: &ReadKeys, pulled: &Pulled) {
    let row_bytes = read.row_bytes;
    let values = pulled.values.bytes();
    match keys {
        ReadKeys::Straight { row, .. } => {
            read.target.bytes_mut()[row * row_bytes..][..values.len()].copy_from_slice(values);
        }
        ReadKeys::Scattered { rows, .. } => {
            let target = read.target.bytes_mut();
            for (row, value) in rows.iter().zip(values.chunks_exact(row_bytes)) {
                target[*row as usize * row_bytes..][..row_bytes].copy_from_slice(value);
            }
        }
        ReadKeys::Scan { shard, .. } => {
            if let Some((positions, rows)) = read.found.get_mut(*shard) {
                positions.extend(pulled.positions.numbers::<u64>().unwrap_or(&[]));
                rows.extend_from_slice(values);
            }
        }
    }
}
