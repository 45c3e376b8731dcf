//! Nodes that are lost in the middle of something: when the first message of it is sent, or very
//! soon after.

use super::{Cluster, Happening};
use types::{NodeId, PlanNumber, Span};
use wire::{Control, Frame, Message};

/// Whoever is to be lost is lost within this of the moment.
pub(super) const SOON: u64 = 8_000_000;
/// And if that is the coordinator, another leads so long after.
const UNLED: Span = Span::from_millis(40);

/// Something that takes a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A checkpoint is being made.
    Checkpoint,
    /// A new replica of a shard is being backfilled.
    Migration,
    /// Servers go by a plan without one of them that was lost.
    Failover,
    /// A worker commits a lease.
    Commit,
}

/// Who is to be lost, and when.
pub(super) struct Doomed {
    moment: Moment,
    /// Whoever says the first word of it, where nobody is named.
    node: Option<NodeId>,
}

impl Moment {
    /// Whether this frame belongs to it.
    fn has(self, frame: &Frame, crashed: u64) -> bool {
        match (self, &frame.message) {
            (Self::Checkpoint, Message::Control(Control::Checkpoint { .. }))
            | (Self::Commit, Message::Control(Control::CommitLease { .. })) => true,
            (Self::Migration, Message::ReplicaChunk(replica)) => replica.backfill.is_some(),
            (Self::Failover, Message::Control(Control::Adopt { plan, .. })) => {
                crashed > 0 && plan.number > PlanNumber(1)
            }
            _ => false,
        }
    }
}

impl Cluster {
    /// A node is gone without a word in the middle of the first such moment: the one that is named,
    /// or whoever says the first word of it.
    pub fn crash_amid(&mut self, moment: Moment, node: Option<NodeId>) {
        match node {
            Some(NodeId::Coordinator) => {
                self.may_be_unled();
                self.planned.unled += 1;
            }
            _ => self.planned.crashed += 1,
        }
        *self.planned.amid(moment) += 1;
        self.doomed.push(Doomed { moment, node });
    }

    /// Looks whether a frame that is sent begins a moment that somebody is to be lost in.
    pub(super) fn note_moment(&mut self, frame: &Frame) {
        if self.doomed.is_empty() {
            return;
        }
        let (crashed, from) = (self.network.counts.crashed, frame.head.from);
        let (due, waiting) = std::mem::take(&mut self.doomed)
            .into_iter()
            .partition::<Vec<_>, _>(|doomed| doomed.moment.has(frame, crashed));
        self.doomed = waiting;
        for Doomed { moment, node } in due {
            let after = Span(self.random.below(SOON));
            self.later(after, Happening::CrashAmid(moment, node.unwrap_or(from)));
        }
    }

    pub(super) fn crash_in(&mut self, moment: Moment, node: NodeId) {
        let before = self.network.counts.crashed;
        let was_led = !self.leadership.away;
        match node {
            NodeId::Coordinator => self.crash_the_coordinator(UNLED),
            NodeId::Server(server) => self.crash_a_server(server as usize),
            NodeId::Worker(worker) => self.crash(worker as usize),
        }
        let counts = &mut self.network.counts;
        // A coordinator that is to go with its next decision is gone soon enough.
        let is_lost = if node == NodeId::Coordinator { was_led } else { counts.crashed > before };
        *counts.amid(moment) += u64::from(is_lost);
    }
}
