//! One shard: the once-only gate, the combine rule, the updater, the frontier, and the reads that wait for it.

mod combine;
mod frontier;
mod lists;
mod parked;
mod stream;
mod subscribers;

use crate::Outbox;
use crate::rows::{Resolved, Rows, RowsError};
use combine::{Combination, Held, as_slots};
use frontier::Frontier;
pub use lists::LIST_BYTES;
use lists::{KeyLists, Known};
use parked::{Parked, ParkedRead};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use stream::{Stream, Verdict};
use subscribers::Subscribers;
use types::{
    CacheSpec, Clock, Combine, PART_BYTES, Placed, Plan, Position, Setting, Source, Span, TableId, TableSpec, Time,
    WorkerId,
};
use update::{ABSENT, Number, Registry, first_not_finite};
use wire::{
    Acked, FailedClock, Frame, Head, KeyPart, Marker, Message, Payload, Pool, Pull, PullRefused, Pulled, Push, Refresh,
    Refreshed, Refusal, Refused, Resend, ResendReason, Tune, Waiting,
};

/// A parked read says so after this long, and again each time it has passed.
const NOTICE_AFTER: Span = Span::from_secs(3);
/// Failed clocks that a shard remembers for its readers.
const FAILED_CLOCKS: usize = 64;
/// Workers named in a notice.
const NAMED: usize = 8;

/// What a shard has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardCounts {
    /// Parts applied, or held for their clock.
    pub parts: u64,
    /// Parts that had been finished before and were only acknowledged.
    pub repeated: u64,
    /// Parts refused.
    pub refused: u64,
    /// Reads answered.
    pub reads: u64,
    /// Reads that had to wait for the frontier or for the reader's own pushes.
    pub parked: u64,
    /// Refreshes sent.
    pub refreshes: u64,
    /// Clocks that were failed for all workers.
    pub failed_clocks: u64,
    /// Rows the shard holds now.
    pub rows: u64,
}

/// A shard of any number type, as the server drives it.
pub trait AnyShard: Send {
    /// One part of a push.
    fn push(&mut self, now: Time, head: &Head, push: Push, out: &mut Outbox);
    /// A clock ended.
    fn marker(&mut self, head: &Head, marker: &Marker, out: &mut Outbox);
    /// A setting changes.
    fn tune(&mut self, head: &Head, tune: &Tune, out: &mut Outbox);
    /// The frontier no longer waits for a worker.
    fn leave(&mut self, worker: WorkerId, out: &mut Outbox);
    /// One part of a read.
    fn pull(&mut self, now: Time, head: &Head, pull: Pull, out: &mut Outbox);
    /// Receipt of a refresh.
    fn refreshed(&mut self, head: &Head, receipt: &Refreshed);
    /// Everything that arrived together has been handled: acknowledge it.
    fn settle(&mut self, out: &mut Outbox);
    /// Says who is waited for, where somebody has waited long.
    fn tick(&mut self, now: Time, out: &mut Outbox);
    /// What it has done so far.
    fn counts(&self) -> ShardCounts;
}

/// What all shards of a server have in common.
pub struct Terms<'a> {
    /// Who takes part.
    pub plan: &'a Plan,
    /// The updaters there are.
    pub registry: &'a Registry,
    /// Where answers are put.
    pub pool: &'a Pool,
    /// What a shard remembers of key lists.
    pub list_bytes: usize,
}

/// Makes the shard that `placed` describes, of the table's number type.
pub fn make(
    placed: Placed,
    table: TableId,
    spec: &TableSpec,
    terms: &Terms<'_>,
) -> Result<Box<dyn AnyShard>, RowsError> {
    Ok(match spec.number {
        types::NumberType::F32 => Box::new(Shard::<f32>::new(placed, table, spec, terms)?),
        types::NumberType::F64 => Box::new(Shard::<f64>::new(placed, table, spec, terms)?),
        types::NumberType::I64 => Box::new(Shard::<i64>::new(placed, table, spec, terms)?),
    })
}

/// Why a part is not applied now.
enum Stop {
    /// It never will be.
    Refuse(Refusal),
    /// It will be once its keys are spelt out. Leaves no trace in the stream.
    UnknownKeys(u128),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refuse(refusal)
    }
}

