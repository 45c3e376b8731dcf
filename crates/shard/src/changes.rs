//! The change log of a shard: which rows changed, in numbered batches without values.
//!
//! Rows enter the open batch when they change. Closing it gives it the next number. Followers are
//! replicas, eager caches, and readers of deltas or of the change feed. Each has the number of the
//! last batch that it was sent. It is sent the rows that changed since, as they are at that moment.
//! So a row that changed often travels once, and a resend after a gap is one message with
//! everything since the follower's number.
//!
//! The log holds positions only. Slots are looked up when a follower encodes, so rows may move
//! meanwhile. Memory is bounded by rows, not by time: once the closed batches hold more than three
//! times as many positions as the oldest, the older half of them is merged into one.

pub(crate) mod changed_rows;

use crate::changes::changed_rows::ChangedRows;
use crate::rows::slot::{Forwarding, Move};
use crate::view::Row;
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use types::Clock;

/// Closed batches are not merged while they hold fewer positions than this.
const MERGE_ABOVE: usize = 64 << 10;

/// A closed batch: the changes since the batch before it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Batch {
    number: u64,
    changes: Changes,
}

/// Positions of changed rows, and of changed sums by the clock that they are held for. All rising.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Rows that changed.
    pub rows: Vec<u64>,
    /// Rows whose sums changed, by the clock that the sums are held for.
    pub sums: BTreeMap<Clock, Vec<u64>>,
}

impl Changes {
    fn len(&self) -> usize {
        self.rows.len() + self.sums.values().map(Vec::len).sum::<usize>()
    }

    fn add(&mut self, later: &Self) {
        merge(&mut self.rows, &later.rows);
        for (clock, rows) in &later.sums {
            merge(self.sums.entry(*clock).or_default(), rows);
        }
    }
}

/// Which rows of a shard changed.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog {
    /// The open batch: rows that changed since the last batch was closed.
    rows: ChangedRows,
    /// The open batch: rows whose sums changed, by held clock.
    sums: BTreeMap<Clock, ChangedRows>,
    /// The number of the last closed batch.
    last: u64,
    /// Closed batches after `trimmed`, oldest first.
    batches: VecDeque<Batch>,
    /// Batches up to this number are forgotten: every follower was sent them.
    trimmed: u64,
    /// How many positions `batches` hold.
    positions: usize,
    /// The older half is merged once `batches` hold more positions than this.
    merge_above: usize,
}

impl ChangeLog {
    /// Adds changed rows to the open batch. Returns how many were given, repeated ones included.
    pub fn note_rows(&mut self, rows: impl Iterator<Item = Row>) -> usize {
        self.rows.extend(rows)
    }

    /// Adds removed rows to the open batch. Their slots are free already.
    pub fn note_removed(&mut self, rows: &[Row]) {
        rows.iter().for_each(|(position, slot)| self.rows.removed(*position, *slot));
    }

    /// Adds rows whose sums, held for a clock, changed. Returns how many were given, repeated ones
    /// included.
    pub fn note_sums(&mut self, clock: Clock, rows: impl Iterator<Item = Row>) -> usize {
        self.sums.entry(clock).or_default().extend(rows)
    }

    /// How many rows and sums the open batch holds.
    pub fn open_len(&self) -> usize {
        self.rows.len() + self.sums.values().map(ChangedRows::len).sum::<usize>()
    }

    /// The number of the last closed batch. At a replica behind the head: the last batch that it
    /// holds.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Closes the open batch, even an empty one, and returns its number.
    pub fn close(&mut self) -> u64 {
        let sums = std::mem::take(&mut self.sums).into_iter().map(|(clock, mut rows)| (clock, rows.take()));
        let changes = Changes { sums: sums.collect(), rows: self.rows.take() };
        self.append(self.last.saturating_add(1), changes);
        self.last
    }

    /// Closes the open batch unless it is empty. Returns the number of the last batch.
    pub fn close_if_changed(&mut self) -> u64 {
        if self.open_len() > 0 { self.close() } else { self.last }
    }

