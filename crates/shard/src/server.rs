//! The server machine: holds the shards of one thread and passes each message to its shard. It also
//! adopts plans, minds the serving lease and makes checkpoints.

#![deny(clippy::wildcard_enum_match_arm)]

mod checkpoints;
mod plan;
mod report;
mod roles;
mod serving_lease;
#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one message among others")]
mod tests;
mod work;

use crate::checkpoint::ShardImage;
use crate::rows::key_lists::LIST_BYTES;
use crate::shard::{AnyShard, ShardCounts};
pub use checkpoints::Restored;
use codec::{Meter, Stopwatch};
use lease::{LeaseOrder, OrderIndex};
use roles::Roles;
use serving_lease::ServingLease;
use std::collections::BTreeMap;
use types::{Clock, NodeId, Plan, ShardId, Span, TableId, TableSpec, Time, WorkerId};
use update::Updaters;
use wire::{Acked, Control, Frame, Head, Heartbeats, Leader, Message, Outbox, Pool, PullRefused, Refusal, Refused};
use work::LongWork;

/// What a server has done so far.
///
/// ```
/// use shard::ServerCounts;
///
/// assert_eq!(ServerCounts::default().shards.parts, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerCounts {
    /// Sums over all its shards.
    pub shards: ShardCounts,
    /// What decoding pushes has cost.
    pub upward: Meter,
    /// What encoding answers has cost and gained.
    pub downward: Meter,
    /// Frames for another node, for an unknown table, or of a kind that servers do not take.
    pub misdirected: u64,
}

/// A server: a machine that holds shards. One thread drives it and owns all of them.
pub struct Server {
    node: NodeId,
    plan: Plan,
    registry: Updaters,
    pool: Pool,
    list_bytes: usize,
    stopwatch: Stopwatch,
    tables: BTreeMap<TableId, TableSpec>,
    shards: BTreeMap<(TableId, ShardId), Box<dyn AnyShard>>,
    /// Shards that may have something to acknowledge.
    touched: Vec<(TableId, ShardId)>,
    misdirected: u64,
    /// The coordinator that it obeys.
    leader: Leader,
    finished: bool,
    /// The time of the last input.
    now: Time,
    /// Its heartbeats, and the replicas that it waits for.
    heartbeats: Heartbeats,
    /// `None` in a run without serving leases.
    lease: Option<ServingLease>,
    roles: Roles,
    /// The checkpoint that was last asked for: its number, its clock, and whether it is the last.
    checkpoint: Option<(u64, Clock, bool)>,
    /// Copies of shards that the shell has not taken yet.
    images: Vec<ShardImage>,
    /// By data set: leases that are over, which shards may forget when they reach a clock.
    forgetting: BTreeMap<u32, Forgetting>,
    work: LongWork,
}

/// Leases before a place in the lease order, which shards may forget once they reach a clock.
struct Forgetting {
    order: LeaseOrder,
    through: OrderIndex,
    clock: Clock,
}

impl Server {
    /// A server without shards; tables come from the coordinator.
    #[must_use]
    pub fn new(node: NodeId, plan: Plan, registry: Updaters, pool: Pool) -> Self {
        Self {
            node,
            plan,
            registry,
            pool,
            list_bytes: LIST_BYTES,
            stopwatch: Stopwatch::default(),
            tables: BTreeMap::new(),
            shards: BTreeMap::new(),
            touched: Vec::new(),
            misdirected: 0,
            leader: Leader::default(),
            finished: false,
            now: Time(0),
            heartbeats: Heartbeats::default(),
            lease: None,
            roles: Roles::new(),
            checkpoint: None,
            images: Vec::new(),
            forgetting: BTreeMap::new(),
            work: LongWork::new(),
        }
    }

    /// Gives the server a serving lease of this length. It is not valid before the first heartbeat
    /// is acknowledged.
    #[must_use]
    pub fn leased(mut self, length: Option<Span>) -> Self {
        self.lease = length.map(ServingLease::new);
        self
    }

    /// Sets the bound on the memory for key lists of each shard, in bytes.
    #[must_use]
    pub fn list_bytes(mut self, bytes: usize) -> Self {
        self.list_bytes = bytes;
        self
    }