/// Positions and slots of a part's rows, which all exist.
fn rows_of<'a>(
    keys: &KeyPart,
    positions: Option<&'a Payload>,
    resolved: &'a Resolved,
) -> impl Iterator<Item = (u64, u32)> + 'a {
    let (first, count, list) = match (keys, positions.and_then(Payload::numbers::<u64>)) {
        (KeyPart::Run { first, count }, _) => (first.0, *count, &[][..]),
        (_, list) => (0, 0, list.unwrap_or(&[])),
    };
    (0..count).map(move |index| first + index).chain(list.iter().copied()).zip(resolved.each())
}

struct Shard<T: Number> {
    placed: Placed,
    table: TableId,
    spec: TableSpec,
    plan: types::PlanNumber,
    sources: Vec<Source>,
    ranks: BTreeMap<Source, WorkerId>,
    rows: Rows<T>,
    streams: Vec<Stream>,
    /// Workers with something to acknowledge.
    unacknowledged: Vec<WorkerId>,
    frontier: Frontier,
    parked: Parked,
    held: BTreeMap<Clock, Held<T>>,
    held_examples: BTreeMap<Clock, u64>,
    /// For eager tables: positions and slots of the rows that each held clock will change.
    held_changes: BTreeMap<Clock, BTreeMap<u64, u32>>,
    failed: VecDeque<FailedClock>,
    lists: KeyLists,
    subscribers: Subscribers,
    pool: Pool,
    counts: ShardCounts,
}

impl<T: Number> Shard<T> {
    fn new(placed: Placed, table: TableId, spec: &TableSpec, terms: &Terms<'_>) -> Result<Self, RowsError> {
        let plan = terms.plan;
        let workers = plan.workers.len();
        Ok(Self {
            placed,
            table,
            rows: Rows::new(spec, placed.range, terms.registry)?,
            spec: spec.clone(),
            plan: plan.number,
            sources: plan.workers.clone(),
            ranks: plan.workers.iter().copied().zip((0..).map(WorkerId)).collect(),
            streams: (0..workers).map(|_| Stream::default()).collect(),
            unacknowledged: Vec::new(),
            frontier: Frontier::new(workers),
            parked: Parked::default(),
            held: BTreeMap::new(),
            held_examples: BTreeMap::new(),
            held_changes: BTreeMap::new(),
            failed: VecDeque::new(),
            lists: KeyLists::new(terms.list_bytes),
            subscribers: Subscribers::default(),
            pool: terms.pool.clone(),
            counts: ShardCounts::default(),
        })
    }

    fn head(&self, to: WorkerId) -> Head {
        let mut head = Head::plain(self.placed.owner, to.into());
        head.plan = self.plan;
        head.source = self.sources.get(to.0 as usize).copied().unwrap_or_default();
        head.clock = self.frontier.value();
        head
    }

    fn say(&self, to: WorkerId, message: Message, out: &mut Outbox) {
        out.send(Frame { head: self.head(to), message });
    }

    /// Lets the next item of a worker's stream in, or answers for it. `Some` means: do it, then `finish`.
    fn gate(&mut self, head: &Head, settled: u64, out: &mut Outbox) -> Option<WorkerId> {
        let (table, shard) = (self.table, self.placed.shard);
        let Some(&worker) = self.ranks.get(&head.source) else {
            let refused = vec![Refused { number: head.number, refusal: Refusal::Expelled }];
            let acked = Acked { table, shard, through: head.number, refused };
            let mut reply = Head::plain(self.placed.owner, head.from);
            reply.source = head.source;
            out.send(Frame { head: reply, message: Message::Acked(acked) });
            return None;
        };
        let stream = &mut self.streams[worker.0 as usize];
        stream.settle(settled);
        match stream.judge(head.number) {
            Verdict::Fresh => Some(worker),
            Verdict::Finished => {
                self.counts.repeated += 1;
                self.unacknowledged.push(worker);
                None
            }
            Verdict::Gap => {
                self.ask_again(worker, ResendReason::Gap, out);
                None
            }
        }
    }

    fn ask_again(&mut self, worker: WorkerId, reason: ResendReason, out: &mut Outbox) {
        let stream = &mut self.streams[worker.0 as usize];
        if !stream.ask() && reason == ResendReason::Gap {
            return;
        }
        let next = stream.finished() + 1;
        let resend = Resend { table: self.table, shard: self.placed.shard, next, reason };
        self.say(worker, Message::Resend(resend), out);
    }

