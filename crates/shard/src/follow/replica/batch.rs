//! The open replication batch: what changed at the head since the last batch was closed, and when
//! it is due to be closed.
//!
//! A row that several workers push to while the batch is open is sent down the chain once. So the
//! batch waits for the workers that push to the same rows and, while it is small, for the batch
//! before it, which those workers may be waiting for. A worker that pushes alone does not wait.

use crate::follow::replica::dirty_rows::DirtyRows;
use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, Span, Time, WorkerId};

/// A batch of this many bytes is closed at once.
const LARGE_BYTES: usize = 16 << 20;
/// While others are under way, one with fewer than this is not worth closing.
const STRIDE_BYTES: usize = 2 << 20;
/// One with no more than this gains nothing by waiting.
const SMALL_BYTES: usize = 64 << 10;
/// While nothing is under way, none stays open for longer than this,
const LONGEST_OPEN: Span = Span::from_millis(16);
/// and none that nothing was added to for this long. (While something is, whoever waits for that
/// can add nothing.)
const QUIET: Span = Span::from_millis(4);
/// A clock alone waits for so long, and goes with what comes next, if anything does.
const CLOCK_ALONE: Span = Span::from_millis(1);
/// Batches that may be under way to the successor.
const UNDER_WAY: usize = 4;

/// A row by its position and slot.
type Row = (u64, u32);

/// The open batch.
#[derive(Default)]
pub(crate) struct OpenBatch {
    /// Rows that changed since the last batch, and sums by clock.
    pub rows: DirtyRows,
    pub held: BTreeMap<Clock, DirtyRows>,
    /// Whether a read waits for it.
    pub needed: bool,
    /// Since when something has changed, and when something did last.
    open: Option<(Time, Time)>,
    /// Whose pushes it holds, and of how many workers the last one held some.
    pushers: BTreeSet<WorkerId>,
    pushers_before: usize,
}

impl OpenBatch {
    /// Something of a stream is finished, or the frontier has moved.
    pub fn note(&mut self, now: Time) {
        let (_, last) = self.open.get_or_insert((now, now));
        *last = now;
    }

    /// The last batch that was under way has arrived: whoever waited for it will push again, and is
    /// given the time to.
    pub fn arrived(&mut self, now: Time) {
        self.open = self.open.map(|_| (now, now));
    }

    /// This worker has pushed.
    pub fn pushed(&mut self, worker: WorkerId) {
        self.pushers.insert(worker);
    }

    /// Whether anything has changed.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether it should be closed now, where a row takes so many bytes, and so many batches are
    /// under way.
    pub fn is_due(&self, now: Time, row_bytes: usize, under_way: usize) -> bool {
        let Some((open, last)) = self.open.filter(|_| under_way < UNDER_WAY) else { return false };
        let all = || std::iter::once(&self.rows).chain(self.held.values());
        let bytes = all().map(DirtyRows::len).sum::<usize>() * row_bytes;
        if self.needed || bytes >= LARGE_BYTES {
            return true;
        }
        let is_quiet = now.since(last) >= QUIET;
        // Whether each row was pushed to as often as there are workers that push.
        let pushers = self.pushers.len().max(self.pushers_before);
        let has_all = all().map(DirtyRows::times).sum::<usize>() * row_bytes >= pushers * bytes;
        match under_way {
            _ if bytes == 0 => now.since(last) >= CLOCK_ALONE,
            0 => has_all || is_quiet || bytes <= SMALL_BYTES || now.since(open) >= LONGEST_OPEN,
            _ => has_all && bytes >= STRIDE_BYTES,
        }
    }

    /// All of it, by position; another is begun with whatever changes next.
    pub fn close(&mut self) -> (Vec<Row>, Vec<(Clock, Vec<Row>)>) {
        (self.open, self.needed) = (None, false);
        self.pushers_before = std::mem::take(&mut self.pushers).len();
        let sums = std::mem::take(&mut self.held).into_iter().map(|(clock, mut dirty)| (clock, dirty.take()));
        (self.rows.take(), sums.collect())
    }

    /// All rows have been put in order.
    pub fn renumber(&mut self, moves: &[u32]) {
        self.rows.renumber(moves);
        self.held.values_mut().for_each(|dirty| dirty.renumber(moves));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: usize = 1 << 10;

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    /// A worker pushes to these rows.
    fn push(batch: &mut OpenBatch, worker: u32, rows: std::ops::Range<u32>, now: Time) {
        batch.rows.extend(rows.map(|row| (u64::from(row), row)));
        batch.pushed(WorkerId(worker));
        batch.note(now);
    }

    #[test]
    fn a_worker_that_pushes_alone_is_not_kept_waiting() {
        let mut batch = OpenBatch::default();
        assert!(!batch.is_due(at(9), ROW, 0), "nothing has changed");
        push(&mut batch, 0, 0..1000, at(0));
        assert!(batch.is_due(at(0), ROW, 0));
        assert!(!batch.is_due(at(0), ROW, 1), "a megabyte, and another is under way");
        push(&mut batch, 0, 1000..5000, at(0));
        assert!(batch.is_due(at(0), ROW, 1) && !batch.is_due(at(0), ROW, UNDER_WAY));
    }

    #[test]
    fn rows_of_several_wait_for_all_of_them() {
        let mut batch = OpenBatch::default();
        for worker in 0..4 {
            push(&mut batch, worker, 0..5000, at(0));
        }
        assert_eq!(batch.close().0.len(), 5000);
        for worker in 0..4 {
            assert!(!batch.is_due(at(10), ROW, 0) && !batch.is_due(at(10), ROW, 1));
            push(&mut batch, worker, 0..5000, at(10));
        }
        assert!(batch.is_due(at(10), ROW, 0) && batch.is_due(at(10), ROW, 1));
    }

    #[test]
    fn nobody_is_waited_for_in_vain() {
        let mut batch = OpenBatch::default();
        push(&mut batch, 0, 0..100, at(0));
        push(&mut batch, 1, 100..200, at(0));
        assert!(!batch.is_due(at(0), ROW, 0), "each row was pushed to once, by one of two");
        assert!(!batch.is_due(at(3), ROW, 0) && batch.is_due(at(4), ROW, 0), "nothing more comes");
        assert!(!batch.is_due(at(4), ROW, 1), "until something arrives, for which they may be waiting");
        batch.arrived(at(4));
        assert!(!batch.is_due(at(7), ROW, 0) && batch.is_due(at(8), ROW, 0), "they have the time to go on");
        push(&mut batch, 0, 200..300, at(20));
        assert!(batch.is_due(at(20), ROW, 0) && !batch.is_due(at(20), ROW, 1), "it was open for long");
        batch.needed = true;
        assert!(batch.is_due(at(20), ROW, 1));
    }
}
