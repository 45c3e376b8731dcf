//! Event sourcing: a worker's inputs as data. A recording keeps them, and its replay feeds them
//! back.
#![deny(clippy::wildcard_enum_match_arm)]

use crate::recorded::{Recorded, recorded_fields, recorded_variants};
use crate::{KeyListDictionary, Op, TableFailure, TicketId, Worker};
use lease::{LeaseId, WorkReport};
use std::ops::Range;
use types::{Bandwidth, NodeId, TableId, TableSpec, Time};
use wire::{Frame, Keys, LeaseTerms, Outbox, Payload, Reader, WireError};

/// One input of a worker: what arrived, or what its program asked for.
#[derive(Clone, Debug)]
pub enum WorkerInput {
    /// A frame arrived.
    Frame(Time, Box<Frame>),
    /// Time has passed.
    Tick(Time),
    /// The connection to a node is restored.
    Reconnected(Time, NodeId),
    /// It is time to send heartbeats.
    Heartbeat(Time),
    /// The program asks for a table.
    MakeTable(TableSpec),
    /// The program submits an operation, to run after these tickets.
    Submit(Time, TableId, Op, Vec<TicketId>),
    /// The program begins a push whose values it hands over part by part. The number counts the
    /// examples that the values were computed from.
    BeginPush(TableId, Keys, u64),
    /// The program hands over one part.
    PushRows(Time, RowsOfPush),
    /// The program has handed over every part.
    EndPush(TicketId),
    /// The program bounds the worker's bandwidth, or lifts the bound.
    Limit(Time, Option<Bandwidth>),
    /// The program ends its clock.
    EndClock(Time),
    /// The program leases a data set by name.
    OpenLeases(String, LeaseTerms),
    /// The program asks for so many leases of a data set.
    AskLeases(u32, u64),
    /// The program takes the leases of a data set that were granted.
    TakeLeases(u32),
    /// The program ends a data set for all workers.
    EndLeases(u32),
    /// The program has finished a lease and commits it.
    CommitLease(Time, LeaseId, WorkReport),
    /// The program enters a barrier.
    Barrier,
    /// The program is about to leave: the worker pushes the residuals of its codecs.
    FlushResiduals(Time),
    /// The program says goodbye.
    Leave,
    /// The program cannot go on, for this reason.
    Fail(String),
}

recorded_variants!(WorkerInput {
    0 => Frame(now, frame),
    1 => Tick(now),
    2 => Reconnected(now, node),
    3 => Heartbeat(now),
    4 => MakeTable(spec),
    5 => Submit(now, table, op, after),
    6 => BeginPush(table, keys, examples),
    7 => PushRows(now, part),
    8 => EndPush(ticket),
    9 => Limit(now, bandwidth),
    10 => EndClock(now),
    11 => OpenLeases(name, terms),
    12 => AskLeases(set, wanted),
    13 => TakeLeases(set),
    14 => EndLeases(set),
    15 => CommitLease(now, lease, work),
    16 => Barrier,
    17 => FlushResiduals(now),
    18 => Leave,
    19 => Fail(reason),
});

/// One part of a push that the program began with [`Worker::begin_push`].
#[derive(Clone, Debug)]
pub struct RowsOfPush {
    /// The ticket of the push.
    pub ticket: TicketId,
    /// The table that it pushes to.
    pub table: TableId,
    /// All keys of the push.
    pub keys: Keys,
    /// The keys of this part, by index.
    pub rows: Range<usize>,
    /// A row of values for each key of this part.
    pub values: Payload,
}

recorded_fields!(RowsOfPush { ticket, table, keys, rows, values });

/// What a worker returns for an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerReply {
    /// Nothing.
    Nothing,
    /// The ticket of an operation.
    Ticket(TicketId),
    /// The number of a barrier.
    Barrier(u64),
}

