//! The worker machine: tickets, the streams to every shard, the cache, and what must happen before what.

mod arrivals;
mod cache;
mod calls;
mod queue;
mod stream;
mod tasks;
mod ticket;

use crate::Outbox;
use cache::AnyCache;
use queue::Queue;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use stream::{ItemKind, ShardLink};
use ticket::Pending;
pub use ticket::{Failure, Notice, Outcome, PullTarget, ReadRows, Ticket};
use types::{CacheSpec, Clock, NodeId, NumberType, Plan, Source, Span, TableId, TableSpec, Time, WorkerId};
use wire::{Control, FailedClock, Frame, Head, Keys, Message, Payload, Refusal};

/// What an unacknowledged part costs beside its values, in bytes, so that many tiny ones are bounded too.
const PART_COST: usize = 512;

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
}

/// How a worker behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerSettings {
    /// Send again what was not answered for this long. `None` where the transport loses nothing while it is connected.
    pub resend_after: Option<Span>,
}

/// What a worker has done so far.
///
/// ```
/// use machine::WorkerCounts;
///
/// let counts = WorkerCounts { rows_read: 10, rows_cached: 9, ..WorkerCounts::default() };
/// assert_eq!(counts.rows_cached as f64 / counts.rows_read as f64, 0.9);    // the hit rate
/// ```
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
///
/// ```
/// use machine::TableFailure;
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
    queue: Queue,
    /// Pushes that are being handed over part by part: a clock must not end in the middle of one.
    begun: usize,
    unacknowledged_bytes: usize,
    /// Tasks that read and are not finished.
    open_reads: usize,
    left: bool,
    barrier: u64,
    barrier_passed: u64,
    asked_control: Time,
    notices: Vec<Notice>,
    counts: WorkerCounts,
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
        let mut table = Table { spec, links, cache, failed: VecDeque::new(), tasks: 0, unfinished: BTreeSet::new() };
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
        self.release(ticket, pending.table, pending.place);
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