    fn finish(&mut self, worker: WorkerId, refusal: Option<Refusal>, out: &mut Outbox) {
        self.streams[worker.0 as usize].finish(refusal);
        self.unacknowledged.push(worker);
        let finished = self.streams[worker.0 as usize].finished();
        for read in self.parked.take_own(worker, finished) {
            self.try_read(read, None, out);
        }
    }

    /// Positions and slots of a part's keys; lists are remembered.
    fn resolve(&mut self, keys: &KeyPart, create: bool) -> Result<(Arc<Resolved>, Option<Payload>), Stop> {
        let (name, positions, known) = match keys {
            KeyPart::Run { first, count } => {
                return Ok((Arc::new(self.rows.resolve_run(*first, *count, create)?), None));
            }
            KeyPart::Scan { .. } => return Err(Refusal::NotOrdered.into()),
            KeyPart::Known { signature, start, count } => {
                let name = (*signature, *start, *count);
                let known = self.lists.get(name).ok_or(Stop::UnknownKeys(signature.0))?;
                match &known.positions {
                    // Complete: its slots are all there is to know.
                    None => return Ok((known.resolved, None)),
                    Some(positions) => (name, positions.clone(), Some(known)),
                }
            }
            KeyPart::List { signature, start, positions } => {
                let name = (*signature, *start, (positions.len() / 8) as u32);
                // Another worker may have sent it already; the bytes are compared, for a signature is only a promise.
                let known = self.lists.get(name).filter(|known| known.positions.as_ref() == Some(positions));
                if known.is_none()
                    && let Some(index) = keys.first_disorder()
                {
                    let position = positions.numbers::<u64>().map_or(0, |list| list[index]);
                    return Err(Refusal::Unsorted { position: Position(position) }.into());
                }
                (name, positions.clone(), known)
            }
        };
        if let Some(known) = known {
            let outdated = known.incomplete_at.is_some_and(|rows| create || rows != self.rows.len());
            if !outdated {
                return Ok((known.resolved, Some(positions)));
            }
        }
        let list =
            positions.numbers::<u64>().ok_or(Refusal::WrongLength { expected: 0, found: positions.len() as u64 })?;
        let resolved = Arc::new(self.rows.resolve_list(list, create)?);
        let absent = matches!(&*resolved, Resolved::List(slots) if slots.contains(&ABSENT));
        let incomplete_at = absent.then(|| self.rows.len());
        let needed_again = absent || self.spec.consistency.is_eager();
        let kept = needed_again.then(|| positions.clone());
        self.lists.put(name, Known { positions: kept, resolved: resolved.clone(), incomplete_at });
        Ok((resolved, Some(positions)))
    }

    /// Checks a part whole, then applies it or holds it for its clock.
    fn contribute(&mut self, worker: WorkerId, head: &Head, push: &Push) -> Result<(), Stop> {
        if push.number != T::TYPE {
            return Err(Refusal::WrongNumber { expected: T::TYPE, found: push.number }.into());
        }
        let clock = head.clock;
        if matches!(self.spec.combine, Combine::Clock(_)) && self.frontier.clock(worker) != Some(clock) {
            return Err(Refusal::PastClock.into());
        }
        let count = push.keys.count().ok_or(Refusal::NotOrdered)?;
        let expected = count.saturating_mul(self.spec.row_bytes() as u64);
        let wrong_length = Refusal::WrongLength { expected, found: push.values.len() as u64 };
        if push.values.len() as u64 != expected {
            return Err(wrong_length.into());
        }
        let values = push.values.numbers::<T>().ok_or(wrong_length)?;
        if let Some(index) = first_not_finite(values) {
            let position = self.position_of(&push.keys, index / self.rows.width());
            return match (position, &push.keys) {
                (Some(position), _) => Err(Refusal::NotFinite { position }.into()),
                // Its keys are not kept; spelt out again, they tell which row it is.
                (None, KeyPart::Known { signature, .. }) => Err(Stop::UnknownKeys(signature.0)),
                (None, _) => Err(self.resolve(&push.keys, false).err().unwrap_or(Stop::Refuse(Refusal::UnknownTable))),
            };
        }
        let (resolved, positions) = self.resolve(&push.keys, true)?;
        match self.spec.combine {
            Combine::Each => {
                self.rows.count_examples(head.examples);
                self.rows.apply(clock, resolved.slots(), values);
                if self.spec.consistency.is_eager() {
                    self.subscribers.changed(rows_of(&push.keys, positions.as_ref(), &resolved));
                }
            }
            Combine::Clock(_) => {
                self.hold_examples(clock, head.examples);
                let held = self.held.entry(clock).or_insert_with(|| Held::Sum(Combination::new()));
                if let Held::Sum(sum) = held {
                    sum.add(self.rows.width(), self.rows.len(), &resolved, values);
                    if self.spec.consistency.is_eager() {
                        // They change when the clock is applied, which may be several moves of the frontier away.
                        let changes = self.held_changes.entry(clock).or_default();
                        changes.extend(rows_of(&push.keys, positions.as_ref(), &resolved));
                    }
                }
            }
        }
        Ok(())
    }

