//! The change feed of a shard. A reader asks what changed since a batch of the change log, and is
//! answered with the rows as they are now.
//!
//! The shard keeps no state for each reader: it keeps the batch after which it knows every change.
//! A reader whose cursor is older starts over, with all rows.

use crate::changes::ChangeLog;
use crate::rows::Rows;
use std::collections::VecDeque;
use types::{Clock, PlanNumber, Position, PositionRange, Span, Time};
use update::Number;
use wire::{FeedCursor, Pulled};

/// The feed stops when no reader has asked for this long: the shard notes no changes for it.
const IDLE: Span = Span::from_secs(60);
/// The feed keeps at most this many positions for each row of the shard. Merging keeps existing
/// rows below that bound; only positions of deleted rows exceed it.
const HISTORY_FOR_EACH_ROW: usize = 4;
/// The feed may always keep this many positions, however few rows there are.
const LEAST_HISTORY: usize = 64 << 10;
/// How many clocks the feed remembers, with the batch at which each began.
const MOST_CLOCKS: usize = 1024;

/// How far back a shard knows what changed.
pub(crate) struct Feed {
    /// Number of the present sequence of batches. Each new head starts one, because its rows may be
    /// older than those of the head before.
    sequence: u64,
    /// The batch after which the log holds every change; `None` while the feed is stopped.
    after: Option<u64>,
    /// When a reader last asked.
    read: Time,
    /// For each clock, rising: the last batch before the frontier reached it.
    clocks: VecDeque<(Clock, u64)>,
}

impl Feed {
    /// A feed that is stopped.
    pub fn new(plan: PlanNumber) -> Self {
        Self { sequence: plan.0, after: None, read: Time(0), clocks: VecDeque::new() }
    }

    /// The batch after which the feed needs the change log.
    pub fn needs_after(&self) -> Option<u64> {
        self.after
    }

    /// A reader asks: the feed keeps changes from now on. If it was stopped, the log may lack
    /// earlier changes. So it starts after a new batch, and earlier cursors are too old.
    pub fn read(&mut self, now: Time, log: &mut ChangeLog) {
        self.read = now;
        self.after.get_or_insert_with(|| log.close());
    }

    /// Whether no reader has asked for [`IDLE`].
    pub fn is_idle(&self, now: Time) -> bool {
        self.after.is_some() && self.read + IDLE < now
    }

    /// Stops the feed: it needs no changes.
    pub fn stop(&mut self) {
        self.after = None;
        self.clocks.clear();
    }

    /// The frontier reaches a clock: notes the batch at which it begins.
    pub fn publish(&mut self, frontier: Clock, log: &mut ChangeLog) {
        if self.after.is_some() && self.clocks.back().is_none_or(|(last, _)| *last < frontier) {
            self.clocks.push_back((frontier, log.close_if_changed()));
            if self.clocks.len() > MOST_CLOCKS {
                self.clocks.pop_front();
            }
        }
    }

    /// Forgets the oldest batches if all together hold more positions than a shard of `rows` rows
    /// may keep.
    pub fn bound(&mut self, rows: usize, log: &mut ChangeLog) {
        if let Some(after) = &mut self.after {
            let most = LEAST_HISTORY.max(rows.saturating_mul(HISTORY_FOR_EACH_ROW));
            if log.open_len() > most {
                log.close();
            }
            *after = log.holds_after(most).max(*after);
        }
    }

    /// The last batch before a clock began, if the feed remembers it.
    fn began(&self, clock: Clock) -> Option<u64> {
        let known = self.clocks.back().is_some_and(|(last, _)| clock <= *last);
        let begun = self.clocks.partition_point(|(begun, _)| *begun <= clock);
        let place = begun.checked_sub(1).filter(|_| known)?;
        Some(self.clocks[place].1)
    }

    /// The rows that a reader at `cursor` lacks: the first `most` positions of those in `range`.
    /// Notes in the answer how far they reach. A cursor that names a clock or the present is
    /// answered with its batch and no rows.
    pub fn page<T: Number>(
        &self,
        cursor: FeedCursor,
        range: PositionRange,
        most: usize,
        log: &mut ChangeLog,
        rows: &Rows<T>,
        answer: &mut Pulled,
    ) -> Vec<u64> {
        let last = log.close_if_changed();
        let held = |number: &u64| self.after.is_some_and(|after| (after..=last).contains(number));
        let mut positions = Vec::new();
        let reaches = match cursor {
            FeedCursor::Now => Some(last).filter(held),
            FeedCursor::Clock { clock } => self.began(clock).filter(held),
            FeedCursor::Rows => {
                (positions, _, answer.more) = rows.scan_shown(range, most);
                Some(last)
            }
            FeedCursor::Batch { sequence, number } if sequence == self.sequence && held(&number) => {
                let (changed, more) = log.rows_since(number, range.first.0, most);
                positions = changed;
                answer.more = more.map(Position);
                Some(last)
            }
            FeedCursor::Batch { .. } => None,
        };
        answer.contains = last;
        answer.sequence = reaches.map(|number| (self.sequence, number));
        positions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::follow::Followers;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};
    use types::{ShardId, TableId, TableSpec};
    use update::Updaters;
    use wire::{FeedPage, FeedReader, FeedStep};

