//! What happens next: by time and, at one time, in the order of scheduling, so that a seed always
//! gives the same run.

use super::{Cluster, Moment};
use crate::network::{Isolation, LinkFault, Parcel};
use std::cmp::Reverse;
use types::{NodeId, Span, Time};

/// Something that happens at a time.
pub(super) enum Happening {
    Arrival(Parcel),
    Settle(usize),
    Wake(usize),
    Tick(NodeId),
    Heartbeat(NodeId),
    Break,
    Mend((NodeId, NodeId)),
    Crash(usize),
    Join(usize),
    CrashServer(usize),
    DrainServer(usize),
    DrainWorker(usize),
    Isolate(NodeId, Option<Isolation>),
    JoinServer(usize),
    Checkpoint,
    CrashAmid(Moment, NodeId),
    /// The coordinator hears that a node's process has ended.
    Gone(NodeId),
    SetBack(NodeId, Span),
    Cut(NodeId, NodeId, Option<LinkFault>),
    CrashCoordinator(Span),
    Succeed,
}

/// When, and which of those that were scheduled comes first.
pub(super) struct Scheduled {
    pub at: Time,
    sequence: u64,
    pub happening: Happening,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl Cluster {
    pub(super) fn later(&mut self, after: Span, happening: Happening) {
        self.at(self.now + after, happening);
    }

    pub(super) fn at(&mut self, at: Time, happening: Happening) {
        self.sequence += 1;
        self.schedule.push(Reverse(Scheduled { at, sequence: self.sequence, happening }));
    }
}