    /// Sets the stopwatch for the meters of codecs.
    #[must_use]
    pub fn stopwatch(mut self, stopwatch: Stopwatch) -> Self {
        self.stopwatch = stopwatch;
        self
    }

    /// Whether the server may end: every worker has left, or the coordinator has released it.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Counts of what it has done so far.
    #[must_use]
    pub fn counts(&self) -> ServerCounts {
        let mut sum = ShardCounts::default();
        for counts in self.shards.values().map(|shard| shard.counts()) {
            sum.parts += counts.parts;
            sum.repeated += counts.repeated;
            sum.refused += counts.refused;
            sum.held_already += counts.held_already;
            sum.reads += counts.reads;
            sum.parked += counts.parked;
            sum.most_parked = sum.most_parked.max(counts.most_parked);
            sum.refreshes += counts.refreshes;
            sum.failed_clocks += counts.failed_clocks;
            sum.rows += counts.rows;
            sum.slots += counts.slots;
            sum.bytes += counts.bytes;
            sum.leases += counts.leases;
            sum.examples = sum.examples.saturating_add(counts.examples);
        }
        let mut upward = Meter::default();
        let mut downward = Meter::default();
        for [up, down] in self.shards.values().map(|shard| shard.meters()) {
            upward.add(&up);
            downward.add(&down);
        }
        ServerCounts { shards: sum, upward, downward, misdirected: self.misdirected }
    }

    /// Handles a frame that arrived.
    pub fn handle(&mut self, now: Time, frame: Frame, out: &mut Outbox) {
        self.now = now;
        self.mind_lease(out);
        let Frame { head, message } = frame;
        if head.to != self.node {
            self.misdirected += 1;
            return;
        }
        if !self.leader.heeds(&head) {
            return;
        }
        self.heartbeats.hear(&head, &message);
        let Some(name) = shard_of(&message) else {
            return self.control(&head, message, out);
        };
        if self.is_anothers_stream(&head) {
            self.misdirected += 1;
            return;
        }
        let Some(shard) = self.shards.get_mut(&name) else {
            if self.tables.contains_key(&name.0) || self.lease.is_some() {
                // Another server holds the shard, and the sender will learn that from its plan. Or
                // this server has not learned of the table or the plan yet.
                return;
            }
            return self.unknown(&head, &message, out);
        };
        self.touched.push(name);
        let is_of_the_chain = matches!(message, Message::ReplicaChunk(_) | Message::Replicated(_));
        if !is_of_the_chain && !shard.is_head() {
            // The worker has an older plan than this server. It sends again when it has the new
            // one.
            return;
        }
        match message {
            Message::ReplicaChunk(chunk) => shard.replica(now, &head, chunk, out),
            Message::Replicated(replicated) => shard.replicated(now, &head, &replicated, out),
            Message::Push(push) => shard.push(now, &head, push, out),
            Message::Marker(marker) => shard.marker(&head, &marker, out),
            Message::Tune(tune) => shard.tune(&head, &tune, out),
            Message::Pull(pull) => shard.pull(now, &head, pull, out),
            Message::Refreshed(receipt) => shard.refreshed(&head, &receipt),
            Message::Acked(_)
            | Message::Resend(_)
            | Message::Pulled(_)
            | Message::PullRefused(_)
            | Message::ReadWaiting(_)
            | Message::Refresh(_)
            | Message::Delta(_)
            | Message::Control(_) => self.misdirected += 1,
        }
    }

    /// Whether a worker names the stream of another worker of the plan. The sender of a frame is
    /// proven by its connection; its source is only claimed.
    fn is_anothers_stream(&self, head: &Head) -> bool {
        let NodeId::Worker(rank) = head.from else { return false };
        let is_own = self.plan.source(WorkerId(rank)) == Some(head.source);
        !is_own && self.plan.workers.contains(&Some(head.source))
    }

    /// Everything that arrived together has been handled: sends the acknowledgements that are due.
    pub fn settle(&mut self, out: &mut Outbox) {
        for name in self.touched.drain(..) {
            if let Some(shard) = self.shards.get_mut(&name) {
                shard.settle(self.now, out);
                self.images.extend(shard.take_image());
                self.work.discard(shard.take_discarded());
                self.work.note(name, shard.has_work());
            }
        }
    }