    /// A shard with rows 0, 10, …, 90, its change log and its feed.
    struct Parts {
        rows: Rows<f32>,
        log: ChangeLog,
        feed: Feed,
    }

    impl Parts {
        fn new() -> Self {
            let spec = TableSpec::sparse("t", 1).ordered();
            let mut rows = Rows::new(&spec, PositionRange::ALL, &Updaters::builtin(), 0).expect("a known updater");
            rows.make_rows(&(0..10).map(|row| row * 10).collect::<Vec<u64>>()).expect("there is room");
            Self { rows, log: ChangeLog::default(), feed: Feed::new(PlanNumber(7)) }
        }

        fn change(&mut self, positions: &[u64]) {
            self.log.note_rows(positions.iter().map(|position| (*position, *position as u32)));
        }

        /// The positions of a page, and the answer that tells how far they reach.
        fn page(&mut self, cursor: FeedCursor, first: u64, most: usize) -> (Vec<u64>, Pulled) {
            self.feed.read(Time(0), &mut self.log);
            let range = PositionRange { first: Position(first), last: PositionRange::ALL.last };
            let mut answer = Pulled::empty(TableId(0), ShardId(0), 1);
            let positions = self.feed.page(cursor, range, most, &mut self.log, &self.rows, &mut answer);
            (positions, answer)
        }

        /// The positions of a page, the batch that it reaches, and where the next page starts.
        fn ask(&mut self, cursor: FeedCursor, first: u64, most: usize) -> (Vec<u64>, Option<u64>, Option<u64>) {
            let (positions, Pulled { sequence, more, .. }) = self.page(cursor, first, most);
            if let Some((sequence, _)) = sequence {
                assert_eq!(sequence, 7, "the sequence is the plan's number");
            }
            (positions, sequence.map(|reaches| reaches.1), more.map(|position| position.0))
        }
    }

    fn batch(number: u64) -> FeedCursor {
        FeedCursor::Batch { sequence: 7, number }
    }

    #[test]
    fn feed_pages_what_changed_since_the_readers_batch() {
        let mut parts = Parts::new();
        parts.change(&[10]);
        assert_eq!(parts.ask(FeedCursor::Now, 0, 2), (vec![], Some(1), None), "earlier changes are left out");
        parts.change(&[50, 20]);
        parts.change(&[20, 90]);
        assert_eq!(parts.ask(batch(1), 0, 2), (vec![20, 50], Some(2), Some(90)));
        parts.change(&[20]);
        assert_eq!(parts.ask(batch(1), 90, 2), (vec![90], Some(3), None));
        assert_eq!(parts.ask(batch(2), 0, 2), (vec![20], Some(3), None), "it changed between the pages");
        assert_eq!(parts.ask(batch(3), 0, 2), (vec![], Some(3), None));
    }

    #[test]
    fn feed_pages_all_rows_to_a_reader_that_has_none() {
        let mut parts = Parts::new();
        let rows = |from: u64, to: u64| (from..to).map(|row| row * 10).collect::<Vec<u64>>();
        assert_eq!(parts.ask(FeedCursor::Rows, 0, 8), (rows(0, 8), Some(1), Some(80)));
        assert_eq!(parts.ask(FeedCursor::Rows, 80, 8), (rows(8, 10), Some(1), None));
    }

    #[test]
    fn feed_makes_a_reader_with_an_unknown_cursor_start_over() {
        let mut parts = Parts::new();
        parts.change(&[10]);
        let _ = parts.page(FeedCursor::Now, 0, 8);
        for (cursor, why) in [
            (FeedCursor::Batch { sequence: 6, number: 1 }, "another head numbered these batches"),
            (batch(2), "there is no such batch"),
            (batch(0), "changes from before the feed began are not kept"),
            (FeedCursor::Clock { clock: Clock(3) }, "no clock has begun since"),
        ] {
            assert_eq!(parts.ask(cursor, 0, 8), (vec![], None, None), "{why}");
        }
        parts.feed.stop();
        parts.change(&[20]);
        assert_eq!(parts.ask(batch(1), 0, 8), (vec![], None, None), "no changes are kept while no reader asks");
    }