    /// A replica has taken changes up to batch `number` from its predecessor.
    pub fn append(&mut self, number: u64, changes: Changes) {
        self.last = number;
        self.positions += changes.len();
        self.batches.push_back(Batch { number, changes });
        if self.positions > self.merge_above.max(MERGE_ABOVE) {
            self.merge();
        }
    }

    /// A replica begins or ends its backfill: it holds everything up to batch `number`, and no
    /// later change.
    pub fn start_at(&mut self, number: u64) {
        *self = Self { last: number, trimmed: number, ..Self::default() };
    }

    /// Everything that changed in closed batches after batch `from`. Earlier changes may be among
    /// them, because batches are merged. `from` must not be trimmed yet.
    pub fn since(&self, from: u64) -> Cow<'_, Changes> {
        debug_assert!(from >= self.trimmed, "changes after {from} were trimmed, up to {}", self.trimmed);
        let mut later = self.closed_after(from);
        let Some(batch) = later.next() else { return Cow::default() };
        let mut changes = Cow::Borrowed(&batch.changes);
        later.for_each(|batch| changes.to_mut().add(&batch.changes));
        changes
    }

    /// The first `most` rows, at position `first` or later, that changed in closed batches after
    /// batch `from`. Earlier changes may be among them. Also returns where the next page starts.
    pub fn rows_since(&self, from: u64, first: u64, most: usize) -> (Vec<u64>, Option<u64>) {
        let mut rows = Vec::new();
        for batch in self.closed_after(from) {
            let batch = &batch.changes.rows;
            let later = &batch[batch.partition_point(|position| *position < first)..];
            rows.extend_from_slice(&later[..later.len().min(most.saturating_add(1))]);
        }
        rows.sort_unstable();
        rows.dedup();
        let next = rows.get(most).copied();
        rows.truncate(most);
        (rows, next)
    }

    fn closed_after(&self, from: u64) -> impl Iterator<Item = &Batch> {
        self.batches.range(self.batches.partition_point(|batch| batch.number <= from)..)
    }

    /// The oldest batch number after which the closed batches hold at most `most` positions.
    pub fn holds_after(&self, most: usize) -> u64 {
        let mut positions = 0;
        let mut older = self.batches.iter().rev().skip_while(|batch| {
            positions += batch.changes.len();
            positions <= most
        });
        if self.positions <= most { self.trimmed } else { older.next().map_or(self.trimmed, |batch| batch.number) }
    }

    /// Forgets batches up to `number`: every follower was sent them.
    pub fn trim(&mut self, number: u64) {
        let number = number.min(self.last);
        if number <= self.trimmed {
            return;
        }
        self.trimmed = number;
        while self.batches.front().is_some_and(|batch| batch.number <= number) {
            let batch = self.batches.pop_front();
            self.positions -= batch.map_or(0, |batch| batch.changes.len());
        }
        if self.batches.is_empty() {
            self.merge_above = 0;
        }
    }

    /// Empties the open batch: the shard has no followers.
    pub fn forget_open(&mut self) {
        // Nothing is open in a shard without followers, which asks after every frame.
        if self.open_len() > 0 {
            self.rows.take();
            self.sums.clear();
        }
    }

    /// Rows have moved.
    pub fn rows_moved(&mut self, moves: &[Move]) {
        self.rows.rows_moved(moves);
        self.sums.values_mut().for_each(|rows| rows.rows_moved(moves));
    }

    /// All rows have moved: forgets slots that they have left, at most `most`. Returns how many it
    /// has looked at.
    pub fn forward(&mut self, forwarding: &Forwarding, most: usize) -> usize {
        let seen = self.rows.forward(forwarding, most);
        self.sums.values_mut().fold(seen, |seen, rows| seen + rows.forward(forwarding, most - seen))
    }

    /// Merges the older half of the batches into one. The newer half stays apart, so a follower
    /// that lacks only recent batches is sent only those.
    fn merge(&mut self) {
        let mut all = Changes::default();
        let mut number = self.trimmed;
        let mut merged = 0;
        while merged < self.positions.div_ceil(2)
            && let Some(batch) = self.batches.pop_front()
        {
            merged += batch.changes.len();
            number = batch.number;
            all.add(&batch.changes);
        }
        self.positions = self.positions - merged + all.len();
        self.merge_above = 3 * all.len();
        self.batches.push_front(Batch { number, changes: all });
    }
}

