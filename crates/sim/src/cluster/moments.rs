//! Crashes in the middle of something, such as a checkpoint: a node crashes at a random time within
//! 8 ms of the first message that belongs to it.

use super::{Cluster, Happening};
use types::{NodeId, PlanNumber, Span};
use wire::{Control, Frame, Message};

/// A node crashes within this many nanoseconds of the moment's first message.
pub(super) const SOON: u64 = 8_000_000;
/// A coordinator that crashes in a moment has a successor after this long.
const UNLED: Span = Span::from_millis(40);

/// Something that takes a while, in the middle of which a node can crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A checkpoint is being made.
    Checkpoint,
    /// A new replica of a shard is being backfilled.
    Migration,
    /// Servers adopt a plan without a server that was lost.
    Failover,
    /// A worker commits a lease.
    Commit,
}

/// A planned crash of a node in a moment.
pub(super) struct Doomed {
    moment: Moment,
    /// The node. None for the sender of the moment's first message.
    node: Option<NodeId>,
}

impl Moment {
    /// Whether this frame belongs to the moment.
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
    /// Fault: crashes a node in the middle of the first such moment. Without `node`, it is the
    /// sender of the moment's first message.
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

    /// Schedules the planned crashes whose moment this frame begins.
    pub(super) fn note_moment(&mut self, frame: &Frame) {
        if self.doomed.is_empty() {
            return;
        }
        let crashed = self.network.counts.crashed;
        let from = frame.head.from;
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
        // A coordinator that crashes at its next decision counts as lost already.
        let is_lost = if node == NodeId::Coordinator { was_led } else { counts.crashed > before };
        *counts.amid(moment) += u64::from(is_lost);
    }
}
