//! The coordinator machine: takes frames and time, hands each message to the part that it concerns,
//! and routes what that part decides to the other parts.
//!
//! This file holds [`Coordinator::handle`], the match over every message, and
//! [`Coordinator::tick`]. Actions that take several parts have a file each: a node joins
//! (`joining.rs`), a node leaves or is lost (`departures.rs`), shards move and plans are enacted
//! (`layout.rs`), and the memory that a successor starts from (`memory.rs`).

#![deny(clippy::wildcard_enum_match_arm)]

mod departures;
mod joining;
mod layout;
mod memory;
#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one message among others")]
mod tests;

use crate::barriers::Barriers;
use crate::checkpoints::{CheckpointOutcome, Checkpoints, Resume, RunView};
use crate::join_budget::JoinBudget;
use crate::leases::{DataSet, LeaseView, Leases};
use crate::liveness::{Liveness, LivenessLimits};
use crate::members::{Hearing, JoinRequest, Members};
use crate::placement::Placement;
use crate::plans::Plans;
use crate::say::say;
use crate::settings::{Membership, Settings};
use crate::tables::Tables;
use crate::timeouts::Timeouts;
use lease::{OrderIndex, WorkReport};
pub use memory::RecallError;
use types::{Binding, NodeId, Plan, RunSize, Span, TableSpec, Time};
use wire::{Control, Frame, Head, Member, Message, Outbox, Status};

/// A change of membership that the shell logs: a node joined, leaves, left or is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipEvent {
    /// The node that it is about.
    pub node: NodeId,
    /// What happened to the node, for people.
    pub what: String,
}

/// Keeps membership, plans, tables, barriers, checkpoints and data leases.
pub struct Coordinator {
    settings: Settings,
    timeouts: Timeouts,
    members: Members,
    /// Not saved: a successor begins with a full one.
    join_budget: JoinBudget,
    plans: Plans,
    placement: Placement,
    tables: Tables,
    barriers: Barriers,
    checkpoints: Checkpoints,
    leases: Leases,
    liveness: Liveness,
    now: Time,
    /// The node whose loss ended the run, and why it counts as lost. With replicas, the first of
    /// the servers whose losses together ended it.
    lost: Option<(NodeId, String)>,
    /// Servers that were lost since every shard last had all of its replicas, and why. Not saved: a
    /// successor names later losses only.
    unrepaired: Vec<(NodeId, String)>,
    /// Events that the shell has yet to take.
    events: Vec<MembershipEvent>,
    /// Whether the memory may have changed since the shell last asked.
    touched: bool,
}

/// Calls of the shell.
impl Coordinator {
    /// A coordinator that waits for the nodes of a run of this size.
    #[must_use]
    pub fn new(size: RunSize, membership: Membership, failure_timeout: Span) -> Self {
        let settings = Settings::new(size, membership);
        Self {
            timeouts: Timeouts::new(failure_timeout, settings.is_elastic()),
            settings,
            members: Members::default(),
            join_budget: JoinBudget::default(),
            plans: Plans::default(),
            placement: Placement::default(),
            tables: Tables::default(),
            barriers: Barriers::default(),
            checkpoints: Checkpoints::default(),
            leases: Leases::default(),
            liveness: Liveness::new(failure_timeout),
            now: Time(0),
            lost: None,
            unrepaired: Vec::new(),
            events: Vec::new(),
            touched: true,
        }
    }

    /// Sets the run's job: the coordinator refuses nodes that were started for another job.
    #[must_use]
    pub fn of_job(mut self, job: &str) -> Self {
        self.settings = self.settings.of_job(job);
        self
    }

    /// Sets how long nodes may fail to do their part.
    #[must_use]
    pub fn limited(mut self, limits: LivenessLimits) -> Self {
        self.liveness.set_limits(limits);
        self
    }

    /// Sets where the run reads and writes checkpoints: nodes that may not use these locations
    /// refuse when the run begins. Call it before any node joins.
    pub fn set_locations(&mut self, locations: Vec<String>) {
        self.checkpoints.set_locations(locations);
    }

    /// Makes the run resume from a checkpoint. Call it before any node joins.
    pub fn resume(&mut self, resume: Resume) {
        self.touched = true;
        self.leases.resume(&resume.leases, resume.clock);
        self.checkpoints.resume(resume);
    }

    /// The node whose loss ended the run, and why it counts as lost.
    #[must_use]
    pub fn lost(&self) -> Option<(NodeId, &str)> {
        self.lost.as_ref().map(|(node, reason)| (*node, reason.as_str()))
    }

