//! Nodes that crash, join, leave or are cut off while the run lasts, and links that fail.

use super::actor::{Actor, Presence};
use super::moments::SOON;
use super::{Cluster, Happening, SAY_AGAIN};
use crate::history::HistoryEvent;
use crate::inputs::new_server;
use crate::network::{Isolation, LinkFault};
use crate::program::Action;
use shard::ServerInput;
use types::{NodeId, Plan, Source, Span, WorkerId};
use wire::{Control, Frame, Head, Message, NodeRole};
use worker::Worker;

/// This bit is set in the name of a node that has no place yet.
pub(super) const PROVISIONAL: u32 = 1 << 28;

impl Cluster {
    /// Fault: crashes a worker when this time has passed, unless its program is over by then.
    pub fn crash_worker(&mut self, worker: u32, after: Span) {
        self.planned.crashed += 1;
        self.later(after, Happening::Crash(worker as usize));
    }

    /// Adds a worker that joins the run when this time has passed, with this program. Returns its
    /// rank. Rows of tables whose pushes mark need a column for it too.
    pub fn join_worker(&mut self, after: Span, program: Vec<Action>) -> u32 {
        let rank = self.actors.len() as u32;
        self.planned.joined += 1;
        self.history.plan.workers.push(Some(Source(0)));
        let mut actor = Actor::new(Worker::new(WorkerId(rank), Source(0), Plan::default(), self.settings));
        actor.program = program;
        actor.presence = Presence::Away;
        self.actors.push(actor);
        self.worker_inputs.push(Vec::new());
        self.later(after, Happening::Join(rank as usize));
        rank
    }

    /// Fault: crashes a server when this time has passed.
    pub fn crash_server(&mut self, server: u32, after: Span) {
        self.planned.crashed += 1;
        self.later(after, Happening::CrashServer(server as usize));
    }

    /// Tells a server to leave when this time has passed. It leaves when other servers hold its
    /// shards.
    pub fn drain_server(&mut self, server: u32, after: Span) {
        self.planned.left += 1;
        self.later(after, Happening::DrainServer(server as usize));
    }

    /// Tells a worker to leave when this time has passed. It leaves when its current step is done.
    pub fn drain_worker(&mut self, worker: u32, after: Span) {
        self.planned.left += 1;
        self.later(after, Happening::DrainWorker(worker as usize));
    }

    /// The fewest replicas of any shard in any plan.
    #[must_use]
    pub fn fewest_replicas(&self) -> usize {
        self.fewest_replicas
    }

    pub(super) fn drain_a_server(&mut self, server: usize) {
        self.draining.insert(server);
        if self.servers[server].is_some() {
            self.dispatch(vec![super::control(NodeId::Server(server as u32), Control::Retire)]);
        }
    }

    /// Ends the process of a server that was told to leave and that the coordinator has released.
    pub(super) fn released(&mut self, server: usize) {
        self.servers[server] = None;
        self.network.counts.left += 1;
    }

    pub(super) fn drain_a_worker(&mut self, worker: usize) {
        let actor = &mut self.actors[worker];
        if actor.presence == Presence::Working && actor.next < actor.program.len() {
            actor.program.truncate(actor.next);
            self.network.counts.left += 1;
            self.advance(worker);
        }
    }

    /// Adds a server that joins the run when this time has passed. Returns its number.
    pub fn join_server(&mut self, after: Span) -> u32 {
        self.planned.joined += 1;
        self.servers.push(None);
        self.server_settles.push(false);
        self.server_works.push(false);
        self.server_inputs.push(Vec::new());
        let server = self.servers.len() - 1;
        self.serving.insert(server, None);
        self.later(after, Happening::JoinServer(server));
        server as u32
    }

    /// Fault: cuts a server off, from all nodes or from the coordinator alone, from `after` on and
    /// for `length`.
    pub fn isolate_server(&mut self, server: u32, from: Isolation, after: Span, length: Span) {
        self.isolate(NodeId::Server(server), from, after, length);
    }

    /// Fault: cuts a worker off from the coordinator alone, from `after` on and for `length`.
    pub fn isolate_worker(&mut self, worker: u32, after: Span, length: Span) {
        self.isolate(NodeId::Worker(worker), Isolation::Coordinator, after, length);
    }

    /// Fault: cuts a worker off from all nodes, from `after` on and for `length`.
    pub fn partition_worker(&mut self, worker: u32, after: Span, length: Span) {
        self.isolate(NodeId::Worker(worker), Isolation::Everybody, after, length);
    }

    fn isolate(&mut self, node: NodeId, from: Isolation, after: Span, length: Span) {
        self.planned.isolated += 1;
        self.later(after, Happening::Isolate(node, Some(from)));
        self.later(Span(after.0 + length.0), Happening::Isolate(node, None));
    }

    /// Fault: cuts the link between two nodes or makes it slow, from `after` on and for `length`.
    pub fn fault_link(&mut self, one: NodeId, other: NodeId, fault: LinkFault, after: Span, length: Span) {
        match fault {
            LinkFault::Cut => self.planned.cut += 1,
            LinkFault::Slow(_) => self.planned.slowed += 1,
        }
        self.later(after, Happening::Cut(one, other, Some(fault)));
        self.later(Span(after.0 + length.0), Happening::Cut(one, other, None));
    }

    /// Fault: cuts the link from a node to another for good, from `after` on. Frames the other way
    /// still pass.
    pub fn cut_one_way(&mut self, from: NodeId, to: NodeId, after: Span) {
        self.planned.one_way += 1;
        self.later(after, Happening::CutOneWay(from, to));
    }

