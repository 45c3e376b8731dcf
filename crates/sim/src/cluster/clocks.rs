//! Clock skew: every node has a clock of its own, which runs faster or slower than virtual time and
//! may be set back. A machine is told the time that its node's clock shows.
//!
//! Clocks begin anywhere within an hour, with two exceptions: those of servers and of the first
//! coordinator begin at 0, because these machines go by how long they have run.

use super::actor::Presence;
use super::{Cluster, Happening};
use crate::random::Xoshiro256;
use shard::ServerInput;
use std::collections::BTreeMap;
use types::{NodeId, Span, Time};
use worker::WorkerInput;

/// Clocks begin within this many nanoseconds of each other.
const STARTS: u64 = 3_600_000_000_000;

/// One node's clock.
#[derive(Clone, Copy)]
struct Clock {
    /// When it began.
    born: Time,
    /// What it showed then, in nanoseconds.
    start: u64,
    /// How fast it runs, in multiples of virtual time.
    rate: f64,
    /// By how much it was set back, in nanoseconds.
    back: u64,
}

/// The clocks of all nodes. Without skew they all show virtual time.
pub(super) struct Clocks {
    /// How much faster or slower than virtual time clocks may run, as a share of it.
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
    /// Fault: gives every node a clock of its own, which runs faster or slower than virtual time by
    /// up to this share of it. Most clocks begin anywhere within an hour.
    pub fn skew_clocks(&mut self, share: f64) {
        self.begin_clocks(share);
        self.network.counts.skewed += 1;
    }

    /// Begins the clocks of the coordinator and of all servers.
    fn begin_clocks(&mut self, skew: f64) {
        self.clocks.skew = Some(skew);
        let servers = (0..self.servers.len() as u32).map(NodeId::Server);
        for node in servers.chain([NodeId::Coordinator]) {
            self.clocks.show(node, self.now);
        }
    }

    /// Fault: makes a node's clock run at `rate` times the speed of virtual time. Call it before
    /// the run, after [`skew_clocks`](Self::skew_clocks).
    pub fn set_clock_rate(&mut self, node: NodeId, rate: f64) {
        self.clocks.show(node, self.now);
        self.clocks.of.get_mut(&node).into_iter().for_each(|clock| clock.rate = rate);
    }

    /// Fault: sets a node's clock back by `by` when this time has passed.
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

    /// Whether a node in the run goes by that clock.
    fn is_there(&self, node: NodeId) -> bool {
        match node {
            NodeId::Coordinator => !self.leadership.away,
            NodeId::Server(server) => self.servers[server as usize].is_some(),
            NodeId::Worker(worker) => self.actors[worker as usize].presence == Presence::Working,
        }
    }

    /// Forgets the coordinator's clock: its successor has another one.
    pub(super) fn forget_coordinators_clock(&mut self) {
        self.clocks.of.remove(&NodeId::Coordinator);
    }

    /// A server's input, with the time that the server's clock shows.
    pub(super) fn by_servers_clock(&mut self, server: usize, input: ServerInput) -> ServerInput {
        let at = self.clocks.show(NodeId::Server(server as u32), self.now);
        match input {
            ServerInput::Frame(_, frame) => ServerInput::Frame(at, frame),
            ServerInput::Tick(_) => ServerInput::Tick(at),
            ServerInput::Heartbeat(_) => ServerInput::Heartbeat(at),
            ServerInput::Restore(_, restored) => ServerInput::Restore(at, restored),
            ServerInput::Work(_) => ServerInput::Work(at),
            ServerInput::Settle => ServerInput::Settle,
        }
    }

    /// A worker's input, with the time that the worker's clock shows.
    pub(super) fn by_workers_clock(&mut self, worker: usize, mut input: WorkerInput) -> WorkerInput {
        let at = self.clocks.show(NodeId::Worker(worker as u32), self.now);
        if let Some(time) = input.time_mut() {
            *time = at;
        }
        input
    }
}
