//! The worker's state machine, made of parts. Each part owns its state; the machine passes every
//! operation of the program and every frame through the parts.
//!
//! | part | owns |
//! | --- | --- |
//! | [`Identity`] | who the worker is, the plan, and whose messages it accepts |
//! | [`Heartbeats`] | the numbers of its heartbeats, and which servers that it waits for are silent |
//! | [`CoordinatorRequests`] | tables and barriers that the worker asked for |
//! | [`Tickets`] | tickets that are pending, finished or detached |
//! | [`Schedule`] | operations that wait, and pushes that the program hands over part by part |
//! | [`Link`] | the rate and bound of the network link, and the unacknowledged bytes on it |
//! | [`DataLeases`] | data leases that the worker holds, and their commits |
//! | [`CheckpointRequest`] | the checkpoint that is wanted, and the residuals kept for it |
//!
//! and for each table, in [`Table`]:
//!
//! | part | owns |
//! | --- | --- |
//! | [`ShardStream`] | for each shard: the numbered stream, reads under way, known key lists |
//! | [`PushCodec`](crate::send::push_codec::PushCodec) | encoders of pushes, and their residuals |
//! | [`AnswerDecoder`](crate::decode::AnswerDecoder) | decoders of reads, and their meter |
//! | [`TableCache`](crate::cache::TableCache) | cached rows, and the frontier each is fresh at |
//!
//! Each way through the parts is one file: `submit` (an operation starts or waits), `push`, `read`
//! with `active` and `row_state`, `send` (bandwidth), `receive`, `leases`, `residuals`, and `calls`
//! (clocks end, the worker leaves).
//!
//! The worker does no I/O. Time and frames come in as arguments; frames to send go to an
//! [`Outbox`].

mod active;
mod calls;
mod leases;
mod push;
mod read;
mod receive;
mod residuals;
mod row_state;
mod send;
mod submit;
mod table;

use crate::identity::Identity;
use crate::leases::DataLeases;
use crate::requests::CoordinatorRequests;
use crate::residuals::CheckpointRequest;
use crate::schedule::Schedule;
use crate::send::Link;
use crate::send::message::{RequestNumbers, StreamMessage};
use crate::send::stream::ShardStream;
use crate::ticket::{Notice, TicketFailure, TicketId, TicketOutcome};
use crate::tickets::Tickets;
use codec::{Meter, Stopwatch};
use std::collections::BTreeMap;

use table::Table;
use types::{Clock, Plan, Source, Span, TableId, TableSpec, WorkerId};
use wire::{Control, Frame, Head, Heartbeats, Message, Outbox};

/// How a worker behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerSettings {
    /// Resend timeout. `None` for a transport that loses nothing while it is connected.
    pub resend_after: Option<Span>,
    /// The clock that measures how long codecs take.
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
    /// Parts of pushes that had to wait for bandwidth.
    pub waited: u64,
    /// Parts of pushes that a shard refused.
    pub refused: u64,
    /// Parts of data leases that a shard held already: another worker, since lost, pushed them.
    pub held_already: u64,
    /// Frames sent again.
    pub resent: u64,
    /// Rows read.
    pub rows_read: u64,
    /// Rows read that the cache answered.
    pub rows_cached: u64,
    /// Refreshes that arrived.
    pub refreshes: u64,
    /// Deltas that were applied to cached rows.
    pub deltas: u64,
    /// How many reads had a staleness of 0, 1, 2, … clocks. The last entry counts all larger ones.
    pub staleness: [u64; 16],
}

/// What a table's codecs cost and save, as a worker sees it.
///
/// ```
/// use codec::Meter;
/// use worker::CodecUse;
///
/// let upward = Meter { bytes_in: 25_600, bytes_out: 12_800, ..Meter::default() };
/// let table = "layer".into();
/// let up = "bf16".into();
/// let used = CodecUse { table, up, upward, downward: Meter::default(), dropped_rows: 0 };
/// assert_eq!((used.upward.ratio(), used.downward.ratio()), (Some(2.0), None));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct CodecUse {
    /// The table's name.
    pub table: String,
    /// The codec pipeline that encodes pushes now; empty if none does.
    pub up: String,
    /// Pushes: bytes, error and time to encode.
    pub upward: Meter,
    /// Reads: bytes and time to decode.
    pub downward: Meter,
    /// Rows that lost their residuals: a codec keeps residuals of a bounded number of rows.
    pub dropped_rows: u64,
}

/// One worker: its tables, tickets, streams to shards, caches and data leases.
pub struct Worker {
    identity: Identity,
    /// Its heartbeats, and the servers that it waits for.
    heartbeats: Heartbeats,
    settings: WorkerSettings,
    /// The first clock that the worker takes part in.
    since: Clock,
    clock: Clock,
    /// Whether the worker has said goodbye, or its run is over.
    left: bool,
    tables: BTreeMap<TableId, Table>,
    asked: CoordinatorRequests,
    tickets: Tickets,
    schedule: Schedule,
    requests: RequestNumbers,
    link: Link,
    leases: DataLeases,
    checkpoint: CheckpointRequest,
    /// Notices that the driver has not taken yet.
    notices: Vec<Notice>,
    counts: WorkerCounts,
}