    /// Fault: a server sends heartbeats and adopts no plan, from `after` on.
    pub fn make_stubborn(&mut self, server: u32, after: Span) {
        self.planned.stubborn += 1;
        self.later(after, Happening::Stubborn(server as usize));
    }

    pub(super) fn crash_a_server(&mut self, server: usize) {
        if self.servers[server].take_if(|server| !server.is_finished()).is_some() {
            self.network.counts.crashed += 1;
            self.end_process(NodeId::Server(server as u32));
        }
    }

    /// Ends a process. Half of the time its host still answers, and tells the coordinator so soon.
    fn end_process(&mut self, node: NodeId) {
        if self.random.chance(0.5) {
            let after = Span(self.random.below(SOON));
            self.later(after, Happening::Gone(node));
        }
    }

    /// A server asks for a place until it has one, then sends heartbeats until it is told to begin.
    pub(super) fn join_as_server(&mut self, server: usize) {
        let Some(welcomed) = self.serving.get(&server).copied() else { return };
        let index = server as u32;
        let frame = match welcomed {
            Some(source) if self.random.chance(0.7) => {
                let head = Head { source, ..Head::plain(NodeId::Server(index), NodeId::Coordinator) };
                Frame { head, message: Message::Control(Control::Heartbeat { heard: 0 }) }
            }
            _ => {
                let join = Control::Join {
                    role: NodeRole::Server,
                    address: String::new(),
                    token: u64::MAX / 2 - u64::from(index),
                    place: Some(index),
                    job: String::new(),
                };
                super::control(NodeId::Server(PROVISIONAL | index), join)
            }
        };
        self.dispatch(vec![frame]);
        self.later(SAY_AGAIN, Happening::JoinServer(server));
    }

    /// Handles a frame to a server that has not begun, or is not in the run.
    pub(super) fn hear_of_serving(&mut self, server: usize, frame: Frame) {
        let Some(welcomed) = self.serving.get(&server).copied() else { return };
        match (welcomed, frame.message) {
            (None, Message::Control(Control::Welcome { source, .. })) => {
                self.serving.insert(server, Some(source));
                self.join_as_server(server);
            }
            (Some(_), Message::Control(Control::Begin { plan, serving_lease, .. })) => {
                self.network.counts.joined += 1;
                self.serving.remove(&server);
                let node = NodeId::Server(server as u32);
                let machine = new_server(node, plan).leased(serving_lease);
                self.servers[server] = Some(machine);
                self.drive_server(server, ServerInput::Heartbeat(self.now));
                for happening in [Happening::Tick(node), Happening::Heartbeat(node)] {
                    self.later(SAY_AGAIN, happening);
                }
            }
            (_, Message::Control(Control::JoinRefused { .. })) => {
                self.serving.remove(&server);
            }
            _ => {}
        }
    }

    /// Whether every planned fault happened while the run lasted, to a node that was in the run.
    #[must_use]
    pub fn all_happened(&self) -> bool {
        self.network.counts.reach(&self.planned)
    }

    pub(super) fn crash(&mut self, worker: usize) {
        if self.actors[worker].presence == Presence::Working {
            self.actors[worker].presence = Presence::Crashed;
            self.network.counts.crashed += 1;
            self.note(worker as u32, HistoryEvent::Crashed);
            self.end_process(NodeId::Worker(worker as u32));
        }
    }

    /// A worker asks for a place until it has one, then sends heartbeats until it is told to begin.
    pub(super) fn join(&mut self, worker: usize) {
        let rank = worker as u32;
        let frame = match self.actors[worker].presence {
            // Sometimes it repeats the join instead, because an answer may have been lost.
            Presence::Welcomed(source) if self.random.chance(0.7) => {
                let head = Head { source, ..Head::plain(NodeId::Worker(rank), NodeId::Coordinator) };
                Frame { head, message: Message::Control(Control::Heartbeat { heard: 0 }) }
            }
            Presence::Away | Presence::Welcomed(_) => {
                let join = Control::Join {
                    role: NodeRole::Worker,
                    address: String::new(),
                    token: u64::MAX - u64::from(rank),
                    place: Some(rank),
                    job: String::new(),
                };
                super::control(NodeId::Worker(PROVISIONAL | rank), join)
            }
            _ => return,
        };
        self.dispatch(vec![frame]);
        self.later(SAY_AGAIN, Happening::Join(worker));
    }

    /// Handles a frame to a worker that has not begun.
    pub(super) fn hear_of_joining(&mut self, worker: usize, frame: Frame) {
        match (self.actors[worker].presence, frame.message) {
            (Presence::Away, Message::Control(Control::Welcome { source, .. })) => {
                self.actors[worker].presence = Presence::Welcomed(source);
                self.join(worker);
            }
            (Presence::Welcomed(source), Message::Control(Control::Begin { plan, clock, barriers, .. })) => {
                self.network.counts.joined += 1;
                let id = WorkerId(worker as u32);
                self.actors[worker].worker = Worker::new(id, source, plan, self.settings).starting(clock, barriers);
                self.actors[worker].presence = Presence::Working;
                self.note(worker as u32, HistoryEvent::Joined { clock });
                for happening in [Happening::Tick(id.into()), Happening::Heartbeat(id.into())] {
                    self.later(SAY_AGAIN, happening);
                }
                self.advance(worker);
            }
            (_, Message::Control(Control::JoinRefused { .. })) => self.turned_away(worker),
            _ => {}
        }
    }

    /// Notes that the run was over before a worker could join.
    pub(super) fn turned_away(&mut self, worker: usize) {
        self.actors[worker].presence = Presence::Gone;
        self.note(worker as u32, HistoryEvent::TurnedAway);
    }
}
