//! The coordinator machine: who is there, which tables exist, who stands at the barrier, and who has gone silent.

mod barrier;
mod seats;
mod tables;
#[cfg(test)]
mod tests;

use crate::Outbox;
use seats::Seat;
use std::collections::{BTreeMap, BTreeSet};
use tables::Table;
use types::{NodeId, Plan, PlanNumber, Span, Time, WorkerId};
use wire::{Control, Frame, Head, Message};

/// What was not answered is asked again after this long.
const ASK_AGAIN_AFTER: Span = Span::from_millis(500);

/// How many parties a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Threads that hold shards.
    pub servers: u32,
    /// Programs that compute.
    pub workers: u32,
}

/// Keeps membership, tables and barriers.
pub struct Coordinator {
    size: Size,
    /// A node that is silent for this long is lost.
    patience: Span,
    seats: BTreeMap<NodeId, Seat>,
    tokens: BTreeMap<u64, NodeId>,
    /// Seats given so far: the last source.
    given: u64,
    begun: bool,
    tables: BTreeMap<String, Table>,
    /// The barrier each live worker has reached, where that is not passed, and when it was last told whom it waits for.
    barriers: BTreeMap<WorkerId, (u64, Time)>,
    /// Workers that have left.
    departed: u32,
    passed: u64,
    /// Who left, to be said to each server until it has heard.
    unheard: BTreeSet<(NodeId, WorkerId)>,
    said_again: Time,
    lost: Option<(NodeId, String)>,
}

impl Coordinator {
    /// Waits for a run of this size.
    #[must_use]
    pub fn new(size: Size, patience: Span) -> Self {
        Self {
            size,
            patience,
            seats: BTreeMap::new(),
            tokens: BTreeMap::new(),
            given: 0,
            begun: false,
            tables: BTreeMap::new(),
            barriers: BTreeMap::new(),
            departed: 0,
            passed: 0,
            unheard: BTreeSet::new(),
            said_again: Time(0),
            lost: None,
        }
    }

    /// The first node that was lost, and how that was noticed.
    #[must_use]
    pub fn lost(&self) -> Option<(NodeId, &str)> {
        self.lost.as_ref().map(|(node, reason)| (*node, reason.as_str()))
    }

    /// Whether everybody has said goodbye.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.begun && self.seats.values().all(|seat| seat.gone)
    }

    /// Whether everybody has joined.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Who has not joined yet, in words, for people who wait for the run to begin.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        let count = |role: fn(&NodeId) -> bool| self.seats.keys().filter(|node| role(node)).count() as u32;
        let servers = self.size.servers - count(|node| matches!(node, NodeId::Server(_)));
        let workers = self.size.workers - count(|node| matches!(node, NodeId::Worker(_)));
        (servers + workers > 0).then(|| format!("{servers} servers and {workers} workers have yet to join"))
    }

    /// The plan of this run, once everybody has joined.
    #[must_use]
    pub fn plan(&self) -> Plan {
        let is_worker = |node: &NodeId| matches!(node, NodeId::Worker(_));
        let workers = self.seats.iter().filter(|(node, _)| is_worker(node)).map(|(_, seat)| seat.source).collect();
        Plan { number: PlanNumber(1), servers: self.size.servers, workers }
    }

    fn say(to: NodeId, control: Control, out: &mut Outbox) {
        out.send(Frame { head: Head::plain(NodeId::Coordinator, to), message: Message::Control(control) });
    }

    /// Takes what arrived.
    pub fn handle(&mut self, now: Time, frame: Frame, out: &mut Outbox) {
        let from = frame.head.from;
        let Message::Control(control) = frame.message else { return };
        if let Some(seat) = self.seats.get_mut(&from) {
            // A process that lost its seat to another still goes by the seat's name, but not by its source.
            if matches!(from, NodeId::Worker(_)) && frame.head.source != seat.source {
                return;
            }
            seat.heard = now;
        }
        match control {
            Control::Join { role, address, token, place } => {
                self.join(now, from, (role, place), address, token, out);
            }
            Control::Beat => self.beat(from, out),
            Control::Fail { reason } => self.declare_lost(from, format!("it could not go on: {reason}"), out),
            // Whoever says more before it was told to begin is none of ours, and its seat may yet become another's.
            _ if !self.begun => {}
            Control::MakeTable { spec } => self.make_table(now, from, spec, out),
            Control::TableAdded { table, problem } => self.table_added(from, table, problem, out),
            Control::Barrier { number } => self.barrier(now, from, number, out),
            Control::Bye => self.bye(from, out),
            Control::Left { worker } => {
                self.unheard.remove(&(from, worker));
            }
            _ => {}
        }
    }

    fn live_workers(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.seats.iter().filter(|(_, seat)| !seat.gone).filter_map(|(node, _)| match node {
            NodeId::Worker(rank) => Some(WorkerId(*rank)),
            _ => None,
        })
    }

    fn live(&self) -> usize {
        (self.size.workers - self.departed) as usize
    }

    fn bye(&mut self, from: NodeId, out: &mut Outbox) {
        let Some(seat) = self.seats.get_mut(&from) else { return };
        let again = std::mem::replace(&mut seat.gone, true);
        Self::say(from, Control::Bye, out);
        let NodeId::Worker(rank) = from else { return };
        if again {
            return;
        }
        self.departed += 1;
        let servers = (0..self.size.servers).map(NodeId::Server);
        let worker = WorkerId(rank);
        for server in servers.clone() {
            self.unheard.insert((server, worker));
            Self::say(server, Control::Left { worker }, out);
        }
        self.barriers.remove(&worker);
        self.pass_barrier(out);
        if self.live() == 0 {
            servers.for_each(|server| Self::say(server, Control::Finish, out));
        }
    }

    /// Time has passed: asks again, names who is waited for, and notices who has gone silent.
    pub fn tick(&mut self, now: Time, out: &mut Outbox) {
        self.ask_servers_again(now, out);
        if now.since(self.said_again) >= ASK_AGAIN_AFTER {
            self.said_again = now;
            self.say_departures_again(out);
        }
        self.notice_barrier(now, out);
        if !self.begun {
            self.vacate_silent(now);
            return;
        }
        if self.lost.is_some() {
            return;
        }
        let silent = |(_, seat): &(&NodeId, &Seat)| !seat.gone && now.since(seat.heard) > self.patience;
        if let Some((node, seat)) = self.seats.iter().find(silent) {
            let reason = format!("nothing heard from it for {:.1} s", now.since(seat.heard).as_secs_f64());
            let node = *node;
            self.declare_lost(node, reason, out);
        }
    }

    /// A server that missed who left would hold its frontier for ever, and one that missed the end would never stop.
    fn say_departures_again(&self, out: &mut Outbox) {
        for (server, worker) in &self.unheard {
            Self::say(*server, Control::Left { worker: *worker }, out);
        }
        if self.begun && self.live() == 0 {
            let staying = |(node, seat): &(&NodeId, &Seat)| matches!(node, NodeId::Server(_)) && !seat.gone;
            self.seats.iter().filter(staying).for_each(|(server, _)| Self::say(*server, Control::Finish, out));
        }
    }

    /// The run cannot go on without `node`: everybody is told.
    fn declare_lost(&mut self, node: NodeId, reason: String, out: &mut Outbox) {
        if self.lost.is_some() || self.seats.get(&node).is_none_or(|seat| seat.gone) {
            return;
        }
        for other in self.seats.keys().filter(|other| **other != node) {
            Self::say(*other, Control::Lost { node, reason: reason.clone() }, out);
        }
        self.lost = Some((node, reason));
    }
}