/// Merges rising positions into rising positions, each once.
fn merge(into: &mut Vec<u64>, more: &[u64]) {
    if more.is_empty() {
        return;
    }
    if into.last().is_none_or(|last| *last < more[0]) {
        return into.extend_from_slice(more);
    }
    let before = std::mem::take(into);
    into.reserve(before.len().max(more.len()));
    let mut before = before.into_iter().peekable();
    for &position in more {
        while let Some(earlier) = before.next_if(|earlier| *earlier < position) {
            into.push(earlier);
        }
        before.next_if_eq(&position);
        into.push(position);
    }
    into.extend(before);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const NEW: u32 = 1 << 31;

    fn note(log: &mut ChangeLog, positions: &[u64]) {
        log.note_rows(positions.iter().map(|position| (*position, *position as u32)));
    }

    #[test]
    fn change_log_tells_each_follower_what_changed_since_its_number() {
        let mut log = ChangeLog::default();
        note(&mut log, &[5, 3, 5]);
        log.note_sums(Clock(2), [(9, 9)].into_iter());
        assert_eq!((log.open_len(), log.close()), (3, 1));
        note(&mut log, &[4, 3]);
        log.note_sums(Clock(2), [(8, 8)].into_iter());
        note(&mut log, &[7]);
        assert_eq!((log.since(1).len(), log.close()), (0, 2));
        assert_eq!(log.close(), 3, "an empty batch has a number, too");
        assert_eq!(log.close_if_changed(), 3);
        assert_eq!(log.since(0).rows, [3, 4, 5, 7]);
        assert_eq!(log.since(0).sums, BTreeMap::from([(Clock(2), vec![8, 9])]));
        assert_eq!(log.since(1).rows, [3, 4, 7]);
        assert_eq!(log.since(2).len(), 0);
        log.trim(1);
        assert_eq!(log.since(1).rows, [3, 4, 7]);
        log.trim(9);
        assert_eq!((log.since(3).len(), log.batches.len()), (0, 0));
        log.start_at(7);
        assert_eq!((log.last(), log.close()), (7, 8));
    }

    #[test]
    fn change_log_knows_slots_only_while_a_batch_is_open() {
        let mut log = ChangeLog::default();
        log.note_rows([(10, 0)].into_iter());
        log.close();
        log.note_rows([(20, 1)].into_iter());
        log.rows_moved(&[Move { from: 0, to: NEW + 1 }, Move { from: 1, to: NEW }]);
        log.note_rows([(20, NEW), (30, 1)].into_iter());
        log.close();
        assert_eq!(log.since(0).rows, [10, 20, 30]);
    }

    #[test]
    fn change_log_memory_is_bounded_by_rows_not_by_time() {
        let mut log = ChangeLog::default();
        let rows = 2 * MERGE_ABOVE as u64;
        for first in 0..50 {
            log.note_rows((0..rows).map(|row| ((row + first) % rows, ((row + first) % rows) as u32)));
            log.close();
            assert!(log.positions <= 3 * rows as usize, "{}", log.positions);
        }
        assert_eq!((log.since(0).rows.len(), log.last()), (rows as usize, 50));
    }

    proptest! {
        #[test]
        fn change_log_reports_every_row_that_changed_since_a_batch(
            batches in prop::collection::vec(prop::collection::btree_set(0u64..40, 0..10), 1..12),
            from in 0usize..12,
        ) {
            let from = from.min(batches.len());
            let mut log = ChangeLog::default();
            for batch in &batches {
                note(&mut log, &batch.iter().copied().collect::<Vec<_>>());
                log.close();
            }
            let expected: BTreeSet<u64> = batches[from..].iter().flatten().copied().collect();
            log.trim(from as u64);
            prop_assert_eq!(&log.since(from as u64).rows, &expected.into_iter().collect::<Vec<_>>());
        }
    }
}
