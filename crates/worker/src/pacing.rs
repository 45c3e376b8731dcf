//! A worker that may send only so much: parts of pushes and of reads wait for their turn. What is overdue goes first; with
//! bandwidth to spare, the largest relative changes go early.
//!
//! A token bucket: so many bytes a second, saved up for a twentieth of one. Parts of pushes wait before they are numbered, for
//! a stream keeps its order from there on; the end of a clock waits for the parts that belong to it, and a read for the parts
//! that it must follow. Everything that is sent to a shard is paid for, by its size on the wire.

use super::stream::{ItemKind, frame_bytes};
use super::{Table, Worker, touch};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{Bandwidth, Clock, Span, TableId, Time};
use wire::Outbox;
use wire::{Frame, Head, Payload, Slice};

/// What can be saved up: so many seconds' worth, and at least so many bytes.
const SAVED_SECONDS: f64 = 0.05;
const SAVED_BYTES: f64 = 65_536.0;
/// What can be owed for things sent again: so many seconds' worth. What is sent for the first time is owed in full.
const OWED_SECONDS: f64 = 1.0;
/// Where things are sent again and again, so that always as much is owed, something new goes after this long all the same: the others may be
/// waiting for it, and this worker for them.
const STARVED: Span = Span::from_secs(2);
/// Parts are no larger than this where they wait for their turn, so that there is something to choose from.
pub const PACED_BYTES: usize = 32 << 10;

/// One part that waits.
pub struct Held {
    pub table: TableId,
    pub shard: usize,
    /// With the examples that the shard learns of by it.
    pub head: Head,
    pub item: ItemKind,
    /// How large the change is, relative to the rows it changes.
    pub significance: f64,
    /// Whether it must not overtake others for its shard, as where the last value of a row stays.
    pub ordered: bool,
}

/// Who goes next where both wait, so that neither starves.
#[derive(Clone, Copy)]
enum Turn {
    Read,
    Push,
}

/// The parts that wait, and what may be sent.
pub struct Pacer {
    bytes_per_second: f64,
    tokens: f64,
    filled: Time,
    /// When something new last went, or nothing waited.
    went: Time,
    turn: Turn,
    /// In the order they were made.
    parts: BTreeMap<u64, Held>,
    /// Those that may go next, by significance, the least first.
    by_significance: BTreeSet<(u64, u64)>,
    /// Those for each shard: never an empty set.
    by_shard: BTreeMap<(TableId, usize), BTreeSet<u64>>,
    made: u64,
    /// The last part of each table that a read waits for.
    expected: BTreeMap<TableId, u64>,
    /// Ends of clocks that wait for parts.
    markers: BTreeMap<(TableId, usize), VecDeque<Head>>,
}

impl Pacer {
    pub fn new(now: Time, bandwidth: Bandwidth) -> Self {
        Self {
            bytes_per_second: bandwidth.bytes_per_second() as f64,
            tokens: 0.0,
            filled: now,
            went: now,
            turn: Turn::Read,
            parts: BTreeMap::new(),
            by_significance: BTreeSet::new(),
            by_shard: BTreeMap::new(),
            made: 0,
            expected: BTreeMap::new(),
            markers: BTreeMap::new(),
        }
    }

