//! The simulated cluster: one coordinator, servers and workers in virtual time, driven event by
//! event from a seed (discrete-event simulation).
//!
//! This file holds the public calls and the event loop. What each event does is in the files of
//! `cluster/`.

mod actor;
mod checkpoints;
mod clocks;
mod coordinators;
mod follower;
mod learner;
mod membership;
mod moments;
mod nodes;
mod notes;
mod schedule;
mod stops;

use crate::check::{Checker, Violation};
use crate::faults::{FaultCounts, Faults};
use crate::history::History;
use crate::inputs::{MachineOutput, new_server, packed};
use crate::network::Network;
use crate::program::{Action, TableIndex};
use crate::random::Xoshiro256;
use crate::sabotage::{Sabotage, Streams};
use actor::{Actor, Presence};
use checkpoints::Checkpoints;
pub use checkpoints::SavedCheckpoint;
use clocks::Clocks;
use coordinator::{Coordinator, LivenessLimits, Membership, MembershipEvent, Resume, RunSize};
use coordinators::Leadership;
use moments::Doomed;
pub use moments::Moment;
use notes::TaskName;
use schedule::{Happening, Scheduled};
use shard::{Server, ServerInput};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;
pub use stops::StoppedInbox;
use stops::StoppedNode;
use types::{Clock, NodeId, Source, Span, TableSpec, Time, serving_lease};
use wire::{Control, Frame, Head, Message, NodeRole, Outbox};
use worker::{Worker, WorkerInput, WorkerReply, WorkerSettings};

/// How often servers and the coordinator get a tick.
const TICK: Span = Span::from_millis(100);
/// How often workers get a tick, and servers with something urgent.
const WORKER_TICK: Span = Span::from_millis(10);
/// A worker's resend timeout, if frames may be lost or reordered.
const RESEND_AFTER: Span = Span::from_millis(40);
/// The interval of heartbeats, and of repeated goodbyes and joins.
const SAY_AGAIN: Span = Span::from_millis(100);
/// The interval at which a connection may break.
const BREAKS: Span = Span::from_millis(20);
/// A server settles within this time after a frame: acknowledgements that come together go out as
/// one. Nanoseconds.
const SETTLE_WITHIN: u64 = 300_000;
/// The failure timeout of static runs.
const FAILURE_TIMEOUT: Span = Span::from_secs(30);
/// A run that takes longer counts as stuck.
const LONGEST: Span = Span::from_secs(300);

/// A run that does not end, and what each worker waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    seed: u64,
    after: Span,
    presence: Vec<String>,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: the run has not ended after {} s: ", self.seed, self.after.as_secs_f64())?;
        f.write_str(&self.presence.join("; "))
    }
}

/// A simulated cluster.
pub struct Cluster {
    pub(crate) network: Network,
    size: RunSize,
    now: Time,
    schedule: BinaryHeap<Reverse<Scheduled>>,
    sequence: u64,
    random: Xoshiro256,
    coordinator: Coordinator,
    leadership: Leadership,
    servers: Vec<Option<Server>>,
    server_settles: Vec<bool>,
    /// Whether a piece of long work is scheduled, by server.
    server_works: Vec<bool>,
    actors: Vec<Actor>,
    history: History,
    sabotage: Option<Sabotage>,
    checkpoints: Checkpoints,
    clocks: Clocks,
    /// Nodes that crash in the middle of something that has not begun yet.
    doomed: Vec<Doomed>,
    /// The keys of the list that other key lists are chosen from.
    chosen_from: Vec<u64>,
    streams: Streams,
    settings: WorkerSettings,
    /// Tasks on one row of a dense table that were sent, and whether they were answered.
    tasks: BTreeMap<TaskName, (TableIndex, u64, bool)>,
    recording: bool,
    /// How often each planned fault must happen in this run.
    planned: FaultCounts,
    /// Servers that are joining, and the incarnation that each was given.
    serving: BTreeMap<usize, Option<Source>>,
    /// Servers that were told to leave.
    draining: BTreeSet<usize>,
    /// Nodes whose process does not run.
    stopped: BTreeMap<NodeId, StoppedNode>,
    /// What the coordinator has logged.
    events: Vec<MembershipEvent>,
    /// Servers that no longer adopt plans, and whether each has ignored one.
    stubborn: BTreeMap<usize, bool>,
    /// The fewest replicas of any shard in any plan.
    fewest_replicas: usize,
    server_inputs: Vec<Vec<(ServerInput, MachineOutput)>>,
    worker_inputs: Vec<Vec<(WorkerInput, MachineOutput)>>,
}

