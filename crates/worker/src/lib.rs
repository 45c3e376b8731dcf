//! The worker machine: tickets, the streams to every shard, the cache, and what must happen before what.

mod active;
mod cache;
mod calls;
mod delta_cache;
mod input;
mod leases;
mod link_rate;
mod pacing;
mod push_codec;
mod pushes;
mod queue;
mod reads;
mod receive;
mod residuals;
mod row_state;
mod stream;
mod tasks;
mod ticket;

use cache::AnyCache;
use codec::{CodecChoice, Meter, PayloadDecoder, Percentage, Stopwatch, TableCodecs};
use delta_cache::Copies;
pub use input::{Answer, Lists, RowsOfPush, WorkerInput};
use lease::LeaseId;
pub use leases::Grant;
use leases::Leases;
use link_rate::{Cost, LinkRate};
use pacing::Pacer;
use push_codec::Upward;
use queue::Queue;
pub use residuals::Owed;
use residuals::Saving;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use stream::{ItemKind, ShardLink};
use ticket::Pending;
pub use ticket::{Failure, Notice, Outcome, PullTarget, ReadRows, Room, TicketId};
use types::{CacheSpec, Clock, NodeId, NumberType, Plan, Source, Span, TableId, TableSpec, Time, WorkerId};
use wire::{Control, FailedClock, Frame, Head, Keys, Message, Payload, Refusal};
use wire::{Leader, Outbox};

/// What an unacknowledged part costs beside its values, in bytes, so that many tiny ones are bounded too.
const PART_COST: usize = 512;

/// Whole rows are asked for at once for up to two to the power of this pulls.
const LONGEST_PAUSE: u32 = 8;

/// Failed clocks that a worker remembers of each table.
const FAILED_CLOCKS: usize = 64;

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
    /// The lease that it was learnt from, if any was.
    pub lease: Option<LeaseId>,
}

/// How a worker behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerSettings {
    /// Send again what was not answered for this long. `None` where the transport loses nothing while it is connected.
    pub resend_after: Option<Span>,
    /// For the meters of codecs.
    pub stopwatch: Stopwatch,
}

/// What a worker has done so far.
///
/// ```
/// use worker::WorkerCounts;
///
/// let counts = WorkerCounts { rows_read: 10, rows_cached: 9, ..WorkerCounts::default() };
/// assert_eq!(counts.rows_cached as f64 / counts.rows_read as f64, 0.9);    // the hit rate
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    /// Parts of pushes sent for the first time.
    pub parts: u64,
    /// Those of them that had to wait for bandwidth.
    pub waited: u64,
    /// Parts of pushes that a shard refused.
    pub refused: u64,
    /// Parts of leases that a shard held already, from a worker that was lost.
    pub held_already: u64,
    /// Frames sent again.
    pub resent: u64,
    /// Rows read.
    pub rows_read: u64,
    /// Rows read that the cache answered.
    pub rows_cached: u64,
    /// Refreshes that arrived.
    pub refreshes: u64,
    /// Steps that were added to copies.
    pub steps: u64,
    /// Reads by how many clocks the reader was ahead of what it read; the last counts all that are further.
    pub staleness: [u64; 16],
}

/// What codecs did for a table, as a worker sees it.
///
/// ```
/// use codec::Meter;
/// use worker::CodecUse;
///
/// let upward = Meter { bytes_in: 25_600, bytes_out: 12_800, ..Meter::default() };
/// let used = CodecUse { table: "layer".into(), up: "bf16".into(), upward, downward: Meter::default(), dropped_rows: 0 };
/// assert_eq!((used.upward.ratio(), used.downward.ratio()), (Some(2.0), None));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct CodecUse {
    /// The table's name.
    pub table: String,
    /// What is in use for pushes now; empty for nothing.
    pub up: String,
    /// Of pushes: bytes, error and time to encode.
    pub upward: Meter,
    /// Of what is read: bytes and time to decode.
    pub downward: Meter,
    /// Rows whose residuals were lost, for there are bounds to how many are kept.
    pub dropped_rows: u64,
}

