//! The server machine: the shards of one thread, by table.

mod checkpoints;

use crate::leases::{Order, Place};
use crate::shard::{AnyShard, Image, LIST_BYTES, Role, ShardCounts, Terms, make};
use crate::{Leader, Outbox};
pub use checkpoints::Restored;
use codec::{Meter, Stopwatch};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{Clock, NodeId, Placed, Plan, ShardId, Span, TableId, TableSpec, Time};
use update::Registry;
use wire::{Acked, Control, Frame, Head, Message, Pool, PullRefused, Refusal, Refused};

/// What a server has done so far.
///
/// ```
/// use machine::ServerCounts;
///
/// assert_eq!(ServerCounts::default().shards.parts, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerCounts {
    /// Over all its shards.
    pub shards: ShardCounts,
    /// What decoding what is pushed has cost.
    pub upward: Meter,
    /// What encoding what is read has cost and gained.
    pub downward: Meter,
    /// Frames that made no sense here: for another node, or of a kind that servers do not take.
    pub misdirected: u64,
}

/// Holds shards. Each is touched by the one thread that drives this machine.
pub struct Server {
    node: NodeId,
    plan: Plan,
    registry: Registry,
    pool: Pool,
    list_bytes: usize,
    stopwatch: Stopwatch,
    tables: BTreeMap<TableId, TableSpec>,
    shards: BTreeMap<(TableId, ShardId), Box<dyn AnyShard>>,
    /// Shards that may have something to acknowledge.
    touched: Vec<(TableId, ShardId)>,
    misdirected: u64,
    leader: Leader,
    beats: u64,
    finished: bool,
    now: Time,
    lease: Option<Lease>,
    /// Whether every server is known to go by the plan.
    enacted: bool,
    /// Shards that this server answers for, and those of them that wait for the plan to be everybody's.
    heads: BTreeSet<(TableId, ShardId)>,
    waiting: BTreeSet<(TableId, ShardId)>,
    /// The checkpoint that was last asked for: its number and its clock.
    checkpoint: Option<(u64, Clock, bool)>,
    /// Copies made for it that nobody has taken.
    images: Vec<Image>,
    /// By data set: leases that are over, which shards may forget when they come to a clock.
    forgetting: BTreeMap<u32, Forgetting>,
}

/// Leases before a place, which shards at a clock may forget.
struct Forgetting {
    order: Order,
    through: Place,
    clock: Clock,
}

/// Until when a server may answer for its slices.
struct Lease {
    length: Span,
    until: Time,
    /// Beats that were not answered: their numbers, and when they were sent.
    asked: VecDeque<(u64, Time)>,
    holds: bool,
}

/// Beats that may be unanswered.
const BEATS: usize = 64;

