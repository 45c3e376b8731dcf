//! Workers that crash, and workers that come later.

use super::actor::{Actor, Presence};
use super::moments::SOON;
use super::{Cluster, Happening, SAY_AGAIN};
use crate::history::HistoryEvent;
use crate::network::{Isolation, LinkFault};
use crate::program::Action;
use shard::{Server, ServerInput};
use types::{NodeId, Plan, Source, Span, WorkerId};
use update::Updaters;
use wire::{Control, Frame, Head, Message, NodeRole, Pool};
use worker::Worker;

/// Set in the name of a worker that has not been given one.
pub(super) const PROVISIONAL: u32 = 1 << 28;

impl Cluster {
    /// A worker is gone without a word at that time, unless its program is over by then.
    pub fn crash_worker(&mut self, worker: u32, after: Span) {
        self.planned.crashed += 1;
        self.later(after, Happening::Crash(worker as usize));
    }

    /// Another worker joins the run at that time, with this program. Returns its rank. To be said
    /// before tables are named: its rows have a column for it, too.
    pub fn join_worker(&mut self, after: Span, program: Vec<Action>) -> u32 {
        let rank = self.actors.len() as u32;
        self.planned.joined += 1;
        self.history.plan.workers.push(Some(Source(0)));
        let mut actor = Actor::new(Worker::new(WorkerId(rank), Source(0), Plan::default(), self.settings));
        (actor.program, actor.presence) = (program, Presence::Away);
        self.actors.push(actor);
        self.worker_inputs.push(Vec::new());
        self.later(after, Happening::Join(rank as usize));
        rank
    }

    /// A server is gone without a word at that time.
    pub fn crash_server(&mut self, server: u32, after: Span) {
        self.planned.crashed += 1;
        self.later(after, Happening::CrashServer(server as usize));
    }

    /// A server is told to leave at that time: it does when others hold what it holds.
    pub fn drain_server(&mut self, server: u32, after: Span) {
        self.planned.left += 1;
        self.later(after, Happening::DrainServer(server as usize));
    }

    /// A worker is told to leave at that time: it does when its program has done what it is at.
    pub fn drain_worker(&mut self, worker: u32, after: Span) {
        self.planned.left += 1;
        self.later(after, Happening::DrainWorker(worker as usize));
    }

    /// The fewest replicas that any shard had by any plan.
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

    /// Nothing depends on a server that was told to leave any more: its process ends.
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

    /// Another server joins the run at that time. Returns its number.
    pub fn join_server(&mut self, after: Span) -> u32 {
        self.planned.joined += 1;
        self.servers.push(None);
        self.server_settles.push(false);
        self.server_inputs.push(Vec::new());
        let server = self.servers.len() - 1;
        self.serving.insert(server, None);
        self.later(after, Happening::JoinServer(server));
        server as u32
    }

    /// Cuts a server off, from everybody or from the coordinator alone, at that time and for so
    /// long.
    pub fn isolate_server(&mut self, server: u32, from: Isolation, after: Span, length: Span) {
        self.isolate(NodeId::Server(server), from, after, length);
    }

    /// Cuts a worker off from the coordinator alone, at that time and for so long.
    pub fn isolate_worker(&mut self, worker: u32, after: Span, length: Span) {
        self.isolate(NodeId::Worker(worker), Isolation::Coordinator, after, length);
    }

    /// Cuts a worker off from everybody, at that time and for so long.
    pub fn partition_worker(&mut self, worker: u32, after: Span, length: Span) {
        self.isolate(NodeId::Worker(worker), Isolation::Everybody, after, length);
    }

    fn isolate(&mut self, node: NodeId, from: Isolation, after: Span, length: Span) {
        self.planned.isolated += 1;
        self.later(after, Happening::Isolate(node, Some(from)));
        self.later(Span(after.0 + length.0), Happening::Isolate(node, None));
    }