impl Cluster {
    /// A static cluster. Its nodes have joined, and its programs are empty.
    #[must_use]
    pub fn new(seed: u64, size: RunSize, faults: Faults) -> Self {
        Self::with(seed, size, faults, Membership::Static, FAILURE_TIMEOUT, None)
    }

    /// An elastic cluster, with this many replicas of each shard. It goes on without a node that is
    /// silent for `failure_timeout`.
    #[must_use]
    pub fn elastic(seed: u64, size: RunSize, faults: Faults, failure_timeout: Span, replicas: u32) -> Self {
        Self::with(seed, size, faults, Membership::Elastic { replicas, shards_per_server: 2 }, failure_timeout, None)
    }

    fn with(
        seed: u64,
        size: RunSize,
        faults: Faults,
        membership: Membership,
        failure_timeout: Span,
        resume: Option<Resume>,
    ) -> Self {
        let mut coordinator = Coordinator::new(size, membership, failure_timeout);
        let first = resume.as_ref().map_or(Clock(0), |resume| resume.clock);
        resume.into_iter().for_each(|resume| coordinator.resume(resume));
        let mut out = Outbox::new();
        let servers = (0..size.servers).map(|index| (NodeId::Server(index), NodeRole::Server));
        let workers = (0..size.workers).map(|index| (NodeId::Worker(index), NodeRole::Worker));
        let nodes: Vec<_> = servers.chain(workers).collect();
        for (token, (node, role)) in nodes.iter().enumerate() {
            let join = Control::Join {
                role: *role,
                address: String::new(),
                token: token as u64,
                place: None,
                job: String::new(),
            };
            coordinator.handle(Time(0), control(*node, join), &mut out);
        }
        let welcomed: Vec<Frame> = out.drain().collect();
        for frame in welcomed {
            let Message::Control(Control::Welcome { node, source, .. }) = frame.message else { continue };
            let mut heartbeat = control(node, Control::Heartbeat { heard: 0 });
            heartbeat.head.source = source;
            coordinator.handle(Time(0), heartbeat, &mut out);
        }
        let plan = coordinator.plan().clone();
        let loses = faults.loss > 0.0 || faults.reordering > 0.0;
        let settings = WorkerSettings { resend_after: loses.then_some(RESEND_AFTER), ..WorkerSettings::default() };
        let lease = (membership != Membership::Static).then_some(serving_lease(failure_timeout));
        let server = |index| new_server(NodeId::Server(index), plan.clone()).leased(lease);
        Self {
            network: Network::new(seed, faults),
            size,
            now: Time(0),
            schedule: BinaryHeap::new(),
            sequence: 0,
            random: Xoshiro256::new(seed.wrapping_add(1) << 20),
            coordinator,
            leadership: Leadership::new(size, membership, failure_timeout),
            servers: (0..size.servers).map(|index| Some(server(index))).collect(),
            server_settles: vec![false; size.servers as usize],
            server_works: vec![false; size.servers as usize],
            actors: plan
                .live_workers()
                .map(|(worker, source)| {
                    Actor::new(Worker::new(worker, source, plan.clone(), settings).starting(first, 0))
                })
                .collect(),
            history: History { seed, plan, specs: Vec::new(), entries: Vec::new(), heads: Vec::new(), ended: Time(0) },
            sabotage: None,
            checkpoints: Checkpoints::default(),
            clocks: Clocks::new(seed),
            doomed: Vec::new(),
            chosen_from: Vec::new(),
            streams: Streams::default(),
            settings,
            tasks: BTreeMap::new(),
            recording: false,
            planned: FaultCounts::default(),
            serving: BTreeMap::new(),
            draining: BTreeSet::new(),
            stopped: BTreeMap::new(),
            events: Vec::new(),
            stubborn: BTreeMap::new(),
            fewest_replicas: usize::MAX,
            server_inputs: vec![Vec::new(); size.servers as usize],
            worker_inputs: vec![Vec::new(); size.workers as usize],
        }
    }