impl Server {
    /// A server without shards; tables come from the coordinator.
    #[must_use]
    pub fn new(node: NodeId, plan: Plan, registry: Registry, pool: Pool) -> Self {
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
            beats: 0,
            finished: false,
            now: Time(0),
            lease: None,
            enacted: true,
            heads: BTreeSet::new(),
            waiting: BTreeSet::new(),
            checkpoint: None,
            images: Vec::new(),
            forgetting: BTreeMap::new(),
        }
    }

    /// With another bound on what each shard remembers of key lists.
    #[must_use]
    pub fn list_bytes(mut self, bytes: usize) -> Self {
        self.list_bytes = bytes;
        self
    }

    /// Answering for its slices only for so long after it last asked to, and was answered. It begins with one.
    #[must_use]
    pub fn leased(mut self, length: Option<Span>) -> Self {
        self.lease =
            length.map(|length| Lease { length, until: Time(0) + length, asked: VecDeque::new(), holds: true });
        self
    }

    /// Says that it lives, and asks to answer for its slices from now on.
    pub fn beat(&mut self, now: Time, out: &mut Outbox) {
        self.now = now;
        let mut head = Head::plain(self.node, NodeId::Coordinator);
        head.clock = self.furthest();
        if let Some(lease) = &mut self.lease {
            self.beats += 1;
            head.number = self.beats;
            lease.asked.push_back((self.beats, now));
            if lease.asked.len() > BEATS {
                lease.asked.pop_front();
            }
        }
        out.send(Frame { head, message: Message::Control(Control::Beat) });
        self.mind_lease(out);
    }

    /// Stops answering when its lease has ended, and goes on when it has another.
    fn mind_lease(&mut self, out: &mut Outbox) {
        let Some(lease) = &mut self.lease else { return };
        let holds = self.now <= lease.until;
        if std::mem::replace(&mut lease.holds, holds) != holds {
            self.touched.extend(self.shards.keys().copied());
            let answers = self.shards.iter_mut().filter(|(name, _)| !self.waiting.contains(name));
            answers.for_each(|(_, shard)| shard.answer(holds, out));
        }
    }

    /// Every server goes by the plan: nobody else answers for the slices that are this server's.
    fn enact(&mut self, out: &mut Outbox) {
        self.enacted = true;
        let holds = self.lease.as_ref().is_none_or(|lease| lease.holds);
        for name in std::mem::take(&mut self.waiting) {
            self.touched.push(name);
            if let Some(shard) = self.shards.get_mut(&name) {
                shard.answer(holds, out);
            }
        }
    }

    /// With a clock for the meters of codecs.
    #[must_use]
    pub fn stopwatch(mut self, stopwatch: Stopwatch) -> Self {
        self.stopwatch = stopwatch;
        self
    }

    /// Whether every worker has left, so that nothing more will come.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// What it has done so far.
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
            sum.leases += counts.leases;
            sum.examples = sum.examples.saturating_add(counts.examples);
        }
        let (mut upward, mut downward) = (Meter::default(), Meter::default());
        for [up, down] in self.shards.values().map(|shard| shard.meters()) {
            upward.add(&up);
            downward.add(&down);
        }
        ServerCounts { shards: sum, upward, downward, misdirected: self.misdirected }
    }

    /// Takes what arrived.
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
        let Some(name) = shard_of(&message) else {
            return self.control(&head, message, out);
        };
        let Some(shard) = self.shards.get_mut(&name) else {
            if self.tables.contains_key(&name.0) || self.lease.is_some() {
                // Another server has it by now, and whoever asks will hear that; or this one will hear of it.
                return;
            }
            return self.unknown(&head, &message, out);
        };
        self.touched.push(name);
        match message {
            Message::Replica(replica) => return shard.replica(now, &head, replica, out),
            Message::Replicated(replicated) => return shard.replicated(now, &head, &replicated, out),
            // The worker goes by a plan that is older than this server's. It asks again when it has the new one.
            _ if !shard.is_head() => return,
            _ => {}
        }
        match message {
            Message::Push(push) => shard.push(now, &head, push, out),
            Message::Marker(marker) => shard.marker(&head, &marker, out),
            Message::Tune(tune) => shard.tune(&head, &tune, out),
            Message::Pull(pull) => shard.pull(now, &head, pull, out),
            Message::Refreshed(receipt) => shard.refreshed(&head, &receipt),
            _ => self.misdirected += 1,
        }
    }

    /// Everything that arrived together has been handled: says what was held back to be said at once.
    pub fn settle(&mut self, out: &mut Outbox) {
        for name in std::mem::take(&mut self.touched) {
            if let Some(shard) = self.shards.get_mut(&name) {
                shard.settle(self.now, out);
                self.images.extend(shard.take_image());
            }
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time, out: &mut Outbox) {
        self.now = now;
        self.mind_lease(out);
        for shard in self.shards.values_mut() {
            shard.tick(now, out);
            shard.settle(now, out);
            self.images.extend(shard.take_image());
        }
        self.forget_leases(out);
    }

    /// Forgets the leases that are over, in each shard that is far enough, and says so when all of them are.
    fn forget_leases(&mut self, out: &mut Outbox) {
        let (node, shards) = (self.node, &mut self.shards);
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

    /// Whether it should be told of the time soon, for something waits for that alone.
    #[must_use]
    pub fn hurries(&self) -> bool {
        // Nobody has copies where nobody has a lease.
        self.lease.is_some() && self.shards.values().any(|shard| shard.hurries())
    }

    fn control(&mut self, head: &Head, message: Message, out: &mut Outbox) {
        if head.from != NodeId::Coordinator {
            self.misdirected += 1;
            return;
        }
        match message {
            Message::Control(Control::AddTable { table, spec }) => {
                let problem = self.add_table(table, &spec, out).err();
                let message = Message::Control(Control::TableAdded { table, problem });
                out.send(Frame { head: Head::plain(self.node, head.from), message });
            }
            Message::Control(Control::Adopt { plan, enacted, .. }) => self.adopt(head, plan, enacted, out),
            Message::Control(Control::Finish) => self.finished = true,
            Message::Control(Control::Checkpoint { number, clock, last, .. }) => {
                self.checkpoint(number, clock, last, out)
            }
            // Until it is restored, whoever drives this server is at it.
            Message::Control(Control::Restore { table, .. }) if self.has_table(table) => {
                let message = Message::Control(Control::TableAdded { table, problem: None });
                out.send(Frame { head: Head::plain(self.node, head.from), message });
            }
            Message::Control(Control::Restore { .. }) => {}
            Message::Control(Control::ForgetLeases { set, ranges, shuffle, through, clock }) => {
                let forgetting = Forgetting { order: Order { ranges, shuffle }, through: Place(through), clock };
                self.forgetting.insert(set, forgetting);
                self.forget_leases(out);
            }
            Message::Control(Control::Beat) => {
                if let Some(lease) = &mut self.lease {
                    let asked = lease.asked.iter().find(|(number, _)| *number == head.number);
                    lease.until = asked.map_or(lease.until, |(_, sent)| lease.until.max(*sent + lease.length));
                    lease.asked.retain(|(number, _)| *number > head.number);
                }
                self.mind_lease(out);
            }
            _ => self.misdirected += 1,
        }
    }

    /// Goes by another plan, unless it is an old one, and says how far its shards are.
    fn adopt(&mut self, head: &Head, plan: Plan, enacted: bool, out: &mut Outbox) {
        let mut frontier = Clock(0);
        let is_new = plan.number > self.plan.number;
        if is_new {
            self.enacted = false;
        }
        if plan.number == self.plan.number && enacted && !self.enacted {
            self.enact(out);
        }
        if plan.number >= self.plan.number {
            self.plan = plan;
            for (table, spec) in self.tables.clone() {
                // It was made once, so it can be.
                self.place(table, &spec, out).ok();
            }
            self.shards.retain(|(_, shard), _| {
                self.plan.chains.get(shard.0 as usize).is_some_and(|chain| Role::of(chain, self.node).is_some())
            });
            self.heads.retain(|name| self.shards.contains_key(name));
            self.waiting.retain(|name| self.shards.contains_key(name));
            self.touched.extend(self.shards.keys().copied());
            for shard in self.shards.values_mut().filter(|shard| shard.is_head()) {
                frontier = frontier.max(shard.adopt(&self.plan, self.now, out));
            }
        }
        if is_new && enacted {
            self.enact(out);
        }
        let adopted = Control::Adopted { plan: self.plan.number, enacted: self.enacted, frontier };
        out.send(Frame { head: Head::plain(self.node, head.from), message: Message::Control(adopted) });
    }

    fn add_table(&mut self, table: TableId, spec: &TableSpec, out: &mut Outbox) -> Result<(), String> {
        crate::check(spec).map_err(|error| error.to_string())?;
        self.place(table, spec, out)?;
        self.tables.insert(table, spec.clone());
        Ok(())
    }

    /// Holds those shards of a table that the plan says, each in its part of the chain.
    fn place(&mut self, table: TableId, spec: &TableSpec, out: &mut Outbox) -> Result<(), String> {
        for (placed, chain) in self.plan.shards(spec.shape).into_iter().zip(&self.plan.chains) {
            let Some(role) = Role::of(chain, self.node) else { continue };
            let NodeId::Server(index) = self.node else { continue };
            let name = (table, placed.shard);
            if !self.shards.contains_key(&name) {
                let (plan, registry, pool) = (&self.plan, &self.registry, &self.pool);
                let (list_bytes, stopwatch) = (self.list_bytes, self.stopwatch);
                let terms = Terms { plan, registry, pool, list_bytes, stopwatch };
                let shard = make(Placed { owner: self.node, ..placed }, table, spec, &terms);
                let mut shard = shard.map_err(|error| error.to_string())?;
                shard.answer(self.lease.as_ref().is_none_or(|lease| lease.holds), out);
                if let Some((number, clock, last)) = self.checkpoint {
                    shard.checkpoint(number, clock, last);
                }
                self.shards.insert(name, shard);
            }
            if let Some(shard) = self.shards.get_mut(&name) {
                let was_head = self.heads.contains(&name);
                if role.from.is_none() && !was_head {
                    // Whoever answered for it before may not have heard that it does no more.
                    self.heads.insert(name);
                    if !self.enacted {
                        self.waiting.insert(name);
                        shard.answer(false, out);
                    }
                } else if role.from.is_some() {
                    self.heads.remove(&name);
                    self.waiting.remove(&name);
                }
                shard.take_part(self.plan.number, role, chain.whole.contains(&index), self.now, out);
            }
        }
        Ok(())
    }

    /// A worker speaks of a shard that is not here: its ticket fails, and this server goes on.
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
            _ => return,
        };
        let mut to_sender = Head::plain(self.node, head.from);
        to_sender.source = head.source;
        out.send(Frame { head: to_sender, message: reply });
    }
}

