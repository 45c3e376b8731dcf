//! Rows that so far only held contributions have made: they have a place, and no scan shows them
//! before their clock is applied.
//!
//! Only an ordered table that combines by clock has any. They are known by position, and cost other
//! tables nothing.

use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, Combine, Placement, TableShape, TableSpec};

/// The rows of a shard that are not there yet for a scan.
#[derive(Debug)]
pub(crate) struct PendingRows {
    /// Whether there can be any.
    kept: bool,
    positions: BTreeSet<u64>,
    /// Those that each held clock makes.
    by_clock: BTreeMap<Clock, BTreeSet<u64>>,
}

impl PendingRows {
    /// None yet, in a table of this kind.
    pub fn new(spec: &TableSpec) -> Self {
        let scanned = matches!(spec.shape, TableShape::Sparse { placement: Placement::Ordered, .. });
        let kept = scanned && matches!(spec.combine, Combine::Clock(_));
        Self { kept, positions: BTreeSet::new(), by_clock: BTreeMap::new() }
    }

    /// As data.
    pub fn parts(&self) -> (Vec<u64>, Vec<(Clock, Vec<u64>)>) {
        let by_clock = self.by_clock.iter().map(|(clock, positions)| (*clock, positions.iter().copied().collect()));
        (self.positions.iter().copied().collect(), by_clock.collect())
    }

    /// And back.
    pub fn from_parts(spec: &TableSpec, (positions, by_clock): (Vec<u64>, Vec<(Clock, Vec<u64>)>)) -> Self {
        let by_clock = by_clock.into_iter().map(|(clock, positions)| (clock, positions.into_iter().collect()));
        Self { positions: positions.into_iter().collect(), by_clock: by_clock.collect(), ..Self::new(spec) }
    }

    /// Whether there can be any in this table.
    pub fn are_kept(&self) -> bool {
        self.kept
    }

    /// Whether a row is one of them.
    pub fn contains(&self, position: u64) -> bool {
        self.positions.contains(&position)
    }

    /// A contribution to `clock`, which is held, has made rows, or touched some of these.
    pub fn add(&mut self, clock: Clock, positions: &[u64]) {
        if self.kept && !positions.is_empty() {
            self.positions.extend(positions);
            self.by_clock.entry(clock).or_default().extend(positions);
        }
    }

    /// A read has made these rows, with their initial values.
    pub fn read(&mut self, positions: impl Iterator<Item = u64>) {
        if self.positions.is_empty() {
            return;
        }
        for position in positions {
            self.positions.remove(&position);
        }
    }

    /// These rows are gone.
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

    /// A clock is applied: its rows are there. Or it has failed: then they are not, until a later
    /// clock makes them.
    pub fn finish(&mut self, clock: Clock, applied: bool) {
        for position in self.by_clock.remove(&clock).into_iter().flatten().filter(|_| applied) {
            self.positions.remove(&position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Reduce;

    #[test]
    fn a_row_is_there_once_a_clock_that_made_it_is_applied() {
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
    fn pending_rows_forget_removed_ones() {
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
    fn other_tables_keep_none() {
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