    /// Does something to the link between two nodes, at that time and for so long.
    pub fn fault_link(&mut self, one: NodeId, other: NodeId, fault: LinkFault, after: Span, length: Span) {
        match fault {
            LinkFault::Cut => self.planned.cut += 1,
            LinkFault::Slow(_) => self.planned.slowed += 1,
        }
        self.later(after, Happening::Cut(one, other, Some(fault)));
        self.later(Span(after.0 + length.0), Happening::Cut(one, other, None));
    }

    pub(super) fn crash_a_server(&mut self, server: usize) {
        if self.servers[server].take_if(|server| !server.is_finished()).is_some() {
            self.network.counts.crashed += 1;
            self.end_process(NodeId::Server(server as u32));
        }
    }

    /// A process has ended. Its host may be there, and say so to a coordinator that asks.
    fn end_process(&mut self, node: NodeId) {
        if self.random.chance(0.5) {
            let after = Span(self.random.below(SOON));
            self.later(after, Happening::Gone(node));
        }
    }

    /// Asks for a place until it is given one, and then to begin until it does.
    pub(super) fn join_as_server(&mut self, server: usize) {
        let Some(welcomed) = self.serving.get(&server).copied() else { return };
        let index = server as u32;
        let frame = match welcomed {
            Some(source) if self.random.chance(0.7) => {
                let head = Head { source, ..Head::plain(NodeId::Server(index), NodeId::Coordinator) };
                Frame { head, message: Message::Control(Control::Heartbeat) }
            }
            _ => {
                let (role, token, place) = (NodeRole::Server, u64::MAX / 2 - u64::from(index), Some(index));
                super::control(
                    NodeId::Server(PROVISIONAL | index),
                    Control::Join { role, address: String::new(), token, place, job: String::new() },
                )
            }
        };
        self.dispatch(vec![frame]);
        self.later(SAY_AGAIN, Happening::JoinServer(server));
    }

    /// What a server hears that is not there, or has not begun.
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
                let machine = Server::new(node, plan, Updaters::builtin(), Pool::new()).leased(serving_lease);
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

    /// Whether everything that was planned has happened while the run lasted, to somebody who was
    /// there to feel it.
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

    /// Asks for a place until it is given one, and then to begin until it does.
    pub(super) fn join(&mut self, worker: usize) {
        let rank = worker as u32;
        let frame = match self.actors[worker].presence {
            // Once more now and then, for an answer may have been lost.
            Presence::Welcomed(source) if self.random.chance(0.7) => {
                let head = Head { source, ..Head::plain(NodeId::Worker(rank), NodeId::Coordinator) };
                Frame { head, message: Message::Control(Control::Heartbeat) }
            }
            Presence::Away | Presence::Welcomed(_) => {
                let (role, token, place) = (NodeRole::Worker, u64::MAX - u64::from(rank), Some(rank));
                super::control(
                    NodeId::Worker(PROVISIONAL | rank),
                    Control::Join { role, address: String::new(), token, place, job: String::new() },
                )
            }
            _ => return,
        };
        self.dispatch(vec![frame]);
        self.later(SAY_AGAIN, Happening::Join(worker));
    }

    /// What a worker hears that has not begun.
    pub(super) fn hear_of_joining(&mut self, worker: usize, frame: Frame) {
        match (self.actors[worker].presence, frame.message) {
            (Presence::Away, Message::Control(Control::Welcome { source, .. })) => {
                self.actors[worker].presence = Presence::Welcomed(source);
                self.join(worker);
            }
            (Presence::Welcomed(source), Message::Control(Control::Begin { plan, clock, barriers, .. })) => {
                self.network.counts.joined += 1;
                let id = WorkerId(worker as u32);
                let machine = Worker::new(id, source, plan, self.settings).starting(clock, barriers);
                (self.actors[worker].worker, self.actors[worker].presence) = (machine, Presence::Working);
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

    /// The run is over before it came.
    pub(super) fn turned_away(&mut self, worker: usize) {
        self.actors[worker].presence = Presence::Gone;
        self.note(worker as u32, HistoryEvent::TurnedAway);
    }
}
