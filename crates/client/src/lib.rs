//! Slackwater: a parameter server that trains one model on machines that do not keep step.
//!
//! A program opens a [`Session`], makes [`Table`]s, and then pulls rows, computes, pushes gradients and ends its clock.
//! How fresh a read must be, how contributions meet and what an update does to a row are choices of the table's
//! [`TableSpec`], and none of them changes the program.
//!
//! ```
//! use slackwater::{Consistency, Session, Shape, TableSpec};
//!
//! let shape = Shape { servers: 2, workers: 1 };
//! let session = Session::embedded(shape)?.remove(0);
//! let spec = TableSpec::sparse("weights", 1).consistency(Consistency::slack(3));
//! let weights = session.table::<f32>(spec)?;
//!
//! // Keys are put in the table's order, each once. Values go in that order: the order of `keys.ids()`.
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

mod active;
mod codecs;
mod connect;
mod embedded;
mod error;
mod leases;
mod ledger;
mod log;
mod meeting;
mod serve;
mod session;
mod status;
mod table;
mod ticket;

pub use active::Active;
pub use codec::Meter;
pub use codecs::is_lossy;
pub use connect::Connect;
pub use coordinator::Membership;
pub use error::Error;
pub use leases::{Input, Lease, Leases, Offer};
pub use ledger::Ledger;
pub use log::Log;
pub use net::{SameHost, Traffic, free_address};
pub use node::{
    CheckpointSettings, Leave, Loss, NodeError, RecordingError, Replayed, ServerReport, Wait, Watch,
    describe_checkpoint, replay_file,
};
pub use serve::{Election, ResumeFrom, Serve};
pub use session::{Session, Shape};
pub use shard::{ServerCounts, ShardCounts};
pub use status::status;
pub use table::{PushValues, Table, TargetNumber};
pub use ticket::{After, FromOutcome, Rows, Ticket, Tickets};
pub use types::{
    Bandwidth, BandwidthError, CacheSpec, Clock, Codecs, Combine, Consistency, Initial, Key, Measured, NodeId,
    NumberType, Placement, Position, Reduce, Setting, Shape as TableShape, Span, SpecError, TableSpec, UpdaterSpec,
    WorkerId,
};
pub use update::{Number, Registry, Step, Updater};
pub use wire::{
    Backing, Bits, FailedClock, KeyError, Keys, MemberStatus, Payload, Refusal, Report, Standing, Status, Timeout,
};
pub use worker::{CodecUse, PullBuffer, TableFailure, WorkerCounts};

/// The tour of the README, compiled and run with the other examples.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
