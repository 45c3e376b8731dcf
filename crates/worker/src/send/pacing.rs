//! Token bucket: bounds the bytes per second that a worker sends, and chooses which part of a push
//! or read goes next.
//!
//! - Tokens are bytes, saved up for a twentieth of a second. Every frame to a shard costs its size
//!   on the wire.
//! - Parts of pushes from clocks that have ended go first. Among the others, the largest relative
//!   changes go first.
//! - Parts wait before the stream numbers them, because a stream keeps its order.
//! - The end of a clock waits for the parts of that clock, and a read for the parts it must follow.

use super::message::{StreamMessage, frame_bytes};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{Bandwidth, Clock, NumberType, Span, TableId, Time};
use wire::{Frame, Head, Payload};

/// The size of the bucket in seconds of bandwidth, but at least [`SAVED_BYTES`].
const SAVED_SECONDS: f64 = 0.05;
/// The least size of the bucket, in bytes.
const SAVED_BYTES: f64 = 65_536.0;
/// The largest debt that resent frames can cause, in seconds of bandwidth. Frames that are sent for
/// the first time are charged in full.
const DEBT_SECONDS: f64 = 1.0;
/// While resends keep the bucket in debt, a new frame may still go after this long: other workers
/// may wait for it, and this worker for them.
const STARVED: Span = Span::from_secs(2);
/// The most bytes of a part where bandwidth is bounded: small parts leave a choice which goes next.
pub(crate) const PACED_BYTES: usize = 32 << 10;

/// One part of a push that waits for bandwidth.
pub(crate) struct PacedPart {
    pub table: TableId,
    pub shard: usize,
    /// The head of its frame, with the examples that the part tells the shard.
    pub head: Head,
    pub message: StreamMessage,
    /// How large the change is, relative to the rows it changes.
    pub significance: f64,
    /// Whether the part must not overtake other parts for its shard, because the order of pushes
    /// matters: the rows are replaced, or the updater is not additive.
    pub ordered: bool,
}

/// Whether a read or a push goes next when both wait. They take turns, so that neither starves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Read,
    Push,
}

/// The token bucket and the parts that wait for it.
pub(crate) struct Pacer {
    bytes_per_second: f64,
    /// Bytes that may be sent now; negative while in debt.
    tokens: f64,
    /// When tokens were last added.
    filled: Time,
    /// When a new frame was last allowed to go.
    went: Time,
    turn: Turn,
    /// Waiting parts by number, in the order they were made.
    parts: BTreeMap<u64, PacedPart>,
    /// The parts that may go next: significance and number, the least significant first.
    by_significance: BTreeSet<(u64, u64)>,
    /// The numbers of the parts for each shard; no set is empty.
    by_shard: BTreeMap<(TableId, usize), BTreeSet<u64>>,
    /// The number of the last part that was made.
    made: u64,
    /// For each table: the number of the last part that a read waits for.
    expected: BTreeMap<TableId, u64>,
    /// Heads of the ends of clocks that wait for parts, by shard.
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

    /// The bound, in bytes per second.
    pub fn rate(&self) -> f64 {
        self.bytes_per_second
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.markers.is_empty()
    }

    /// Changes the bound.
    pub fn set_rate(&mut self, now: Time, bandwidth: Bandwidth) {
        self.refill(now);
        self.bytes_per_second = bandwidth.bytes_per_second() as f64;
    }

    /// Adds the tokens of the time that has passed.
    pub fn refill(&mut self, now: Time) {
        let seconds = now.since(self.filled).as_secs_f64();
        let most = (self.bytes_per_second * SAVED_SECONDS).max(SAVED_BYTES);
        self.tokens = (self.tokens + seconds * self.bytes_per_second).min(most);
        self.filled = now;
    }

    /// Whether a read or a push goes next, if a new frame may be sent by now. The caller sends it.
    pub fn turn(&mut self, now: Time) -> Option<Turn> {
        if self.tokens <= 0.0 && now.since(self.went) < STARVED {
            return None;
        }
        self.went = now;
        Some(self.turn)
    }

    /// When both a read and a push wait, this goes next.
    pub fn set_turn(&mut self, turn: Turn) {
        self.turn = turn;
    }

    /// Charges a frame that is sent.
    pub fn spend(&mut self, bytes: usize) {
        self.tokens -= bytes as f64;
    }

