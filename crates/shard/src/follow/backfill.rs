//! Backfill: brings a new replica up to date while the shard is in use.
//!
//! The tail first sends every row. Then, in rounds, it sends the rows that the change log says have
//! changed meanwhile. When little is left, it sends the rest, the held sums and the shard metadata
//! at one moment.

use crate::changes::ChangeLog;
use crate::follow::replica::encode::{self, Contents, rows_per_chunk};
use crate::view::ShardView;
use std::collections::VecDeque;
use types::{Position, PositionRange};
use update::Number;
use wire::{ChangeChunk, ReplicaChunk};

/// How many chunks may be under way: enough to keep a link busy, and few enough that pushes do not
/// queue behind them. All shards of a server may be backfilled at the same time.
const UNDER_WAY: usize = 2;
/// After this many rounds over changed rows, the rest is sent at once, however much it is.
const ROUNDS: u32 = 8;

/// The state of one backfill.
pub(crate) struct Backfill {
    /// Number of the plan that started it.
    id: u64,
    /// The next position of the first round, which sends every row. `None` once it is over.
    next: Option<Position>,
    /// Changes after this batch have not been sent, nor are they in `round`.
    cursor: u64,
    /// Positions that the present round has yet to send, last first.
    round: Vec<u64>,
    /// Rounds over changed rows so far.
    rounds: u32,
    /// Chunks that the replica has not acknowledged, oldest first.
    sent: VecDeque<ReplicaChunk>,
    /// Chunks sent so far.
    chunks: u32,
    /// The batch up to which the replica holds everything, once the last chunk has been sent.
    ends_at: Option<u64>,
}

impl Backfill {
    /// A backfill of plan `id` that begins when batch `last` is the last closed one.
    pub fn new(id: u64, last: u64) -> Self {
        Self {
            id,
            next: Some(Position(0)),
            cursor: last,
            round: Vec::new(),
            rounds: 0,
            sent: VecDeque::new(),
            chunks: 0,
            ends_at: None,
        }
    }

    /// Number of the plan that started it: tells it from earlier and later backfills.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The batch after which it needs the change log.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// The batch up to which the replica holds everything, once the last chunk has been sent.
    pub fn ends_at(&self) -> Option<u64> {
        self.ends_at
    }

    /// The batch of [`Self::ends_at`], once the replica has acknowledged every chunk.
    pub fn is_over(&self) -> Option<u64> {
        self.ends_at.filter(|_| self.sent.is_empty())
    }

    /// Chunks that the replica has not acknowledged.
    pub fn unanswered(&self) -> impl Iterator<Item = &ReplicaChunk> {
        self.sent.iter()
    }

    /// The replica acknowledges chunks of a backfill: its number and how many arrived. Returns
    /// whether that acknowledges more chunks of this backfill.
    pub fn answered(&mut self, chunks: Option<(u64, u32)>) -> bool {
        let Some((_, arrived)) = chunks.filter(|(id, arrived)| *id == self.id && *arrived <= self.chunks) else {
            return false;
        };
        let before = self.sent.len();
        while self.sent.front().is_some_and(|chunk| chunk.changes.chunk < arrived) {
            self.sent.pop_front();
        }
        self.sent.len() < before
    }

    /// Sends the next chunks, as many as may be under way.
    pub fn proceed<T: Number>(
        &mut self,
        log: &mut ChangeLog,
        view: &ShardView<'_, T>,
        mut send: impl FnMut(ReplicaChunk),
    ) {
        while self.ends_at.is_none() && self.sent.len() < UNDER_WAY {
            self.send_next(log, view, &mut send);
        }
    }

    /// Sends the next rows of the present round, or begins the next round, or ends the backfill.
    fn send_next<T: Number>(
        &mut self,
        log: &mut ChangeLog,
        view: &ShardView<'_, T>,
        send: &mut impl FnMut(ReplicaChunk),
    ) {
        let most = rows_per_chunk(view.rows.row_state_bytes());
        let range = view.identity.placed.range;
        if let Some(first) = self.next {
            let first = first.max(range.first);
            let (positions, _, more) = view.rows.scan(PositionRange { first, ..range }, most);
            self.next = more;
            return encode::rows(&positions, view, |contents| self.put(contents, false, view, send));
        }
        if self.round.is_empty() {
            let last = log.close_if_changed();
            let mut changed = log.since(self.cursor).into_owned().rows;
            self.cursor = last;
            if changed.len() <= most || self.rounds >= ROUNDS {
                return self.end(last, &changed, view, send);
            }
            self.rounds += 1;
            changed.reverse();
            self.round = changed;
        }
        let left = self.round.len().saturating_sub(most);
        let mut positions = self.round.split_off(left);
        positions.reverse();
        encode::rows(&positions, view, |contents| self.put(contents, false, view, send));
    }

