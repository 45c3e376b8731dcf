//! One shard: the once-only gate, the combine rule, the updater, the frontier, and the reads that
//! wait for it.

use crate::checkpoint::RequestedCheckpoint;
use crate::checkpoint::ShardImage;
use crate::follow::replica::peers::ChainRole;
use crate::follow::replica::peers::Peers;
use crate::intake::combine::HeldClock;
use crate::intake::decode::unpacked;
use crate::intake::frontier::Frontier;
use crate::reads::active::ActiveSet;
use crate::residual_rows::ResidualRows;
use crate::rows::key_lists::KeyLists;
use crate::rows::{Rows, RowsError};
use codec::{Meter, PayloadDecoder, PayloadEncoder, Stopwatch, TableCodecs};
use wire::{
    Acked, FailedClock, Frame, Head, Marker, Message, Outbox, Pool, Pull, PullRefused, Push, ReadWaiting, Refreshed,
    Refusal, ReplicaChunk, Replicated, ResendReason, Tune, Writes,
};

use crate::follow::deltas::DeltaLog;
use crate::follow::subscribers::Subscribers;
use crate::intake::stream::Stream;
use crate::leases::LeasedParts;
use crate::reads::parked::{Parked, ParkedRead};
use crate::rows::pending_rows::PendingRows;
use crate::rows::resolve::NotApplied;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{Clock, Combine, Measured, Placed, Plan, PlanNumber, Source, Span, TableId, TableSpec, Time, WorkerId};
use update::{Number, Updaters};

/// A parked read says so after this long, and again each time it has passed.
const NOTICE_AFTER: Span = Span::from_secs(3);
/// Workers named in a notice.
const NAMED: usize = 8;

/// What a shard has done so far.
///
/// ```
/// use shard::ShardCounts;
///
/// let counts = ShardCounts { reads: 10, parked: 4, ..ShardCounts::default() };
/// assert_eq!(counts.parked as f64 / counts.reads as f64, 0.4);    // the share of reads that had to wait
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardCounts {
    /// Parts applied, or held for their clock.
    pub parts: u64,
    /// Parts that had been finished before and were only acknowledged.
    pub repeated: u64,
    /// Parts refused.
    pub refused: u64,
    /// Parts of leases that were held already, for another worker had pushed them before it was
    /// lost.
    pub held_already: u64,
    /// Reads answered.
    pub reads: u64,
    /// Reads that had to wait for the frontier or for the reader's own pushes.
    pub parked: u64,
    /// Most reads that waited at once.
    pub most_parked: u64,
    /// Refreshes sent.
    pub refreshes: u64,
    /// Clocks that were failed for all workers.
    pub failed_clocks: u64,
    /// Rows the shard holds now.
    pub rows: u64,
    /// Bytes of those rows, with what updaters keep beside them.
    pub bytes: u64,
    /// Leases of which it knows what it holds: those that are not over.
    pub leases: u64,
    /// Examples that it was told of, in clocks that were applied.
    pub examples: u64,
}