    /// In bytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes_per_second
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.markers.is_empty()
    }

    fn refill(&mut self, now: Time) {
        let seconds = now.since(self.filled).as_secs_f64();
        let most = (self.bytes_per_second * SAVED_SECONDS).max(SAVED_BYTES);
        self.tokens = (self.tokens + seconds * self.bytes_per_second).min(most);
        self.filled = now;
    }

    fn may_send(&self, now: Time) -> bool {
        self.tokens > 0.0 || now.since(self.went) >= STARVED
    }

    fn spend(&mut self, bytes: usize) {
        self.tokens -= bytes as f64;
    }

    /// Things are sent again, which cannot wait. On a network that loses much, that must not starve what is new.
    pub fn charge_resent<'a>(&mut self, frames: impl IntoIterator<Item = &'a Frame>) {
        let bytes: usize = frames.into_iter().map(frame_bytes).sum();
        let least = self.tokens.min(-OWED_SECONDS * self.bytes_per_second);
        self.tokens = (self.tokens - bytes as f64).max(least);
    }

    /// Returns its number, by which parts are ordered.
    pub fn hold(&mut self, mut held: Held) -> u64 {
        self.made += 1;
        let others = self.by_shard.entry((held.table, held.shard)).or_default();
        // What must not overtake is not overtaken either.
        held.ordered |= others.last().and_then(|last| self.parts.get(last)).is_some_and(|last| last.ordered);
        if others.is_empty() || !held.ordered {
            self.by_significance.insert(rank(&held, self.made));
        }
        others.insert(self.made);
        self.parts.insert(self.made, held);
        self.made
    }

    /// The number of the last part that was made.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Whether that part still waits.
    pub fn has(&self, number: u64) -> bool {
        self.parts.contains_key(&number)
    }

    /// The first part of a table that waits.
    pub fn first_of(&self, table: TableId) -> Option<u64> {
        let shards = self.by_shard.range((table, 0)..=(table, usize::MAX));
        shards.filter_map(|(_, numbers)| numbers.first().copied()).min()
    }

    /// What waits for a shard, in the order it was made.
    pub fn held(&self, table: TableId, shard: usize) -> impl Iterator<Item = &ItemKind> {
        let numbers = self.by_shard.get(&(table, shard)).into_iter().flatten();
        numbers.filter_map(|number| self.parts.get(number)).map(|held| &held.item)
    }

    /// A read waits for the parts of its table up to this one.
    pub fn expect(&mut self, table: TableId, last: u64) {
        let expected = self.expected.entry(table).or_default();
        *expected = last.max(*expected);
    }

    /// Forgets the values of what waits, in a run that is over.
    pub fn let_go(&mut self) {
        self.parts.values_mut().for_each(|held| held.item.let_go());
    }

    /// Whether something waits that the end of a clock must follow.
    pub fn holds(&self, table: TableId, shard: usize) -> bool {
        self.by_shard.contains_key(&(table, shard)) || self.markers.contains_key(&(table, shard))
    }

    /// Ends a clock for a shard, once the parts before it have gone.
    pub fn end_clock(&mut self, table: TableId, shard: usize, head: Head) {
        self.markers.entry((table, shard)).or_default().push_back(head);
    }

    /// The next part to go: one of a clock that has ended, the oldest first; then what a read waits for; else the most
    /// significant.
    fn next(&mut self, clock: Clock) -> Option<Held> {
        let (&oldest, held) = self.parts.first_key_value()?;
        if held.head.clock < clock {
            return self.take(oldest);
        }
        let expected = self.expected.keys().filter_map(|table| self.first_of(*table)).min();
        let number = expected.or_else(|| self.by_significance.last().map(|(_, number)| *number))?;
        self.take(number)
    }

    fn take(&mut self, number: u64) -> Option<Held> {
        let held = self.parts.remove(&number)?;
        self.by_significance.remove(&rank(&held, number));
        let name = (held.table, held.shard);
        if let Some(numbers) = self.by_shard.get_mut(&name) {
            numbers.remove(&number);
            let follower = numbers.first().and_then(|next| Some((self.parts.get(next)?, *next)));
            match follower {
                Some((next, number)) if next.ordered => {
                    self.by_significance.insert(rank(next, number));
                }
                Some(_) => {}
                None => {
                    self.by_shard.remove(&name);
                }
            }
        }
        let first = self.first_of(held.table);
        if self.expected.get(&held.table).is_some_and(|last| first.is_none_or(|first| first > *last)) {
            self.expected.remove(&held.table);
        }
        Some(held)
    }

    /// Ends of clocks for a shard that wait for nothing any more. Parts are made in the order of their clocks.
    fn due_markers(&mut self, name: (TableId, usize)) -> Vec<Head> {
        let first = self.by_shard.get(&name).and_then(BTreeSet::first).and_then(|number| self.parts.get(number));
        let first = first.map(|held| held.head.clock);
        let mut due = Vec::new();
        if let Some(markers) = self.markers.get_mut(&name) {
            let free = markers.iter().take_while(|head| first.is_none_or(|first| head.clock < first)).count();
            due.extend(markers.drain(..free));
            if markers.is_empty() {
                self.markers.remove(&name);
            }
        }
        due
    }
}

