//! The event queue: events happen by time and, at one time, in the order in which they were
//! scheduled. So a seed always gives the same run.

use super::{Cluster, Moment, StoppedInbox};
use crate::network::{Isolation, LinkFault, Parcel};
use std::cmp::Reverse;
use types::{NodeId, Span, Time};

/// An event.
pub(super) enum Happening {
    /// A frame arrives.
    Arrival(Parcel),
    /// A server acknowledges what has arrived.
    Settle(usize),
    /// A server does a piece of long work.
    Work(usize),
    /// A worker's program goes on.
    Wake(usize),
    /// A node's machine gets a tick.
    Tick(NodeId),
    /// A node sends its heartbeat.
    Heartbeat(NodeId),
    /// A connection may break.
    Break,
    /// A broken connection is made anew.
    Mend((NodeId, NodeId)),
    /// A worker crashes.
    Crash(usize),
    /// A worker asks to join.
    Join(usize),
    /// A server crashes.
    CrashServer(usize),
    /// A server is told to leave.
    DrainServer(usize),
    /// A worker is told to leave.
    DrainWorker(usize),
    /// A node is cut off, or no longer is.
    Isolate(NodeId, Option<Isolation>),
    /// A server asks to join.
    JoinServer(usize),
    /// The shell looks at the checkpoint under way, or begins one.
    Checkpoint,
    /// A node crashes in the middle of a moment.
    CrashAmid(Moment, NodeId),
    /// The coordinator hears that a node's process has ended.
    Gone(NodeId),
    /// A node's clock is set back.
    SetBack(NodeId, Span),
    /// The link between two nodes gets a fault, or loses it.
    Cut(NodeId, NodeId, Option<LinkFault>),
    /// The link from a node to another is cut.
    CutOneWay(NodeId, NodeId),
    /// A server stops adopting plans.
    Stubborn(usize),
    /// The coordinator crashes. Its successor leads after this long.
    CrashCoordinator(Span),
    /// A successor of the coordinator leads.
    Succeed,
    /// A node's process does not run for this long.
    Stop(NodeId, StoppedInbox, Span),
    /// A node's process goes on.
    GoOn(NodeId),
}

/// An event with its time, and its place among the events of that time.
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