    /// Puts the rows in order, if it is time, and tells everything that knows them by their slots.
    fn put_rows_in_order(&mut self) {
        let Some(moves) = self.rows.put_in_order() else { return };
        self.lists.renumber(&moves);
        self.subscribers.renumber(&moves);
        for held in self.held.values_mut() {
            if let Held::Sum(sum) = held {
                sum.renumber(&moves);
            }
        }
        for slot in self.held_changes.values_mut().flat_map(BTreeMap::values_mut) {
            *slot = moves[*slot as usize];
        }
    }

    fn hold_examples(&mut self, clock: Clock, examples: u64) {
        let held = self.held_examples.entry(clock).or_default();
        *held = held.saturating_add(examples);
    }

    /// The position of the key at `index` of a part, if the shard knows it.
    fn position_of(&mut self, keys: &KeyPart, index: usize) -> Option<Position> {
        match keys {
            KeyPart::Run { first, .. } => first.0.checked_add(index as u64).map(Position),
            KeyPart::List { positions, .. } => positions.numbers::<u64>()?.get(index).copied().map(Position),
            KeyPart::Known { signature, start, count } => {
                let known = self.lists.get((*signature, *start, *count))?;
                known.positions?.numbers::<u64>()?.get(index).copied().map(Position)
            }
            KeyPart::Scan { .. } => None,
        }
    }

    fn frontier_moved(&mut self, by: WorkerId, out: &mut Outbox) {
        let frontier = self.frontier.value();
        while let Some(entry) = self.held.first_entry().filter(|entry| *entry.key() < frontier) {
            let (clock, held) = entry.remove_entry();
            let examples = self.held_examples.remove(&clock).unwrap_or(0);
            self.apply_held(clock, held, examples);
        }
        self.held_examples.retain(|clock, examples| {
            // A clock in which nobody touched this shard still saw its examples.
            if *clock < frontier {
                self.rows.count_examples(*examples);
            }
            *clock >= frontier
        });
        self.rows.forget_settings(frontier);
        if self.spec.consistency.is_eager() {
            self.refresh(out);
        }
        for read in self.parked.take_admitted(frontier) {
            self.try_read(read, Some(by), out);
        }
    }

    fn apply_held(&mut self, clock: Clock, held: Held<T>, examples: u64) {
        let changes = self.held_changes.remove(&clock).unwrap_or_default();
        match (held, self.spec.combine) {
            (Held::Sum(sum), Combine::Clock(reduce)) => {
                self.rows.count_examples(examples);
                let (slots, sums) = sum.finish(reduce, self.frontier.workers());
                self.rows.apply(clock, as_slots(&slots), &sums);
                self.subscribers.changed(changes.into_iter());
            }
            (Held::Failed(failed), _) => {
                self.counts.failed_clocks += 1;
                self.failed.push_back(failed);
                if self.failed.len() > FAILED_CLOCKS {
                    self.failed.pop_front();
                }
            }
            (Held::Sum(_), Combine::Each) => {}
        }
    }