impl WorkerInput {
    /// Hands the input to the worker. The worker refuses a request that does not fit its tables,
    /// and stays as it was.
    pub fn apply(self, worker: &mut Worker, out: &mut Outbox) -> Result<WorkerReply, TableFailure> {
        match self {
            Self::Frame(now, frame) => worker.handle(now, *frame, out),
            Self::Tick(now) => worker.tick(now, out),
            Self::Reconnected(now, node) => worker.reconnected(now, node, out),
            Self::Heartbeat(now) => worker.heartbeat(now, out),
            Self::MakeTable(spec) => worker.make_table(spec, out),
            Self::Submit(now, table, op, after) => {
                return worker.submit(now, table, op, None, &after, out).map(WorkerReply::Ticket);
            }
            Self::BeginPush(table, keys, examples) => {
                let begun = worker.begin_push(table, &keys, examples)?;
                return Ok(begun.map_or(WorkerReply::Nothing, WorkerReply::Ticket));
            }
            Self::PushRows(now, part) => worker.push_rows(now, part, out),
            Self::EndPush(ticket) => worker.end_push(ticket),
            Self::Limit(now, bandwidth) => worker.limit(now, bandwidth, out),
            Self::EndClock(now) => worker.end_clock(now, out),
            Self::OpenLeases(name, terms) => worker.open_leases(&name, terms, out),
            Self::AskLeases(set, wanted) => worker.ask_leases(set, wanted, out),
            Self::TakeLeases(set) => drop(worker.take_leases(set)),
            Self::EndLeases(set) => worker.end_leases(set, out),
            Self::CommitLease(now, lease, work) => worker.commit_lease(now, lease, work, out)?,
            Self::Barrier => return Ok(WorkerReply::Barrier(worker.barrier(out))),
            Self::FlushResiduals(now) => drop(worker.flush_residuals(now, out)),
            Self::Leave => worker.leave(out),
            Self::Fail(reason) => worker.fail(reason, out),
        }
        Ok(WorkerReply::Nothing)
    }

    /// When the input happened; `None` for inputs whose time does not matter to the worker.
    pub fn time_mut(&mut self) -> Option<&mut Time> {
        match self {
            Self::Frame(now, _)
            | Self::Tick(now)
            | Self::Reconnected(now, _)
            | Self::Submit(now, ..)
            | Self::PushRows(now, _)
            | Self::Limit(now, _)
            | Self::EndClock(now)
            | Self::CommitLease(now, ..)
            | Self::Heartbeat(now)
            | Self::FlushResiduals(now) => Some(now),
            Self::MakeTable(_)
            | Self::BeginPush(..)
            | Self::EndPush(_)
            | Self::OpenLeases(..)
            | Self::AskLeases(..)
            | Self::TakeLeases(_)
            | Self::EndLeases(_)
            | Self::Barrier
            | Self::Leave
            | Self::Fail(_) => None,
        }
    }

    /// About how many bytes of memory the keys and values of the input take.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match self {
            Self::Frame(_, frame) => frame.message.payloads().iter().map(|payload| payload.len()).sum(),
            Self::Submit(_, _, op, _) => op.held_bytes(),
            Self::BeginPush(_, keys, _) => keys.len().saturating_mul(size_of::<u64>()),
            Self::PushRows(_, part) => {
                part.values.len().saturating_add(part.rows.len().saturating_mul(size_of::<u64>()))
            }
            Self::Tick(_)
            | Self::Reconnected(..)
            | Self::Heartbeat(_)
            | Self::MakeTable(_)
            | Self::EndPush(_)
            | Self::Limit(..)
            | Self::EndClock(_)
            | Self::OpenLeases(..)
            | Self::AskLeases(..)
            | Self::TakeLeases(_)
            | Self::EndLeases(_)
            | Self::CommitLease(..)
            | Self::Barrier
            | Self::FlushResiduals(_)
            | Self::Leave
            | Self::Fail(_) => 0,
        }
    }

    /// Appends the recorded form to `out`. A key list that `lists` has goes by name; any other goes
    /// in full and is added to `lists`.
    pub fn put(&self, lists: &mut KeyListDictionary, out: &mut Vec<u8>) {
        Recorded::put(self, lists, out);
    }

    /// Reads what [`WorkerInput::put`] has written. `lists` must be as it was for the writer.
    pub fn get(input: &mut Reader<'_>, lists: &mut KeyListDictionary) -> Result<Self, WireError> {
        Recorded::get(input, lists)
    }
}
