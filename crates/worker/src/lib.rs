//! The worker: a state machine without I/O that sends a program's pushes and pulls to the shards of
//! its tables.
//!
//! - [`Op`] lists every operation on a table.
//! - [`Worker`] takes the program's operations and the network's frames, and returns frames to
//!   send.
//! - [`WorkerInput`] is each of those inputs as data, for recordings and their replay.
//! - A ticket names an operation until the program takes its [`TicketOutcome`].

mod batch;
mod cache;
mod decode;
mod identity;
mod input;
mod key_lists;
mod leases;
mod op;
mod recorded;
mod requests;
mod residuals;
mod schedule;
mod send;
#[cfg(test)]
mod testing;
mod ticket;
mod tickets;
mod worker;

pub use batch::{Batch, Values};
pub use input::{RowsOfPush, WorkerInput, WorkerReply};
pub use key_lists::KeyListDictionary;
pub use leases::LeaseGrant;
pub use op::{Op, TableFailure};
pub use residuals::SavedResiduals;
pub use ticket::{Notice, PullBuffer, PullTarget, ReadRows, TicketFailure, TicketId, TicketOutcome};
pub use worker::{CodecUse, Worker, WorkerCounts, WorkerSettings};

/// The bytes that an unacknowledged part counts for beside its values, so that many tiny parts are
/// bounded too.
const PART_COST: usize = 512;