/// Bits of a number that is not negative order as it does.
fn rank(held: &Held, number: u64) -> (u64, u64) {
    (held.significance.max(0.0).to_bits(), number)
}

/// Sends something that cannot wait, where bandwidth is bounded: it is paid for by what comes next.
pub(super) fn send(pacer: &mut Option<Pacer>, frame: Frame, out: &mut Outbox) {
    if let Some(pacer) = pacer {
        pacer.spend(frame_bytes(&frame));
    }
    out.send(frame);
}

impl Worker {
    /// Sends no more than this from now on; `None` lifts the limit, and everything that waits goes.
    pub fn limit(&mut self, now: Time, bandwidth: Option<Bandwidth>, out: &mut Outbox) {
        match (&mut self.pacer, bandwidth) {
            (Some(pacer), Some(bandwidth)) => {
                pacer.refill(now);
                pacer.bytes_per_second = bandwidth.bytes_per_second() as f64;
            }
            (pacer @ None, Some(bandwidth)) => *pacer = Some(Pacer::new(now, bandwidth)),
            (Some(_), None) => {
                while self.send_part(now, out) {}
                self.pacer = None;
            }
            (None, None) => {}
        }
        // Codecs that follow the link follow this, too.
        self.rate_changed();
        let head = self.head();
        for link in self.tables.values_mut().flat_map(|table| &mut table.links) {
            link.paced = self.pacer.is_some();
            while let Some(frame) = link.next_read(head) {
                touch(link, now);
                out.send(frame);
            }
        }
        self.proceed(now, out);
    }

    /// Starts what has nothing in its way any more, and sends what may be sent by now, which may let other tasks start.
    pub(super) fn proceed(&mut self, now: Time, out: &mut Outbox) {
        loop {
            self.start_queued(now, out);
            self.send_paced(now, out);
            self.send_commits(out);
            self.follow(now, out);
            if !self.queue.has_ready() {
                return;
            }
        }
    }

    /// Sends what may be sent by now.
    pub(super) fn send_paced(&mut self, now: Time, out: &mut Outbox) {
        if let Some(pacer) = &mut self.pacer {
            pacer.refill(now);
        }
        while let Some(pacer) = self.pacer.as_mut().filter(|pacer| pacer.may_send(now)) {
            pacer.went = now;
            let sent = match pacer.turn {
                Turn::Read => self.send_read(now, out) || self.send_part(now, out),
                Turn::Push => self.send_part(now, out) || self.send_read(now, out),
            };
            if !sent {
                return;
            }
        }
    }

    /// Sends the part of a read that has waited longest. Returns whether there is one.
    fn send_read(&mut self, now: Time, out: &mut Outbox) -> bool {
        let head = self.head();
        let links = self.tables.values_mut().flat_map(|table| &mut table.links);
        let waiting = links.filter_map(|link| Some((link.first_unsent()?, link)));
        let Some((_, link)) = waiting.min_by_key(|(request, _)| *request) else { return false };
        let Some(frame) = link.send_unsent(head) else { return false };
        touch(link, now);
        send(&mut self.pacer, frame, out);
        self.next_turn(Turn::Push);
        true
    }

    /// Sends the next part of a push. Returns whether there is one.
    fn send_part(&mut self, now: Time, out: &mut Outbox) -> bool {
        let clock = self.clock;
        let Some(held) = self.pacer.as_mut().and_then(|pacer| pacer.next(clock)) else { return false };
        let table = held.table;
        self.send_held(now, held, out);
        self.queue.gone(table, self.pacer.as_ref().and_then(|pacer| pacer.first_of(table)));
        self.next_turn(Turn::Read);
        true
    }

    fn next_turn(&mut self, turn: Turn) {
        if let Some(pacer) = &mut self.pacer {
            pacer.turn = turn;
        }
    }