/// A shard of any number type, as the server drives it.
pub(crate) trait AnyShard: Send {
    /// One part of a push.
    fn push(&mut self, now: Time, head: &Head, push: Push, out: &mut Outbox);
    /// A clock ended.
    fn marker(&mut self, head: &Head, marker: &Marker, out: &mut Outbox);
    /// A setting changes.
    fn tune(&mut self, head: &Head, tune: &Tune, out: &mut Outbox);
    /// Takes the role that a plan gives it in the chain of its shard; `whole` where the plan says
    /// that it holds everything.
    fn take_part(&mut self, plan: PlanNumber, role: ChainRole, whole: bool, now: Time, out: &mut Outbox);
    /// Goes by another plan: the frontier waits for those who count in it. Returns where it stands.
    fn adopt(&mut self, plan: &Plan, now: Time, out: &mut Outbox) -> Clock;
    /// Whether it answers for its shard.
    fn is_head(&self) -> bool;
    /// Whether it may acknowledge and answer, as the head.
    fn answer(&mut self, may: bool, out: &mut Outbox);
    /// A chunk of a replication batch, or of a backfill.
    fn replica(&mut self, now: Time, head: &Head, replica: ReplicaChunk, out: &mut Outbox);
    /// A replica acknowledges batches, or chunks of a backfill.
    fn replicated(&mut self, now: Time, head: &Head, replicated: &Replicated, out: &mut Outbox);
    /// Forgets leases of a data set that are over, if the frontier is at `clock`. Says whether it
    /// is.
    fn forget_leases(&mut self, set: u32, clock: Clock, is_over: &dyn Fn(u64) -> bool) -> bool;
    /// Whether time alone will bring something about.
    fn hurries(&self) -> bool;
    /// A checkpoint of this number is to hold the shard as of this clock; the last one, as it is
    /// when every worker has left.
    fn checkpoint(&mut self, number: u64, clock: Clock, last: bool);
    /// The copy that was made for the checkpoint, once, if this shard is the head and may answer.
    fn take_image(&mut self) -> Option<ShardImage>;
    /// The checkpoint whose clock has passed without a copy, and where the frontier stands.
    fn missed(&self) -> Option<(u64, Clock)>;
    /// Is as it was at the clock of a checkpoint, with the plan's workers about to begin that
    /// clock. Says in words why it cannot be. The residuals of workers are pushed to its rows, as
    /// one contribution to that clock.
    fn restore(&mut self, clock: Clock, image: &ShardImage, residuals: &[ResidualRows]) -> Result<(), String>;
    /// The frontier.
    fn frontier(&self) -> Clock;
    /// One part of a read.
    fn pull(&mut self, now: Time, head: &Head, pull: Pull, out: &mut Outbox);
    /// Receipt of a refresh.
    fn refreshed(&mut self, head: &Head, receipt: &Refreshed);
    /// Everything that arrived together has been handled: acknowledge it.
    fn settle(&mut self, now: Time, out: &mut Outbox);
    /// Says who is waited for, where somebody has waited long.
    fn tick(&mut self, now: Time, out: &mut Outbox);
    /// Workers that reads wait for here.
    fn waited_for(&self) -> Vec<WorkerId>;
    /// Where it sends batches: the resend timeout, and the measured round trip.
    fn resends(&self) -> Option<(Span, Measured)>;
    /// What it has done so far.
    fn counts(&self) -> ShardCounts;
    /// What codecs have cost and gained here: decoding what is pushed, and encoding what is read.
    fn meters(&self) -> [Meter; 2];
}

/// What all shards of a server have in common.
pub(crate) struct ShardContext<'a> {
    /// Who takes part.
    pub plan: &'a Plan,
    /// The updaters there are.
    pub registry: &'a Updaters,
    /// Where answers are put.
    pub pool: &'a Pool,
    /// What a shard remembers of key lists.
    pub list_bytes: usize,
    /// For the meters of codecs.
    pub stopwatch: Stopwatch,
}

/// Makes the shard that `placed` describes, of the table's number type.
pub fn make(
    placed: Placed,
    table: TableId,
    spec: &TableSpec,
    terms: &ShardContext<'_>,
) -> Result<Box<dyn AnyShard>, RowsError> {
    Ok(match spec.number {
        types::NumberType::F32 => Box::new(Shard::<f32>::new(placed, table, spec, terms)?),
        types::NumberType::F64 => Box::new(Shard::<f64>::new(placed, table, spec, terms)?),
        types::NumberType::I64 => Box::new(Shard::<i64>::new(placed, table, spec, terms)?),
    })
}