    /// Sends the rest at one moment. With it, the replica holds everything up to batch `last`.
    fn end<T: Number>(
        &mut self,
        last: u64,
        changed: &[u64],
        view: &ShardView<'_, T>,
        send: &mut impl FnMut(ReplicaChunk),
    ) {
        self.ends_at = Some(last);
        encode::rows(changed, view, |contents| self.put(contents, false, view, send));
        let mut held = view.clocks.sums().peekable();
        let of_slots = held.peek().map(|_| view.rows.positions()).unwrap_or_default();
        for (clock, slots) in held {
            let mut positions: Vec<u64> = slots.iter().filter_map(|slot| of_slots.get(*slot)).collect();
            positions.extend(view.clocks.removals(clock));
            positions.sort_unstable();
            positions.dedup();
            encode::sums(clock, &positions, view, |contents| self.put(contents, false, view, send));
        }
        self.put(encode::metadata(view), true, view, send);
    }

    fn put<T: Number>(
        &mut self,
        (contents, positions, values): Contents,
        ends: bool,
        view: &ShardView<'_, T>,
        send: &mut impl FnMut(ReplicaChunk),
    ) {
        let chunk = ReplicaChunk {
            table: view.identity.table,
            shard: view.identity.shard(),
            changes: ChangeChunk { from: 0, to: self.cursor, chunk: self.chunks, ends },
            backfill: Some(self.id),
            contents,
            positions,
            values,
        };
        self.chunks += 1;
        self.sent.push_back(chunk.clone());
        send(chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Parts;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use types::{Clock, TableSpec, UpdaterSpec};
    use wire::{ChunkContents, Keys};

    /// Four rows fill a chunk.
    const WIDTH: u32 = 1 << 16;
    const ID: u64 = 5;

    /// A tail that backfills a replica, and the rows that the replica has been sent.
    struct Tail {
        parts: Parts,
        log: ChangeLog,
        backfill: Backfill,
        sent: Vec<ReplicaChunk>,
        replica: BTreeMap<u64, f32>,
    }

    impl Tail {
        /// A tail with this many rows.
        fn new(rows: u64) -> Self {
            let spec = TableSpec::sparse("t", WIDTH).ordered().updater(UpdaterSpec::Assign);
            let mut tail = Self {
                parts: Parts::new(&spec, 1 << 20),
                log: ChangeLog::default(),
                backfill: Backfill::new(ID, 0),
                sent: Vec::new(),
                replica: BTreeMap::new(),
            };
            (0..rows).for_each(|row| tail.write(row, row as f32));
            let last = tail.log.close();
            tail.backfill = Backfill::new(ID, last);
            tail
        }

        fn write(&mut self, row: u64, value: f32) {
            let keys = Keys::run(row..row + 1).slice(0..1).in_full();
            let found = self.parts.rows.resolve(&keys, true).ok().expect("there is room");
            self.parts.rows.apply(Clock(0), found.slots.slots(), &[value; WIDTH as usize]);
            self.log.note_rows(found.rows(&keys));
        }

        fn remove(&mut self, row: u64) {
            let slots = self.parts.rows.remove(&[row]);
            slots.into_iter().for_each(|slot| self.log.note_removed(&[(row, slot)]));
        }

        /// Sends what may be sent now. Returns how many chunks that is.
        fn proceed(&mut self) -> usize {
            let before = self.sent.len();
            let Self { parts, log, backfill, sent, .. } = self;
            backfill.proceed(log, &parts.view(), |chunk| sent.push(chunk));
            for chunk in &self.sent[before..] {
                let positions = chunk.positions.numbers::<u64>().expect("positions");
                match &chunk.contents {
                    ChunkContents::Rows => {
                        let values = chunk.values.numbers::<f32>().expect("values");
                        let rows = positions.iter().zip(values.chunks_exact(WIDTH as usize));
                        self.replica.extend(rows.map(|(position, row)| (*position, row[0])));
                    }
                    ChunkContents::RemovedRows => self.replica.retain(|position, _| !positions.contains(position)),
                    ChunkContents::Metadata { .. } => assert!(chunk.changes.ends, "metadata comes last"),
                    other => panic!("{other:?}"),
                }
            }
            self.sent.len() - before
        }

        /// The replica acknowledges the oldest chunks that are under way, `count` of them.
        fn acknowledge(&mut self, count: usize) -> bool {
            let arrived = self.sent.len() - self.backfill.unanswered().count() + count;
            self.backfill.answered(Some((ID, arrived.min(self.sent.len()) as u32)))
        }

        /// The rows of the tail.
        fn rows(&self) -> BTreeMap<u64, f32> {
            let (positions, ..) = self.parts.rows.scan(PositionRange::ALL, usize::MAX);
            let view = self.parts.view();
            let values = view.values(&positions, &view.slots(&positions), Clock(0));
            let values = values.numbers::<f32>().expect("values").chunks_exact(WIDTH as usize).map(|row| row[0]);
            positions.into_iter().zip(values).collect()
        }
    }

    #[test]
    fn backfill_keeps_at_most_two_chunks_under_way() {
        let mut tail = Tail::new(20);
        assert_eq!((tail.proceed(), tail.proceed()), (2, 0));
        for sent in [3, 4, 5] {
            assert!(tail.acknowledge(1));
            assert_eq!((tail.proceed(), tail.sent.len()), (1, sent));
        }
        assert!(tail.acknowledge(2), "the replica has every row");
        assert_eq!((tail.proceed(), tail.backfill.ends_at(), tail.backfill.is_over()), (1, Some(1), None));
        assert!(tail.acknowledge(1));
        assert_eq!((tail.proceed(), tail.backfill.is_over()), (0, Some(1)), "it ends once");
    }

    #[test]
    fn backfill_ends_though_rows_change_faster_than_they_are_sent() {
        let mut tail = Tail::new(20);
        let mut value = 100.0;
        while tail.backfill.ends_at().is_none() {
            (0..20).for_each(|row| tail.write(row, value));
            value += 1.0;
            tail.proceed();
            tail.acknowledge(UNDER_WAY);
        }
        assert_eq!(tail.backfill.rounds, ROUNDS);
        assert_eq!(tail.replica, tail.rows());
        assert_eq!(tail.sent.len(), 5 + 5 * ROUNDS as usize + 5 + 1, "all rows, the rounds, the rest, metadata");
    }

    #[test]
    fn backfill_takes_only_new_answers_to_its_own_chunks() {
        let mut tail = Tail::new(20);
        tail.proceed();
        // (answer, whether it acknowledges more chunks)
        for (answer, is_new) in [
            (None, false),
            (Some((ID - 1, 1)), false),
            (Some((ID, 3)), false), // more than were sent
            (Some((ID, 0)), false),
            (Some((ID, 1)), true),
            (Some((ID, 1)), false),
            (Some((ID, 2)), true),
            (Some((ID, 1)), false),
        ] {
            assert_eq!(tail.backfill.answered(answer), is_new, "{answer:?}");
        }
        assert_eq!((tail.backfill.unanswered().count(), tail.backfill.is_over()), (0, None), "rows are left");
    }

    /// A step of a test.
    #[derive(Clone, Debug)]
    enum Step {
        Write(u64),
        Remove(u64),
        Acknowledge(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..14u64).prop_map(Step::Write),
            1 => (0..14u64).prop_map(Step::Remove),
            2 => (1..3usize).prop_map(Step::Acknowledge),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn backfill_brings_every_row_as_it_is_when_the_backfill_ends(steps in prop::collection::vec(step(), 0..40)) {
            let mut tail = Tail::new(10);
            let mut steps = steps.into_iter();
            let mut value = 100.0;
            tail.proceed();
            while tail.backfill.ends_at().is_none() {
                value += 1.0;
                match steps.next().unwrap_or(Step::Acknowledge(UNDER_WAY)) {
                    Step::Write(row) => tail.write(row, value),
                    Step::Remove(row) => tail.remove(row),
                    Step::Acknowledge(count) => {
                        tail.acknowledge(count);
                    }
                }
                tail.proceed();
            }
            prop_assert_eq!(&tail.replica, &tail.rows());
            prop_assert_eq!(tail.backfill.ends_at(), Some(tail.log.last()), "later changes go by batches");
            let numbers: Vec<u32> = tail.sent.iter().map(|chunk| chunk.changes.chunk).collect();
            prop_assert_eq!(numbers, (0..tail.sent.len() as u32).collect::<Vec<_>>());
            let ends: Vec<bool> = tail.sent.iter().map(|chunk| chunk.changes.ends).collect();
            prop_assert_eq!(ends.iter().position(|ends| *ends), Some(tail.sent.len() - 1), "only the last one ends it");
            prop_assert!(tail.sent.iter().all(|chunk| chunk.backfill == Some(ID)));
            tail.write(3, -1.0);
            tail.acknowledge(tail.sent.len());
            prop_assert_eq!((tail.proceed(), tail.backfill.is_over()), (0, tail.backfill.ends_at()));
        }
    }
}
