//! The reader's end of the change feed: how far a reader has followed one shard, and which page it
//! asks for next.
//!
//! A reader asks for the changes since its cursor. The shard answers in pages, by position, and the
//! reader asks for all pages of an answer with the same cursor. Each page says up to which batch of
//! the change log it has the changes. With the last page, the reader has reached the lowest of
//! these batches.
//!
//! A reader starts over, with all rows, if the shard cannot tell what changed since the cursor, or
//! if another server answers between two pages.

use crate::{ASK_AGAIN, FeedCursor, Pulled};
use types::{Clock, Position, PositionRange};

/// A page of the change feed: what a shard answered. It reaches the program's feed as the shard
/// made it.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedPage {
    /// The frontier when the shard made the page: the clock in the head of its message.
    pub clock: Clock,
    /// The rows, and how far they reach.
    pub answer: Pulled,
}

/// How far a reader has followed one shard.
///
/// ```
/// use types::{Clock, PositionRange, ShardId, TableId};
/// use wire::{FeedCursor, FeedPage, FeedReader, FeedStep, Pulled};
///
/// let mut reader = FeedReader::new(PositionRange::ALL, FeedCursor::Now);
/// let answer = Pulled { sequence: Some((1, 5)), contains: 5, ..Pulled::empty(TableId(0), ShardId(0), 1) };
/// assert_eq!(reader.take(&FeedPage { clock: Clock(2), answer }), FeedStep::Rows { is_up_to_date: true });
/// assert_eq!(reader.question().0, FeedCursor::Batch { sequence: 1, number: 5 });
/// ```
#[derive(Clone, Debug)]
pub struct FeedReader {
    range: PositionRange,
    cursor: FeedCursor,
    /// The position at which the next page starts.
    first: Position,
    /// Between the pages of an answer: what they have reached.
    reaches: Option<Reached>,
    clock: Clock,
}

/// The point that a reader has reached after an answer.
#[derive(Clone, Copy, Debug)]
struct Reached {
    sequence: u64,
    number: u64,
    /// The clock that it has reached; `None` if the answer left changes out.
    clock: Option<Clock>,
}

/// What a reader does with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedStep {
    /// Asks again soon: the shard cannot answer yet.
    AskAgain,
    /// Drops the page and everything that it knows of this shard. The next pages bring all rows.
    StartsOver,
    /// Takes the rows of the page, if any.
    Rows {
        /// Whether the reader now has all changes from before the page was made.
        is_up_to_date: bool,
    },
}

impl FeedReader {
    /// A reader that follows a shard from a cursor on.
    #[must_use]
    pub fn new(range: PositionRange, cursor: FeedCursor) -> Self {
        let clock = if let FeedCursor::Clock { clock } = cursor { clock } else { Clock(0) };
        Self { range, cursor, first: range.first, reaches: None, clock }
    }

    /// The positions of the shard.
    #[must_use]
    pub fn range(&self) -> PositionRange {
        self.range
    }

    /// The next request: the cursor, and the position at which the page starts.
    #[must_use]
    pub fn question(&self) -> (FeedCursor, Position) {
        (self.cursor, self.first)
    }

    /// The reader has all changes from before the frontier reached this clock.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Takes a page.
    pub fn take(&mut self, page: &FeedPage) -> FeedStep {
        let FeedPage { clock, answer } = page;
        let Some((sequence, number)) = answer.sequence else { return self.start_over() };
        if answer.sequence == Some(ASK_AGAIN) {
            return FeedStep::AskAgain;
        }
        let last = answer.contains;
        let now = Reached { sequence, number, clock: (number == last).then_some(*clock) };
        let reaches = self.reaches.get_or_insert(now);
        if reaches.sequence != sequence {
            // Another server answers, whose rows may differ.
            return self.start_over();
        }
        if number < reaches.number {
            *reaches = now;
        }
        let reaches = *reaches;
        if let Some(more) = answer.more {
            self.first = more;
            return FeedStep::Rows { is_up_to_date: false };
        }
        let is_up_to_date = self.first == self.range.first && reaches.number == last;
        self.cursor = FeedCursor::Batch { sequence, number: reaches.number };
        self.clock = reaches.clock.unwrap_or(self.clock);
        self.first = self.range.first;
        self.reaches = None;
        FeedStep::Rows { is_up_to_date }
    }

    fn start_over(&mut self) -> FeedStep {
        let clock = self.clock;
        *self = Self { clock, ..Self::new(self.range, FeedCursor::Rows) };
        FeedStep::StartsOver
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ShardId, TableId};