pub(crate) struct Shard<T: Number> {
    pub(crate) placed: Placed,
    pub(crate) table: TableId,
    pub(crate) spec: TableSpec,
    pub(crate) plan: PlanNumber,
    /// By rank; none where there is no worker.
    pub(crate) sources: Vec<Option<Source>>,
    pub(crate) ranks: BTreeMap<Source, WorkerId>,
    pub(crate) rows: Rows<T>,
    pub(crate) streams: Vec<Stream>,
    /// Workers with something to acknowledge.
    pub(crate) unacknowledged: Vec<WorkerId>,
    pub(crate) frontier: Frontier,
    pub(crate) parked: Parked,
    pub(crate) held: BTreeMap<Clock, HeldClock<T>>,
    pub(crate) held_examples: BTreeMap<Clock, u64>,
    /// For eager tables: positions and slots of the rows that each held clock will change.
    pub(crate) held_changes: BTreeMap<Clock, BTreeMap<u64, u32>>,
    pub(crate) pending_rows: PendingRows,
    /// What is held of leases.
    pub(crate) leases: LeasedParts,
    /// Clocks from the frontier on for which a setting is kept.
    pub(crate) settings: BTreeSet<Clock>,
    pub(crate) failed: VecDeque<FailedClock>,
    pub(crate) lists: KeyLists,
    pub(crate) subscribers: Subscribers,
    /// Where a lossy codec shrinks what is read.
    pub(crate) delta_log: Option<DeltaLog>,
    /// Where an exact one does.
    pub(crate) encoder: Option<PayloadEncoder>,
    pub(crate) decoder: PayloadDecoder,
    pub(crate) stopwatch: Stopwatch,
    /// What decoding pushes has cost.
    pub(crate) decoded: Meter,
    /// Where the table filters by KKT conditions.
    pub(crate) active: Option<ActiveSet>,
    pub(crate) pool: Pool,
    pub(crate) counts: ShardCounts,
    /// Its place in a chain, where it is not alone.
    pub(crate) peers: Option<Peers>,
    /// The last replication batch that it holds all of.
    pub(crate) batch: u64,
    /// Whether the plan counts this replica as whole.
    pub(crate) whole: bool,
    /// The frontier that workers were last told of, and whether rows were exactly those of it.
    pub(crate) told: Clock,
    pub(crate) told_exact: bool,
    /// Whether it may acknowledge and answer, as the head.
    pub(crate) may_answer: bool,
    /// The checkpoint that it was last asked for.
    pub(crate) asked: Option<RequestedCheckpoint>,
    pub(crate) now: Time,
}

impl<T: Number> Shard<T> {
    pub(crate) fn new(
        placed: Placed,
        table: TableId,
        spec: &TableSpec,
        terms: &ShardContext<'_>,
    ) -> Result<Self, RowsError> {
        let plan = terms.plan;
        let workers = plan.workers.len();
        let codecs = TableCodecs::of(spec).map_err(|error| RowsError::Codecs(error.to_string()))?;
        let seed = (u64::from(table.0) << 32) | u64::from(placed.shard.0);
        let exact = codecs.down.pipeline().filter(|pipeline| !pipeline.is_lossy());
        let exact = exact.filter(|pipeline| pipeline.values().is_some() || pipeline.bytes().is_some());
        let width = spec.width as usize;
        Ok(Self {
            placed,
            table,
            rows: Rows::new(spec, placed.range, terms.registry)?,
            spec: spec.clone(),
            plan: plan.number,
            sources: plan.workers.clone(),
            ranks: plan.live_workers().map(|(worker, source)| (source, worker)).collect(),
            streams: (0..workers).map(|_| Stream::default()).collect(),
            unacknowledged: Vec::new(),
            frontier: Frontier::new(plan.workers.iter().map(Option::is_some)),
            parked: Parked::default(),
            held: BTreeMap::new(),
            held_examples: BTreeMap::new(),
            held_changes: BTreeMap::new(),
            pending_rows: PendingRows::new(spec),
            leases: LeasedParts::default(),
            settings: BTreeSet::new(),
            failed: VecDeque::new(),
            lists: KeyLists::new(terms.list_bytes),
            subscribers: Subscribers::default(),
            delta_log: DeltaLog::new(spec, &codecs, workers, seed, terms.stopwatch),
            encoder: exact.map(|pipeline| PayloadEncoder::new(pipeline, spec.number, width, seed, terms.stopwatch)),
            decoder: PayloadDecoder::default(),
            stopwatch: terms.stopwatch,
            decoded: Meter::default(),
            active: ActiveSet::of(spec),
            pool: terms.pool.clone(),
            counts: ShardCounts::default(),
            peers: None,
            batch: 0,
            whole: true,
            told: Clock(0),
            told_exact: true,
            may_answer: true,
            asked: None,
            now: Time(0),
        })
    }

