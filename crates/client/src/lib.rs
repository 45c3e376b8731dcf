//! Slackwater: a parameter server that trains one model on machines that do not keep step.
//!
//! A program opens a [`Session`], makes [`Table`]s, and then pulls rows, computes, pushes gradients
//! and ends its clock. How fresh a read must be, how contributions meet and what an update does to
//! a row are choices of the table's [`TableSpec`], and none of them changes the program.
//!
//! ```
//! use slackwater::{Consistency, RunSize, Session, TableSpec};
//!
//! let size = RunSize { servers: 2, workers: 1 };
//! let session = Session::embedded(size)?.remove(0);
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

mod active_rows;
mod addresses;
mod codecs;
mod connect;
mod data_leases;
mod embedded;
mod error;
mod serve;
mod session;
mod status;
mod table;
mod ticket;
mod time_breakdown;
mod update_log;

pub use active_rows::ActiveRows;
pub use codec::Meter;
pub use codecs::is_lossy;
pub use connect::Connect;
pub use coordinator::Membership;
pub use data_leases::{DataLease, DataLeases, LeasedInput, NextLease};
pub use error::Error;
pub use net::{SameHost, Traffic, free_address};
pub use node::{
    CheckpointSettings, LeaveSignal, NodeError, RecordingError, Replayed, ReportCallback, RunFailure, ServerReport,
    WaitPolicy, describe_checkpoint, replay_file,
};
pub use serve::{ElectionSettings, ResumeFrom, Serve};
pub use session::Session;
pub use shard::{ServerCounts, ShardCounts};
pub use status::status;
pub use table::{PushValues, Table, TargetNumber};
pub use ticket::{FromOutcome, Prerequisite, Rows, Ticket, Tickets};
pub use time_breakdown::TimeBreakdown;
pub use types::{
    Bandwidth, BandwidthError, CacheSpec, Clock, Codecs, Combine, Consistency, Initial, Key, Measured, NodeId,
    NumberType, Placement, Position, Reduce, RunSize, Setting, Span, SpecError, TableShape, TableSpec, UpdaterSpec,
    WorkerId,
};
pub use update::{Number, UpdateStep, Updater, Updaters};
pub use update_log::UpdateLog;
pub use wire::{
    Backing, Bits, FailedClock, KeyError, Keys, MemberState, MemberStatus, NodeReport, Payload, Refusal, Status,
    Timeout,
};
pub use worker::{CodecUse, PullBuffer, TableFailure, WorkerCounts};

/// The tour of the README, compiled and run with the other examples.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
