//! The coordinator machine: who is there, which tables exist, who stands at the barrier, and who
//! has gone silent.

#![deny(clippy::wildcard_enum_match_arm)]

mod balance;
mod barrier;
mod checkpoints;
mod input;
mod leases;
mod leaving;
mod members;
mod memory;
mod placement;
mod plans;
mod status;
mod tables;
#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one message among others")]
mod tests;
mod timeouts;

use checkpoints::Checkpoints;
pub use checkpoints::{CheckpointOutcome, Resume, WrittenCheckpoint};
pub use input::CoordinatorInput;
use leases::DataSet;
use members::MemberRecord;
pub use memory::RecallError;
use plans::Adoption;
use std::collections::{BTreeMap, BTreeSet};
use tables::Table;
pub use types::RunSize;
use types::{Chain, Measured, NodeId, Plan, Span, TableId, TableSpec, Time, WorkerId};
use wire::{Control, Frame, Head, Message, Outbox};

/// Who may take part in a run.
///
/// ```
/// use coordinator::Membership;
///
/// assert_eq!(Membership::default(), Membership::Static);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Membership {
    /// Those it begins with: the loss of any of them ends it.
    #[default]
    Static,
    /// Nodes come and go: the run goes on without a lost node if there are replicas of its shards,
    /// and a node that joins later starts where the others are.
    Elastic {
        /// How many servers hold each shard of a table.
        replicas: u32,
        /// How many shards each table is cut into, for each server that the run begins with. A
        /// shard is the unit that can be moved.
        shards_per_server: u32,
    },
}

/// Something that people want to know of who comes and goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipEvent {
    /// Whom it is about.
    pub node: NodeId,
    /// In words.
    pub what: String,
}

/// Keeps membership, plans, tables and barriers.
pub struct Coordinator {
    size: RunSize,
    membership: Membership,
    /// Whose run it is; empty if that does not matter.
    job: String,
    /// A node that is silent for this long is lost.
    failure_timeout: Span,
    /// How long nodes take to answer.
    answers: Measured,
    members: BTreeMap<NodeId, MemberRecord>,
    tokens: BTreeMap<u64, NodeId>,
    /// Places given so far: the last source.
    given: u64,
    begun: bool,
    /// The last that was made.
    plan: Plan,
    /// What the next one will say of who holds what.
    chains: Vec<Chain>,
    /// Whether somebody came or went since.
    changed: bool,
    /// Until all servers go by it.
    adoption: Option<Adoption>,
    /// By shard and server: the tables of which that replica is backfilled, by the plan in force.
    backfilled: BTreeMap<(u32, u32), BTreeSet<TableId>>,
    /// Workers that have not said that they do.
    untold: BTreeSet<NodeId>,
    /// Bytes of each shard, as its head reports them.
    bytes: Vec<u64>,
    /// When shards were last moved because servers held uneven amounts, or when the run began.
    leveled: Time,
    tables: BTreeMap<String, Table>,
    /// Tables that are asked for while a plan is on its way, and by whom.
    deferred: Vec<(NodeId, TableSpec)>,
    /// What is leased, in the order of asking for it.
    sets: Vec<DataSet>,
    now: Time,
    /// The barrier each live worker has reached, where that is not passed, and when it was last
    /// told whom it waits for.
    barriers: BTreeMap<WorkerId, (u64, Time)>,
    /// Workers that take part.
    present: usize,
    passed: u64,
    said_again: Time,
    events: Vec<MembershipEvent>,
    /// Whether every shard had all of its replicas when that was last looked at.
    is_whole: bool,
    lost: Option<(NodeId, String)>,
    checkpoints: Checkpoints,
    /// Whether what a successor has to know may have changed since that was last asked.
    touched: bool,
}

impl Coordinator {
    /// Waits for a run of this size.
    #[must_use]
    pub fn new(size: RunSize, membership: Membership, failure_timeout: Span) -> Self {
        Self {
            size,
            membership,
            job: String::new(),
            failure_timeout,
            answers: Measured::default(),
            members: BTreeMap::new(),
            tokens: BTreeMap::new(),
            given: 0,
            begun: false,
            plan: Plan::default(),
            chains: Vec::new(),
            changed: false,
            adoption: None,
            backfilled: BTreeMap::new(),
            untold: BTreeSet::new(),
            bytes: Vec::new(),
            leveled: Time(0),
            tables: BTreeMap::new(),
            deferred: Vec::new(),
            sets: Vec::new(),
            now: Time(0),
            barriers: BTreeMap::new(),
            present: 0,
            passed: 0,
            said_again: Time(0),
            events: Vec::new(),
            is_whole: true,
            lost: None,
            checkpoints: Checkpoints::default(),
            touched: true,
        }
    }