    fn shard(cursor: FeedCursor) -> FeedReader {
        FeedReader::new(PositionRange { first: Position(10), last: Position(99) }, cursor)
    }

    fn page(clock: u64, reaches: (u64, u64), last: u64, more: Option<u64>) -> FeedPage {
        let empty = Pulled::empty(TableId(0), ShardId(0), 1);
        let answer = Pulled { sequence: Some(reaches), contains: last, more: more.map(Position), ..empty };
        FeedPage { clock: Clock(clock), answer }
    }

    #[test]
    fn feed_continues_from_what_the_first_page_reached() {
        let mut shard = shard(FeedCursor::Rows);
        assert_eq!(shard.question(), (FeedCursor::Rows, Position(10)));
        assert_eq!(shard.take(&page(2, (1, 5), 5, Some(40))), FeedStep::Rows { is_up_to_date: false });
        assert_eq!(shard.question(), (FeedCursor::Rows, Position(40)));
        assert_eq!(shard.clock(), Clock(0), "the answer is not complete yet");
        // Batch 6 was closed between the pages: rows before position 40 may have changed in it.
        assert_eq!(shard.take(&page(3, (1, 6), 6, None)), FeedStep::Rows { is_up_to_date: false });
        assert_eq!(shard.question(), (FeedCursor::Batch { sequence: 1, number: 5 }, Position(10)));
        assert_eq!(shard.clock(), Clock(2));
        assert_eq!(shard.take(&page(3, (1, 6), 6, None)), FeedStep::Rows { is_up_to_date: true });
        assert_eq!(shard.question(), (FeedCursor::Batch { sequence: 1, number: 6 }, Position(10)));
        assert_eq!(shard.clock(), Clock(3));
    }

    #[test]
    fn feed_continues_from_the_lowest_batch_that_a_page_reached() {
        let mut shard = shard(FeedCursor::Batch { sequence: 1, number: 3 });
        assert_eq!(shard.take(&page(2, (1, 9), 9, Some(40))), FeedStep::Rows { is_up_to_date: false });
        // This page tells what changed up to batch 7 and no further.
        assert_eq!(shard.take(&page(3, (1, 7), 12, None)), FeedStep::Rows { is_up_to_date: false });
        assert_eq!(shard.question(), (FeedCursor::Batch { sequence: 1, number: 7 }, Position(10)));
        assert_eq!(shard.clock(), Clock(0), "batches 8 and 9 may hold changes of earlier clocks");
    }

    #[test]
    fn feed_keeps_its_clock_while_batches_are_missing() {
        let mut shard = shard(FeedCursor::Clock { clock: Clock(4) });
        assert_eq!(shard.clock(), Clock(4));
        // The page covers batches up to 7 of 9: the log held too much for one answer.
        assert_eq!(shard.take(&page(8, (1, 7), 9, None)), FeedStep::Rows { is_up_to_date: false });
        assert_eq!(shard.clock(), Clock(4));
        assert_eq!(shard.take(&page(8, (1, 9), 9, None)), FeedStep::Rows { is_up_to_date: true });
        assert_eq!(shard.clock(), Clock(8));
    }

    #[test]
    fn feed_starts_over_if_changes_are_lost_or_another_server_answers() {
        let mut behind = shard(FeedCursor::Batch { sequence: 1, number: 3 });
        let mut nothing = page(9, (0, 0), 90, None);
        nothing.answer.sequence = None;
        assert_eq!(behind.take(&nothing), FeedStep::StartsOver);
        assert_eq!(behind.question(), (FeedCursor::Rows, Position(10)));

        let mut moved = shard(FeedCursor::Rows);
        assert_eq!(moved.take(&page(2, (1, 5), 5, Some(40))), FeedStep::Rows { is_up_to_date: false });
        assert_eq!(moved.take(&page(2, (2, 5), 5, None)), FeedStep::StartsOver);
        assert_eq!(moved.question(), (FeedCursor::Rows, Position(10)));
    }

    #[test]
    fn feed_asks_again_if_the_shard_cannot_answer_yet() {
        let mut shard = shard(FeedCursor::Now);
        assert_eq!(shard.take(&page(2, ASK_AGAIN, 5, None)), FeedStep::AskAgain);
        assert_eq!(shard.question(), (FeedCursor::Now, Position(10)));
        assert_eq!(shard.clock(), Clock(0));
    }
}
