//! Pending rows: rows that only held contributions have made so far. They have a slot, but a
//! reader's scan does not show them before their clock is applied.
//!
//! Only an `ordered` table that combines by `clock` has any. Other tables pay nothing for them.

use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, Placement, TableShape, TableSpec};

/// The pending rows of a shard, by position.
#[derive(Debug)]
pub(crate) struct PendingRows {
    /// Whether the table can have any.
    kept: bool,
    positions: BTreeSet<u64>,
    /// Positions that each held clock makes or touches.
    by_clock: BTreeMap<Clock, BTreeSet<u64>>,
}

impl PendingRows {
    /// No pending rows yet.
    pub fn new(spec: &TableSpec) -> Self {
        let scanned = matches!(spec.shape, TableShape::Sparse { placement: Placement::Ordered, .. });
        let kept = scanned && spec.combine.holds_clocks();
        Self { kept, positions: BTreeSet::new(), by_clock: BTreeMap::new() }
    }

    /// The positions of all pending rows, and those that each held clock makes.
    pub fn parts(&self) -> (Vec<u64>, Vec<(Clock, Vec<u64>)>) {
        let by_clock = self.by_clock.iter().map(|(clock, positions)| (*clock, positions.iter().copied().collect()));
        (self.positions.iter().copied().collect(), by_clock.collect())
    }

    /// The pending rows that [`parts`](Self::parts) gave.
    pub fn from_parts(spec: &TableSpec, (positions, by_clock): (Vec<u64>, Vec<(Clock, Vec<u64>)>)) -> Self {
        let by_clock = by_clock.into_iter().map(|(clock, positions)| (clock, positions.into_iter().collect()));
        Self { positions: positions.into_iter().collect(), by_clock: by_clock.collect(), ..Self::new(spec) }
    }

    /// Whether the table can have pending rows.
    pub fn are_kept(&self) -> bool {
        self.kept
    }

    /// Whether the row at this position is pending.
    pub fn contains(&self, position: u64) -> bool {
        self.positions.contains(&position)
    }

    /// A contribution to `clock`, which is held, has made these rows or touched these pending rows.
    pub fn add(&mut self, clock: Clock, positions: &[u64]) {
        if self.kept && !positions.is_empty() {
            self.positions.extend(positions);
            self.by_clock.entry(clock).or_default().extend(positions);
        }
    }

    /// A read has made these rows, with their initial values: they are pending no more.
    pub fn read(&mut self, positions: impl Iterator<Item = u64>) {
        if self.positions.is_empty() {
            return;
        }
        for position in positions {
            self.positions.remove(&position);
        }
    }

    /// These rows were removed or reset.
    pub fn remove(&mut self, positions: &[u64]) {
        if self.positions.is_empty() && self.by_clock.is_empty() {
            return;
        }
        for position in positions {
            self.positions.remove(position);
            self.by_clock.values_mut().for_each(|made| {
                made.remove(position);
            });
        }
        self.by_clock.retain(|_, made| !made.is_empty());
    }

    /// A clock is applied, and its rows are pending no more; or it has failed, and they stay
    /// pending until another clock that touches them is applied.
    pub fn finish(&mut self, clock: Clock, applied: bool) {
        for position in self.by_clock.remove(&clock).into_iter().flatten().filter(|_| applied) {
            self.positions.remove(&position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Combine, Reduce};

    #[test]
    fn pending_rows_end_when_a_clock_that_made_them_is_applied() {
        let spec = TableSpec::sparse("t", 1).ordered().combine(Combine::Clock(Reduce::Sum));
        let mut pending_rows = PendingRows::new(&spec);
        pending_rows.add(Clock(0), &[1, 2]);
        pending_rows.add(Clock(1), &[2, 3]);
        pending_rows.finish(Clock(0), false);
        assert!([1, 2, 3].into_iter().all(|position| pending_rows.contains(position)), "the clock failed");
        pending_rows.finish(Clock(1), true);
        assert_eq!([1, 2, 3].map(|position| pending_rows.contains(position)), [true, false, false]);
        pending_rows.read([1].into_iter());
        assert!(!pending_rows.contains(1), "a read made it");
    }

    #[test]
    fn pending_rows_forget_removed_rows() {
        let spec = TableSpec::sparse("t", 1).ordered().combine(Combine::Clock(Reduce::Sum));
        let mut pending_rows = PendingRows::new(&spec);
        pending_rows.add(Clock(0), &[1, 2]);
        pending_rows.add(Clock(1), &[2]);
        pending_rows.remove(&[2, 9]);
        assert_eq!(pending_rows.parts(), (vec![1], vec![(Clock(0), vec![1])]));
        pending_rows.add(Clock(2), &[2]);
        pending_rows.finish(Clock(1), true);
        assert!(pending_rows.contains(2), "made again by a later clock");
    }

    #[test]
    fn pending_rows_are_kept_only_for_ordered_clock_tables() {
        let clock = Combine::Clock(Reduce::Sum);
        let cases = [
            (TableSpec::sparse("t", 1).ordered().combine(clock), true),
            (TableSpec::sparse("t", 1).ordered(), false),
            (TableSpec::sparse("t", 1).combine(clock), false),
            (TableSpec::dense("t", 9, 1).combine(clock), false),
        ];
        for (spec, expected) in cases {
            assert_eq!(PendingRows::new(&spec).are_kept(), expected, "{spec:?}");
        }
    }
}