    fn send_held(&mut self, now: Time, held: Held, out: &mut Outbox) {
        let Held { table: id, shard, head, item, .. } = held;
        let Some(link) = self.tables.get_mut(&id).and_then(|table| table.links.get_mut(shard)) else { return };
        touch(link, now);
        let frame = link.append_held(head, item);
        self.rate.sent(now, frame_bytes(&frame) as u64);
        send(&mut self.pacer, frame, out);
        let markers = self.pacer.as_mut().map(|pacer| pacer.due_markers((id, shard))).unwrap_or_default();
        for head in markers {
            send(&mut self.pacer, link.append_held(head, ItemKind::Marker), out);
        }
    }
}

impl Table {
    /// How large a change is, relative to the rows as they are known here.
    pub(super) fn significance(&self, keys: &Slice, values: &Payload) -> f64 {
        let change = match self.spec.number {
            types::NumberType::F32 => squares(values.numbers::<f32>(), |value| f64::from(*value)),
            types::NumberType::F64 => squares(values.numbers::<f64>(), |value| *value),
            types::NumberType::I64 => squares(values.numbers::<i64>(), |value| *value as f64),
        };
        let known = self.cache.as_ref().and_then(|cache| cache.squares(keys)).filter(|squares| *squares > 0.0);
        let relative = (change / known.unwrap_or(1.0)).sqrt();
        if relative.is_finite() { relative } else { f64::MAX }
    }
}