    /// Charges resent frames, which cannot wait. Limits the debt, so that new frames do not starve
    /// on a network that loses many frames.
    pub fn charge_resent<'a>(&mut self, frames: impl IntoIterator<Item = &'a Frame>) {
        let bytes: usize = frames.into_iter().map(frame_bytes).sum();
        let least = self.tokens.min(-DEBT_SECONDS * self.bytes_per_second);
        self.tokens = (self.tokens - bytes as f64).max(least);
    }

    /// Adds a part. Returns its number in the order of parts.
    pub fn add(&mut self, mut part: PacedPart) -> u64 {
        self.made += 1;
        let others = self.by_shard.entry((part.table, part.shard)).or_default();
        // Parts queued behind an ordered part stay ordered.
        part.ordered |= others.last().and_then(|last| self.parts.get(last)).is_some_and(|last| last.ordered);
        if others.is_empty() || !part.ordered {
            self.by_significance.insert(rank(&part, self.made));
        }
        others.insert(self.made);
        self.parts.insert(self.made, part);
        self.made
    }

    /// The number of the last part that was made.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Whether the part of this number still waits.
    pub fn has(&self, number: u64) -> bool {
        self.parts.contains_key(&number)
    }

    /// The number of the first part of a table that waits.
    pub fn first_of(&self, table: TableId) -> Option<u64> {
        let shards = self.by_shard.range((table, 0)..=(table, usize::MAX));
        shards.filter_map(|(_, numbers)| numbers.first().copied()).min()
    }

    /// Messages that wait for a shard, in the order they were made.
    pub fn waiting(&self, table: TableId, shard: usize) -> impl Iterator<Item = &StreamMessage> {
        let numbers = self.by_shard.get(&(table, shard)).into_iter().flatten();
        numbers.filter_map(|number| self.parts.get(number)).map(|part| &part.message)
    }

    /// A read waits for the parts of its table up to `last`.
    pub fn expect(&mut self, table: TableId, last: u64) {
        let expected = self.expected.entry(table).or_default();
        *expected = last.max(*expected);
    }

    /// Frees the values of the parts, in a run that is over.
    pub fn free_values(&mut self) {
        self.parts.values_mut().for_each(|part| part.message.free_values());
    }

    /// Whether a part or an end of a clock waits that the next end of a clock must follow.
    pub fn has_waiting(&self, table: TableId, shard: usize) -> bool {
        self.by_shard.contains_key(&(table, shard)) || self.markers.contains_key(&(table, shard))
    }

    /// Ends a clock for a shard, once the parts before it have gone.
    pub fn end_clock(&mut self, table: TableId, shard: usize, head: Head) {
        self.markers.entry((table, shard)).or_default().push_back(head);
    }

    /// Takes the next part to go. Parts of clocks before `clock` go first, the oldest first; then
    /// parts that a read waits for; then the most significant part.
    pub fn next(&mut self, clock: Clock) -> Option<PacedPart> {
        let (&oldest, part) = self.parts.first_key_value()?;
        if part.head.clock < clock {
            return self.take(oldest);
        }
        let expected = self.expected.keys().filter_map(|table| self.first_of(*table)).min();
        let number = expected.or_else(|| self.by_significance.last().map(|(_, number)| *number))?;
        self.take(number)
    }

    fn take(&mut self, number: u64) -> Option<PacedPart> {
        let part = self.parts.remove(&number)?;
        self.by_significance.remove(&rank(&part, number));
        let name = (part.table, part.shard);
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
        let first = self.first_of(part.table);
        if self.expected.get(&part.table).is_some_and(|last| first.is_none_or(|first| first > *last)) {
            self.expected.remove(&part.table);
        }
        Some(part)
    }

    /// Takes the ends of clocks for a shard that wait for no part any more. Parts are made in the
    /// order of their clocks.
    pub fn due_markers(&mut self, name: (TableId, usize)) -> Vec<Head> {
        let first = self.by_shard.get(&name).and_then(BTreeSet::first).and_then(|number| self.parts.get(number));
        let first = first.map(|part| part.head.clock);
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

/// The sort key of a part: its significance, then its number. The bits of non-negative floats order
/// as the floats do.
fn rank(part: &PacedPart, number: u64) -> (u64, u64) {
    (part.significance.max(0.0).to_bits(), number)
}

/// The norm of a change, relative to that of the rows it changes. `known`: the sum of squares of
/// the rows as far as the cache has them.
pub(crate) fn significance(number: NumberType, values: &Payload, known: Option<f64>) -> f64 {
    let change = match number {
        NumberType::F32 => squares(values.numbers::<f32>(), |value| f64::from(*value)),
        NumberType::F64 => squares(values.numbers::<f64>(), |value| *value),
        NumberType::I64 => squares(values.numbers::<i64>(), |value| *value as f64),
    };
    let known = known.filter(|squares| *squares > 0.0);
    let relative = (change / known.unwrap_or(1.0)).sqrt();
    if relative.is_finite() { relative } else { f64::MAX }
}

fn squares<T>(values: Option<&[T]>, as_f64: impl Fn(&T) -> f64) -> f64 {
    values.unwrap_or(&[]).iter().map(|value| as_f64(value) * as_f64(value)).sum()
}

#[cfg(test)]
mod tests;