    /// Adds a table that programs can make.
    pub fn table(&mut self, spec: TableSpec) -> TableIndex {
        self.history.specs.push(spec);
        TableIndex(self.history.specs.len() - 1)
    }

    /// Gives a worker its program.
    pub fn program(&mut self, worker: u32, steps: Vec<Action>) {
        self.actors[worker as usize].program = steps;
    }

    /// Gives every worker its program.
    pub fn programs(&mut self, programs: Vec<Vec<Action>>) {
        (0..).zip(programs).for_each(|(worker, steps)| self.program(worker, steps));
    }

    /// Sets how long nodes may fail to do their part.
    pub fn limit(&mut self, limits: LivenessLimits) {
        self.leadership.limits = limits;
        let membership = Coordinator::new(self.size, Membership::Static, FAILURE_TIMEOUT);
        self.coordinator = std::mem::replace(&mut self.coordinator, membership).limited(limits);
    }

    /// Breaks the machines on purpose.
    pub fn sabotage(&mut self, sabotage: Sabotage) {
        if sabotage == Sabotage::IgnoreLeases {
            self.servers.iter_mut().for_each(|server| *server = server.take().map(|server| server.leased(None)));
        }
        self.sabotage = Some(sabotage);
    }

    /// From now on, programs choose their key lists from this one where it holds their keys: lists
    /// then travel as bits of it to shards that know it.
    pub fn choose_from(&mut self, keys: &[u64]) {
        self.chosen_from = keys.to_vec();
    }

    /// Records every input of every server and worker, and the frames that they send.
    pub fn record(&mut self) {
        self.recording = true;
    }

    /// The recorded inputs of a server.
    #[must_use]
    pub fn server_record(&self, server: u32) -> &[(ServerInput, MachineOutput)] {
        &self.server_inputs[server as usize]
    }

    /// The recorded inputs of a worker.
    #[must_use]
    pub fn worker_record(&self, worker: u32) -> &[(WorkerInput, MachineOutput)] {
        &self.worker_inputs[worker as usize]
    }

    /// The settings of all workers.
    #[must_use]
    pub fn worker_settings(&self) -> WorkerSettings {
        self.settings
    }

    /// The history so far.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The counters of a worker's machine.
    #[must_use]
    pub fn worker_counts(&self, worker: u32) -> &worker::WorkerCounts {
        self.actors[worker as usize].worker.counts()
    }

    /// The codecs that a worker now uses for its pushes to a table.
    #[must_use]
    pub fn chosen_codecs(&self, worker: u32, table: TableIndex) -> String {
        let used = self.actors[worker as usize].worker.codecs();
        let name = &self.history.specs[table.0].name;
        used.into_iter().find(|used| used.table == *name).map_or_else(String::new, |used| used.up)
    }

    /// The rate of the network link that a worker has measured, in bytes a second.
    #[must_use]
    pub fn link_rate(&self, worker: u32) -> Option<f64> {
        self.actors[worker as usize].worker.link_rate()
    }

    /// The counters of a server's machine.
    #[must_use]
    pub fn server_counts(&self, server: u32) -> shard::ServerCounts {
        self.servers[server as usize].as_ref().map(Server::counts).unwrap_or_default()
    }

    /// Panics, naming the seed, if the history breaks this checker's rule.
    #[track_caller]
    pub fn check(&self, checker: Checker) {
        if let Some(violation) = self.violation(checker) {
            panic!("{violation}");
        }
    }

    /// The violation that a checker finds in the history, if any.
    #[must_use]
    pub fn violation(&self, checker: Checker) -> Option<Violation> {
        checker(&self.history).err()
    }

