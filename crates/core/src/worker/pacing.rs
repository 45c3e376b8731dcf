//! A worker that may send only so much: parts wait for their turn. What is overdue goes first; with bandwidth to spare, the
//! largest relative changes go early.
//!
//! A token bucket: so many bytes a second, saved up for a twentieth of one. Parts wait before they are numbered, for a stream
//! keeps its order from there on; the end of a clock waits for the parts that belong to it.

use super::stream::ItemKind;
use super::{Table, Worker, touch};
use crate::Outbox;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{Bandwidth, Clock, TableId, Time};
use wire::{Frame, HEADER_BYTES, Head, Payload, Slice};

/// What can be saved up: so many seconds' worth, and at least so many bytes.
const SAVED_SECONDS: f64 = 0.05;
const SAVED_BYTES: f64 = 65_536.0;
/// What can be owed at most: so many seconds' worth. What has to be sent again is sent, and paid for later.
const OWED_SECONDS: f64 = 1.0;
/// Parts are no larger than this where they wait for their turn, so that there is something to choose from.
pub const PACED_BYTES: usize = 32 << 10;

/// One part that waits.
pub struct Held {
    pub table: TableId,
    pub shard: usize,
    pub head: Head,
    pub item: ItemKind,
    /// How large the change is, relative to the rows it changes.
    pub significance: f64,
}

/// The parts that wait, and what may be sent.
pub struct Pacer {
    bytes_per_second: f64,
    tokens: f64,
    filled: Time,
    /// In the order they were made.
    parts: BTreeMap<u64, Held>,
    /// By significance, the least first.
    by_significance: BTreeSet<(u64, u64)>,
    made: u64,
    /// How many parts of each clock wait for each shard.
    waiting: BTreeMap<(TableId, usize), BTreeMap<Clock, usize>>,
    /// Ends of clocks that wait for them.
    markers: BTreeMap<(TableId, usize), VecDeque<Head>>,
}