    pub(crate) fn head(&self, to: WorkerId) -> Head {
        let mut head = Head::plain(self.placed.owner, to.into());
        head.plan = self.plan;
        head.source = self.sources.get(to.0 as usize).copied().flatten().unwrap_or_default();
        head.clock = self.announced();
        head
    }

    pub(crate) fn source(&self, worker: WorkerId) -> Option<Source> {
        self.sources.get(worker.0 as usize).copied().flatten()
    }

    /// A new incarnation takes part, with a stream of its own.
    pub(crate) fn admit(&mut self, worker: WorkerId, source: Source) {
        let rank = worker.0 as usize;
        if self.sources.len() <= rank {
            self.sources.resize(rank + 1, None);
            self.streams.resize_with(rank + 1, Stream::default);
        }
        (self.sources[rank], self.streams[rank]) = (Some(source), Stream::default());
        self.ranks.insert(source, worker);
        self.frontier.enter(worker);
    }

    /// What an incarnation still sends is refused from here on; whoever comes in its place is
    /// another one.
    pub(crate) fn expel(&mut self, worker: WorkerId) {
        self.ranks.retain(|_, known| *known != worker);
        self.sources.get_mut(worker.0 as usize).and_then(Option::take);
        self.subscribers.drop_worker(worker);
        self.parked.drop_worker(worker);
    }

    /// Whether it has to be known which rows a clock changes.
    pub(crate) fn tracks_changes(&self) -> bool {
        self.spec.consistency.is_eager() || self.delta_log.is_some() || self.peers.is_some()
    }

    pub(crate) fn say(&self, to: WorkerId, message: Message, out: &mut Outbox) {
        out.send(Frame { head: self.head(to), message });
    }

    /// Puts the rows in order, if it is time, and tells everything that knows them by their slots.
    pub(crate) fn put_rows_in_order(&mut self) {
        let Some(moves) = self.rows.put_in_order() else { return };
        self.lists.renumber(&moves);
        self.subscribers.renumber(&moves);
        self.active.iter_mut().for_each(|active| active.renumber(&moves));
        if let Some(peers) = &mut self.peers {
            peers.open_batch.renumber(&moves);
            let backfills = peers.receivers.iter_mut().filter_map(|receiver| receiver.backfill.as_mut());
            backfills.for_each(|backfill| backfill.renumber(&moves));
        }
        for held in self.held.values_mut() {
            if let HeldClock::Sum(sum) = held {
                sum.renumber(&moves);
            }
        }
        for slot in self.held_changes.values_mut().flat_map(BTreeMap::values_mut) {
            *slot = moves[*slot as usize];
        }
    }
}

impl<T: Number> AnyShard for Shard<T> {
    fn push(&mut self, now: Time, head: &Head, push: Push, out: &mut Outbox) {
        self.now = now;
        let Some(worker) = self.gate(head, push.settled, out) else { return };
        let (part, writes) = (push.writes.lease(), push.writes);
        if let Some(clock) = part.and_then(|part| self.leases.held_in(part)) {
            // It counts once, and its examples with it.
            self.counts.held_already += 1;
            return self.finish(worker, Some(Refusal::AlreadyHeld { clock }), out);
        }
        let in_time = self.check_clock(worker, head.clock).and_then(|()| self.check_lease(part.is_some()));
        let decoded = in_time.and_then(|()| self.check_writes(writes)).and_then(|()| self.decode(head.codecs, push));
        let done = decoded.and_then(|push| match writes {
            Writes::Gradients { .. } => self.contribute(head, &push),
            Writes::Rows => self.put_in_place(head, &push),
        });
        if !matches!(done, Err(NotApplied::UnknownKeys(_) | NotApplied::Refuse(Refusal::TooManyLeases { .. }))) {
            // A refusal is for good, too: a second run of the lease would hear the same.
            let is_open = matches!(self.spec.combine, Combine::Clock(_)) && head.clock >= self.frontier.value();
            part.into_iter().for_each(|part| self.leases.hold(part, is_open.then_some(head.clock)));
        }
        match done {
            Ok(()) => {
                self.counts.parts += 1;
                self.finish(worker, None, out);
            }
            Err(NotApplied::UnknownKeys(signature)) => {
                self.ask_again(worker, ResendReason::UnknownKeys { signature }, out);
            }
            Err(NotApplied::Refuse(refusal)) => {
                self.counts.refused += 1;
                // They were seen, and other shards count them: pushes before this one may have left
                // them to it.
                match self.spec.combine {
                    Combine::Each => self.rows.count_examples(head.examples),
                    Combine::Clock(_) => self.hold_examples(head.clock, head.examples),
                }
                // A part of a clock that has ended, or is not held, does not undo what others did
                // in it; nor do rows, which are no contribution.
                let stray = matches!(
                    refusal,
                    Refusal::PastClock | Refusal::FarAhead { .. } | Refusal::TooManyLeases { .. } | Refusal::SetByClock
                );
                if matches!(self.spec.combine, Combine::Clock(_)) && !stray {
                    let failed = FailedClock { clock: head.clock, worker, refusal: refusal.clone() };
                    self.held.insert(head.clock, HeldClock::Failed(failed));
                }
                self.finish(worker, Some(refusal), out);
            }
        }
    }

