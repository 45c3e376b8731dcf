//! When a replication batch is due: how long the head lets changes gather before it sends them down
//! the chain.
//!
//! A row that several workers push to while the batch is open is sent down the chain once. So the
//! batch waits for the workers that push to the same rows and, while it is small, for the batch
//! before it, which those workers may be waiting for. A worker that pushes alone does not wait.

use std::collections::BTreeSet;
use types::{Span, Time, WorkerId};

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

/// The changes since the last batch, by number.
#[derive(Default)]
pub(crate) struct BatchTiming {
    /// Rows and sums that changed, and how often.
    rows: usize,
    times: usize,
    /// Whether a read waits for the batch.
    needed: bool,
    /// Since when something has changed, and when something did last.
    open: Option<(Time, Time)>,
    /// Whose pushes it holds, and of how many workers the last one held some.
    pushers: BTreeSet<WorkerId>,
    pushers_before: usize,
}

impl BatchTiming {
    /// So many rows or sums have changed that had not before, and all together so many times.
    pub fn changed(&mut self, rows: usize, times: usize) {
        self.rows += rows;
        self.times += times;
    }

    /// A read waits for the batch.
    pub fn need(&mut self) {
        self.needed = true;
    }

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
        let bytes = self.rows * row_bytes;
        if self.needed || bytes >= LARGE_BYTES {
            return true;
        }
        let is_quiet = now.since(last) >= QUIET;
        // Whether each row was pushed to as often as there are workers that push.
        let pushers = self.pushers.len().max(self.pushers_before);
        let has_all = self.times >= pushers * self.rows;
        match under_way {
            _ if bytes == 0 => now.since(last) >= CLOCK_ALONE,
            0 => has_all || is_quiet || bytes <= SMALL_BYTES || now.since(open) >= LONGEST_OPEN,
            _ => has_all && bytes >= STRIDE_BYTES,
        }
    }

    /// The batch is closed; another is begun with whatever changes next.
    pub fn close(&mut self) {
        let pushers_before = std::mem::take(&mut self.pushers).len();
        *self = Self { pushers_before, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: usize = 1 << 10;

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    /// A worker pushes to these rows. Of these rows, those from `known` on have not changed in this
    /// batch before.
    fn push_known(batch: &mut BatchTiming, worker: u32, rows: std::ops::Range<usize>, known: usize, now: Time) {
        batch.changed(rows.end.saturating_sub(rows.start.max(known)), rows.len());
        batch.pushed(WorkerId(worker));
        batch.note(now);
    }

    fn push(batch: &mut BatchTiming, worker: u32, rows: std::ops::Range<usize>, now: Time) {
        push_known(batch, worker, rows, 0, now);
    }

    #[test]
    fn a_worker_that_pushes_alone_is_not_kept_waiting() {
        let mut batch = BatchTiming::default();
        assert!(!batch.is_due(at(9), ROW, 0), "nothing has changed");
        push(&mut batch, 0, 0..1000, at(0));
        assert!(batch.is_due(at(0), ROW, 0));
        assert!(!batch.is_due(at(0), ROW, 1), "a megabyte, and another is under way");
        push(&mut batch, 0, 1000..5000, at(0));
        assert!(batch.is_due(at(0), ROW, 1) && !batch.is_due(at(0), ROW, UNDER_WAY));
    }

    #[test]
    fn rows_of_several_wait_for_all_of_them() {
        let mut batch = BatchTiming::default();
        for worker in 0..4 {
            push_known(&mut batch, worker, 0..5000, if worker == 0 { 0 } else { 5000 }, at(0));
        }
        batch.close();
        for worker in 0..4 {
            assert!(!batch.is_due(at(10), ROW, 0) && !batch.is_due(at(10), ROW, 1));
            push_known(&mut batch, worker, 0..5000, if worker == 0 { 0 } else { 5000 }, at(10));
        }
        assert!(batch.is_due(at(10), ROW, 0) && batch.is_due(at(10), ROW, 1));
    }

    #[test]
    fn nobody_is_waited_for_in_vain() {
        let mut batch = BatchTiming::default();
        push(&mut batch, 0, 0..100, at(0));
        push(&mut batch, 1, 100..200, at(0));
        assert!(!batch.is_due(at(0), ROW, 0), "each row was pushed to once, by one of two");
        assert!(!batch.is_due(at(3), ROW, 0) && batch.is_due(at(4), ROW, 0), "nothing more comes");
        assert!(!batch.is_due(at(4), ROW, 1), "until something arrives, for which they may be waiting");
        batch.arrived(at(4));
        assert!(!batch.is_due(at(7), ROW, 0) && batch.is_due(at(8), ROW, 0), "they have the time to go on");
        push(&mut batch, 0, 200..300, at(20));
        assert!(batch.is_due(at(20), ROW, 0) && !batch.is_due(at(20), ROW, 1), "it was open for long");
        batch.need();
        assert!(batch.is_due(at(20), ROW, 1));
    }
}