    /// Tells every subscriber which of its rows changed, and that the others are fresh at the new frontier.
    fn refresh(&mut self, out: &mut Outbox) {
        let frontier = self.frontier.value();
        let rows_per_part = (PART_BYTES / (self.spec.row_bytes() + 8)).max(1);
        for (worker, rows) in self.subscribers.take_changes() {
            let contains = self.streams[worker.0 as usize].finished();
            let pieces = rows.len().div_ceil(rows_per_part).max(1);
            for piece in 0..pieces {
                let rows = &rows[piece * rows_per_part..rows.len().min((piece + 1) * rows_per_part)];
                let positions: Vec<u64> = rows.iter().map(|(position, _)| *position).collect();
                let slots: Vec<u32> = rows.iter().map(|(_, slot)| *slot).collect();
                let mut values = self.pool.take(rows.len() * self.spec.row_bytes());
                let failed = self.failed.iter();
                self.rows.read(frontier, update::Slots::List(&slots), values.numbers_mut::<T>());
                let Some(subscription) = self.subscribers.get_mut(worker) else { continue };
                let from = subscription.frontier;
                let reached = if piece + 1 == pieces { frontier } else { from };
                subscription.sent(piece + 1 == pieces);
                subscription.frontier = reached;
                let refresh = Refresh {
                    table: self.table,
                    shard: self.placed.shard,
                    chain: subscription.chain,
                    link: subscription.link,
                    from,
                    failed: failed.filter(|failed| failed.clock >= from).cloned().collect(),
                    contains,
                    positions: self.pool.copy(&positions),
                    values: values.freeze(),
                };
                let mut head = self.head(worker);
                head.clock = reached;
                self.counts.refreshes += 1;
                out.send(Frame { head, message: Message::Refresh(refresh) });
            }
        }
    }

    /// Answers a read, or parks it until the frontier and the reader's own pushes allow an answer.
    fn try_read(&mut self, read: ParkedRead, released_by: Option<WorkerId>, out: &mut Outbox) {
        let admitted = self.spec.consistency.admits(read.clock, self.frontier.value());
        let has_own = self.streams[read.worker.0 as usize].finished() >= read.pull.after;
        if admitted && has_own {
            self.counts.reads += 1;
            return self.answer(&read, released_by, out);
        }
        let slack = self.spec.consistency.bound().unwrap_or(0);
        let needed = if admitted { None } else { Some(Clock(read.clock.0.saturating_sub(slack))) };
        if self.parked.park(read, needed) {
            self.counts.parked += 1;
        }
    }

    fn answer(&mut self, read: &ParkedRead, released_by: Option<WorkerId>, out: &mut Outbox) {
        let message = match self.collect(read, released_by) {
            Ok(pulled) => Message::Pulled(pulled),
            Err(stop) => {
                let refusal = match stop {
                    Stop::Refuse(refusal) => refusal,
                    Stop::UnknownKeys(signature) => Refusal::UnknownKeys { signature },
                };
                let request = read.pull.request;
                Message::PullRefused(PullRefused { table: self.table, shard: self.placed.shard, request, refusal })
            }
        };
        self.say(read.worker, message, out);
    }

    fn collect(&mut self, read: &ParkedRead, released_by: Option<WorkerId>) -> Result<Pulled, Stop> {
        let pull = &read.pull;
        let row_bytes = self.spec.row_bytes();
        let mut positions = Payload::EMPTY;
        let mut more = None;
        let (resolved, count) = match &pull.keys {
            KeyPart::Scan { range } => {
                let (found, resolved, next) = self.rows.scan(*range, PART_BYTES / (row_bytes + 8))?;
                positions = self.pool.copy(&found);
                more = next;
                (Arc::new(resolved), found.len())
            }
            keys => {
                let count = keys.count().unwrap_or(0);
                let bytes = count.saturating_mul(row_bytes as u64);
                if bytes > PART_BYTES as u64 {
                    return Err(Refusal::WrongLength { expected: PART_BYTES as u64, found: bytes }.into());
                }
                let create = self.rows.reads_create();
                (self.resolve(keys, create)?.0, count as usize)
            }
        };
        let mut values = self.pool.take(count * row_bytes);
        self.rows.read(self.frontier.value(), resolved.slots(), values.numbers_mut::<T>());
        let chain = match (pull.subscribe, self.spec.cache) {
            (true, CacheSpec::Rows { max_rows }) if self.spec.consistency.is_eager() => {
                // A key without a row has no slot to watch; its copy grows old and is read again.
                let frontier = self.frontier.value();
                let all_present = !matches!(&*resolved, Resolved::List(slots) if slots.contains(&ABSENT));
                all_present
                    .then(|| self.subscribers.subscribe(read.worker, frontier, resolved.each(), max_rows))
                    .flatten()
            }
            _ => None,
        };
        let slack = self.spec.consistency.bound().unwrap_or(0);
        let in_view = |failed: &&FailedClock| failed.clock.0.saturating_add(slack).saturating_add(1) >= read.clock.0;
        Ok(Pulled {
            table: self.table,
            shard: self.placed.shard,
            request: pull.request,
            contains: self.streams[read.worker.0 as usize].finished(),
            chain,
            released_by,
            failed: self.failed.iter().filter(in_view).cloned().collect(),
            more,
            positions,
            values: values.freeze(),
        })
    }
}