    #[test]
    fn feed_answers_what_changed_since_a_clock_that_it_remembers() {
        let mut parts = Parts::new();
        let _ = parts.page(FeedCursor::Now, 0, 8);
        for (clock, position) in [(3, 10), (5, 20), (6, 30)] {
            parts.change(&[position]);
            parts.feed.publish(Clock(clock), &mut parts.log);
        }
        parts.change(&[40]);
        let since = |parts: &mut Parts, clock| {
            let (positions, reached, more) = parts.ask(FeedCursor::Clock { clock: Clock(clock) }, 0, 8);
            assert_eq!((positions, more), (vec![], None), "a clock is answered with its batch");
            reached.map(|number| parts.ask(batch(number), 0, 8).0)
        };
        assert_eq!(since(&mut parts, 2), None, "the feed began later");
        assert_eq!(since(&mut parts, 3), Some(vec![20, 30, 40]));
        assert_eq!(since(&mut parts, 4), Some(vec![20, 30, 40]), "the frontier came from 3 to 5 at once");
        assert_eq!(since(&mut parts, 6), Some(vec![40]));
        assert_eq!(since(&mut parts, 7), None, "the frontier has not reached it");
        parts.feed.publish(Clock(6), &mut parts.log);
        assert_eq!(since(&mut parts, 6), Some(vec![40]), "a clock that is announced twice began the first time");
        for clock in 7..10 + MOST_CLOCKS as u64 {
            parts.feed.publish(Clock(clock), &mut parts.log);
        }
        assert_eq!(parts.feed.clocks.len(), MOST_CLOCKS);
        assert_eq!(since(&mut parts, 6), None, "the oldest clocks are forgotten");
    }

    #[test]
    fn feed_bounds_its_history_by_rows_and_makes_a_late_reader_start_over() {
        let mut parts = Parts::new();
        let _ = parts.page(FeedCursor::Now, 0, 8);
        let rows: Vec<u64> = (0..LEAST_HISTORY as u64 / 2).collect();
        for round in 1..=5 {
            parts.change(&rows);
            parts.feed.publish(Clock(round), &mut parts.log);
            parts.feed.bound(parts.rows.len(), &mut parts.log);
        }
        assert_eq!(parts.ask(batch(1), 0, 8), (vec![], None, None));
        assert_eq!(parts.ask(batch(4), 0, 2), (vec![0, 1], Some(6), Some(2)));
    }

    /// Keys of the model below.
    const KEYS: u64 = 60_000;

    /// One event in the life of a shard that is followed.
    #[derive(Clone, Debug)]
    enum Step {
        /// Rows are made or changed: `count` of them, `stride` apart.
        Change { first: u64, stride: u64, count: u64 },
        /// Rows are removed.
        Remove { first: u64, stride: u64, count: u64 },
        /// The reader asks for a page.
        Read,
        /// The frontier reaches the next clock.
        Clock,
        /// No reader asks until the feed stops.
        Idle,
        /// Another server takes over.
        NewHead,
    }

    /// The parts of a shard that the feed reads, and a reader that keeps a copy of its rows.
    struct Model {
        followers: Followers,
        rows: Rows<f32>,
        /// How often each key was changed or removed.
        versions: Vec<u64>,
        reader: FeedReader,
        /// The version of each row that the reader has.
        copy: BTreeMap<u64, u64>,
        now: Time,
        frontier: Clock,
        /// The versions when the frontier reached each clock.
        at_clocks: Vec<Vec<u64>>,
        plan: u64,
    }

    impl Model {
        fn new() -> Self {
            let spec = TableSpec::sparse("t", 1);
            Self {
                followers: Followers::new(&spec, PlanNumber(1), None),
                rows: Rows::new(&spec, PositionRange::ALL, &Updaters::builtin(), 0).expect("a known updater"),
                versions: vec![0; KEYS as usize],
                reader: FeedReader::new(PositionRange::ALL, FeedCursor::Rows),
                copy: BTreeMap::new(),
                now: Time(0),
                frontier: Clock(0),
                at_clocks: vec![vec![0; KEYS as usize]],
                plan: 1,
            }
        }

