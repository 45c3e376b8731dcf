//! Who may send what to whom: one table for all messages.
//!
//! A node asks it for every frame before its machine sees the frame. The roles come from the
//! certificates of the connection, never from the frame.

#![deny(clippy::wildcard_enum_match_arm)]

use crate::message::{Control, Message, NodeRole, Wants};
use types::Role;
use types::Role::{Coordinator, Reader, Server, Worker};

/// Whether a process of role `from` may send this message to one of role `to`.
///
/// ```
/// use types::Role;
/// use wire::{Control, Message, may_send};
///
/// let finish = Message::Control(Control::Finish);
/// assert!(may_send(Role::Coordinator, &finish, Role::Server));
/// assert!(!may_send(Role::Worker, &finish, Role::Server));
/// ```
#[must_use]
pub fn may_send(from: Role, message: &Message, to: Role) -> bool {
    match message {
        Message::Push(_) | Message::Marker(_) | Message::Tune(_) | Message::Refreshed(_) => {
            (from, to) == (Worker, Server)
        }
        // A reader has no clock and makes no rows: it reads the change feed.
        Message::Pull(pull) => match pull.wants {
            Wants::Changes { .. } => matches!(from, Worker | Reader) && to == Server,
            Wants::Values | Wants::Active | Wants::RowState => (from, to) == (Worker, Server),
        },
        Message::Pulled(_) | Message::PullRefused(_) => from == Server && matches!(to, Worker | Reader),
        Message::Acked(_) | Message::Resend(_) | Message::ReadWaiting(_) | Message::Refresh(_) | Message::Delta(_) => {
            (from, to) == (Server, Worker)
        }
        Message::ReplicaChunk(_) | Message::Replicated(_) => (from, to) == (Server, Server),
        Message::Control(control) => may_control(from, control, to),
    }
}

/// Whether a process that has no place in the run may send this message: one that asks for a place,
/// or one that only looks.
#[must_use]
pub fn may_send_unseated(message: &Message) -> bool {
    match message {
        Message::Control(Control::Join { .. } | Control::AskStatus) => true,
        Message::Pull(pull) => matches!(pull.wants, Wants::Changes { .. }),
        Message::Push(_)
        | Message::Marker(_)
        | Message::Tune(_)
        | Message::Acked(_)
        | Message::Resend(_)
        | Message::Pulled(_)
        | Message::PullRefused(_)
        | Message::ReadWaiting(_)
        | Message::Refresh(_)
        | Message::Refreshed(_)
        | Message::Delta(_)
        | Message::ReplicaChunk(_)
        | Message::Replicated(_)
        | Message::Control(_) => false,
    }
}

