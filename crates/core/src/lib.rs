//! The machines: server, worker and coordinator, with no I/O, no clock and no randomness of their own.
//!
//! A machine is told what arrived and what time it is, and puts what it has to say into an [`Outbox`]. Three shells
//! drive the same machines: threads in one process, sockets, and a seeded simulator in virtual time. Given the same
//! inputs a machine says the same bytes, so a recorded run can be fed back.

mod bounds;
mod check;
mod coordinator;
mod inputs;
mod leader;
pub mod leases;
mod outbox;
mod rows;
mod server;
mod shard;
mod worker;

pub use bounds::{HELD_CLOCKS, OPEN_READS, READS_AT_ONCE, given_up_after, server_lease};
pub use check::check;
pub use codec::{CodecChoice, Meter, Pipeline, PipelineWarning, Stopwatch, TableCodecs};
pub use coordinator::{CheckpointEnd, Coordinator, Gathered, Membership, News, RecallError, Resume, Size};
pub use inputs::{Answer, CoordinatorInput, Lists, RowsOfPush, ServerInput, WorkerInput};
pub use leader::Leader;
pub use outbox::Outbox;
pub use server::{Restored, Server, ServerCounts};
pub use shard::{Image, LIST_BYTES, Places, ShardCounts};
pub use worker::{
    Batch, CodecUse, Failure, Grant, Notice, Outcome, Owed, OwedRows, PullTarget, ReadRows, Room, TableFailure, Ticket,
    Values, Worker, WorkerCounts, WorkerSettings,
};
