//! Nodes whose process does not run for a while: it is stopped, starved, or its host is suspended.
//! Its timers do not run. When it goes on, it reads what has arrived before it does anything else.

use super::{Cluster, Happening};
use crate::network::Parcel;
use crate::sabotage::Sabotage;
use shard::ServerInput;
use types::{NodeId, Span, Time};

/// What becomes of frames that arrive at a node while it does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoppedInbox {
    /// The kernel keeps them: the process was stopped or starved.
    Kept,
    /// They are lost: the host was suspended.
    Lost,
}

/// A node that does not run.
pub(super) struct StoppedNode {
    until: Time,
    inbox: StoppedInbox,
    arrived: Vec<Parcel>,
    /// Whether a frame has arrived, so that the fault has happened.
    met: bool,
}

impl Cluster {
    /// Fault: the coordinator does not run, from `after` on and for `length`.
    pub fn stop_coordinator(&mut self, inbox: StoppedInbox, after: Span, length: Span) {
        self.stop(NodeId::Coordinator, inbox, after, length);
    }

    /// Fault: a server does not run, from `after` on and for `length`.
    pub fn stop_server(&mut self, server: u32, inbox: StoppedInbox, after: Span, length: Span) {
        self.stop(NodeId::Server(server), inbox, after, length);
    }

    /// Fault: a worker does not run, from `after` on and for `length`.
    pub fn stop_worker(&mut self, worker: u32, inbox: StoppedInbox, after: Span, length: Span) {
        self.stop(NodeId::Worker(worker), inbox, after, length);
    }

    fn stop(&mut self, node: NodeId, inbox: StoppedInbox, after: Span, length: Span) {
        self.planned.stopped += 1;
        self.later(after, Happening::Stop(node, inbox, length));
    }

    /// Stops a node between two turns of its loop: a server acknowledges what it has handled first.
    pub(super) fn stop_now(&mut self, node: NodeId, inbox: StoppedInbox, length: Span) {
        if let NodeId::Server(server) = node {
            self.drive_server(server as usize, ServerInput::Settle);
        }
        let until = self.now + length;
        self.stopped.insert(node, StoppedNode { until, inbox, arrived: Vec::new(), met: false });
        self.at(until, Happening::GoOn(node));
    }

    /// Returns the event, unless a node that does not run would have to take it: then it happens
    /// when the node goes on.
    pub(super) fn unless_stopped(&mut self, happening: Happening) -> Option<Happening> {
        let Some(stopped) = taker(&happening).and_then(|node| self.stopped.get_mut(&node)) else {
            return Some(happening);
        };
        match happening {
            Happening::Arrival(parcel) => {
                self.network.counts.stopped += u64::from(!std::mem::replace(&mut stopped.met, true));
                match stopped.inbox {
                    StoppedInbox::Kept => stopped.arrived.push(parcel),
                    StoppedInbox::Lost => {}
                }
            }
            other => {
                let until = stopped.until;
                self.at(until, other);
            }
        }
        None
    }

    /// A node goes on. Its timers are due, and happen after it has read its inbox.
    pub(super) fn go_on(&mut self, node: NodeId) {
        let Some(stopped) = self.stopped.remove(&node) else { return };
        if self.sabotage == Some(Sabotage::JudgeBeforeReading) && node == NodeId::Coordinator {
            self.drive_coordinator(|coordinator, now, out| coordinator.tick(now, out));
        }
        stopped.arrived.into_iter().for_each(|parcel| self.happen(Happening::Arrival(parcel)));
    }
}

/// The node whose process takes an event.
fn taker(happening: &Happening) -> Option<NodeId> {
    match happening {
        Happening::Arrival(parcel) => Some(parcel.to),
        Happening::Settle(server) | Happening::Work(server) => Some(NodeId::Server(*server as u32)),
        Happening::Wake(worker) => Some(NodeId::Worker(*worker as u32)),
        Happening::Tick(node) | Happening::Heartbeat(node) => Some(*node),
        Happening::Checkpoint | Happening::Gone(_) => Some(NodeId::Coordinator),
        // Faults, and orders of users. Nodes that are joining are never stopped.
        Happening::Break
        | Happening::Mend(_)
        | Happening::Crash(_)
        | Happening::Join(_)
        | Happening::CrashServer(_)
        | Happening::DrainServer(_)
        | Happening::DrainWorker(_)
        | Happening::Isolate(..)
        | Happening::JoinServer(_)
        | Happening::CrashAmid(..)
        | Happening::SetBack(..)
        | Happening::Cut(..)
        | Happening::CutOneWay(..)
        | Happening::Stubborn(_)
        | Happening::CrashCoordinator(_)
        | Happening::Succeed
        | Happening::Stop(..)
        | Happening::GoOn(_) => None,
    }
}