fn may_control(from: Role, control: &Control, to: Role) -> bool {
    let is_member = |role| matches!(role, Worker | Server);
    match control {
        Control::Join { role, .. } => {
            let wanted = match role {
                NodeRole::Server => Server,
                NodeRole::Worker => Worker,
            };
            from == wanted && to == Coordinator
        }
        // Every role may ask for the status, and is redirected to the coordinator that leads.
        Control::AskStatus => to == Coordinator,
        Control::Status { .. } | Control::Follow { .. } => from == Coordinator,
        // Any node may ask any other whether it is alive.
        Control::Heartbeat { .. } => from != Reader && to != Reader,
        // From any member to the coordinator.
        Control::Adopted { .. }
        | Control::TableAdded { .. }
        | Control::Fail { .. }
        | Control::Unwritten { .. }
        | Control::Report { .. } => is_member(from) && to == Coordinator,
        // The coordinator answers a goodbye with the same message.
        Control::Bye => (is_member(from) && to == Coordinator) || (from == Coordinator && is_member(to)),
        // From workers to the coordinator.
        Control::MakeTable { .. }
        | Control::Barrier { .. }
        | Control::ResidualsWritten { .. }
        | Control::Passed { .. }
        | Control::OpenLeases { .. }
        | Control::AskLeases { .. }
        | Control::Learning { .. }
        | Control::CommitLease { .. } => (from, to) == (Worker, Coordinator),
        Control::EndLeases { .. } => matches!((from, to), (Worker, Coordinator) | (Coordinator, Worker)),
        // From servers to the coordinator.
        Control::Backfilled { .. }
        | Control::Missed { .. }
        | Control::Written { .. }
        | Control::Retire
        | Control::LeasesForgotten { .. } => (from, to) == (Server, Coordinator),
        // From the coordinator to any member.
        Control::Welcome { .. }
        | Control::JoinRefused { .. }
        | Control::Begin { .. }
        | Control::Adopt { .. }
        | Control::AddTable { .. }
        | Control::Lost { .. }
        | Control::Checkpoint { .. } => from == Coordinator && is_member(to),
        // From the coordinator to workers.
        Control::TableMade { .. }
        | Control::TableRefused { .. }
        | Control::BarrierPassed { .. }
        | Control::BarrierWaiting { .. }
        | Control::LeasesOpened { .. }
        | Control::Leased { .. }
        | Control::LeasesOver { .. }
        | Control::LeasesAwaited { .. }
        | Control::LeasesEnded { .. }
        | Control::LeaseCommitted { .. } => (from, to) == (Coordinator, Worker),
        // From the coordinator to servers.
        Control::Finish
        | Control::Restore { .. }
        | Control::ForgetLeases { .. }
        | Control::Released
        | Control::LeaveDeferred { .. } => (from, to) == (Coordinator, Server),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FeedCursor, KeyPart, Pull};
    use types::{PositionRange, ShardId, TableId};

    fn pull(wants: Wants) -> Message {
        Message::Pull(Pull {
            table: TableId(0),
            shard: ShardId(0),
            request: 0,
            after: 0,
            frontier: types::Clock(0),
            wants,
            subscribe: false,
            deltas: None,
            keys: KeyPart::Scan { range: PositionRange::ALL },
        })
    }

    fn allowed(message: &Message) -> Vec<(Role, Role)> {
        let pairs = Role::ALL.into_iter().flat_map(|from| Role::ALL.map(|to| (from, to)));
        pairs.filter(|(from, to)| may_send(*from, message, *to)).collect()
    }

    #[test]
    fn a_reader_sends_reads_of_the_change_feed_and_questions_for_the_status_only() {
        let control = |control| Message::Control(control);
        let feed = pull(Wants::Changes { cursor: FeedCursor::Now });
        assert_eq!(allowed(&feed), [(Worker, Server), (Reader, Server)]);
        for wants in [Wants::Values, Wants::Active, Wants::RowState] {
            assert_eq!(allowed(&pull(wants)), [(Worker, Server)], "{wants:?}");
        }
        let status = allowed(&control(Control::AskStatus));
        assert_eq!(status, Role::ALL.map(|from| (from, Coordinator)));
        for message in
            [Control::Heartbeat { heard: 0 }, Control::Bye, Control::Retire, Control::Fail { reason: String::new() }]
        {
            assert!(!allowed(&control(message.clone())).iter().any(|(from, _)| *from == Reader), "{message:?}");
        }
    }

    #[test]
    fn a_process_joins_in_its_own_role_only() {
        for (role, only) in [(NodeRole::Worker, Worker), (NodeRole::Server, Server)] {
            let join = Control::Join { role, address: String::new(), token: 0, place: None, job: String::new() };
            assert_eq!(allowed(&Message::Control(join)), [(only, Coordinator)]);
        }
    }

    #[test]
    fn only_the_coordinator_ends_a_run_or_names_places_of_checkpoints() {
        let lost = Control::Lost { node: types::NodeId::Server(0), reason: String::new() };
        let checkpoint = Control::Checkpoint {
            number: 1,
            clock: types::Clock(1),
            last: false,
            location: String::new(),
            name: String::new(),
        };
        for control in [lost, checkpoint] {
            assert_eq!(allowed(&Message::Control(control)), [(Coordinator, Worker), (Coordinator, Server)]);
        }
        assert_eq!(allowed(&Message::Control(Control::Finish)), [(Coordinator, Server)]);
    }
}
