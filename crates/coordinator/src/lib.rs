//! The coordinator machine: it keeps membership, the plan, tables, barriers, checkpoints and data
//! leases, and notices silent nodes. It does no I/O and has no clock of its own.
//!
//! `coordinator.rs` hands each message to the part that it concerns, and routes what that part
//! decides to the other parts. A part owns its state: no other file writes it. No part holds
//! another part.

#![deny(clippy::wildcard_enum_match_arm)]

// The machine, its inputs and its settings.
mod coordinator;
mod input;
mod join_budget;
mod settings;

// The parts.
mod barriers;
mod checkpoints;
mod leases;
mod liveness;
mod members;
mod placement;
mod plans;
mod tables;
mod timeouts;

// Rules without state, and functions that all parts use.
mod balance;
mod leaving;
mod saved;
mod say;

pub use checkpoints::{CheckpointOutcome, Resume, WrittenCheckpoint};
pub use coordinator::{Coordinator, MembershipEvent, RecallError};
pub use input::CoordinatorInput;
pub use liveness::LivenessLimits;
pub use settings::Membership;
pub use types::RunSize;