    /// Whether every node has left.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.members.is_finished()
    }

    /// Whether every node that the run waited for has joined.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.members.has_begun()
    }

    /// Whether every worker has left, or the run is lost.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.members.is_over() || self.lost.is_some()
    }

    /// How many nodes have not joined yet, in words, for people who wait for the run to begin.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        self.members.missing(self.settings.size())
    }

    /// Takes the changes of membership since the last call.
    pub fn take_events(&mut self) -> Vec<MembershipEvent> {
        std::mem::take(&mut self.events)
    }

    /// Whether [`memory`](Self::memory) may have changed since the last call. Most messages are
    /// heartbeats, which leave it as it is.
    pub fn take_touched(&mut self) -> bool {
        std::mem::take(&mut self.touched)
    }

    /// The plan in force.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        self.plans.plan()
    }

    /// Whether a frame's sender has a place in the run. A process that asks for a place or for the
    /// run's status has none.
    #[must_use]
    pub fn knows(&self, frame: &Frame) -> bool {
        self.members.knows(frame)
    }

    /// The address at which a node of the run listens. None if it has left.
    #[must_use]
    pub fn address(&self, node: NodeId) -> Option<&str> {
        self.members.address(node)
    }

    /// The addresses and keys of all nodes of the run.
    #[must_use]
    pub fn addresses(&self) -> Vec<Member> {
        self.members.addresses()
    }

    /// The name, address and key of the process that joined with this token.
    #[must_use]
    pub fn by_token(&self, token: u64) -> Option<Member> {
        self.members.by_token(token)
    }

    /// Every node that takes part or is about to.
    #[must_use]
    pub fn everybody(&self) -> Vec<NodeId> {
        self.members.everybody()
    }

    /// How long nodes may take to find a new coordinator: they may try other addresses first. Their
    /// failure timeouts begin after it.
    #[must_use]
    pub fn finding(&self) -> Span {
        self.timeouts.finding()
    }

    /// Whether a checkpoint can be begun now: none is under way, there are tables to write, and
    /// either workers are in the run or it waits for its last checkpoint.
    #[must_use]
    pub fn may_checkpoint(&self) -> bool {
        // Servers report their frontiers when they adopt a plan: the furthest is known after that.
        self.has_begun() && self.plans.is_adopted() && self.checkpoints.may_begin(&self.run_view())
    }

    /// Sets whether the end of the run waits for a last checkpoint. The shell sets it at the start,
    /// and takes it back if it cannot begin the checkpoint.
    pub fn last_checkpoint(&mut self, wanted: bool) {
        self.touched = true;
        self.checkpoints.want_last(wanted);
    }

    /// Whether every worker has left, and servers stay for the last checkpoint only.
    #[must_use]
    pub fn awaits_last_checkpoint(&self) -> bool {
        self.checkpoints.awaits_last(&self.run_view())
    }

    /// Whether a checkpoint is under way.
    #[must_use]
    pub fn is_checkpointing(&self) -> bool {
        self.checkpoints.underway().is_some()
    }

    /// Picks the clock of a checkpoint that the shell has begun in this store under this name, and
    /// tells servers and workers.
    pub fn checkpoint(&mut self, now: Time, location: String, name: String, out: &mut Outbox) {
        self.touched = true;
        self.with_checkpoints(|checkpoints, run| checkpoints.begin(now, (location, name), run, out));
    }

    /// Takes the outcome of the checkpoint that was under way: each outcome is returned once.
    pub fn take_checkpoint_end(&mut self) -> Option<CheckpointOutcome> {
        self.checkpoints.take_end()
    }
}

/// Input: frames and time.
impl Coordinator {
    /// Handles a frame that arrived.
    pub fn handle(&mut self, now: Time, frame: Frame, out: &mut Outbox) {
        self.handle_from(now, frame, None, out);
    }

    /// Handles a frame from a connection whose peer is this one; `None` in an insecure run. The
    /// name that a process is given is bound to it.
    pub fn handle_from(&mut self, now: Time, frame: Frame, peer: Option<Binding>, out: &mut Outbox) {
        let head = frame.head;
        let Message::Control(control) = frame.message else { return };
        self.now = now;
        match self.members.hear(&head, now) {
            Hearing::Accepted => {}
            Hearing::Replaced => return,
            Hearing::Expelled(reason) => return say(head.from, Control::Lost { node: head.from, reason }, out),
        }
        if self.members.is_there(head.from) {
            self.liveness.hear(&head, now);
        }
        // Most messages are signs of life, and few of these change the memory. Where one does, its
        // handler sets `touched`.
        self.touched |= !matches!(control, Control::Heartbeat { .. } | Control::AskStatus | Control::Report { .. });
        let precedes_the_run = matches!(
            control,
            Control::Join { .. }
                | Control::AskStatus
                | Control::Heartbeat { .. }
                | Control::Report { .. }
                | Control::Fail { .. }
        );
        // Ignores all other messages before the run begins: until then another process may still
        // get the sender's place.
        if precedes_the_run || self.has_begun() {
            self.dispatch(&head, control, peer, out);
        }
        self.replan(out);
        self.release(out);
    }