impl<T: Number> AnyShard for Shard<T> {
    fn push(&mut self, _now: Time, head: &Head, push: Push, out: &mut Outbox) {
        let Some(worker) = self.gate(head, push.settled, out) else { return };
        match self.contribute(worker, head, &push) {
            Ok(()) => {
                self.counts.parts += 1;
                self.finish(worker, None, out);
            }
            Err(Stop::UnknownKeys(signature)) => {
                self.ask_again(worker, ResendReason::UnknownKeys { signature }, out);
            }
            Err(Stop::Refuse(refusal)) => {
                self.counts.refused += 1;
                // A part that comes after its clock has ended does not undo what was done with it.
                if matches!(self.spec.combine, Combine::Clock(_)) && refusal != Refusal::PastClock {
                    let failed = FailedClock { clock: head.clock, worker, refusal: refusal.clone() };
                    self.held.insert(head.clock, Held::Failed(failed));
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
        let moved = self.frontier.advance(worker, head.clock);
        self.finish(worker, None, out);
        if moved {
            self.frontier_moved(worker, out);
        }
    }

    fn tune(&mut self, head: &Head, tune: &Tune, out: &mut Outbox) {
        let Some(worker) = self.gate(head, tune.settled, out) else { return };
        let Setting::Rate(rate) = tune.setting;
        if rate.is_finite() && rate >= 0.0 {
            self.rows.tune(tune.at, tune.setting);
        }
        self.finish(worker, None, out);
    }

    fn leave(&mut self, worker: WorkerId, out: &mut Outbox) {
        self.subscribers.drop_worker(worker);
        if self.frontier.leave(worker) {
            self.frontier_moved(worker, out);
        }
    }

    fn pull(&mut self, now: Time, head: &Head, pull: Pull, out: &mut Outbox) {
        let Some(&worker) = self.ranks.get(&head.source) else {
            let refusal = Refusal::Expelled;
            let refused = PullRefused { table: self.table, shard: self.placed.shard, request: pull.request, refusal };
            out.send(Frame { head: Head::plain(self.placed.owner, head.from), message: Message::PullRefused(refused) });
            return;
        };
        self.try_read(ParkedRead { worker, clock: head.clock, since: now, pull }, None, out);
    }

    fn refreshed(&mut self, head: &Head, receipt: &Refreshed) {
        if let Some(&worker) = self.ranks.get(&head.source) {
            self.subscribers.received(worker, receipt.chain, receipt.link);
        }
    }

    fn settle(&mut self, out: &mut Outbox) {
        let (table, shard) = (self.table, self.placed.shard);
        for worker in std::mem::take(&mut self.unacknowledged) {
            for (through, refused) in self.streams[worker.0 as usize].take_acknowledgements() {
                self.say(worker, Message::Acked(Acked { table, shard, through, refused }), out);
            }
        }
        self.put_rows_in_order();
    }

    fn tick(&mut self, now: Time, out: &mut Outbox) {
        for (worker, request, own) in self.parked.overdue(now, NOTICE_AFTER) {
            let on = if own { Vec::new() } else { self.frontier.slowest(NAMED) };
            let waiting = Waiting { table: self.table, shard: self.placed.shard, request, on };
            self.say(worker, Message::Waiting(waiting), out);
        }
    }

    fn counts(&self) -> ShardCounts {
        ShardCounts { rows: self.rows.len() as u64, ..self.counts }
    }
}