impl Worker {
    /// Worker `id` of the plan, in the incarnation `source` that the coordinator gave it.
    #[must_use]
    pub fn new(id: WorkerId, source: Source, plan: Plan, settings: WorkerSettings) -> Self {
        Self {
            identity: Identity::new(id, source, plan),
            heartbeats: Heartbeats::default(),
            settings,
            since: Clock(0),
            clock: Clock(0),
            left: false,
            tables: BTreeMap::new(),
            asked: CoordinatorRequests::default(),
            tickets: Tickets::default(),
            schedule: Schedule::default(),
            requests: RequestNumbers::default(),
            link: Link::default(),
            leases: DataLeases::default(),
            checkpoint: CheckpointRequest::default(),
            notices: Vec::new(),
            counts: WorkerCounts::default(),
        }
    }

    /// Starts at `clock`. `barriers`: how many barriers the run passed before the worker joined.
    #[must_use]
    pub fn starting(mut self, clock: Clock, barriers: u64) -> Self {
        self.since = clock;
        self.clock = clock;
        self.asked = CoordinatorRequests::after_barriers(barriers);
        self
    }

    /// The newest plan that the worker adopted.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        self.identity.plan()
    }

    /// The worker's rank.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.identity.id()
    }

    /// The worker's clock.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// What the worker has done so far.
    #[must_use]
    pub fn counts(&self) -> &WorkerCounts {
        &self.counts
    }

    fn head(&self) -> Head {
        self.identity.head(self.clock)
    }

    fn control(&self, control: Control, out: &mut Outbox) {
        out.send(Frame { head: self.head(), message: Message::Control(control) });
    }

    /// Asks the coordinator for a table. [`Worker::table`] returns the answer once it is there.
    pub fn make_table(&mut self, spec: TableSpec, out: &mut Outbox) {
        let asked = self.asked.table(spec);
        self.control(asked, out);
    }

    /// The coordinator's answer for the table of this name: its number, or why it cannot be made.
    /// `None` before the answer.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&Result<TableId, String>> {
        self.asked.answer(name)
    }

    /// The spec of a table that the worker takes part in.
    #[must_use]
    pub fn spec(&self, table: TableId) -> Option<&TableSpec> {
        self.tables.get(&table).map(|table| &table.spec)
    }

    /// Takes part in a table. Only a table that the program `asked` for gets a cache.
    fn attach(&mut self, id: TableId, spec: TableSpec, asked: bool, out: &mut Outbox) {
        if let Some(table) = self.tables.get_mut(&id) {
            if asked {
                table.cache.make(&table.spec, table.streams.len());
            }
            return;
        }
        let placed = self.identity.plan().shards(spec.shape).into_iter();
        let streams = placed.map(|placed| ShardStream::new(placed, id, spec.number, self.since)).collect();
        let mut table = Table::new(spec, streams, self.identity.source(), id, self.settings.stopwatch);
        table.streams.iter_mut().for_each(|stream| stream.set_paced(self.link.is_bounded()));
        if asked {
            table.cache.make(&table.spec, table.streams.len());
        }
        // The table was made in the middle of a run. This marker tells its shards that the worker
        // pushes nothing for earlier clocks.
        if let Some(last) = self.clock.0.checked_sub(1) {
            let mut head = self.head();
            head.clock = Clock(last);
            table.streams.iter_mut().for_each(|stream| out.send(stream.append(head, StreamMessage::Marker)));
        }
        self.tables.insert(id, table);
    }

    /// What codecs have cost and saved, for each table that has codecs.
    #[must_use]
    pub fn codecs(&self) -> Vec<CodecUse> {
        let with_codecs = self.tables.values().filter(|table| table.spec.codecs != types::Codecs::default());
        let used = with_codecs.map(|table| CodecUse {
            table: table.spec.name.clone(),
            up: table.push_codec.pipeline().to_string(),
            upward: table.push_codec.meter(),
            downward: table.decoder.meter(),
            dropped_rows: table.push_codec.dropped_rows(),
        });
        used.collect()
    }

    /// How fast the network link to the servers is, in bytes per second. `None` until the worker
    /// has sent enough to measure it.
    #[must_use]
    pub fn link_rate(&self) -> Option<f64> {
        self.link.bytes_per_second()
    }

    /// Enters the next barrier and returns its number. [`Worker::barrier_passed`] tells when every
    /// worker has reached it.
    pub fn barrier(&mut self, out: &mut Outbox) -> u64 {
        let asked = self.asked.barrier();
        self.control(asked, out);
        self.asked.last_barrier()
    }

    /// Whether every worker has reached the barrier of this number.
    #[must_use]
    pub fn barrier_passed(&self, number: u64) -> bool {
        self.asked.has_passed(number)
    }

    /// The outcome of a finished ticket. A second call returns `None`.
    pub fn take(&mut self, ticket: TicketId) -> Option<Result<TicketOutcome, (TableId, TicketFailure)>> {
        self.tickets.take(ticket)
    }

    /// Whether a ticket is finished, taken or not.
    #[must_use]
    pub fn is_finished(&self, ticket: TicketId) -> bool {
        self.tickets.is_finished(ticket)
    }

    /// The program will not take this ticket. If it fails, [`Worker::take_unreported`] returns why.
    pub fn detach(&mut self, ticket: TicketId) {
        self.tickets.detach(ticket);
    }

    /// Failures of detached tickets since the last call.
    pub fn take_unreported(&mut self) -> Vec<(TableId, TicketFailure)> {
        self.tickets.take_unreported()
    }

    /// Notices since the last call: mostly which nodes this worker waits for.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }
}
