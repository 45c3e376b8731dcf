//! Event sourcing: a worker's inputs as data. A recording keeps them, and its replay feeds them
//! back.
#![deny(clippy::wildcard_enum_match_arm)]

mod format;
mod key_lists;

use crate::{Batch, PullTarget, TableFailure, TicketId, Values, Worker};
pub use key_lists::KeyListDictionary;
use lease::{LeaseId, WorkReport};
use std::ops::Range;
use types::{Bandwidth, NodeId, NumberType, PositionRange, Setting, TableId, TableSpec, Time};
use wire::{Frame, Keys, LeaseTerms, Outbox, Payload};

/// One input of a worker: what arrived, or what its program asked for.
#[derive(Clone, Debug)]
pub enum WorkerInput {
    /// A frame arrived.
    Frame(Time, Box<Frame>),
    /// Time has passed.
    Tick(Time),
    /// A connection is there again.
    Reconnected(Time, NodeId),
    /// It is time for a sign of life.
    Heartbeat,
    /// The program asks for a table.
    MakeTable(TableSpec),
    /// The program pushes, after other tickets.
    Push(Time, TableId, Batch, Vec<TicketId>),
    /// The program pulls, after other tickets.
    Pull(Time, TableId, Keys, Vec<TicketId>),
    /// The program pushes and pulls the same rows, after other tickets.
    PushPull(Time, TableId, Batch, Vec<TicketId>),
    /// The program begins a push whose values it hands over part by part; computed from so many
    /// examples.
    BeginPush(TableId, Keys, u64),
    /// The program hands over one part.
    PushRows(Time, RowsOfPush),
    /// The program has handed over every part.
    EndPush(TicketId),
    /// The program scans.
    Scan(Time, TableId, PositionRange, Vec<TicketId>),
    /// The program sets rows, after other tickets.
    SetRows(Time, TableId, Keys, Values, Vec<TicketId>),
    /// The program pulls rows as they are kept, of these keys or all of them, after other tickets.
    PullRowState(Time, TableId, Option<Keys>, Vec<TicketId>),
    /// The program asks which rows are active.
    Ask(Time, TableId, Keys),
    /// The program changes a setting.
    Tune(Time, TableId, Setting),
    /// The program bounds what is sent, or lifts the bound.
    Limit(Time, Option<Bandwidth>),
    /// The program ends its clock.
    EndClock(Time),
    /// The program leases a data set by name.
    OpenLeases(String, LeaseTerms),
    /// The program asks for so many leases of a data set.
    AskLeases(u32, u64),
    /// The program takes the leases of a data set that are there.
    TakeLeases(u32),
    /// The program learns no more of a data set, and nobody is to.
    EndLeases(u32),
    /// The program is done with a lease.
    CommitLease(Time, LeaseId, WorkReport),
    /// The program stands at a barrier.
    Barrier,
    /// The program is about to leave: the residuals of its codecs are sent.
    FlushResiduals(Time),
    /// The program says goodbye.
    Leave,
    /// The program cannot go on.
    Fail(String),
}

/// One part of a push that was begun.
#[derive(Clone, Debug)]
pub struct RowsOfPush {
    /// The push.
    pub ticket: TicketId,
    /// To which table.
    pub table: TableId,
    /// All keys of the push.
    pub keys: Keys,
    /// Which of them.
    pub rows: Range<usize>,
    /// What for each of those.
    pub values: Payload,
}

/// What a worker answers to an input at once.
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
    /// Hands it to the worker. If what the program asks for does not fit its tables, the worker
    /// stays as it was.
    pub fn apply(self, worker: &mut Worker, out: &mut Outbox) -> Result<WorkerReply, TableFailure> {
        match self {
            Self::Frame(now, frame) => worker.handle(now, *frame, out),
            Self::Tick(now) => worker.tick(now, out),
            Self::Reconnected(now, node) => worker.reconnected(now, node, out),
            Self::Heartbeat => worker.heartbeat(out),
            Self::MakeTable(spec) => worker.make_table(spec, out),
            Self::Push(now, table, batch, after) => {
                return worker.push(now, table, batch, &after, out).map(WorkerReply::Ticket);
            }
            Self::Pull(now, table, keys, after) => {
                let target = target_for(worker, table, &keys);
                return worker.pull(now, table, keys, target, &after, out).map(WorkerReply::Ticket);
            }
            Self::PushPull(now, table, batch, after) => {
                let target = target_for(worker, table, &batch.keys);
                return worker.push_pull(now, table, batch, target, &after, out).map(WorkerReply::Ticket);
            }
            Self::BeginPush(table, keys, examples) => {
                let begun = worker.begin_push(table, &keys, examples)?;
                return Ok(begun.map_or(WorkerReply::Nothing, WorkerReply::Ticket));
            }
            Self::PushRows(now, RowsOfPush { ticket, table, keys, rows, values }) => {
                worker.push_rows(now, ticket, table, &keys, rows, values, out);
            }
            Self::EndPush(ticket) => worker.end_push(ticket),
            Self::Scan(now, table, range, after) => {
                return worker.scan(now, table, range, &after, out).map(WorkerReply::Ticket);
            }
            Self::SetRows(now, table, keys, values, after) => {
                return worker.set_rows(now, table, keys, values, &after, out).map(WorkerReply::Ticket);
            }
            Self::PullRowState(now, table, keys, after) => {
                return worker.pull_row_state(now, table, keys, &after, out).map(WorkerReply::Ticket);
            }
            Self::Ask(now, table, keys) => {
                return worker.active(now, table, keys, &[], out).map(WorkerReply::Ticket);
            }
            Self::Tune(now, table, setting) => {
                return worker.tune(now, table, setting, out).map(WorkerReply::Ticket);
            }
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
}

/// Memory for the rows of `keys`; none where there is no such table or not so much, which the
/// worker then refuses.
fn target_for(worker: &Worker, table: TableId, keys: &Keys) -> PullTarget {
    let (number, width) = worker.spec(table).map_or((NumberType::F32, 0), |spec| (spec.number, spec.width as usize));
    let count = keys.len().saturating_mul(width);
    let count = if Vec::<u64>::new().try_reserve_exact(count).is_ok() { count } else { 0 };
    match number {
        NumberType::F32 => PullTarget::F32(vec![0.0; count]),
        NumberType::F64 => PullTarget::F64(vec![0.0; count]),
        NumberType::I64 => PullTarget::I64(vec![0; count]),
    }
}