    /// Runs until every program is done and every node has left. Panics, naming the seed, if the
    /// run does not end or is lost.
    #[track_caller]
    pub fn run(&mut self) {
        if let Err(stuck) = self.try_run() {
            panic!("{stuck}");
        }
        if let Some((node, reason)) = self.coordinator.lost() {
            panic!("seed {}: the run lost {node}: {reason}", self.history.seed);
        }
    }

    /// Runs until every program is done and every node has left. Fails if the run does not end.
    pub fn try_run(&mut self) -> Result<(), Stuck> {
        self.run_within(LONGEST)
    }

    /// As [`try_run`](Self::try_run), for a run that may take this long in virtual time.
    pub(crate) fn run_within(&mut self, longest: Span) -> Result<(), Stuck> {
        let servers = (0..self.size.servers).map(NodeId::Server);
        let workers = (0..self.size.workers).map(NodeId::Worker);
        for node in servers.chain(workers).chain([NodeId::Coordinator]) {
            self.later(TICK, Happening::Tick(node));
            // A server with a serving lease answers no read before its first heartbeat is
            // acknowledged.
            let is_leased = matches!(node, NodeId::Server(_)) && self.leadership.is_elastic();
            let first = if is_leased { Span(0) } else { SAY_AGAIN };
            self.later(first, Happening::Heartbeat(node));
        }
        self.later(BREAKS, Happening::Break);
        (0..self.actors.len()).for_each(|worker| self.later(Span(0), Happening::Wake(worker)));
        while let Some(Reverse(Scheduled { at, happening, .. })) = self.schedule.pop() {
            self.now = at;
            if at.since(Time(0)) > longest {
                let presence = self.actors.iter().filter_map(Actor::stands).collect();
                return Err(Stuck { seed: self.history.seed, after: longest, presence });
            }
            self.happen(happening);
            if self.coordinator.lost().is_some() {
                break;
            }
            let over = |actor: &Actor| actor.is_over() || actor.presence == Presence::Away;
            if self.is_finished() && self.actors.iter().all(over) {
                break;
            }
        }
        let late: Vec<usize> = (0..self.actors.len()).filter(|worker| !self.actors[*worker].is_over()).collect();
        late.into_iter().for_each(|worker| self.turned_away(worker));
        self.history.ended = self.now;
        Ok(())
    }

    fn happen(&mut self, happening: Happening) {
        let Some(happening) = self.unless_stopped(happening) else { return };
        match happening {
            Happening::Arrival(parcel) => {
                if let Some(frame) = self.network.arrive(&parcel) {
                    self.hand_over(frame);
                }
            }
            Happening::Settle(server) => {
                self.server_settles[server] = false;
                self.drive_server(server, ServerInput::Settle);
            }
            Happening::Work(server) => {
                self.server_works[server] = false;
                self.drive_server(server, ServerInput::Work(self.now));
            }
            Happening::Wake(worker) => self.advance(worker),
            Happening::Tick(node) => self.tick(node),
            Happening::Heartbeat(node) => self.heartbeat(node),
            Happening::Break => {
                if let Some((pair, length)) = self.network.break_one() {
                    self.later(length, Happening::Mend(pair));
                }
                self.later(BREAKS, Happening::Break);
            }
            Happening::Mend(pair) => self.mend(pair),
            Happening::Crash(worker) => self.crash(worker),
            Happening::Join(worker) => self.join(worker),
            Happening::CrashServer(server) => self.crash_a_server(server),
            Happening::DrainServer(server) => self.drain_a_server(server),
            Happening::DrainWorker(worker) => self.drain_a_worker(worker),
            Happening::JoinServer(server) => self.join_as_server(server),
            Happening::Checkpoint => self.look_at_checkpoint(),
            Happening::Gone(node) => self.drive_coordinator(|coordinator, _, out| coordinator.gone(node, out)),
            Happening::CrashAmid(moment, node) => self.crash_in(moment, node),
            Happening::SetBack(node, by) => self.set_back(node, by),
            Happening::Cut(one, other, fault) => self.network.fault_link(one, other, fault),
            Happening::CutOneWay(from, to) => self.network.cut_one_way(from, to),
            Happening::Stubborn(server) => drop(self.stubborn.insert(server, false)),
            Happening::CrashCoordinator(back_after) => self.crash_the_coordinator(back_after),
            Happening::Succeed => self.succeed(),
            Happening::Isolate(node, from) => self.network.isolate(node, from),
            Happening::Stop(node, inbox, length) => self.stop_now(node, inbox, length),
            Happening::GoOn(node) => self.go_on(node),
        }
    }

