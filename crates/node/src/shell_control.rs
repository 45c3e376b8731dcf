//! The control messages of the coordinator on which a node's shell acts, in addition to its machine
//! or before the machine exists.
//!
//! [`ShellControl::of`] decides for every control message whether it concerns a shell. The shells
//! match the result exhaustively.

use types::{Clock, NodeId, Plan, Source, Span, TableId, TableSpec};
use wire::{Control, Frame, Member, Message};

pub(crate) enum ShellControl<'a> {
    /// The answer to a heartbeat.
    Heartbeat,
    /// The answer to a goodbye.
    Bye,
    /// The sender does not lead: call `leader`.
    Follow { leader: &'a str },
    /// This node has a place in the run.
    Welcome { node: NodeId, source: Source, token: u64 },
    /// This node may not join the run.
    JoinRefused { reason: &'a str, token: u64 },
    /// The run begins.
    Begin {
        plan: &'a Plan,
        members: &'a [Member],
        clock: Clock,
        barriers: u64,
        serving_lease: Option<Span>,
        locations: &'a [String],
    },
    /// A node is lost, and the run ends.
    Lost { node: NodeId, reason: &'a str },
    /// There is a new plan, and new members.
    Adopt { members: &'a [Member] },
    /// A checkpoint begins.
    Checkpoint { number: u64, location: &'a str, name: &'a str },
    /// A server shall restore a table from a checkpoint.
    Restore { table: TableId, spec: &'a TableSpec, clock: Clock, location: &'a str, name: &'a str },
    /// A server that was told to leave must stay for now.
    LeaveDeferred { reason: &'a str },
}

impl<'a> ShellControl<'a> {
    /// The control message in a frame. None if it concerns only the machine.
    pub fn of(frame: &'a Frame) -> Option<Self> {
        let Message::Control(control) = &frame.message else { return None };
        Some(match control {
            Control::Heartbeat { .. } => Self::Heartbeat,
            Control::Bye => Self::Bye,
            Control::Follow { leader } => Self::Follow { leader },
            Control::Welcome { node, source, token } => Self::Welcome { node: *node, source: *source, token: *token },
            Control::JoinRefused { reason, token } => Self::JoinRefused { reason, token: *token },
            Control::Begin { plan, members, clock, barriers, serving_lease, locations } => Self::Begin {
                plan,
                members,
                clock: *clock,
                barriers: *barriers,
                serving_lease: *serving_lease,
                locations,
            },
            Control::Lost { node, reason } => Self::Lost { node: *node, reason },
            Control::Adopt { members, .. } => Self::Adopt { members },
            Control::Checkpoint { number, location, name, .. } => Self::Checkpoint { number: *number, location, name },
            Control::Restore { table, spec, clock, location, name } => {
                Self::Restore { table: *table, spec, clock: *clock, location, name }
            }
            Control::LeaveDeferred { reason } => Self::LeaveDeferred { reason },
            Control::Join { .. }
            | Control::Adopted { .. }
            | Control::MakeTable { .. }
            | Control::AddTable { .. }
            | Control::TableAdded { .. }
            | Control::TableMade { .. }
            | Control::TableRefused { .. }
            | Control::Barrier { .. }
            | Control::BarrierPassed { .. }
            | Control::BarrierWaiting { .. }
            | Control::Finish
            | Control::Backfilled { .. }
            | Control::AskStatus
            | Control::Status { .. }
            | Control::Fail { .. }
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
            | Control::EndLeases { .. }
            | Control::LeasesEnded { .. }
            | Control::Learning { .. }
            | Control::CommitLease { .. }
            | Control::LeaseCommitted { .. }
            | Control::ForgetLeases { .. }
            | Control::Retire
            | Control::Released
            | Control::Report { .. }
            | Control::LeasesForgotten { .. } => return None,
        })
    }
}
