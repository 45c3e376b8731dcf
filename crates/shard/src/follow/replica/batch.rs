//! When a replication batch is due: how long the head lets changes gather before it sends them down
//! the chain.
//!
//! A row that several workers push to while the batch is open is sent down the chain once. So the
//! batch waits for all workers that push to the same rows. While it is small, it also waits until
//! the batch before it is acknowledged, because those workers may be waiting for that. The batch of
//! a worker that pushes alone does not wait.

use std::collections::BTreeSet;
use types::{Span, Time, WorkerId};

/// A batch of at least this many bytes is closed at once.
const LARGE_BYTES: usize = 16 << 20;
/// While other batches are under way, a batch with fewer bytes than this stays open.
const STRIDE_BYTES: usize = 2 << 20;
/// A batch with at most this many bytes gains nothing by waiting.
const SMALL_BYTES: usize = 64 << 10;
/// While no batch is under way, a batch is open for at most this long.
const LONGEST_OPEN: Span = Span::from_millis(16);
/// While no batch is under way, a batch is closed when nothing was added to it for this long.
/// (While one is, the workers that wait for it can add nothing.)
const QUIET: Span = Span::from_millis(4);
/// A batch without changed rows, such as a clock alone, waits this long for rows to travel with.
const CLOCK_ALONE: Span = Span::from_millis(1);
/// How many batches may be under way to the successor.
const UNDER_WAY: usize = 4;

/// What the open batch holds, in numbers, and since when it is open.
#[derive(Default)]
pub(crate) struct BatchTiming {
    /// How many rows and sums changed.
    rows: usize,
    /// How many changes there were, repeated ones included.
    times: usize,
    /// Whether a read waits for the batch.
    needed: bool,
    /// When the batch got its first change and its last one; `None` while it is empty.
    open: Option<(Time, Time)>,
    /// Workers whose pushes the batch holds.
    pushers: BTreeSet<WorkerId>,
    /// How many workers pushed to the batch before.
    pushers_before: usize,
}

impl BatchTiming {
    /// Counts changes: `rows` rows or sums changed for the first time in this batch, and there were
    /// `times` changes in all.
    pub fn changed(&mut self, rows: usize, times: usize) {
        self.rows += rows;
        self.times += times;
    }

    /// A read waits for the batch.
    pub fn need(&mut self) {
        self.needed = true;
    }

    /// An item of a stream is finished, or the frontier has moved.
    pub fn note(&mut self, now: Time) {
        let (_, last) = self.open.get_or_insert((now, now));
        *last = now;
    }

    /// The last batch under way has arrived. Workers that waited for it will push again, so the
    /// waiting times start anew.
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

    /// Whether to close the batch now. `row_bytes`: bytes of one row; `under_way`: how many batches
    /// are unacknowledged.
    pub fn is_due(&self, now: Time, row_bytes: usize, under_way: usize) -> bool {
        let Some((open, last)) = self.open.filter(|_| under_way < UNDER_WAY) else { return false };
        let bytes = self.rows * row_bytes;
        if self.needed || bytes >= LARGE_BYTES {
            return true;
        }
        let is_quiet = now.since(last) >= QUIET;
        // On average, each row was pushed to once by every worker that pushes.
        let pushers = self.pushers.len().max(self.pushers_before);
        let has_all = self.times >= pushers * self.rows;
        match under_way {
            _ if bytes == 0 => now.since(last) >= CLOCK_ALONE,
            0 => has_all || is_quiet || bytes <= SMALL_BYTES || now.since(open) >= LONGEST_OPEN,
            _ => has_all && bytes >= STRIDE_BYTES,
        }
    }

    /// The batch is closed. The next change begins another one.
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

    /// A worker pushes to these rows. Rows before `known` have changed in this batch already.
    fn push_known(batch: &mut BatchTiming, worker: u32, rows: std::ops::Range<usize>, known: usize, now: Time) {
        batch.changed(rows.end.saturating_sub(rows.start.max(known)), rows.len());
        batch.pushed(WorkerId(worker));
        batch.note(now);
    }

    fn push(batch: &mut BatchTiming, worker: u32, rows: std::ops::Range<usize>, now: Time) {
        push_known(batch, worker, rows, 0, now);
    }

    #[test]
    fn batch_of_a_lone_worker_does_not_wait() {
        let mut batch = BatchTiming::default();
        assert!(!batch.is_due(at(9), ROW, 0), "nothing has changed");
        push(&mut batch, 0, 0..1000, at(0));
        assert!(batch.is_due(at(0), ROW, 0));
        assert!(!batch.is_due(at(0), ROW, 1), "it is small, and another batch is under way");
        push(&mut batch, 0, 1000..5000, at(0));
        assert!(batch.is_due(at(0), ROW, 1) && !batch.is_due(at(0), ROW, UNDER_WAY));
    }

    #[test]
    fn batch_waits_for_all_workers_that_push_to_its_rows() {
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
    fn batch_stops_waiting_when_no_more_pushes_come() {
        let mut batch = BatchTiming::default();
        push(&mut batch, 0, 0..100, at(0));
        push(&mut batch, 1, 100..200, at(0));
        assert!(!batch.is_due(at(0), ROW, 0), "each row was pushed to by one of two workers only");
        assert!(!batch.is_due(at(3), ROW, 0) && batch.is_due(at(4), ROW, 0), "nothing more comes");
        assert!(!batch.is_due(at(4), ROW, 1), "workers may be waiting for the batch under way");
        batch.arrived(at(4));
        assert!(!batch.is_due(at(7), ROW, 0) && batch.is_due(at(8), ROW, 0), "workers get time to push again");
        push(&mut batch, 0, 200..300, at(20));
        assert!(batch.is_due(at(20), ROW, 0) && !batch.is_due(at(20), ROW, 1), "it was open for too long");
        batch.need();
        assert!(batch.is_due(at(20), ROW, 1));
    }
}
