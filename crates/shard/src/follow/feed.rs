//! The change feed of a shard: readers ask what changed since a batch of the change log, and are
//! answered with rows as they are now. The shard keeps nothing for each reader. It keeps how far
//! back it can tell, and a reader that stands further back starts over with all rows.

use crate::changes::ChangeLog;
use crate::rows::Rows;
use std::collections::VecDeque;
use types::{Clock, PlanNumber, Position, PositionRange, Span, Time};
use update::Number;
use wire::FeedCursor;

/// A feed that nobody has read for this long keeps nothing any more.
const IDLE: Span = Span::from_secs(60);
/// How many positions are kept for feeds at least, however few rows there are.
const LEAST_HISTORY: usize = 64 << 10;
/// How many positions are looked through for one answer, unless one batch holds more.
const LOOKED_THROUGH: usize = 64 << 10;
/// Of how many clocks it is kept where they began.
const MOST_CLOCKS: usize = 1024;

/// How far back a shard can tell what changed.
pub(crate) struct Feed {
    /// Another for each head of the shard: batches of another head may hold other rows.
    sequence: u64,
    /// The batch after which every change can be told, while somebody reads.
    after: Option<u64>,
    read: Time,
    /// By clock: everything up to this batch changed before the frontier came to that clock.
    clocks: VecDeque<(Clock, u64)>,
}

/// A part of what a reader asks for.
pub(crate) struct FeedPage {
    /// The sequence and the batch that the reader has reached with the last part of what it asked
    /// for; none where it has to start over.
    pub reaches: Option<(u64, u64)>,
    /// Rows that changed or were deleted, in order.
    pub positions: Vec<u64>,
    /// Where the next part starts.
    pub more: Option<Position>,
}

impl Feed {
    /// A feed that nobody reads.
    pub fn new(plan: PlanNumber) -> Self {
        Self { sequence: plan.0, after: None, read: Time(0), clocks: VecDeque::new() }
    }

    /// The batch after which readers need the change log.
    pub fn needs_after(&self) -> Option<u64> {
        self.after
    }

    /// Somebody reads: from now on, changes are kept.
    pub fn read(&mut self, now: Time, log: &mut ChangeLog) {
        self.read = now;
        self.after.get_or_insert_with(|| log.close_if_changed());
    }

    /// Whether nobody has read for long.
    pub fn is_idle(&self, now: Time) -> bool {
        self.after.is_some() && self.read + IDLE < now
    }

    /// Keeps nothing any more.
    pub fn stop(&mut self) {
        self.after = None;
        self.clocks.clear();
    }

    /// The frontier has come to a clock.
    pub fn publish(&mut self, frontier: Clock, log: &mut ChangeLog) {
        if self.after.is_some() {
            self.clocks.push_back((frontier, log.close_if_changed()));
            if self.clocks.len() > MOST_CLOCKS {
                self.clocks.pop_front();
            }
        }
    }

    /// Keeps no more positions than a quarter of so many rows.
    pub fn bound(&mut self, rows: usize, log: &ChangeLog) {
        if let Some(after) = &mut self.after {
            *after = log.holds_after(LEAST_HISTORY.max(rows / 4)).max(*after);
        }
    }