    fn marker(&mut self, head: &Head, marker: &Marker, out: &mut Outbox) {
        let Some(worker) = self.gate(head, marker.settled, out) else { return };
        if matches!(self.spec.combine, Combine::Clock(_)) {
            self.hold_examples(head.clock, head.examples);
        } else {
            self.rows.count_examples(head.examples);
        }
        let moved = self.frontier.advance(worker, head.clock, marker.since);
        self.finish(worker, None, out);
        if moved {
            self.frontier_moved(worker, out);
        }
    }

    fn tune(&mut self, head: &Head, tune: &Tune, out: &mut Outbox) {
        let Some(worker) = self.gate(head, tune.settled, out) else { return };
        let refusal = self.set(tune).err();
        self.counts.refused += u64::from(refusal.is_some());
        self.finish(worker, refusal, out);
    }

    fn take_part(&mut self, plan: PlanNumber, role: ChainRole, whole: bool, now: Time, out: &mut Outbox) {
        (self.plan, self.whole, self.now) = (plan, whole, now);
        if self.peers.is_none() && !role.is_alone() {
            // From now on it has to be known by position which rows change.
            self.lists.clear();
        }
        Shard::take_part(self, role, now, out);
        self.look_at_clock();
    }

    fn answer(&mut self, may: bool, out: &mut Outbox) {
        self.may_answer = may;
        if may {
            self.announce(out);
            self.tell(None, out);
        }
    }

    fn is_head(&self) -> bool {
        self.peers.as_ref().is_none_or(Peers::is_head)
    }

    fn replica(&mut self, now: Time, head: &Head, replica: ReplicaChunk, out: &mut Outbox) {
        self.now = now;
        Shard::replica(self, head.from, replica, out);
    }

    fn replicated(&mut self, now: Time, head: &Head, replicated: &Replicated, out: &mut Outbox) {
        self.now = now;
        Shard::replicated(self, head.from, replicated, out);
    }

    fn forget_leases(&mut self, set: u32, clock: Clock, is_over: &dyn Fn(u64) -> bool) -> bool {
        let there = self.frontier.value() >= clock;
        if there {
            self.leases.forget(set, is_over);
        }
        there
    }

    fn hurries(&self) -> bool {
        self.peers.as_ref().is_some_and(Peers::hurries)
    }

    fn checkpoint(&mut self, number: u64, clock: Clock, last: bool) {
        Shard::checkpoint(self, number, clock, last);
    }

    fn take_image(&mut self) -> Option<ShardImage> {
        Shard::take_image(self)
    }

    fn missed(&self) -> Option<(u64, Clock)> {
        Shard::missed(self)
    }

    fn restore(&mut self, clock: Clock, image: &ShardImage, residuals: &[ResidualRows]) -> Result<(), String> {
        Shard::restore(self, clock, image, residuals)
    }