    /// Time has passed: checks the serving lease and what each shard waits for.
    pub fn tick(&mut self, now: Time, out: &mut Outbox) {
        self.now = now;
        self.mind_lease(out);
        for (name, shard) in &mut self.shards {
            shard.tick(now, out);
            shard.settle(now, out);
            self.images.extend(shard.take_image());
            self.work.discard(shard.take_discarded());
            self.work.note(*name, shard.has_work());
        }
        self.forget_leases(out);
    }

    /// Sends a heartbeat to the coordinator, which also asks to renew the serving lease. Sends one
    /// to each replica from which an acknowledgement is due.
    pub fn heartbeat(&mut self, now: Time, out: &mut Outbox) {
        self.now = now;
        let head = Head { clock: self.furthest(), ..Head::plain(self.node, NodeId::Coordinator) };
        let awaited = self.shards.values().flat_map(|shard| shard.awaited_replicas());
        let number = self.heartbeats.send(now, head, awaited, out);
        self.lease.iter_mut().for_each(|lease| lease.ask(number, now));
        self.mind_lease(out);
    }

    /// Whether it may answer: its serving lease is valid, or it needs none.
    fn holds_lease(&self) -> bool {
        self.lease.as_ref().is_none_or(ServingLease::holds)
    }

    /// Stops answering when the serving lease has ended, and starts again when it is renewed.
    fn mind_lease(&mut self, out: &mut Outbox) {
        let Some(holds) = self.lease.as_mut().and_then(|lease| lease.look(self.now)) else { return };
        self.touched.extend(self.shards.keys().copied());
        let answers = self.shards.iter_mut().filter(|(name, _)| !self.roles.waits(**name));
        answers.for_each(|(_, shard)| shard.answer(holds, out));
    }

    /// A heartbeat of this number was acknowledged.
    fn heartbeat_answered(&mut self, number: u64, out: &mut Outbox) {
        self.lease.iter_mut().for_each(|lease| lease.acknowledged(number));
        self.mind_lease(out);
    }

    /// Forgets data leases that are over, in each shard that has reached the clock for that. Tells
    /// the coordinator once all shards have.
    fn forget_leases(&mut self, out: &mut Outbox) {
        let node = self.node;
        let shards = &mut self.shards;
        self.forgetting.retain(|set, Forgetting { order, through, clock }| {
            let exists = |lease: u64| lease.checked_add(order.ranges).is_some();
            let is_over = |lease| exists(lease) && order.place(lease) < *through;
            let heads = shards.values_mut().filter(|shard| shard.is_head());
            let behind = heads.filter_map(|shard| (!shard.forget_leases(*set, *clock, &is_over)).then_some(())).count();
            if behind == 0 {
                let message = Message::Control(Control::LeasesForgotten { set: *set, through: through.0 });
                out.send(Frame { head: Head::plain(node, NodeId::Coordinator), message });
            }
            behind > 0
        });
    }

    /// Whether it needs ticks soon, because a shard has an open batch or a backfill under way.
    #[must_use]
    pub fn hurries(&self) -> bool {
        // Only shards of servers with a serving lease have replicas.
        self.lease.is_some() && self.shards.values().any(|shard| shard.hurries())
    }