    /// The rows that a reader at `cursor` lacks: the first `most` of those in `range`.
    pub fn page<T: Number>(
        &self,
        cursor: FeedCursor,
        range: PositionRange,
        most: usize,
        log: &mut ChangeLog,
        rows: &Rows<T>,
    ) -> FeedPage {
        let last = log.close_if_changed();
        let page = |to| FeedPage { reaches: Some((self.sequence, to)), positions: Vec::new(), more: None };
        let number = match cursor {
            FeedCursor::Now => Some(last),
            FeedCursor::Rows => {
                let (positions, _, more) = rows.scan_shown(range, most);
                return FeedPage { positions, more, ..page(last) };
            }
            FeedCursor::Clock { clock } => {
                let begun = self.clocks.partition_point(|(begun, _)| *begun <= clock);
                begun.checked_sub(1).map(|place| self.clocks[place].1)
            }
            FeedCursor::Batch { sequence, number } => Some(number).filter(|_| sequence == self.sequence),
        };
        let Some(number) = number.filter(|number| self.after.is_some_and(|after| (after..=last).contains(number)))
        else {
            return FeedPage { reaches: None, ..page(last) };
        };
        let (changes, to) = log.part_since(number, LOOKED_THROUGH);
        let lacking = &changes.rows[changes.rows.partition_point(|position| *position < range.first.0)..];
        let (now, later) = lacking.split_at(lacking.len().min(most));
        FeedPage { positions: now.to_vec(), more: later.first().copied().map(Position), ..page(to) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::TableSpec;
    use update::Updaters;

    /// A shard's rows 0, 10, …, 90 and what changes.
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

        fn page(&mut self, cursor: FeedCursor, first: u64, most: usize) -> FeedPage {
            self.feed.read(Time(0), &mut self.log);
            let range = PositionRange { first: Position(first), last: PositionRange::ALL.last };
            self.feed.page(cursor, range, most, &mut self.log, &self.rows)
        }

        /// Positions, what is reached and where to go on.
        fn ask(&mut self, cursor: FeedCursor, first: u64, most: usize) -> (Vec<u64>, Option<u64>, Option<u64>) {
            let FeedPage { reaches, positions, more } = self.page(cursor, first, most);
            if let Some((sequence, _)) = reaches {
                assert_eq!(sequence, 7, "the sequence is the plan's number");
            }
            (positions, reaches.map(|reaches| reaches.1), more.map(|position| position.0))
        }
    }

    fn batch(number: u64) -> FeedCursor {
        FeedCursor::Batch { sequence: 7, number }
    }

    #[test]
    fn feed_brings_what_changed_since_the_readers_batch_in_pages() {
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
    fn feed_brings_all_rows_to_a_reader_that_has_none() {
        let mut parts = Parts::new();
        let rows = |from: u64, to: u64| (from..to).map(|row| row * 10).collect::<Vec<u64>>();
        assert_eq!(parts.ask(FeedCursor::Rows, 0, 8), (rows(0, 8), Some(0), Some(80)));
        assert_eq!(parts.ask(FeedCursor::Rows, 80, 8), (rows(8, 10), Some(0), None));
    }

    #[test]
    fn feed_starts_a_reader_over_that_it_knows_nothing_of() {
        let mut parts = Parts::new();
        parts.change(&[10]);
        let _ = parts.page(FeedCursor::Now, 0, 8);
        for (cursor, why) in [
            (FeedCursor::Batch { sequence: 6, number: 1 }, "another head has counted these batches"),
            (batch(2), "there is no such batch"),
            (batch(0), "what changed before the feed began is not kept"),
            (FeedCursor::Clock { clock: Clock(3) }, "no clock has begun since"),
        ] {
            assert_eq!(parts.ask(cursor, 0, 8), (vec![], None, None), "{why}");
        }
        parts.feed.stop();
        parts.change(&[20]);
        assert_eq!(parts.ask(batch(1), 0, 8), (vec![], None, None), "nothing is kept while nobody reads");
    }

    #[test]
    fn feed_tells_what_changed_since_a_clock_that_it_holds() {
        let mut parts = Parts::new();
        let _ = parts.page(FeedCursor::Now, 0, 8);
        for (clock, position) in [(3, 10), (5, 20), (6, 30)] {
            parts.change(&[position]);
            parts.feed.publish(Clock(clock), &mut parts.log);
        }
        parts.change(&[40]);
        let since = |parts: &mut Parts, clock| parts.ask(FeedCursor::Clock { clock: Clock(clock) }, 0, 8);
        assert_eq!(since(&mut parts, 2), (vec![], None, None), "it was not there then");
        assert_eq!(since(&mut parts, 3).0, [20, 30, 40]);
        assert_eq!(since(&mut parts, 4).0, [20, 30, 40], "the frontier came from 3 to 5 at once");
        assert_eq!(since(&mut parts, 6).0, [40]);
        for clock in 7..10 + MOST_CLOCKS as u64 {
            parts.feed.publish(Clock(clock), &mut parts.log);
        }
        assert_eq!(parts.feed.clocks.len(), MOST_CLOCKS);
        assert_eq!(since(&mut parts, 6), (vec![], None, None), "so many clocks are not kept");
    }

    #[test]
    fn feed_keeps_history_by_rows_and_tells_a_reader_that_falls_behind() {
        let mut parts = Parts::new();
        let _ = parts.page(FeedCursor::Now, 0, 8);
        let rows: Vec<u64> = (0..LEAST_HISTORY as u64 / 2).collect();
        for round in 1..=5 {
            parts.change(&rows);
            parts.feed.publish(Clock(round), &mut parts.log);
            parts.feed.bound(parts.rows.len(), &parts.log);
        }
        assert_eq!(parts.ask(batch(1), 0, 8), (vec![], None, None));
        assert_eq!(parts.ask(batch(4), 0, 2), (vec![0, 1], Some(5), Some(2)));
    }
}
