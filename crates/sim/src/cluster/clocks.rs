//! Every node on a clock of its own: clocks run faster or slower than time does, may be set back,
//! and begin anywhere; only a server's begins with it, as does that of the first coordinator, for
//! they go by how long they have been there. What machines are told of the time is what their
//! node's clock shows.

use super::actor::Presence;
use super::{Cluster, Happening};
use crate::random::Xoshiro256;
use shard::ServerInput;
use std::collections::BTreeMap;
use types::{NodeId, Span, Time};
use worker::WorkerInput;

/// Clocks begin within this of each other.
const STARTS: u64 = 3_600_000_000_000;

/// One node's clock.
#[derive(Clone, Copy)]
struct Clock {
    /// When it began, and what it showed then.
    born: Time,
    start: u64,
    rate: f64,
    /// By how much it was set back.
    back: u64,
}

/// The clocks of all nodes. Without skew they all show the time.
pub(super) struct Clocks {
    skew: Option<f64>,
    random: Xoshiro256,
    of: BTreeMap<NodeId, Clock>,
}

impl Clocks {
    pub fn new(seed: u64) -> Self {
        Self { skew: None, random: Xoshiro256::new(seed ^ 0xC10C_C10C), of: BTreeMap::new() }
    }

    /// What a node's clock shows.
    pub fn show(&mut self, node: NodeId, now: Time) -> Time {
        let Some(skew) = self.skew else { return now };
        let random = &mut self.random;
        let clock = self.of.entry(node).or_insert_with(|| {
            let rate = 1.0 - skew + 2.0 * skew * (random.below(1001) as f64 / 1000.0);
            let anywhere = random.below(STARTS);
            let start = match node {
                NodeId::Server(_) => 0,
                NodeId::Coordinator if now == Time(0) => 0,
                NodeId::Coordinator | NodeId::Worker(_) => anywhere,
            };
            Clock { born: now, start, rate, back: 0 }
        });
        let passed = (now.since(clock.born).0 as f64 * clock.rate) as u64;
        Time((clock.start + passed).saturating_sub(clock.back))
    }
}

impl Cluster {
    /// Every node has a clock of its own from now on: most begin anywhere within an hour, and each
    /// runs faster or slower than time by up to this share of it.
    pub fn skew_clocks(&mut self, share: f64) {
        self.begin_clocks(share);
        self.network.counts.skewed += 1;
    }

    /// The clocks of those who are there begin.
    fn begin_clocks(&mut self, skew: f64) {
        self.clocks.skew = Some(skew);
        let servers = (0..self.servers.len() as u32).map(NodeId::Server);
        for node in servers.chain([NodeId::Coordinator]) {
            self.clocks.show(node, self.now);
        }
    }

    /// A node's clock runs at so many times the speed of time. To be said when clocks are skewed,
    /// before the run.
    pub fn set_clock_rate(&mut self, node: NodeId, rate: f64) {
        self.clocks.show(node, self.now);
        self.clocks.of.get_mut(&node).into_iter().for_each(|clock| clock.rate = rate);
    }

    /// Sets a node's clock back at that time, by so much.
    pub fn set_clock_back(&mut self, node: NodeId, after: Span, by: Span) {
        if self.clocks.skew.is_none() {
            self.begin_clocks(0.0);
        }
        self.planned.set_back += 1;
        self.later(after, Happening::SetBack(node, by));
    }

    pub(super) fn set_back(&mut self, node: NodeId, by: Span) {
        let before = self.clocks.show(node, self.now);
        self.clocks.of.get_mut(&node).into_iter().for_each(|clock| clock.back += by.0);
        let is_back = self.clocks.show(node, self.now) < before;
        self.network.counts.set_back += u64::from(is_back && self.is_there(node));
    }

    /// Whether somebody goes by that clock.
    fn is_there(&self, node: NodeId) -> bool {
        match node {
            NodeId::Coordinator => !self.leadership.away,
            NodeId::Server(server) => self.servers[server as usize].is_some(),
            NodeId::Worker(worker) => self.actors[worker as usize].presence == Presence::Working,
        }
    }

    /// Another coordinator has another clock.
    pub(super) fn forget_coordinators_clock(&mut self) {
        self.clocks.of.remove(&NodeId::Coordinator);
    }

    /// What a server is told, at the time that its clock shows.
    pub(super) fn by_servers_clock(&mut self, server: usize, input: ServerInput) -> ServerInput {
        let at = self.clocks.show(NodeId::Server(server as u32), self.now);
        match input {
            ServerInput::Frame(_, frame) => ServerInput::Frame(at, frame),
            ServerInput::Tick(_) => ServerInput::Tick(at),
            ServerInput::Heartbeat(_) => ServerInput::Heartbeat(at),
            ServerInput::Restore(_, restored) => ServerInput::Restore(at, restored),
            ServerInput::Settle => ServerInput::Settle,
        }
    }

    /// What a worker is told, or its program asks for, at the time that its clock shows.
    pub(super) fn by_workers_clock(&mut self, worker: usize, mut input: WorkerInput) -> WorkerInput {
        let at = self.clocks.show(NodeId::Worker(worker as u32), self.now);
        if let Some(time) = input.time_mut() {
            *time = at;
        }
        input
    }
}
