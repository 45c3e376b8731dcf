//! Slackwater: a parameter server that trains one model on machines that do not keep step.
//!
//! A program opens a [`Session`] and makes [`Table`]s. Then it pulls rows, computes, pushes
//! gradients and ends its clock. A clock is a worker's count of finished units of work. The table's
//! [`TableSpec`] says how fresh a read must be, how pushes of several workers combine, and what an
//! update does to a row. A program stays the same when these choices change.
//!
//! ```
//! use slackwater::{Consistency, RunSize, Session, TableSpec};
//!
//! let size = RunSize { servers: 2, workers: 1 };
//! let session = Session::embedded(size)?.remove(0);
//! let spec = TableSpec::sparse("weights", 1).consistency(Consistency::slack(3));
//! let weights = session.table::<f32>(spec)?;
//!
//! // `keys` sorts the ids into the table's order, each once. Values go in the order of `keys.ids()`.
//! let keys = weights.keys(&[7, 42, 1_000_000]);
//! let values: Vec<f32> = keys.ids().map(|id| if id == 42 { 2.0 } else { 1.0 }).collect();
//! weights.push(&keys, values)?.wait()?;
//! session.clock()?;
//! let rows = weights.pull(&keys)?.wait()?;
//! let of_42 = keys.ids().zip(rows.values()).find(|(id, _)| *id == 42);
//! assert_eq!(of_42, Some((42, &2.0)));
//! session.close()?;
//! # Ok::<(), slackwater::Error>(())
//! ```
//!
//! The crate root has what most programs need, and the [`prelude`] has all of it. The rest is in
//! modules, by subject:
//!
//! - [`table`]: keys, values, tickets, and the options of each operation on a table.
//! - [`policy`]: what a table promises, what an update does, how messages shrink.
//! - [`updaters`]: custom updaters.
//! - [`data_leases`]: input that workers lease range by range.
//! - [`feed`]: the changes of a table, as they happen.
//! - [`cluster`]: the nodes of a run, how they are started, and how they end.
//! - [`monitor`]: the status of a run, and the counters of its nodes.
//! - [`recording`]: replay of the recordings that nodes make.

mod access;
mod active_rows;
mod addresses;
mod codecs;
mod connect;
pub mod data_leases;
mod embedded;
mod error;
pub mod feed;
mod http_readers;
mod locations;
mod observer;
mod serve;
mod session;
mod status;
pub mod table;
mod ticket;
mod time_breakdown;
mod update_log;

pub use connect::Connect;
pub use error::Error;
pub use serve::Serve;
pub use session::Session;
pub use table::Table;
pub use ticket::{Rows, Ticket, Tickets};
pub use types::{Consistency, RunSize, TableSpec, UpdaterSpec};
pub use wire::Keys;

/// What most programs need: `use slackwater::prelude::*;`.
///
/// ```
/// use slackwater::prelude::*;
///
/// let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
/// let table = session.table::<f32>(TableSpec::dense("t", 4, 1).combine(Combine::Clock(Reduce::Mean)))?;
/// let options = PushOptions { examples: 32, ..PushOptions::default() };
/// table.push_opts(&Keys::run(0..4), vec![1.0; 4], options)?.wait()?;
/// session.clock()?;
/// assert_eq!(table.pull(&Keys::run(0..4))?.wait()?.values(), [1.0; 4]);
/// session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
pub mod prelude {
    pub use crate::feed::{FollowFrom, FollowOptions};
    pub use crate::policy::{Codecs, Combine, NumberType, Reduce};
    pub use crate::table::options::*;
    pub use crate::{
        Connect, Consistency, Error, Keys, Rows, RunSize, Serve, Session, Table, TableSpec, Ticket, Tickets,
        UpdaterSpec,
    };
}

/// What a table promises, what an update does to a row, and how messages shrink: the parts of a
/// [`TableSpec`].
pub mod policy {
    pub use crate::codecs::is_lossy;
    pub use types::{
        CacheSpec, Codecs, Combine, Consistency, Initial, NumberType, Placement, Reduce, SpecError, TableShape,
        TableSpec, UpdaterSpec,
    };
}

/// Custom updaters: see [`Session::embedded_with`].
pub mod updaters {
    pub use update::{Number, UpdateStep, Updater, Updaters};
}

/// The nodes of a run: membership, addresses, how threads wait, and why a run ends.
pub mod cluster {
    pub use crate::connect::Connect;
    pub use crate::locations::CHECKPOINT_LOCATIONS_VARIABLE;
    pub use crate::serve::{ElectionSettings, ResumeFrom, Serve};
    pub use coordinator::Membership;
    pub use net::{SameHost, free_address};
    pub use node::registry::{ETCD_USER_VARIABLE, EtcdAccess};
    pub use node::{
        CheckpointSettings, CoordinatorReport, CoordinatorReportCallback, LeaveSignal, NodeError, ReportCallback,
        RunFailure, ServerReport, WaitPolicy, describe_checkpoint,
    };
    pub use types::{Bandwidth, BandwidthError, NodeId, RunSize, WorkerId};
}

/// Tokens and certificates: how the processes of a run prove who they are.
pub mod security {
    pub use crate::access::{Access, CERTIFICATE_VARIABLES, INSECURE_VARIABLE, TOKEN_FILE_VARIABLE};
    pub use identity::{CertificateFiles, HttpReaders, JobToken, Lifetime, RestrictedToken, Token, TokenError};
    pub use types::Role;
}

/// The status of a run, as its coordinator reports it, and the counters of its nodes.
pub mod monitor {
    pub use crate::status::status;
    pub use crate::time_breakdown::TimeBreakdown;
    pub use codec::Meter;
    pub use net::Traffic;
    pub use shard::{ServerCounts, ShardCounts};
    pub use types::{Measured, Span};
    pub use wire::{MemberState, MemberStatus, NodeReport, Status, TableStatus, Timeout, Trouble};
    pub use worker::{CodecUse, WorkerCounts};
}

/// Replay of recordings. A recording holds all inputs and frames of a node.
pub mod recording {
    pub use node::{RecordingError, Replayed, replay_file};
}

/// The README's examples, compiled and run as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
