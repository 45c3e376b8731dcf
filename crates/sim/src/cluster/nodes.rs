//! The simulated shell of each node: it hands frames that arrive to the machine, ticks it, sends
//! heartbeats, and tells workers when a broken connection is made anew.

use super::actor::{Actor, Presence};
use super::schedule::Happening;
use super::{Cluster, SAY_AGAIN, SETTLE_WITHIN, TICK, WORKER_TICK, control, membership};
use crate::history::HistoryEvent;
use coordinator::MembershipEvent;
use shard::{Server, ServerInput};
use types::{NodeId, Span, WorkerId};
use wire::{Control, Frame, Message, NodeReport};
use worker::WorkerInput;

impl Cluster {
    pub(super) fn mend(&mut self, pair: (NodeId, NodeId)) {
        self.network.mend(pair);
        for (here, there) in [pair, (pair.1, pair.0)] {
            match here {
                NodeId::Worker(rank) if self.actors.get(rank as usize).is_some_and(Actor::has_begun) => {
                    self.drive_worker(rank as usize, WorkerInput::Reconnected(self.now, there));
                }
                // Only workers resend: other nodes send answers, or repeat until they are answered.
                NodeId::Coordinator | NodeId::Server(_) | NodeId::Worker(_) => {}
            }
        }
    }

    pub(super) fn hand_over(&mut self, frame: Frame) {
        match frame.head.to {
            NodeId::Coordinator => {
                self.drive_coordinator(|coordinator, now, out| coordinator.handle(now, frame, out));
            }
            NodeId::Server(index) => {
                let server = (index & !membership::PROVISIONAL) as usize;
                if self.servers[server].is_none() {
                    return self.hear_of_serving(server, frame);
                }
                match frame.message {
                    Message::Control(Control::Begin { .. }) => return,
                    Message::Control(Control::Lost { node, .. }) if node == NodeId::Server(index) => {
                        self.servers[server] = None;
                        self.network.counts.expelled += 1;
                        return;
                    }
                    Message::Control(Control::Released) => return self.released(server),
                    _ => {}
                }
                if matches!(frame.message, Message::Control(Control::Adopt { .. }))
                    && let Some(has_ignored) = self.stubborn.get_mut(&server)
                {
                    self.network.counts.stubborn += u64::from(!std::mem::replace(has_ignored, true));
                    return;
                }
                if matches!(frame.message, Message::Control(Control::Checkpoint { .. })) {
                    self.say_written_again(NodeId::Server(index));
                }
                let restore = match &frame.message {
                    Message::Control(Control::Restore { table, spec, clock, .. }) => {
                        Some((*table, spec.clone(), *clock))
                    }
                    _ => None,
                };
                self.drive_server(server, ServerInput::Frame(self.now, Box::new(frame)));
                restore.into_iter().for_each(|(table, spec, clock)| self.restore(server, table, spec, clock));
                if !std::mem::replace(&mut self.server_settles[server], true) {
                    let after = Span(self.random.below(SETTLE_WITHIN));
                    self.later(after, Happening::Settle(server));
                }
            }
            NodeId::Worker(rank) => {
                let worker = (rank & !membership::PROVISIONAL) as usize;
                match self.actors[worker].presence {
                    Presence::Crashed => return,
                    Presence::Away | Presence::Welcomed(_) => return self.hear_of_joining(worker, frame),
                    _ => {}
                }
                if let Message::Control(Control::Lost { node, .. }) = &frame.message
                    && *node == NodeId::Worker(rank)
                {
                    self.actors[worker].presence = Presence::Crashed;
                    self.network.counts.expelled += 1;
                    return self.note(rank, HistoryEvent::Crashed);
                }
                if matches!(frame.message, Message::Control(Control::Bye)) {
                    self.actors[worker].presence = Presence::Gone;
                }
                if matches!(frame.message, Message::Control(Control::Checkpoint { .. })) {
                    self.say_written_again(NodeId::Worker(rank));
                }
                self.note_answers(rank, &frame);
                self.drive_worker(worker, WorkerInput::Frame(self.now, Box::new(frame)));
                self.advance(worker);
            }
        }
    }

    pub(super) fn tick(&mut self, node: NodeId) {
        let mut again = TICK;
        match node {
            NodeId::Coordinator => {
                self.drive_coordinator(|coordinator, now, out| coordinator.tick(now, out));
            }
            NodeId::Server(index) if self.servers[index as usize].is_none() => return,
            NodeId::Server(index) => {
                self.drive_server(index as usize, ServerInput::Tick(self.now));
                if self.servers[index as usize].as_ref().is_some_and(Server::hurries) {
                    again = WORKER_TICK;
                }
            }
            NodeId::Worker(rank) => {
                if self.actors[rank as usize].presence == Presence::Crashed {
                    return;
                }
                if self.settings.resend_after.is_some() {
                    self.drive_worker(rank as usize, WorkerInput::Tick(self.now));
                    again = WORKER_TICK;
                }
                self.advance(rank as usize);
            }
        }
        self.later(again, Happening::Tick(node));
    }

    /// Ends the workers that the coordinator has just expelled because of a link that is cut in one
    /// direction: such a worker may never hear of that.
    pub(super) fn end_unreachable(&mut self, events: &[MembershipEvent]) {
        for node in events.iter().filter(|event| event.what.starts_with("is lost")).map(|event| event.node) {
            let NodeId::Worker(rank) = node else { continue };
            if self.network.has_one_way_link(node) && self.actors[rank as usize].presence == Presence::Working {
                self.actors[rank as usize].presence = Presence::Crashed;
                self.network.counts.expelled += 1;
                self.note(rank, HistoryEvent::Crashed);
            }
        }
    }

    /// What a worker's shell reports: which servers are silent, and for how long the program waits.
    fn worker_report(&self, worker: usize) -> NodeReport {
        let actor = &self.actors[worker];
        NodeReport {
            blocked: actor.blocked().map(|since| self.now.since(since)),
            silent_peers: actor.worker.silent_servers(),
            ..NodeReport::default()
        }
    }

    /// Sends a node's heartbeat and report, or its goodbye once it is done.
    pub(super) fn heartbeat(&mut self, node: NodeId) {
        match node {
            NodeId::Coordinator => return,
            NodeId::Server(index) => {
                let Some(server) = &self.servers[index as usize] else { return };
                let done = server.is_finished();
                if done {
                    self.dispatch(vec![control(node, Control::Bye)]);
                } else {
                    let report = Box::new(server.report());
                    self.drive_server(index as usize, ServerInput::Heartbeat(self.now));
                    self.dispatch(vec![control(node, Control::Report { report })]);
                    if self.draining.contains(&(index as usize)) {
                        self.dispatch(vec![control(node, Control::Retire)]);
                    }
                }
            }
            NodeId::Worker(rank) => match self.actors[rank as usize].presence {
                Presence::Working => {
                    self.drive_worker(rank as usize, WorkerInput::Heartbeat(self.now));
                    let report = Box::new(self.worker_report(rank as usize));
                    let actor = &self.actors[rank as usize];
                    let source = actor.worker.plan().source(WorkerId(rank)).unwrap_or_default();
                    let mut frame = control(node, Control::Report { report });
                    frame.head.source = source;
                    frame.head.clock = actor.worker.clock();
                    self.dispatch(vec![frame]);
                }
                Presence::Leaving => {
                    self.drive_worker(rank as usize, WorkerInput::Leave);
                }
                Presence::Gone | Presence::Crashed | Presence::Away | Presence::Welcomed(_) => return,
            },
        }
        self.later(SAY_AGAIN, Happening::Heartbeat(node));
    }
}