    fn frontier(&self) -> Clock {
        self.frontier.value()
    }

    fn adopt(&mut self, plan: &Plan, now: Time, out: &mut Outbox) -> Clock {
        self.now = now;
        self.plan = plan.number;
        let ranks = self.sources.len().max(plan.workers.len()) as u32;
        let changed = (0..ranks).map(WorkerId).filter(|worker| self.source(*worker) != plan.source(*worker));
        let changed: Vec<WorkerId> = changed.collect();
        // Whoever comes is waited for before the frontier moves on for those who left.
        for worker in &changed {
            self.expel(*worker);
            if let Some(source) = plan.source(*worker) {
                self.admit(*worker, source);
            }
        }
        for worker in changed.into_iter().filter(|worker| plan.source(*worker).is_none()) {
            if self.frontier.leave(worker) {
                self.frontier_moved(worker, out);
            }
        }
        self.note_progress();
        self.close_batch(out);
        self.frontier.value()
    }

    fn pull(&mut self, now: Time, head: &Head, pull: Pull, out: &mut Outbox) {
        let Some(&worker) = self.ranks.get(&head.source) else {
            let refusal = Refusal::Expelled;
            let refused = PullRefused { table: self.table, shard: self.placed.shard, request: pull.request, refusal };
            let reply = Head { source: head.source, ..Head::plain(self.placed.owner, head.from) };
            out.send(Frame { head: reply, message: Message::PullRefused(refused) });
            return;
        };
        let (request, keys) = (pull.request, unpacked(pull.keys));
        match keys {
            Ok(keys) => {
                let pull = Pull { keys, ..pull };
                self.try_read(ParkedRead { worker, clock: head.clock, since: now, pull }, None, out);
            }
            Err(refusal) => {
                let refused = PullRefused { table: self.table, shard: self.placed.shard, request, refusal };
                self.say(worker, Message::PullRefused(refused), out);
            }
        }
    }

    fn refreshed(&mut self, head: &Head, receipt: &Refreshed) {
        if let Some(&worker) = self.ranks.get(&head.source) {
            self.subscribers.received(worker, receipt.sequence, receipt.number);
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.now = now;
        self.close_batch(out);
        if !self.may_answer || !AnyShard::is_head(self) {
            return;
        }
        let (table, shard) = (self.table, self.placed.shard);
        for worker in std::mem::take(&mut self.unacknowledged) {
            let durable = self.durable(worker);
            let Some(stream) = self.streams.get_mut(worker.0 as usize) else { continue };
            for (through, refused) in stream.take_acknowledgements(durable) {
                self.say(worker, Message::Acked(Acked { table, shard, through, refused }), out);
            }
        }
        self.put_rows_in_order();
    }

    fn tick(&mut self, now: Time, out: &mut Outbox) {
        self.now = now;
        self.tick_chain(out);
        for (worker, request, own) in self.parked.overdue(now, NOTICE_AFTER) {
            let on = if own { Vec::new() } else { self.frontier.slowest(NAMED) };
            let waiting = ReadWaiting { table: self.table, shard: self.placed.shard, request, on };
            self.say(worker, Message::ReadWaiting(waiting), out);
        }
    }

    fn waited_for(&self) -> Vec<WorkerId> {
        if self.parked.waits_for_others() { self.frontier.slowest(NAMED) } else { Vec::new() }
    }

    fn resends(&self) -> Option<(Span, Measured)> {
        self.peers.as_ref().and_then(Peers::resends)
    }

    fn meters(&self) -> [Meter; 2] {
        let mut downward = Meter::default();
        self.delta_log.iter().for_each(|delta_log| downward.add(delta_log.meter()));
        self.encoder.iter().for_each(|encoder| downward.add(encoder.meter()));
        [self.decoded, downward]
    }

    fn counts(&self) -> ShardCounts {
        let (rows, leases) = (self.rows.len() as u64, self.leases.leases() as u64);
        // A row has its position beside it.
        let bytes = rows * (self.rows.row_state_width() * size_of::<T>() + 8) as u64;
        ShardCounts { rows, bytes, leases, examples: self.rows.examples(), ..self.counts }
    }
}