    fn control(&mut self, head: &Head, message: Message, out: &mut Outbox) {
        if head.from != NodeId::Coordinator && matches!(message, Message::Control(Control::Heartbeat { .. })) {
            // A node that waits for this server asks whether it lives.
            return Heartbeats::answer(self.node, head).into_iter().for_each(|answer| out.send(answer));
        }
        if head.from != NodeId::Coordinator {
            self.misdirected += 1;
            return;
        }
        let Message::Control(control) = message else {
            self.misdirected += 1;
            return;
        };
        match control {
            Control::AddTable { table, spec } => match self.add_table(table, &spec, out) {
                Ok(()) => self.answer_when_made(table, out),
                Err(problem) => self.refuse_table(table, problem, out),
            },
            Control::Adopt { plan, enacted, .. } => self.adopt(head, plan, enacted, out),
            Control::Finish | Control::Released => self.finished = true,
            // Only the shell reports it.
            Control::LeaveDeferred { .. } => {}
            Control::Checkpoint { number, clock, last, .. } => self.checkpoint(number, clock, last, out),
            // If the table is not here yet, the shell is reading it and will call `restore`.
            Control::Restore { table, .. } if self.has_table(table) => self.answer_when_made(table, out),
            Control::Restore { .. } => {}
            Control::ForgetLeases { set, ranges, shuffle, through, clock } => {
                let forgetting =
                    Forgetting { order: LeaseOrder { ranges, shuffle }, through: OrderIndex(through), clock };
                self.forgetting.insert(set, forgetting);
                self.forget_leases(out);
            }
            Control::Heartbeat { .. } => self.heartbeat_answered(head.number, out),
            Control::Join { .. }
            | Control::Welcome { .. }
            | Control::JoinRefused { .. }
            | Control::Begin { .. }
            | Control::Adopted { .. }
            | Control::MakeTable { .. }
            | Control::TableAdded { .. }
            | Control::TableMade { .. }
            | Control::TableRefused { .. }
            | Control::Barrier { .. }
            | Control::BarrierPassed { .. }
            | Control::BarrierWaiting { .. }
            | Control::Bye
            | Control::Lost { .. }
            | Control::Backfilled { .. }
            | Control::Follow { .. }
            | Control::AskStatus
            | Control::Status { .. }
            | Control::Fail { .. }
            | Control::Missed { .. }
            | Control::Written { .. }
            | Control::Unwritten { .. }
            | Control::ResidualsWritten { .. }
            | Control::Passed { .. }
            | Control::OpenLeases { .. }
            | Control::LeasesOpened { .. }
            | Control::AskLeases { .. }
            | Control::Leased { .. }
            | Control::LeasesOver { .. }
            | Control::LeasesAwaited { .. }
            | Control::EndLeases { .. }
            | Control::LeasesEnded { .. }
            | Control::Learning { .. }
            | Control::CommitLease { .. }
            | Control::LeaseCommitted { .. }
            | Control::Retire
            | Control::Report { .. }
            | Control::LeasesForgotten { .. } => self.misdirected += 1,
        }
    }

    /// A worker names a shard of a table that does not exist: its ticket fails, and this server
    /// goes on.
    fn unknown(&mut self, head: &Head, message: &Message, out: &mut Outbox) {
        self.misdirected += 1;
        let refusal = Refusal::UnknownTable;
        let Some((table, shard)) = shard_of(message) else { return };
        let reply = match message {
            Message::Push(_) | Message::Marker(_) | Message::Tune(_) => {
                let refused = vec![Refused { number: head.number, refusal }];
                Message::Acked(Acked { table, shard, through: head.number, refused })
            }
            Message::Pull(pull) => Message::PullRefused(PullRefused { table, shard, request: pull.request, refusal }),
            Message::Refreshed(_)
            | Message::ReplicaChunk(_)
            | Message::Replicated(_)
            | Message::Acked(_)
            | Message::Resend(_)
            | Message::Pulled(_)
            | Message::PullRefused(_)
            | Message::ReadWaiting(_)
            | Message::Refresh(_)
            | Message::Delta(_)
            | Message::Control(_) => return,
        };
        let mut to_sender = Head::plain(self.node, head.from);
        to_sender.source = head.source;
        out.send(Frame { head: to_sender, message: reply });
    }
}

/// The shard that a message is for; `None` if it is for the server itself.
fn shard_of(message: &Message) -> Option<(TableId, ShardId)> {
    match message {
        Message::Push(push) => Some((push.table, push.shard)),
        Message::Marker(marker) => Some((marker.table, marker.shard)),
        Message::Tune(tune) => Some((tune.table, tune.shard)),
        Message::Pull(pull) => Some((pull.table, pull.shard)),
        Message::Refreshed(receipt) => Some((receipt.table, receipt.shard)),
        Message::ReplicaChunk(replica) => Some((replica.table, replica.shard)),
        Message::Replicated(replicated) => Some((replicated.table, replicated.shard)),
        Message::Acked(_)
        | Message::Resend(_)
        | Message::Pulled(_)
        | Message::PullRefused(_)
        | Message::ReadWaiting(_)
        | Message::Refresh(_)
        | Message::Delta(_)
        | Message::Control(_) => None,
    }
}