fn squares<T>(values: Option<&[T]>, as_f64: impl Fn(&T) -> f64) -> f64 {
    values.unwrap_or(&[]).iter().map(|value| as_f64(value) * as_f64(value)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::ShardLink;
    use crate::{Batch, PullTarget, TicketId, Values, WorkerSettings};
    use codec::Formats;
    use types::{Consistency, NodeId, NumberType, Plan, PositionRange, ShardId, Source, Span, TableSpec, WorkerId};
    use wire::{Acked, Control, Keys, Message};

    const TABLE: TableId = TableId(0);

    fn held(clock: u64, significance: f64, bytes: usize) -> Held {
        let mut head = Head::plain(NodeId::Worker(0), NodeId::Server(0));
        head.clock = Clock(clock);
        let keys = Keys::run(0..1).slice(0..1);
        let values = Payload::new(vec![0u8; bytes]);
        let (ticket, formats, plain, writes) = (TicketId(0), Formats::default(), None, wire::Writes::GRADIENTS);
        let item = ItemKind::Push { ticket, keys, values, formats, plain, writes };
        Held { table: TABLE, shard: 0, head, item, significance, ordered: false }
    }

    fn order(pacer: &mut Pacer, clock: u64) -> Vec<f64> {
        std::iter::from_fn(|| pacer.next(Clock(clock)).map(|held| held.significance)).collect()
    }

    #[test]
    fn what_is_overdue_goes_first_then_the_largest_changes() {
        let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(1000));
        for (clock, significance) in [(1, 0.5), (1, 0.7), (2, 0.1), (2, 0.9), (2, 0.4)] {
            pacer.hold(held(clock, significance, 10));
        }
        assert_eq!(order(&mut pacer, 2), [0.5, 0.7, 0.9, 0.4, 0.1]);
        assert!(pacer.is_empty());
    }

    #[test]
    fn a_clock_ends_for_a_shard_when_its_parts_have_gone() {
        let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(1000));
        let end = |pacer: &mut Pacer, clock| pacer.end_clock(TABLE, 0, held(clock, 0.0, 0).head);
        assert!(!pacer.holds(TABLE, 0), "nothing waits");
        pacer.hold(held(1, 1.0, 10));
        end(&mut pacer, 1);
        pacer.hold(held(2, 2.0, 10));
        end(&mut pacer, 2);
        assert!(pacer.holds(TABLE, 0) && !pacer.holds(TABLE, 1), "another shard waits for nothing");
        let ended = |pacer: &mut Pacer| -> Vec<u64> {
            pacer.next(Clock(3));
            pacer.due_markers((TABLE, 0)).iter().map(|head| head.clock.0).collect()
        };
        assert_eq!((ended(&mut pacer), ended(&mut pacer)), (vec![1], vec![2]));
    }

    #[test]
    fn where_the_last_value_stays_parts_for_a_shard_keep_their_order() {
        let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(1000));
        for (shard, significance) in [(0, 0.1), (0, 0.9), (1, 0.5), (1, 0.3), (0, 0.2)] {
            pacer.hold(Held { shard, ordered: true, ..held(1, significance, 10) });
        }
        assert_eq!(order(&mut pacer, 1), [0.5, 0.3, 0.1, 0.9, 0.2]);
    }

    #[test]
    fn what_a_read_waits_for_goes_before_larger_changes_that_came_later() {
        let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(1000));
        let parts = [0.2, 0.1, 0.9].map(|significance| pacer.hold(held(1, significance, 10)));
        pacer.expect(TABLE, parts[1]);
        assert_eq!(order(&mut pacer, 1), [0.2, 0.1, 0.9]);
    }

    #[test]
    fn tokens_come_with_time_and_are_saved_for_a_while() {
        let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(10_000_000));
        pacer.refill(Time(0) + Span::from_millis(10));
        assert_eq!(pacer.tokens, 100_000.0);
        pacer.refill(Time(0) + Span::from_secs(9));
        assert_eq!(pacer.tokens, 500_000.0, "a twentieth of a second's");
    }

    #[test]
    fn what_is_new_is_owed_in_full_and_what_is_sent_again_for_no_longer_than_a_second() {
        let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(1000));
        let values = Payload::new(vec![0u8; 5000]);
        let mut link = ShardLink::new(
            types::Placed { shard: ShardId(0), owner: NodeId::Server(0), range: PositionRange::ALL },
            TABLE,
            NumberType::F32,
            types::Clock(0),
        );
        let push = ItemKind::Push {
            ticket: TicketId(0),
            keys: Keys::distinct(types::Placement::Spread, &(0..100).collect::<Vec<u64>>()).slice(0..100),
            values,
            formats: Formats::default(),
            plain: None,
            writes: wire::Writes::GRADIENTS,
        };
        let frame = link.append(held(0, 0.0, 0).head, push);
        pacer.charge_resent([&frame]);
        assert_eq!(pacer.tokens, -1000.0);
        pacer.spend(500);
        pacer.charge_resent([&frame]);
        assert_eq!(pacer.tokens, -1500.0, "and lifts no debt");
        let bytes = frame_bytes(&frame);
        let mut whole = Vec::new();
        wire::encode(&frame, &mut whole);
        let real = whole.len() + 800 + 5000;
        assert!((real..real + 64).contains(&bytes), "{bytes} bytes for {real}: keys count, too");
    }

    /// A worker with one table on one server, which may send so much.
    fn worker(spec: TableSpec, rate: u64) -> Worker {
        let plan = Plan::first(1, vec![Source(1)]);
        let mut worker = Worker::new(WorkerId(0), Source(1), plan, WorkerSettings::default());
        let mut out = Outbox::new();
        let name = spec.name.clone();
        worker.make_table(spec, &mut out);
        let head = Head::plain(NodeId::Coordinator, NodeId::Worker(0));
        let made = Message::Control(Control::TableMade { table: TABLE, name });
        worker.handle(Time(0), Frame { head, message: made }, &mut out);
        worker.limit(Time(0), Some(Bandwidth::from_bytes_per_second(rate)), &mut out);
        worker
    }

    fn batch(keys: Keys, width: usize, examples: u64) -> Batch {
        let values = Values { number: NumberType::F32, bytes: Payload::new(vec![1f32; keys.len() * width]) };
        Batch { keys, values, examples, lease: None }
    }

    fn acknowledge(worker: &mut Worker, now: Time, through: u64, out: &mut Outbox) {
        let acked = Acked { table: TABLE, shard: ShardId(0), through, refused: Vec::new() };
        let head = Head::plain(NodeId::Server(0), NodeId::Worker(0));
        worker.handle(now, Frame { head, message: Message::Acked(acked) }, out);
    }

    fn read_after(frame: &Frame) -> Option<u64> {
        if let Message::Pull(pull) = &frame.message { Some(pull.after) } else { None }
    }

    fn at_ms(milliseconds: u64) -> Time {
        Time(0) + Span::from_millis(milliseconds)
    }

    /// New keys in every push and every read: the lists take most of the bytes.
    #[test]
    fn pushes_and_reads_together_take_the_bandwidth_and_no_more() {
        let rate = 100_000;
        for rule in [Consistency::slack(0), Consistency::Unbounded] {
            let mut worker = worker(TableSpec::sparse("t", 1).consistency(rule), rate);
            let mut out = Outbox::new();
            let mut sent = 0;
            for turn in 0..500u64 {
                let now = at_ms(turn * 10);
                let keys = |from: u64| {
                    let ids: Vec<u64> = (0..400).map(|id| (turn * 2000 + from + id) * 7).collect();
                    Keys::distinct(types::Placement::Spread, &ids)
                };
                match turn % 4 {
                    0 => worker.push(now, TABLE, batch(keys(0), 1, 1), &[], &mut out),
                    1 => worker.pull(now, TABLE, keys(400), PullTarget::F32(vec![0.0; 400]), &[], &mut out),
                    2 => worker.active(now, TABLE, keys(800), &[], &mut out),
                    _ => worker.scan(now, TABLE, PositionRange::ALL, &[], &mut out),
                }
                .expect("fits");
                worker.tick(now, &mut out);
                for frame in out.drain() {
                    let mut bytes = Vec::new();
                    wire::encode(&frame, &mut bytes);
                    sent += bytes.len() + frame.message.payloads().iter().map(|payload| payload.len()).sum::<usize>();
                }
                let most = rate as f64 * turn as f64 / 100.0 + SAVED_BYTES;
                assert!(sent as f64 <= most, "{rule}: {sent} bytes after {turn} turns");
            }
            assert!(sent > 450_000, "{rule}: {sent} bytes sent");
        }
    }

    #[test]
    fn the_pull_of_a_push_pull_goes_when_all_of_its_push_has_gone() {
        let mut worker = worker(TableSpec::dense("t", 2, 8192).consistency(Consistency::Unbounded), 32_768);
        let mut out = Outbox::new();
        let (keys, target) = (Keys::run(0..2), PullTarget::F32(vec![0.0; 2 * 8192]));
        let ticket = worker.push_pull(Time(0), TABLE, batch(keys, 8192, 1), target, &[], &mut out).expect("fits");
        // (when, which frames go then: parts of the push by number, then the pull by what it follows)
        for (milliseconds, pushes, pulls) in [(1, vec![1], vec![]), (1500, vec![2], vec![]), (3000, vec![], vec![2])] {
            worker.tick(at_ms(milliseconds), &mut out);
            let frames: Vec<Frame> = out.drain().collect();
            let pulled: Vec<u64> = frames.iter().filter_map(read_after).collect();
            let pushed: Vec<u64> = frames.iter().map(|frame| frame.head.number).filter(|number| *number > 0).collect();
            assert_eq!((&pushed, pulled), (&pushes, pulls), "at {milliseconds} ms");
            pushed.iter().for_each(|number| acknowledge(&mut worker, at_ms(milliseconds), *number, &mut out));
            assert!(!worker.is_finished(ticket), "at {milliseconds} ms nothing has been read");
        }
    }

    #[test]
    fn a_part_that_waits_tells_of_the_examples_of_its_own_clock() {
        let mut worker = worker(TableSpec::dense("t", 2, 1).consistency(Consistency::slack(3)), 1000);
        let mut out = Outbox::new();
        for (clock, row) in [(0, 0), (1, 1), (2, 0)] {
            worker.push(Time(0), TABLE, batch(Keys::run(row..row + 1), 1, 10 + clock), &[], &mut out).expect("fits");
            worker.end_clock(Time(0), &mut out);
        }
        assert_eq!(out.drain().count(), 0, "everything waits");
        (1..2000).for_each(|turn| worker.tick(at_ms(turn), &mut out));
        let told: Vec<_> = out.drain().map(|frame| (frame.head.clock.0, frame.head.examples)).collect();
        assert_eq!(told, [(0, 10), (0, 0), (1, 11), (1, 0), (2, 12), (2, 0)], "a push and its end of each");
    }
}