    /// Of a job: whoever says that it is of another is turned away.
    #[must_use]
    pub fn of_job(mut self, job: &str) -> Self {
        job.clone_into(&mut self.job);
        self
    }

    /// The first node that was lost, and how that was noticed.
    #[must_use]
    pub fn lost(&self) -> Option<(NodeId, &str)> {
        self.lost.as_ref().map(|(node, reason)| (*node, reason.as_str()))
    }

    /// Whether everybody has said goodbye.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.begun && self.members.values().all(|member| member.gone)
    }

    /// Whether everybody has joined.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Who has not joined yet, in words, for people who wait for the run to begin.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        let count = |role: fn(&NodeId) -> bool| self.members.keys().filter(|node| role(node)).count() as u32;
        let servers = self.size.servers.saturating_sub(count(|node| matches!(node, NodeId::Server(_))));
        let workers = self.size.workers.saturating_sub(count(|node| matches!(node, NodeId::Worker(_))));
        (servers + workers > 0).then(|| format!("{servers} servers and {workers} workers have yet to join"))
    }

    /// Who came and went since this was last asked.
    pub fn take_events(&mut self) -> Vec<MembershipEvent> {
        std::mem::take(&mut self.events)
    }

    fn say(to: NodeId, control: Control, out: &mut Outbox) {
        out.send(Frame { head: Head::plain(NodeId::Coordinator, to), message: Message::Control(control) });
    }

    /// Takes what arrived.
    pub fn handle(&mut self, now: Time, frame: Frame, out: &mut Outbox) {
        let (from, head) = (frame.head.from, frame.head);
        let Message::Control(control) = frame.message else { return };
        self.now = now;
        if let Some(member) = self.members.get_mut(&from) {
            // A process whose place was given to another still uses the name of that place, but has
            // another source.
            if matches!(from, NodeId::Worker(_)) && frame.head.source != member.source {
                return;
            }
            if let Some(reason) = &member.expelled {
                return Self::say(from, Control::Lost { node: from, reason: reason.clone() }, out);
            }
            member.heard = now;
            member.clock = member.clock.max(frame.head.clock);
        }
        // Signs of life are most of what arrives, and seldom change anything: where they do, that
        // says so.
        self.touched |= !matches!(control, Control::Heartbeat | Control::AskStatus | Control::Report { .. });
        let precedes_the_run = matches!(
            control,
            Control::Join { .. }
                | Control::AskStatus
                | Control::Heartbeat
                | Control::Report { .. }
                | Control::Fail { .. }
        );
        if !precedes_the_run && !self.begun {
            // A node that says more before it was told to begin is not one of this run's, and its
            // place may yet become another's.
            self.replan(out);
            return self.release(out);
        }
        match control {
            Control::Join { token, job, .. } if !job.is_empty() && !self.job.is_empty() && job != self.job => {
                let reason = format!(
                    "this run is of job '{}', and the node was started for job '{job}'; give it that job's address, or all the same --job",
                    self.job
                );
                Self::say(from, Control::JoinRefused { reason, token }, out);
            }
            Control::Join { role, address, token, place, .. } => {
                self.join(now, from, (role, place), address, token, out);
            }
            Control::AskStatus => {
                let status = Box::new(self.status(now));
                Self::say(from, Control::Status { status }, out);
            }
            Control::Heartbeat => {
                if matches!(from, NodeId::Server(_)) {
                    self.heard_frontier(frame.head.clock);
                }
                self.heartbeat(from, frame.head.number, out);
            }
            Control::Report { report } => self.reported(from, *report),
            // What stops one worker's program would stop the others', too.
            Control::Fail { reason } => self.declare_lost(from, format!("it could not go on: {reason}"), out),
            Control::MakeTable { spec } => self.make_table(now, from, spec, out),
            Control::TableAdded { table, problem } => self.table_added(from, table, problem, out),
            Control::Barrier { number } => self.barrier(now, from, number, out),
            Control::Bye => self.bye(from, out),
            Control::Adopted { plan, enacted, frontier } => self.adopted(from, plan, enacted, frontier, out),
            Control::Backfilled { table, shard, server, plan } => self.backfilled(table, shard, server, plan),
            Control::Retire => self.retire(from, out),
            Control::Missed { .. }
            | Control::Written { .. }
            | Control::Unwritten { .. }
            | Control::ResidualsWritten { .. }
            | Control::Passed { .. } => self.checkpointed(from, control),
            Control::OpenLeases { .. }
            | Control::AskLeases { .. }
            | Control::Learning { .. }
            | Control::EndLeases { .. }
            | Control::CommitLease { .. }
            | Control::LeasesForgotten { .. } => self.leases(&head, control, out),
            // What a coordinator says itself.
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
        self.replan(out);
        self.release(out);
    }

    fn live_workers(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.members.iter().filter(|(_, member)| member.takes_part()).filter_map(|(node, _)| match node {
            NodeId::Worker(rank) => Some(WorkerId(*rank)),
            NodeId::Coordinator | NodeId::Server(_) => None,
        })
    }

    fn live_servers(&self) -> impl Iterator<Item = NodeId> + '_ {
        let live = self.members.iter().filter(|(node, member)| matches!(node, NodeId::Server(_)) && !member.gone);
        live.map(|(node, _)| *node)
    }

    /// How many workers take part, or will.
    fn live(&self) -> usize {
        if self.begun { self.present } else { self.size.workers as usize }
    }

    fn bye(&mut self, from: NodeId, out: &mut Outbox) {
        let Some(member) = self.members.get_mut(&from) else { return };
        Self::say(from, Control::Bye, out);
        let was_there = !std::mem::replace(&mut member.gone, true);
        // Servers go when the run is over, and nobody wants what they hold.
        if was_there && matches!(from, NodeId::Worker(_)) {
            self.departed(from, out);
        }
    }

    /// A node takes part no more: nobody waits for it from here on.
    fn departed(&mut self, node: NodeId, out: &mut Outbox) {
        let rank = match node {
            NodeId::Worker(rank) => rank,
            NodeId::Server(index) => {
                self.forget_at_tables(node, out);
                return self.remove_server(index);
            }
            NodeId::Coordinator => return,
        };
        // One that had not begun was not waited for.
        self.present -= usize::from(self.members.get(&node).is_some_and(|member| member.since.is_some()));
        self.changed = true;
        self.untold.remove(&node);
        self.barriers.remove(&WorkerId(rank));
        self.forget_at_tables(node, out);
        self.give_back_leases(node, out);
        self.pass_barrier(out);
        self.finish(out);
    }

    /// Whether every worker has left, and none is about to take part.
    fn is_over(&self) -> bool {
        let is_worker = |node: &NodeId| matches!(node, NodeId::Worker(_));
        self.begun && self.live() == 0 && !self.members.iter().any(|(node, member)| is_worker(node) && !member.gone)
    }

    /// Whether every worker has left, or the run is lost.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_over() || self.lost.is_some()
    }

    /// Tells servers that the run is over, if it is and nothing is to be written any more.
    fn finish(&self, out: &mut Outbox) {
        if self.is_over() && !self.awaits_last_checkpoint() {
            self.live_servers().for_each(|server| Self::say(server, Control::Finish, out));
        }
    }

    /// Whether whoever says this has a place in the run, rather than asks for one, or only how it
    /// is.
    #[must_use]
    pub fn knows(&self, frame: &Frame) -> bool {
        if let Message::Control(Control::Join { token, .. }) = &frame.message {
            return self.tokens.contains_key(token);
        }
        let Head { from, source, .. } = frame.head;
        let sits =
            |member: &MemberRecord| !member.gone && (member.source == source || matches!(from, NodeId::Server(_)));
        self.members.get(&from).is_some_and(sits)
    }

    /// Where a node listens, of those that are there.
    #[must_use]
    pub fn address(&self, node: NodeId) -> Option<&str> {
        self.members.get(&node).filter(|member| !member.gone).map(|member| member.address.as_str())
    }

    /// A node's process has ended: its own host says so, and its serving lease with it.
    pub fn gone(&mut self, node: NodeId, out: &mut Outbox) {
        self.touched = true;
        if self.begun && self.membership != Membership::Static {
            self.failed(node, "its process has ended".to_owned(), out);
            self.replan(out);
        }
    }

    /// The coordinator itself cannot go on, and nobody can in its place: everybody is told.
    pub fn give_up(&mut self, reason: String, out: &mut Outbox) {
        if self.lost.is_none() {
            self.touched = true;
            for node in self.everybody() {
                Self::say(node, Control::Lost { node: NodeId::Coordinator, reason: reason.clone() }, out);
            }
            self.lost = Some((NodeId::Coordinator, reason));
        }
    }

    /// Everybody who is there, or is about to be.
    #[must_use]
    pub fn everybody(&self) -> Vec<NodeId> {
        self.members.iter().filter(|(_, member)| !member.gone).map(|(node, _)| *node).collect()
    }

    /// Time has passed: asks again, names who is waited for, and notices who has gone silent.
    pub fn tick(&mut self, now: Time, out: &mut Outbox) {
        self.ask_servers_again(now, out);
        self.ask_for_checkpoint_again(now, out);
        if now.since(self.said_again) >= self.ask_again_after() {
            self.said_again = now;
            self.adoption.iter_mut().for_each(|adoption| adoption.again = true);
            self.say_plan(out);
            // A server that missed the end would never stop.
            self.finish(out);
        }
        self.now = now;
        self.notice_barrier(now, out);
        self.tick_leases(out);
        if !self.begun {
            self.vacate_silent(now);
            return;
        }
        // A server is given up once its serving lease has surely ended, with a margin for clocks
        // that run apart.
        let silent = |(node, member): &(&NodeId, &MemberRecord)| {
            !member.gone && now.since(member.heard) > self.promotion_delay(**node)
        };
        let silent: Vec<(NodeId, f64)> = self
            .members
            .iter()
            .filter(silent)
            .map(|(node, member)| (*node, now.since(member.heard).as_secs_f64()))
            .collect();
        for (node, seconds) in silent {
            self.failed(node, format!("nothing heard from it for {seconds:.1} s"), out);
        }
        self.replan(out);
    }

    /// A node is no more, or as good as that: the run does without it, or ends.
    fn failed(&mut self, node: NodeId, reason: String, out: &mut Outbox) {
        self.touched = true;
        if self.is_over() {
            self.lose_last_checkpoint(node);
            // Nobody wants what it held, and its goodbye may have been said to a coordinator that
            // is no more.
            self.members.get_mut(&node).into_iter().for_each(|member| member.gone = true);
            return;
        }
        let open = self.begun && self.membership != Membership::Static;
        let done_without = match node {
            NodeId::Worker(_) => {
                // Somebody has to go on.
                let counts = self.members.get(&node).is_some_and(|member| member.since.is_some());
                !(counts && self.live() == 1)
            }
            NodeId::Server(index) => self.has_replicas(index),
            NodeId::Coordinator => false,
        };
        if open && done_without {
            self.expel(node, reason, out);
        } else {
            self.declare_lost(node, reason, out);
        }
    }

    /// The run goes on without `node`. Whatever it still says is answered with the reason.
    fn expel(&mut self, node: NodeId, reason: String, out: &mut Outbox) {
        let Some(member) = self.members.get_mut(&node).filter(|member| !member.gone) else { return };
        member.gone = true;
        member.expelled =
            Some(format!("{reason}, and the run went on without it; start it again to join as a new one"));
        self.tokens.retain(|_, known| *known != node);
        self.events.push(MembershipEvent { node, what: format!("is lost: {reason}; the run goes on without it") });
        self.departed(node, out);
    }

    /// The run cannot go on without `node`: everybody is told.
    fn declare_lost(&mut self, node: NodeId, reason: String, out: &mut Outbox) {
        if self.lost.is_some() || self.members.get(&node).is_none_or(|member| member.gone) {
            return;
        }
        for other in self.members.keys().filter(|other| **other != node) {
            Self::say(*other, Control::Lost { node, reason: reason.clone() }, out);
        }
        self.lost = Some((node, reason));
    }
}