    /// The node whose loss ended the run, and why.
    #[must_use]
    pub fn lost(&self) -> Option<(NodeId, &str)> {
        self.coordinator.lost()
    }

    /// What the coordinator has logged of its members.
    #[must_use]
    pub fn events(&self) -> &[MembershipEvent] {
        &self.events
    }

    /// The time that has passed in the run.
    #[must_use]
    pub fn elapsed(&self) -> Span {
        self.now.since(Time(0))
    }

    fn drive_server(&mut self, server: usize, input: ServerInput) {
        let mut out = Outbox::new();
        let input = self.by_servers_clock(server, input);
        let recorded = self.recording.then(|| input.clone());
        let Some(machine) = &mut self.servers[server] else { return };
        input.apply(machine, &mut out);
        let frames: Vec<Frame> = out.drain().collect();
        self.server_inputs[server].extend(recorded.map(|input| (input, packed(&frames))));
        let has_work = machine.has_work();
        self.dispatch(frames);
        self.write_images(server);
        if has_work && !std::mem::replace(&mut self.server_works[server], true) {
            let after = Span(self.random.below(SETTLE_WITHIN));
            self.later(after, Happening::Work(server));
        }
    }

    fn drive_worker(&mut self, worker: usize, input: WorkerInput) -> Option<u64> {
        let mut out = Outbox::new();
        let input = self.by_workers_clock(worker, input);
        let recorded = self.recording.then(|| input.clone());
        let answer = input.apply(&mut self.actors[worker].worker, &mut out).expect("the program fits its tables");
        let frames: Vec<Frame> = out.drain().collect();
        self.worker_inputs[worker].extend(recorded.map(|input| (input, packed(&frames))));
        frames.iter().for_each(|frame| self.note_task(worker as u32, frame));
        self.dispatch(frames);
        self.write_residuals(worker);
        match answer {
            WorkerReply::Nothing => None,
            WorkerReply::Ticket(ticket) => Some(ticket.0),
            WorkerReply::Barrier(number) => Some(number),
        }
    }

    /// Records a call of the program that takes something from its worker: a replay must repeat it,
    /// because the worker behaves differently afterwards.
    fn note_taken(&mut self, worker: usize, input: WorkerInput) {
        if self.recording {
            self.worker_inputs[worker].push((input, packed(&[])));
        }
    }

    fn dispatch(&mut self, frames: Vec<Frame>) {
        for mut frame in frames {
            self.note_head(&frame);
            self.note_moment(&frame);
            if let Some(sabotage) = self.sabotage {
                let (sent, heard) = sabotage.meddle(&mut frame, &mut self.streams);
                match (heard, frame.head.from) {
                    (Some(heard), NodeId::Worker(rank)) => {
                        self.drive_worker(rank as usize, WorkerInput::Frame(self.now, Box::new(heard)));
                        self.later(Span(0), Happening::Wake(rank as usize));
                    }
                    (Some(heard), NodeId::Server(index)) => {
                        self.drive_server(index as usize, ServerInput::Frame(self.now, Box::new(heard)));
                    }
                    _ => {}
                }
                if !sent {
                    continue;
                }
            }
            for (at, parcel) in self.network.send(self.now, frame) {
                self.at(at, Happening::Arrival(parcel));
            }
        }
    }
}

fn control(from: NodeId, control: Control) -> Frame {
    Frame { head: Head::plain(from, NodeId::Coordinator), message: Message::Control(control) }
}