    fn dispatch(&mut self, head: &Head, control: Control, peer: Option<Binding>, out: &mut Outbox) {
        let from = head.from;
        match control {
            // Membership.
            Control::Join { role, address, token, place, job } => {
                self.join(from, &job, JoinRequest { role, place, address, token, binding: peer }, out);
            }
            Control::Heartbeat { heard } => {
                self.liveness.answered(from, heard, self.now);
                self.heartbeat(head, out);
            }
            Control::Report { report } => self.report(from, *report),
            Control::AskStatus => say(from, Control::Status { status: Box::new(self.status()) }, out),
            Control::Bye => self.bye(from, out),
            Control::Retire => self.retire(from, out),
            Control::Fail { reason } => self.cannot_go_on(from, &reason, out),
            // Plans and placement.
            Control::Adopted { plan, enacted, frontier } => self.adopted(from, (plan, enacted), frontier, out),
            Control::Backfilled { table, shard, server, plan } => {
                if plan == self.plan().number && self.plans.is_adopted() {
                    let tables: Vec<_> = self.tables.shards(self.placement.chains().len()).collect();
                    self.lay_out(|placement, holders| placement.backfilled((table, shard, server), &tables, holders));
                }
            }
            // Tables and barriers.
            Control::MakeTable { spec } => self.make_table(from, spec, out),
            Control::TableAdded { table, problem } => {
                if let Some(took) = self.tables.added(self.now, from, table, problem, out) {
                    self.timeouts.observe_answer(took);
                }
            }
            Control::Barrier { number } => self.barriers.reach(self.now, from, number, &self.members, out),
            // Checkpoints.
            Control::Missed { number, table, shard, frontier } => {
                self.checkpointed(|checkpoints| checkpoints.shard_missed(number, (table, shard), frontier));
            }
            Control::Passed { number, clock } => {
                self.checkpointed(|checkpoints| checkpoints.worker_passed(number, from, clock));
            }
            Control::Unwritten { number, reason } => {
                self.checkpointed(|checkpoints| checkpoints.unwritten(number, from, &reason));
            }
            Control::ResidualsWritten { number, entry } => {
                self.checkpointed(|checkpoints| checkpoints.residuals_written(number, from, entry));
            }
            Control::Written { number, table, shard, entry } => {
                self.checkpointed(|checkpoints| checkpoints.written(number, (table, shard), entry));
            }
            // Data leases.
            Control::OpenLeases { name, terms } => {
                if self.members.is_there(from) {
                    let set = self.leases.open(&name, terms);
                    say(from, Control::LeasesOpened { name, set }, out);
                }
            }
            Control::AskLeases { set, number, wanted } => {
                self.with_data_set(set, head, out, |set, view, out| set.ask(view.now, head, number, wanted, out));
            }
            Control::CommitLease { set, lease, clock, examples, busy } => {
                let work = WorkReport { examples, busy };
                self.with_data_set(set, head, out, |set, view, out| set.commit(view, head, (lease, clock), work, out));
            }
            Control::EndLeases { set } => {
                self.with_data_set(set, head, out, |set, view, out| set.end(view, head.source, out));
            }
            Control::Learning { set } => {
                self.with_data_set(set, head, out, |set, _, out| set.learning(from, out));
            }
            Control::LeasesForgotten { set, through } => {
                let through = OrderIndex(through);
                self.with_data_set(set, head, out, |set, view, out| set.server_forgot(view, from, through, out));
            }
            // Messages that only a coordinator sends.
            Control::Welcome { .. }
            | Control::JoinRefused { .. }
            | Control::Begin { .. }
            | Control::Adopt { .. }
            | Control::AddTable { .. }
            | Control::TableMade { .. }
            | Control::TableRefused { .. }
            | Control::BarrierPassed { .. }
            | Control::BarrierWaiting { .. }
            | Control::Lost { .. }
            | Control::Finish
            | Control::Follow { .. }
            | Control::Status { .. }
            | Control::Checkpoint { .. }
            | Control::Restore { .. }
            | Control::LeasesOpened { .. }
            | Control::Leased { .. }
            | Control::LeasesOver { .. }
            | Control::LeasesAwaited { .. }
            | Control::LeasesEnded { .. }
            | Control::LeaseCommitted { .. }
            | Control::ForgetLeases { .. }
            | Control::Released
            | Control::LeaveDeferred { .. } => {}
        }
    }