/// Why a call is refused before anything is sent.
///
/// ```
/// use worker::TableFailure;
///
/// assert!(TableFailure::Left.to_string().contains("open a new session"));
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TableFailure {
    /// The keys were put in another order than the table's.
    #[error("these keys were made for a table in another order; make them with this table's keys()")]
    Placement,
    /// The worker has left the run.
    #[error("this worker has left the run; open a new session")]
    Left,
    /// What is pushed is of a lease that the worker does not hold.
    #[error("lease {lease} is not this worker's: it is committed, or was never granted")]
    NotLeased {
        /// Which.
        lease: u64,
    },
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

struct Table {
    spec: TableSpec,
    links: Vec<ShardLink>,
    cache: Option<Box<dyn AnyCache>>,
    /// What encodes pushes.
    upward: Upward,
    /// Where shards send steps instead of rows.
    copies: Option<Copies>,
    /// Whether they are asked to: where the link decides, only if it is slow.
    steps: CodecChoice,
    /// The share of pulls that older copies may answer, and how many pulls there were.
    skips: Option<Percentage>,
    pulls: u64,
    /// How often in a row steps would have taken more than the rows, and until which pull whole rows are asked for at once.
    declined: u32,
    whole_until: u64,
    /// What decoding has cost.
    decoded: Meter,
    /// Clocks that were failed for all workers alike, the last of them: reads from the cache must tell, too.
    failed: VecDeque<FailedClock>,
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
    /// The first clock it takes part in.
    since: Clock,
    clock: Clock,
    tables: BTreeMap<TableId, Table>,
    /// Tables asked for and not made yet.
    asked: BTreeMap<String, TableSpec>,
    made: BTreeMap<String, Result<TableId, String>>,
    tickets: u64,
    requests: u64,
    pending: BTreeMap<TicketId, Pending>,
    finished: BTreeMap<TicketId, Result<Outcome, (TableId, Failure)>>,
    /// Tickets that nobody will ask for.
    detached: BTreeSet<TicketId>,
    unreported: Vec<(TableId, Failure)>,
    queue: Queue,
    /// Pushes that are being handed over part by part: a clock must not end in the middle of one.
    begun: usize,
    unacknowledged_bytes: usize,
    /// Tasks that read and are not finished.
    open_reads: usize,
    left: bool,
    barrier: u64,
    barrier_passed: u64,
    leader: Leader,
    asked_control: Time,
    notices: Vec<Notice>,
    rate: LinkRate,
    /// Where bandwidth is bounded.
    pacer: Option<Pacer>,
    decoder: PayloadDecoder,
    counts: WorkerCounts,
    leases: Leases,
    /// The checkpoint that it was last asked for.
    saving: Option<Saving>,
}

impl Worker {
    /// Worker `id` of the plan, in the incarnation that the coordinator has given it.
    #[must_use]
    pub fn new(id: WorkerId, source: Source, plan: Plan, settings: WorkerSettings) -> Self {
        Self {
            id,
            source,
            plan,
            settings,
            since: Clock(0),
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
            queue: Queue::default(),
            begun: 0,
            unacknowledged_bytes: 0,
            open_reads: 0,
            left: false,
            barrier: 0,
            barrier_passed: 0,
            leader: Leader::default(),
            asked_control: Time(0),
            notices: Vec::new(),
            rate: LinkRate::default(),
            pacer: None,
            decoder: PayloadDecoder::default(),
            counts: WorkerCounts::default(),
            leases: Leases::default(),
            saving: None,
        }
    }

    /// Takes part from this clock on, with so many barriers passed without it.
    #[must_use]
    pub fn starting(mut self, clock: Clock, barriers: u64) -> Self {
        (self.since, self.clock) = (clock, clock);
        (self.barrier, self.barrier_passed) = (barriers, barriers);
        self
    }

    /// The plan it goes by.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
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
            if asked {
                table.keep_copies();
            }
            return;
        }
        let placed = self.plan.shards(spec.shape).into_iter();
        let links = placed.map(|placed| ShardLink::new(placed, id, spec.number, self.since)).collect();
        let mut table = Table::new(spec, links, self.source, id, self.settings.stopwatch);
        table.links.iter_mut().for_each(|link| link.paced = self.pacer.is_some());
        if asked {
            table.keep_copies();
        }
        // A table made in the middle of a run: nothing of the earlier clocks is missing from it.
        if let Some(last) = self.clock.0.checked_sub(1) {
            let mut head = self.head();
            head.clock = Clock(last);
            table.links.iter_mut().for_each(|link| out.send(link.append(head, ItemKind::Marker)));
        }
        self.tables.insert(id, table);
    }

    /// What the codecs of each table have cost and gained, of those tables that have any.
    #[must_use]
    pub fn codecs(&self) -> Vec<CodecUse> {
        let with_codecs = self.tables.values().filter(|table| table.spec.codecs != types::Codecs::default());
        let used = with_codecs.map(|table| CodecUse {
            table: table.spec.name.clone(),
            up: table.upward.pipeline().to_string(),
            upward: table.upward.meter(),
            downward: table.decoded,
            dropped_rows: table.upward.dropped_rows(),
        });
        used.collect()
    }

    /// How fast the way to the servers is, in bytes a second, once enough was sent to tell.
    #[must_use]
    pub fn link_rate(&self) -> Option<f64> {
        let measured = self.rate.bytes_per_second();
        match (&self.pacer, measured) {
            (Some(pacer), measured) => Some(measured.map_or(pacer.rate(), |measured| measured.min(pacer.rate()))),
            (None, measured) => measured,
        }
    }

    /// The link was measured: codecs that follow it are chosen anew, and those that do not pay are named.
    pub(crate) fn rate_changed(&mut self) {
        let Some(rate) = self.link_rate() else { return };
        for table in self.tables.values_mut() {
            table.upward.follow(rate);
            let key_form = table.upward.key_form();
            table.links.iter_mut().for_each(|link| link.key_form = key_form);
            let pipeline = table.upward.pipeline();
            let may_warn = !table.upward.is_auto() && !table.upward.warned;
            if may_warn && Cost::does_not_pay(pipeline, &table.upward.meter(), rate) {
                let (name, pipeline) = (table.spec.name.clone(), pipeline.to_string());
                self.notices.push(Notice::Codec { table: name, pipeline, bytes_per_second: rate as u64 });
                table.upward.warned = true;
            }
        }
    }

    /// Stands at the next barrier; [`Worker::barrier_passed`] tells when everybody does.
    pub fn barrier(&mut self, out: &mut Outbox) -> u64 {
        self.barrier = self.barrier.saturating_add(1);
        self.control(Control::Barrier { number: self.barrier }, out);
        self.barrier
    }

    /// Whether everybody has reached that barrier.
    #[must_use]
    pub fn barrier_passed(&self, number: u64) -> bool {
        self.barrier_passed >= number
    }

    /// What a ticket brought, once it is finished. Asking again gives nothing.
    pub fn take(&mut self, ticket: TicketId) -> Option<Result<Outcome, (TableId, Failure)>> {
        self.finished.remove(&ticket)
    }

    /// Whether a ticket is finished, taken or not.
    #[must_use]
    pub fn is_finished(&self, ticket: TicketId) -> bool {
        !self.pending.contains_key(&ticket)
    }

    /// Nobody will ask for this ticket. Should it fail, [`Worker::take_unreported`] tells.
    pub fn detach(&mut self, ticket: TicketId) {
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

    fn part_done(&mut self, ticket: TicketId, refusal: Option<Refusal>) {
        let Some(pending) = self.pending.get_mut(&ticket) else { return };
        pending.parts -= 1;
        if let Some(refusal) = refusal {
            pending.failure.get_or_insert(Failure { refusal });
        }
        if pending.parts == 0 {
            self.complete(ticket);
        }
    }

    fn complete(&mut self, ticket: TicketId) {
        let Some(pending) = self.pending.remove(&ticket) else { return };
        self.release(ticket, pending.table, pending.place);
        pending.lease.into_iter().for_each(|lease| self.leases.finished(lease));
        self.open_reads -= usize::from(pending.reads);
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
}

impl Table {
    fn new(spec: TableSpec, mut links: Vec<ShardLink>, source: Source, id: TableId, stopwatch: Stopwatch) -> Self {
        // Checked before the table was made.
        let codecs = TableCodecs::of(&spec).unwrap_or_else(|_| TableCodecs::none());
        let upward = Upward::new(&spec, &codecs, source.0 ^ (u64::from(id.0) << 48), stopwatch);
        links.iter_mut().for_each(|link| link.key_form = upward.key_form());
        Self {
            skips: codecs.up.pipeline().and_then(codec::Pipeline::skips),
            steps: codecs.down,
            spec,
            links,
            cache: None,
            upward,
            copies: None,
            pulls: 0,
            declined: 0,
            whole_until: 0,
            decoded: Meter::default(),
            failed: VecDeque::new(),
            tasks: 0,
            unfinished: BTreeSet::new(),
        }
    }

    /// Keeps copies of rows, where the spec says so.
    fn keep_copies(&mut self) {
        let CacheSpec::Rows { max_rows } = self.spec.cache else { return };
        let shards = self.links.len();
        self.cache.get_or_insert_with(|| cache::make(&self.spec, max_rows, shards));
        let lossy = match &self.steps {
            CodecChoice::Pipeline(pipeline) => pipeline.is_lossy(),
            CodecChoice::Auto => TableCodecs::can_step(&self.spec),
        };
        if lossy {
            self.copies.get_or_insert_with(|| Copies::new(&self.spec, max_rows, shards));
        }
    }

    /// Whether reads ask for steps now.
    fn follows_steps(&self) -> bool {
        self.copies.is_some()
            && self.pulls >= self.whole_until
            && (self.steps != CodecChoice::Auto || self.upward.pipeline().is_lossy())
    }

    /// Steps took more than the rows that were wanted, or did not. Where they do again and again, as with few rows of many, they
    /// are asked for less and less often.
    fn steps_declined(&mut self, declined: bool) {
        self.declined = if declined { (self.declined + 1).min(LONGEST_PAUSE) } else { 0 };
        if declined {
            self.whole_until = self.pulls + (1 << self.declined);
        }
    }

    /// Remembers failed clocks that a shard has told of.
    fn note_failed(&mut self, failed: &[FailedClock]) {
        for failed in failed {
            if self.failed.iter().all(|known| known.clock != failed.clock) {
                self.failed.push_back(failed.clone());
            }
        }
        let beyond = self.failed.len().saturating_sub(FAILED_CLOCKS);
        self.failed.drain(..beyond);
    }

    /// Those that a reader at this clock has in view.
    fn failed_in_view(&self, reader: Clock) -> Vec<FailedClock> {
        let slack = self.spec.consistency.bound().unwrap_or(0);
        let in_view = |failed: &&FailedClock| failed.clock.0.saturating_add(slack).saturating_add(1) >= reader.0;
        self.failed.iter().filter(in_view).cloned().collect()
    }
}

fn touch(link: &mut ShardLink, now: Time) {
    link.moved = now;
}