impl Pacer {
    pub fn new(now: Time, bandwidth: Bandwidth) -> Self {
        Self {
            bytes_per_second: bandwidth.bytes_per_second() as f64,
            tokens: 0.0,
            filled: now,
            parts: BTreeMap::new(),
            by_significance: BTreeSet::new(),
            made: 0,
            waiting: BTreeMap::new(),
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

    /// Something that cannot wait is sent: it is paid for by what comes next.
    pub fn charge<'a>(&mut self, frames: impl IntoIterator<Item = &'a Frame>) {
        let bytes =
            |frame: &Frame| HEADER_BYTES + frame.message.payloads().iter().map(|payload| payload.len()).sum::<usize>();
        self.spend(frames.into_iter().map(bytes).sum());
    }

    fn spend(&mut self, bytes: usize) {
        self.tokens = (self.tokens - bytes as f64).max(-OWED_SECONDS * self.bytes_per_second);
    }

    pub fn hold(&mut self, held: Held) {
        self.made += 1;
        *self.waiting.entry((held.table, held.shard)).or_default().entry(held.head.clock).or_default() += 1;
        // Bits of a number that is not negative order as it does.
        self.by_significance.insert((held.significance.max(0.0).to_bits(), self.made));
        self.parts.insert(self.made, held);
    }

    /// Forgets the values of what waits, in a run that is over.
    pub fn let_go(&mut self) {
        self.parts.values_mut().for_each(|held| held.item.let_go());
    }

    /// Ends a clock for a shard. Returns whether the marker has to wait.
    pub fn end_clock(&mut self, table: TableId, shard: usize, head: Head) -> bool {
        let waits = self.waiting.contains_key(&(table, shard)) || self.markers.contains_key(&(table, shard));
        if waits {
            self.markers.entry((table, shard)).or_default().push_back(head);
        }
        waits
    }

    /// The next part to go: one of a clock that has ended, the oldest first; else the most significant.
    fn next(&mut self, clock: Clock) -> Option<Held> {
        let (&oldest, held) = self.parts.first_key_value()?;
        let number = if held.head.clock < clock { oldest } else { self.by_significance.last()?.1 };
        self.take(number)
    }

    fn take(&mut self, number: u64) -> Option<Held> {
        let held = self.parts.remove(&number)?;
        self.by_significance.remove(&(held.significance.max(0.0).to_bits(), number));
        let name = (held.table, held.shard);
        if let Some(clocks) = self.waiting.get_mut(&name) {
            if let Some(count) = clocks.get_mut(&held.head.clock) {
                *count -= 1;
                if *count == 0 {
                    clocks.remove(&held.head.clock);
                }
            }
            if clocks.is_empty() {
                self.waiting.remove(&name);
            }
        }
        Some(held)
    }

    /// Ends of clocks for a shard that wait for nothing any more.
    fn due_markers(&mut self, name: (TableId, usize)) -> Vec<Head> {
        let first = self.waiting.get(&name).and_then(|clocks| clocks.first_key_value()).map(|(clock, _)| *clock);
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

impl Worker {
    /// Sends no more than this from now on; `None` lifts the limit, and everything that waits goes.
    pub fn limit(&mut self, now: Time, bandwidth: Option<Bandwidth>, out: &mut Outbox) {
        match (&mut self.pacer, bandwidth) {
            (Some(pacer), Some(bandwidth)) => pacer.bytes_per_second = bandwidth.bytes_per_second() as f64,
            (pacer @ None, Some(bandwidth)) => *pacer = Some(Pacer::new(now, bandwidth)),
            (Some(_), None) => {
                self.release_where(now, |_| true, out);
                self.pacer = None;
            }
            (None, None) => {}
        }
        // Codecs that follow the link follow this, too.
        self.rate_changed();
    }

    /// Sends what may be sent by now.
    pub(super) fn send_paced(&mut self, now: Time, out: &mut Outbox) {
        let clock = self.clock;
        if let Some(pacer) = &mut self.pacer {
            pacer.refill(now);
        }
        while let Some(pacer) = self.pacer.as_mut().filter(|pacer| pacer.tokens > 0.0) {
            let Some(held) = pacer.next(clock) else { break };
            pacer.spend(held.item.bytes());
            self.send_held(now, held, out);
        }
    }

    /// Sends everything that a read of this table must follow, whatever it costs.
    pub(super) fn release_table(&mut self, now: Time, table: TableId, out: &mut Outbox) {
        self.release_where(now, |held| held.table == table, out);
    }

    fn release_where(&mut self, now: Time, which: impl Fn(&Held) -> bool, out: &mut Outbox) {
        let Some(pacer) = &mut self.pacer else { return };
        let numbers: Vec<u64> = pacer.parts.iter().filter(|(_, held)| which(held)).map(|(number, _)| *number).collect();
        for number in numbers {
            let Some(pacer) = &mut self.pacer else { return };
            let Some(held) = pacer.take(number) else { continue };
            pacer.spend(held.item.bytes());
            self.send_held(now, held, out);
        }
    }

    fn send_held(&mut self, now: Time, held: Held, out: &mut Outbox) {
        let Held { table: id, shard, head, item, .. } = held;
        let Some(link) = self.tables.get_mut(&id).and_then(|table| table.links.get_mut(shard)) else { return };
        self.rate.sent(now, item.bytes() as u64);
        touch(link, now);
        out.send(link.append(head, item));
        let markers = self.pacer.as_mut().map(|pacer| pacer.due_markers((id, shard))).unwrap_or_default();
        for head in markers {
            out.send(link.append(head, ItemKind::Marker));
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
    use crate::worker::Ticket;
    use codec::Formats;
    use types::{NodeId, Span};
    use wire::Keys;

    const TABLE: TableId = TableId(0);

    fn held(clock: u64, significance: f64, bytes: usize) -> Held {
        let mut head = Head::plain(NodeId::Worker(0), NodeId::Server(0));
        head.clock = Clock(clock);
        let keys = Keys::run(0..1).slice(0..1);
        let values = Payload::new(vec![0u8; bytes]);
        let item = ItemKind::Push { ticket: Ticket(0), keys, values, formats: Formats::default(), plain: None };
        Held { table: TABLE, shard: 0, head, item, significance }
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
        assert!(!end(&mut pacer, 0), "nothing waits");
        pacer.hold(held(1, 1.0, 10));
        assert!(end(&mut pacer, 1));
        pacer.hold(held(2, 2.0, 10));
        assert!(end(&mut pacer, 2));
        assert!(!pacer.end_clock(TABLE, 1, held(2, 0.0, 0).head), "another shard waits for nothing");
        let ended = |pacer: &mut Pacer| -> Vec<u64> {
            pacer.next(Clock(3));
            pacer.due_markers((TABLE, 0)).iter().map(|head| head.clock.0).collect()
        };
        assert_eq!((ended(&mut pacer), ended(&mut pacer)), (vec![1], vec![2]));
    }

    #[test]
    fn tokens_come_with_time_are_saved_for_a_while_and_owed_for_no_longer_than_a_second() {
        let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(10_000_000));
        pacer.refill(Time(0) + Span::from_millis(10));
        assert_eq!(pacer.tokens, 100_000.0);
        pacer.refill(Time(0) + Span::from_secs(9));
        assert_eq!(pacer.tokens, 500_000.0, "a twentieth of a second's");
        pacer.spend(1 << 30);
        assert_eq!(pacer.tokens, -10_000_000.0, "a second's");
    }
}
