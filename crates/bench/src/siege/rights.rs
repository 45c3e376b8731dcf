//! What the holder of a token may rightly do to a run. The siege sends every message but these.
//!
//! docs/security.md has the same list in its threat model; change both together.

#![deny(clippy::wildcard_enum_match_arm)]

use types::{Role, TableId};
use wire::{Control, Message};

/// A harm that a role can rightly do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    /// Ends the run, or a node of it.
    EndRun,
    /// Holds back the frontier, or moves the clock at which new workers begin.
    HoldFrontier,
    /// Writes rows of honest workers.
    WriteRows,
    /// Leads the run: changes the plan, makes tables, orders checkpoints.
    Lead,
}

/// The harm that a process with a place in the run, in this role, can rightly do by a message.
/// `honest` is the table that honest workers write.
///
/// A process without a place can rightly only join, which gives it one. A reader can do no harm.
pub(super) fn right_of(role: Role, message: &Message, honest: TableId) -> Option<Right> {
    let of = |theirs: Role, right: Right| (role == theirs).then_some(right);
    let of_member = |right: Right| of(Role::Worker, right).or(of(Role::Server, right));
    let writes = |table: TableId| of(Role::Worker, Right::WriteRows).filter(|_| table == honest);
    match message {
        Message::Push(push) => writes(push.table),
        Message::Tune(tune) => writes(tune.table),
        // A worker's markers end its clocks, and the frontier waits for them.
        Message::Marker(_) => of(Role::Worker, Right::HoldFrontier),
        // A new replica that says it holds a shard is given it.
        Message::Replicated(_) => of(Role::Server, Right::WriteRows),
        Message::Acked(_)
        | Message::Resend(_)
        | Message::Pull(_)
        | Message::Pulled(_)
        | Message::PullRefused(_)
        | Message::ReadWaiting(_)
        | Message::Refresh(_)
        | Message::Refreshed(_)
        | Message::Delta(_)
        | Message::ReplicaChunk(_) => None,
        Message::Control(control) => match control {
            Control::Fail { .. } => of_member(Right::EndRun),
            // A new worker holds the frontier until it ends clocks; a new server is given shards.
            Control::Join { .. } => of(Role::Worker, Right::HoldFrontier).or(of(Role::Server, Right::WriteRows)),
            // Heartbeats tell the clock of a worker and the frontier of a server. Those of a
            // coordinator extend serving leases.
            Control::Heartbeat { .. } => of_member(Right::HoldFrontier).or(of(Role::Coordinator, Right::Lead)),
            Control::Bye => of_member(Right::HoldFrontier).or(of(Role::Coordinator, Right::EndRun)),
            Control::Adopted { .. } => of(Role::Server, Right::HoldFrontier),
            Control::Lost { .. } | Control::Finish | Control::Released => of(Role::Coordinator, Right::EndRun),
            Control::Follow { .. }
            | Control::Begin { .. }
            | Control::Adopt { .. }
            | Control::AddTable { .. }
            | Control::Restore { .. }
            | Control::Checkpoint { .. }
            | Control::ForgetLeases { .. } => of(Role::Coordinator, Right::Lead),
            Control::Welcome { .. }
            | Control::JoinRefused { .. }
            | Control::MakeTable { .. }
            | Control::TableAdded { .. }
            | Control::TableMade { .. }
            | Control::TableRefused { .. }
            | Control::Barrier { .. }
            | Control::BarrierPassed { .. }
            | Control::BarrierWaiting { .. }
            | Control::Backfilled { .. }
            | Control::AskStatus
            | Control::Status { .. }
            | Control::Missed { .. }
            | Control::Written { .. }
            | Control::Unwritten { .. }
            | Control::ResidualsWritten { .. }
            | Control::Passed { .. }
            | Control::OpenLeases { .. }
            | Control::LeasesOpened { .. }
            | Control::AskLeases { .. }
            | Control::Leased { .. }
            | Control::LeasesOver { .. }
            | Control::LeasesAwaited { .. }
            | Control::LeasesEnded { .. }
            | Control::EndLeases { .. }
            | Control::Learning { .. }
            | Control::CommitLease { .. }
            | Control::LeaseCommitted { .. }
            | Control::LeasesForgotten { .. }
            | Control::Retire
            | Control::LeaveDeferred { .. }
            | Control::Report { .. } => None,
        },
    }
}