fn shard_of(message: &Message) -> Option<(TableId, ShardId)> {
    match message {
        Message::Push(push) => Some((push.table, push.shard)),
        Message::Marker(marker) => Some((marker.table, marker.shard)),
        Message::Tune(tune) => Some((tune.table, tune.shard)),
        Message::Pull(pull) => Some((pull.table, pull.shard)),
        Message::Refreshed(receipt) => Some((receipt.table, receipt.shard)),
        Message::Replica(replica) => Some((replica.table, replica.shard)),
        Message::Replicated(replicated) => Some((replicated.table, replicated.shard)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::{HELD_CLOCKS, PARKED_READS};
    use types::{Combine, NumberType, PlanNumber, Position, Reduce, Source};
    use wire::{KeyPart, Marker, Payload, Pull, Push, Wants};

    const NODE: NodeId = NodeId::Server(0);

    /// What a server answers to a worker's messages, one after the other, each with its clock.
    fn answers(spec: &TableSpec, messages: impl IntoIterator<Item = (u64, Message)>) -> Vec<Message> {
        let plan = Plan::first(1, vec![Source(1), Source(2)]);
        let mut server = Server::new(NODE, plan, Registry::builtin(), Pool::new());
        let mut out = Outbox::new();
        server.add_table(TableId(0), spec, &mut out).expect("made");
        let mut number = 0;
        for (clock, message) in messages {
            let mut head = Head::plain(NodeId::Worker(0), NODE);
            number += u64::from(!matches!(message, Message::Pull(_)));
            (head.source, head.number, head.clock) = (Source(1), number, Clock(clock));
            server.handle(Time(0), Frame { head, message }, &mut out);
            server.settle(&mut out);
        }
        out.drain().map(|frame| frame.message).collect()
    }

    fn push(first: u64, values: Vec<f32>) -> Message {
        let keys = KeyPart::Run { first: Position(first), count: values.len() as u64 };
        let (table, shard, number) = (TableId(0), ShardId(0), NumberType::F32);
        Message::Push(Push { table, shard, settled: 0, number, lease: None, keys, values: Payload::new(values) })
    }

    fn refusals(answers: Vec<Message>) -> Vec<Refusal> {
        let refused = answers.into_iter().flat_map(|answer| match answer {
            Message::Acked(acked) => acked.refused.into_iter().map(|refused| refused.refusal).collect(),
            Message::PullRefused(refused) => vec![refused.refusal],
            _ => Vec::new(),
        });
        refused.collect()
    }

    #[test]
    fn a_worker_that_reads_without_end_is_refused() {
        let spec = TableSpec::dense("t", 1, 1).consistency(types::Consistency::LOCK_STEP);
        let (table, shard, keys) = (TableId(0), ShardId(0), KeyPart::Run { first: Position(0), count: 1 });
        let pull = |request| {
            let keys = keys.clone();
            let pull = Pull {
                table,
                shard,
                request,
                after: 0,
                frontier: Clock(0),
                subscribe: false,
                steps: None,
                wants: Wants::Values,
                keys,
            };
            (9, Message::Pull(pull))
        };
        let within = PARKED_READS as u64;
        assert_eq!(refusals(answers(&spec, (1..=within).chain(1..=within).map(pull))), [], "repeated ones count once");
        let most = within;
        assert_eq!(refusals(answers(&spec, (1..=within + 1).map(pull))), [Refusal::TooManyReads { most }]);
    }

    /// What no codec has made is refused, and fails no clock but the one its sender is at.
    #[test]
    fn what_cannot_be_decoded_fails_no_other_clock() {
        let spec = TableSpec::dense("t", 1, 1).combine(Combine::Clock(Reduce::Sum));
        let plan = Plan::first(1, vec![Source(1), Source(2)]);
        for (clock, refusal) in [(0, Refusal::Undecodable), (3, Refusal::PastClock), (u64::MAX, Refusal::PastClock)] {
            let mut server = Server::new(NODE, plan.clone(), Registry::builtin(), Pool::new());
            let mut out = Outbox::new();
            server.add_table(TableId(0), &spec, &mut out).expect("made");
            let mut head = Head::plain(NodeId::Worker(0), NODE);
            (head.source, head.number, head.clock) = (Source(1), 1, Clock(clock));
            head.codecs.0 = [99, 0, 0, 0, 0, 0, 0, 0];
            server.handle(Time(0), Frame { head, message: push(0, vec![1.0]) }, &mut out);
            server.settle(&mut out);
            assert_eq!(refusals(out.drain().map(|frame| frame.message).collect()), [refusal], "clock {clock}");
            let marker =
                || Message::Marker(Marker { table: TableId(0), shard: ShardId(0), settled: 0, since: Clock(0) });
            for ended in 0..5 {
                for (worker, source) in [(0, 1), (1, 2)] {
                    let mut head = Head::plain(NodeId::Worker(worker), NODE);
                    let number = ended + 1 + u64::from(worker == 0);
                    (head.source, head.number, head.clock) = (Source(source), number, Clock(ended));
                    server.handle(Time(0), Frame { head, message: marker() }, &mut out);
                }
            }
            let failed = u64::from(clock == 0);
            assert_eq!(server.counts().shards.failed_clocks, failed, "clock {clock}");
        }
    }

    #[test]
    fn contributions_too_far_ahead_are_refused_and_nothing_is_kept_of_them() {
        let spec = TableSpec::dense("t", 1, 1).combine(Combine::Clock(Reduce::Sum));
        let marker =
            || Message::Marker(Marker { table: TableId(0), shard: ShardId(0), settled: u64::MAX, since: Clock(0) });
        let run = |clocks: u64| (0..clocks).flat_map(move |clock| [(clock, push(0, vec![1.0])), (clock, marker())]);
        assert_eq!(refusals(answers(&spec, run(HELD_CLOCKS))), []);
        let refused = refusals(answers(&spec, run(HELD_CLOCKS + 1)));
        assert!(refused.iter().all(|refusal| *refusal == Refusal::FarAhead { most: HELD_CLOCKS }), "{refused:?}");
        assert!(!refused.is_empty());
    }

    /// Found by reading: the clock of a part of the wrong type was believed, and failed for everybody.
    #[test]
    fn a_part_with_a_clock_of_its_own_fails_no_clock() {
        let spec = TableSpec::dense("t", 1, 1).number(NumberType::F64).combine(Combine::Clock(Reduce::Sum));
        assert_eq!(refusals(answers(&spec, [(7, push(0, vec![1.0]))])), [Refusal::PastClock]);
    }

    #[test]
    fn settings_that_make_no_sense_or_are_too_many_are_refused() {
        let spec = TableSpec::dense("t", 1, 1).updater(types::UpdaterSpec::Sgd { rate: 1.0 });
        let tune = |at: u64, rate: f64| {
            let (table, shard, setting) = (TableId(0), ShardId(0), types::Setting::Rate(rate));
            (0, Message::Tune(wire::Tune { table, shard, settled: u64::MAX, at: Clock(at), setting }))
        };
        for (rate, expected) in [
            (0.5, None),
            (0.0, None),
            (-0.5, Some(Refusal::BadSetting)),
            (f64::NAN, Some(Refusal::BadSetting)),
            (f64::INFINITY, Some(Refusal::BadSetting)),
        ] {
            assert_eq!(refusals(answers(&spec, [tune(0, rate)])), Vec::from_iter(expected), "{rate}");
        }
        let refused = refusals(answers(&spec, (0..2_000).map(|at| tune(at, 0.5))));
        assert!(matches!(refused[..], [Refusal::FarAhead { most: 1024 }, ..]), "{refused:?}");
    }

    #[test]
    fn what_an_incarnation_sends_after_it_left_is_refused() {
        let plan = Plan::first(1, vec![Source(5), Source(6)]);
        let without = Plan { number: PlanNumber(2), workers: vec![None, Some(Source(6))], ..plan.clone() };
        let mut server = Server::new(NODE, plan, Registry::builtin(), Pool::new());
        let mut out = Outbox::new();
        server.add_table(TableId(0), &TableSpec::dense("t", 1, 1), &mut out).expect("made");
        let mut send = |from: NodeId, source: u64, number: u64, message: Message| {
            let mut head = Head::plain(from, NODE);
            (head.source, head.number) = (Source(source), number);
            server.handle(Time(0), Frame { head, message }, &mut out);
            server.settle(&mut out);
            let answers: Vec<Message> = out.drain().map(|frame| frame.message).collect();
            (refusals(answers), server.counts().shards.parts)
        };
        let worker = NodeId::Worker(0);
        assert_eq!(send(worker, 5, 1, push(0, vec![1.0])), (vec![], 1));
        send(
            NodeId::Coordinator,
            0,
            0,
            Message::Control(Control::Adopt { plan: without, members: Vec::new(), enacted: true }),
        );
        // Of the same rank: the one that left, and one that the plan does not count yet.
        for source in [5, 7] {
            assert_eq!(send(worker, source, 2, push(0, vec![1.0])), (vec![Refusal::Expelled], 1), "source {source}");
        }
        assert_eq!(send(NodeId::Worker(1), 6, 1, push(0, vec![1.0])), (vec![], 2));
    }

    /// Found by the fuzz target `server`: each of these overflowed.
    #[test]
    fn numbers_at_the_end_of_their_range_do_no_harm() {
        let plan = Plan::first(1, vec![Source(1)]);
        for combine in [Combine::Each, Combine::Clock(Reduce::Sum)] {
            let mut server = Server::new(NODE, plan.clone(), Registry::builtin(), Pool::new());
            let mut out = Outbox::new();
            let spec = TableSpec::sparse("t", 1).ordered().combine(combine);
            server.add_table(TableId(0), &spec, &mut out).expect("made");
            let (table, shard) = (TableId(0), ShardId(0));
            let run = |first: u64, count: u64| KeyPart::Run { first: Position(first), count };
            let push = |keys: KeyPart, values: Vec<f32>| {
                let (number, values) = (NumberType::F32, Payload::new(values));
                Message::Push(Push { table, shard, settled: u64::MAX, number, lease: None, keys, values })
            };
            let messages = [
                push(run(u64::MAX, 2), vec![1.0, f32::NAN]),
                push(run(u64::MAX - 1, 2), vec![1.0, 2.0]),
                Message::Marker(Marker { table, shard, settled: 0, since: Clock(0) }),
                push(run(7, 1), vec![f32::INFINITY]),
                Message::Marker(Marker { table, shard, settled: 0, since: Clock(0) }),
                Message::Pull(Pull {
                    table,
                    shard,
                    request: 1,
                    after: 0,
                    frontier: Clock(0),
                    subscribe: true,
                    steps: None,
                    wants: Wants::Values,
                    keys: run(7, 1),
                }),
            ];
            for (number, message) in (1..).zip(messages) {
                let mut head = Head::plain(NodeId::Worker(0), NODE);
                (head.source, head.number, head.examples) = (Source(1), number, u64::MAX);
                // The clock stays 0 until the first marker, so that the pushes before it are taken.
                head.clock = Clock(if number < 3 { 0 } else { u64::MAX });
                server.handle(Time(0), Frame { head, message }, &mut out);
                server.settle(&mut out);
                server.tick(Time(u64::MAX), &mut out);
            }
            assert!(out.drain().any(|frame| matches!(frame.message, Message::Pulled(_))), "the read is answered");
        }
    }
}