        fn take(&mut self, step: &Step) {
            let keys = |first: u64, stride: u64, count: u64| -> Vec<u64> {
                let keys: BTreeSet<u64> = (0..count).map(|index| (first + index * stride) % KEYS).collect();
                keys.into_iter().collect()
            };
            match *step {
                Step::Change { first, stride, count } => {
                    let keys = keys(first, stride, count);
                    keys.iter().for_each(|key| self.versions[*key as usize] += 1);
                    let resolved = self.rows.make_rows(&keys).expect("there is room");
                    let slots: Vec<u32> = resolved.each().collect();
                    self.followers.changed(keys.into_iter().zip(slots));
                }
                Step::Remove { first, stride, count } => {
                    let keys = keys(first, stride, count);
                    let there = self.rows.rows_at(&keys).expect("positions of this shard");
                    there.iter().for_each(|(key, _)| self.versions[*key as usize] += 1);
                    self.rows.remove(&there.iter().map(|row| row.0).collect::<Vec<_>>());
                    self.followers.removed(&there);
                }
                Step::Read => {
                    self.read();
                }
                Step::Clock => {
                    self.frontier = self.frontier.next();
                    self.at_clocks.push(self.versions.clone());
                    let Followers { feed, log, .. } = &mut self.followers;
                    feed.publish(self.frontier, log);
                    feed.bound(self.rows.len(), log);
                    self.followers.trim();
                }
                Step::Idle => {
                    self.now = self.now + Span::from_secs(61);
                    self.followers.tick_feed(self.now, self.rows.len());
                }
                Step::NewHead => {
                    self.plan += 1;
                    self.followers.start_over(PlanNumber(self.plan));
                }
            }
        }

        /// Reads a page. Returns whether the reader is up to date now.
        fn read(&mut self) -> bool {
            const MOST: usize = 9_000;
            self.followers.read_feed(self.now, self.rows.len());
            let (cursor, first) = self.reader.question();
            let range = PositionRange { first, ..PositionRange::ALL };
            let Followers { feed, log, .. } = &mut self.followers;
            let mut answer = Pulled::empty(TableId(0), ShardId(0), 1);
            let positions = feed.page(cursor, range, MOST, log, &self.rows, &mut answer);
            let step = self.reader.take(&FeedPage { clock: self.frontier, answer });
            if step == FeedStep::StartsOver {
                self.copy.clear();
                return false;
            }
            let there: BTreeSet<u64> =
                self.rows.rows_at(&positions).expect("of this shard").into_iter().map(|row| row.0).collect();
            for position in positions {
                match there.contains(&position) {
                    true => drop(self.copy.insert(position, self.versions[position as usize])),
                    false => drop(self.copy.remove(&position)),
                }
            }
            step == FeedStep::Rows { is_up_to_date: true }
        }

        /// The version of each row that exists, by key.
        fn expected(&self) -> BTreeMap<u64, u64> {
            let (positions, ..) = self.rows.scan_shown(PositionRange::ALL, usize::MAX);
            positions.into_iter().map(|key| (key, self.versions[key as usize])).collect()
        }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let keys = (0..KEYS, prop::sample::select(vec![1u64, 7, 1009]), 1..25_000u64);
        let step = prop_oneof![
            6 => keys.clone().prop_map(|(first, stride, count)| Step::Change { first, stride, count }),
            2 => keys.prop_map(|(first, stride, count)| Step::Remove { first, stride, count }),
            12 => Just(Step::Read),
            4 => Just(Step::Clock),
            1 => Just(Step::Idle),
            1 => Just(Step::NewHead),
        ];
        prop::collection::vec(step, 1..60)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A reader's copy equals the table, even if the log was merged, trimmed or started over
        /// between its pages. The reader never claims a clock of which it lacks changes.
        #[test]
        fn feed_makes_its_readers_copy_equal_to_the_table(steps in steps()) {
            let mut model = Model::new();
            for step in &steps {
                model.take(step);
                let claimed = &model.at_clocks[model.reader.clock().0 as usize];
                for (key, version) in &model.copy {
                    prop_assert!(*version >= claimed[*key as usize], "key {key} of clock {:?}", model.reader.clock());
                }
            }
            let mut pages = 0;
            while !model.read() {
                pages += 1;
                prop_assert!(pages < 200, "the reader is never up to date");
            }
            let expected = model.expected();
            let stale = model.copy.iter().find(|(key, version)| expected.get(*key) != Some(*version));
            prop_assert!(stale.is_none(), "the reader's (key, version) {:?} is stale", stale);
            prop_assert_eq!(model.copy.len(), expected.len());
        }
    }

    #[test]
    fn feed_reader_keeps_up_with_a_table_that_changes_whole_every_clock() {
        let mut model = Model::new();
        let all = Step::Change { first: 0, stride: 1, count: KEYS };
        let mut started_over = 0;
        model.take(&all);
        for round in 0..200 {
            if round % 2 == 0 {
                model.take(&all);
                model.take(&Step::Clock);
            }
            let before = model.copy.len();
            model.read();
            started_over += usize::from(model.copy.len() < before);
        }
        assert_eq!((started_over, model.copy.len()), (0, KEYS as usize));
        assert!(model.reader.clock() > Clock(80), "it follows {:?} of {:?}", model.reader.clock(), model.frontier);
    }
}