    /// Handles the passing of time: repeats unanswered requests, names the workers that others wait
    /// for, and notices silent nodes.
    pub fn tick(&mut self, now: Time, out: &mut Outbox) {
        self.now = now;
        if let Some(slept) = self.timeouts.slept(now) {
            self.members.forgive(slept, now);
            self.liveness.forgive(now);
        }
        let ask_again = self.timeouts.ask_again_after();
        self.tables.ask_again(now, ask_again, out);
        // A worker that a checkpoint waited for may have left since.
        self.checkpointed(|_| {});
        self.checkpoints.ask_again(now, ask_again, &self.members, out);
        if self.plans.say_again(now, ask_again, &self.members, out) {
            // Repeats the end of the run: a server that missed it would never stop.
            self.finish(out);
        }
        let (notice, _) = self.timeouts.notice_after(self.members.steps());
        self.barriers.notice(now, notice, &self.members, out);
        self.touched |= self.with_leases(|leases, view| leases.tick(view, ask_again, notice, out));
        if !self.has_begun() {
            self.touched |= self.members.vacate_silent(now, self.timeouts.failure_timeout());
            return;
        }
        for (node, seconds) in self.members.silent(now, |node| self.timeouts.promotion_delay(node)) {
            let given_up = self.members.condemned(node).map(str::to_owned);
            let reason = given_up.unwrap_or_else(|| format!("nothing heard from it for {seconds:.1} s"));
            self.fail(node, reason, out);
        }
        self.judge(out);
        self.replan(out);
    }

    /// The state of the run now.
    fn status(&self) -> Status {
        Status {
            plan: self.plan().clone(),
            adopting: self.plans.adopting(),
            members: self.members.statuses(self.now, |node| self.liveness.in_clock(node, self.now)),
            awaited: self.barriers.awaited(&self.members).collect(),
            tables: self.tables.statuses(&self.members.frontiers()),
            waited_for: self.members.waited_for(),
            slow: self.members.slow(),
            failure_timeout: self.timeouts.failure_timeout(),
            lease: self.timeouts.serving_lease(),
            replicas: self.settings.replicas() as u32,
            timeouts: [self.timeouts.list(self.members.steps()), self.liveness.limits().list()].concat(),
            troubles: self.troubles(),
        }
    }
}

/// How parts read each other, and events for people.
impl Coordinator {
    /// Notes an event of a node for the shell to log.
    fn note(&mut self, node: NodeId, what: &str) {
        self.events.push(MembershipEvent { node, what: what.to_owned() });
    }

    fn run_view(&self) -> RunView<'_> {
        let Self { members, tables, leases, placement, lost, .. } = self;
        RunView { members, tables, leases, shards: placement.chains().len(), is_lost: lost.is_some() }
    }

    fn with_checkpoints<R>(&mut self, act: impl FnOnce(&mut Checkpoints, &RunView<'_>) -> R) -> R {
        let Self { checkpoints, members, tables, leases, placement, lost, .. } = self;
        act(
            checkpoints,
            &RunView { members, tables, leases, shards: placement.chains().len(), is_lost: lost.is_some() },
        )
    }

    /// Hands an answer to the checkpoint under way, and ends the checkpoint if it is whole by that.
    fn checkpointed(&mut self, act: impl FnOnce(&mut Checkpoints)) {
        act(&mut self.checkpoints);
        self.touched |= self.with_checkpoints(Checkpoints::gather);
    }

    fn with_leases<R>(&mut self, act: impl FnOnce(&mut Leases, &LeaseView<'_>) -> R) -> R {
        let Self { leases, members, plans, checkpoints, now, .. } = self;
        let view = LeaseView { now: *now, members, is_steady: plans.is_steady(), checkpoint: checkpoints.underway() };
        act(leases, &view)
    }

    /// Hands a message about a data set to it, if the sender is in the run.
    fn with_data_set(
        &mut self,
        set: u32,
        head: &Head,
        out: &mut Outbox,
        act: impl FnOnce(&mut DataSet, &LeaseView<'_>, &mut Outbox),
    ) {
        self.with_leases(|leases, view| {
            if let Some(set) = leases.spoken_of(set, head, view.members, out) {
                act(set, view, out);
            }
        });
    }

    fn make_table(&mut self, from: NodeId, spec: TableSpec, out: &mut Outbox) {
        let may_make = self.plans.is_adopted();
        self.tables.ask(self.now, (from, spec), may_make, &self.members, &self.checkpoints, out);
    }
}
