//! Removal of rows through the parts of a shard: which rows are removed, and which are reset.
//!
//! A removal in a clock of a `clock` table is applied after that clock's combined update. By then
//! faster workers may have contributed to later clocks, and a later contribution makes the row
//! anew. So a row that a held sum of an open clock names is not removed: it keeps its slot and is
//! reset to the initial values of a new row. All other rows are removed.
//!
//! Reads see no difference: a removed row and a reset row both read like a row without pushes.
//! Scans do: an `ordered` table shows a reset row once such a clock is applied, a `spread` table at
//! once, because it has no pending rows.
//!
//! The head of the chain decides all this. A replica removes exactly the rows that the head has
//! removed, even if sums that the replica still holds name them.

use crate::intake::clocks::Clocks;
use crate::rows::Rows;
use crate::shard::Shard;
use crate::view::Row;
use std::collections::BTreeMap;
use types::Clock;
use update::Number;
use wire::Refusal;

impl<T: Number> Shard<T> {
    /// Removes the rows at rising positions, and tells followers.
    pub(super) fn remove(&mut self, positions: &[u64]) {
        if positions.is_empty() {
            return;
        }
        // Cannot fail: positions of other shards were refused when they arrived.
        let Ok(RemovedRows { removed, reset }) = remove_rows(&mut self.rows, &mut self.clocks, positions) else {
            return;
        };
        self.followers.removed(&removed);
        self.followers.reset(&reset);
    }
}

/// The rows of a removal, by what happened to them.
#[derive(Debug, Default, PartialEq, Eq)]
struct RemovedRows {
    /// Rows that were removed. New rows reuse their slots, so all parts that know rows by slots
    /// must be told in the same step.
    pub removed: Vec<Row>,
    /// Rows that have their initial values again and keep their slots. Followers are told that they
    /// have changed.
    pub reset: Vec<Row>,
}

/// Removes or resets the rows at rising positions of a sparse table. All clocks before the removal
/// must have been applied.
fn remove_rows<T: Number>(
    rows: &mut Rows<T>,
    clocks: &mut Clocks<T>,
    positions: &[u64],
) -> Result<RemovedRows, Refusal> {
    let found = rows.rows_at(positions)?;
    let (reset, removed): (Vec<Row>, Vec<Row>) = found.into_iter().partition(|(_, slot)| clocks.holds_any(*slot));
    let (reset_positions, reset_slots): (Vec<u64>, Vec<u32>) = reset.iter().copied().unzip();
    rows.reset(&reset_slots, &reset_positions);
    let mut made_by_clock: BTreeMap<Clock, Vec<u64>> = BTreeMap::new();
    for (position, slot) in &reset {
        clocks.holding(*slot).for_each(|clock| made_by_clock.entry(clock).or_default().push(*position));
    }
    made_by_clock.into_iter().for_each(|(clock, positions)| rows.make_pending(clock, &positions));
    drop_rows(rows, clocks, &removed);
    Ok(RemovedRows { removed, reset })
}

/// Removes exactly the rows that the head of the chain has removed. A replica takes a removal
/// before it knows which clocks were applied first, so it may still hold sums of those clocks.
pub(super) fn follow_removal<T: Number>(
    rows: &mut Rows<T>,
    clocks: &mut Clocks<T>,
    positions: &[u64],
) -> Result<Vec<Row>, Refusal> {
    let removed = rows.rows_at(positions)?;
    drop_rows(rows, clocks, &removed);
    Ok(removed)
}

/// Removes rows from the slab and from the held sums.
fn drop_rows<T: Number>(rows: &mut Rows<T>, clocks: &mut Clocks<T>, removed: &[Row]) {
    let positions: Vec<u64> = removed.iter().map(|(position, _)| *position).collect();
    rows.remove(&positions);
    clocks.remove_rows(rows.width(), removed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intake::clocks::ClockOutcome;
    use crate::rows::LayoutPiece;
    use types::{Combine, Initial, Position, PositionRange, Reduce, TableSpec};
    use update::Updaters;
    use wire::Pool;

    const SEEDED: Initial = Initial::Uniform { seed: 3, scale: 1.0 };

    /// The rows and the clocks of a `clock` table that can be scanned.
    struct Parts {
        rows: Rows<f64>,
        clocks: Clocks<f64>,
    }

    impl Parts {
        fn new(spec: &TableSpec) -> Self {
            let rows = Rows::new(spec, PositionRange::ALL, &Updaters::builtin(), 1 << 20).expect("they fit");
            Self { rows, clocks: Clocks::new(spec.combine, [true].into_iter()) }
        }

        /// A contribution to a clock, as a shard holds it.
        fn contribute(&mut self, clock: u64, positions: &[u64], values: &[f64]) {
            let unseen: Vec<u64> =
                positions.iter().copied().filter(|position| !self.shown().contains(position)).collect();
            let resolved = self.rows.make_rows(positions).expect("there is room");
            self.rows.make_pending(Clock(clock), &unseen);
            let slot_counts = self.rows.slot_counts();
            let sum = self.clocks.sum(Clock(clock), Vec::new).expect("the clock has not failed");
            sum.add(1, slot_counts, &resolved, values);
            self.clocks.will_change(Clock(clock), positions.iter().copied().zip(resolved.each()));
        }

        /// Lays the rows out, in pieces.
        fn lay_out(&mut self) {
            loop {
                match self.rows.lay_out(700) {
                    LayoutPiece::Moved(moves) => self.clocks.rows_moved(self.rows.slot_counts(), &moves),
                    LayoutPiece::AllMoved => {
                        let forwarding = self.rows.forwarding().expect("they are being laid out");
                        if self.clocks.forward(forwarding, 700) == 0 {
                            drop(self.rows.end_layout());
                        }
                    }
                    LayoutPiece::Nothing => return,
                }
            }
        }

        /// Applies the clocks before `end`. Returns the rows that these clocks have changed.
        fn apply_before(&mut self, end: u64) -> Vec<Row> {
            let mut changed = Vec::new();
            while let Some(ended) = self.clocks.pop_before(Clock(end)) {
                let ClockOutcome::Apply { slots, values } = ended.outcome else { panic!("none fails") };
                self.rows.end_clock(ended.clock, true);
                self.rows.apply_clock(ended.clock, &slots, values);
                changed.extend(ended.changes.iter());
            }
            changed
        }

        fn shown(&self) -> Vec<u64> {
            self.rows.scan_shown(PositionRange::ALL, usize::MAX).0
        }

        /// The value that a reader sees of a row, zero if there is none.
        fn value(&self, position: u64) -> f64 {
            let resolved = self.rows.find_rows(&[position]).expect("it is in the range");
            let mut value = [0.0];
            self.rows.read(Clock(0), resolved.slots(), &mut value);
            value[0]
        }

        fn remove(&mut self, positions: &[u64]) -> [Vec<u64>; 2] {
            let outcome = remove_rows(&mut self.rows, &mut self.clocks, positions).expect("they are in the range");
            [outcome.removed, outcome.reset].map(|rows| rows.into_iter().map(|(position, _)| position).collect())
        }
    }

    fn clock_table() -> TableSpec {
        TableSpec::sparse("t", 1).ordered().combine(Combine::Clock(Reduce::Sum))
    }

    #[test]
    fn removal_keeps_contributions_of_later_clocks() {
        for initial in [Initial::Zero, SEEDED] {
            let mut parts = Parts::new(&clock_table().initial(initial));
            parts.contribute(0, &[1, 2, 3], &[1.0, 2.0, 3.0]);
            parts.contribute(1, &[2, 4], &[20.0, 40.0]);
            parts.contribute(2, &[2, 3], &[200.0, 300.0]);
            let fresh = [1, 2, 3, 4].map(|position| parts.value(position));
            assert_eq!(parts.apply_before(1).len(), 3);
            // After clock 0: rows 2 and 3 are made anew by clocks 1 and 2.
            assert_eq!(parts.remove(&[1, 2, 3, 9]), [vec![1], vec![2, 3]]);
            assert_eq!((parts.rows.len(), parts.shown()), (3, vec![]), "no scan shows rows that later clocks make");
            assert_eq!([2, 3].map(|position| parts.value(position)), [fresh[1], fresh[2]]);
            assert_eq!(parts.apply_before(2).len(), 2);
            assert_eq!(parts.shown(), [2, 4]);
            assert_eq!([2, 3, 4].map(|position| parts.value(position)), [fresh[1] + 20.0, fresh[2], fresh[3] + 40.0]);
            // After clock 1: row 2 is made anew once more.
            assert_eq!(parts.remove(&[2, 4]), [vec![4], vec![2]]);
            assert_eq!(parts.apply_before(3).len(), 2);
            assert_eq!(parts.shown(), [2, 3]);
            assert_eq!([2, 3].map(|position| parts.value(position)), [fresh[1] + 200.0, fresh[2] + 300.0]);
            assert_eq!(parts.remove(&[2, 3]), [vec![2, 3], vec![]]);
            assert_eq!((parts.rows.len(), parts.shown()), (0, vec![]));
        }
    }

    #[test]
    fn removal_frees_only_slots_that_no_held_sum_names() {
        let mut parts = Parts::new(&clock_table());
        parts.contribute(0, &[1, 2], &[1.0, 2.0]);
        parts.contribute(1, &[2], &[20.0]);
        parts.apply_before(1);
        parts.remove(&[1, 2]);
        parts.contribute(1, &[7, 8], &[70.0, 80.0]);
        assert_eq!(parts.rows.slot_count(), 3, "row 7 has the slot of row 1");
        assert_eq!(parts.apply_before(2).len(), 3);
        assert_eq!([1, 2, 7, 8].map(|position| parts.value(position)), [0.0, 20.0, 70.0, 80.0]);
        assert_eq!(parts.shown(), [2, 7, 8]);
    }

    #[test]
    fn removal_moves_held_sums_with_the_rows_that_are_left() {
        const ROWS: u64 = 20_000;
        for spec in [clock_table(), TableSpec::sparse("t", 1).combine(Combine::Clock(Reduce::Sum))] {
            let mut parts = Parts::new(&spec);
            let all: Vec<u64> = (0..ROWS).collect();
            let values: Vec<f64> = all.iter().map(|position| *position as f64).collect();
            parts.rows.make_rows(&all).expect("there is room");
            let held: Vec<u64> = all.iter().copied().filter(|position| position % 10 == 3).collect();
            parts.contribute(0, &all, &values);
            parts.contribute(1, &held, &vec![0.5; held.len()]);
            parts.apply_before(1);
            let kept = |position: &u64| position % 10 == 3 || position % 10 == 4;
            let removed: Vec<u64> = all.iter().copied().filter(|position| position % 10 != 4).collect();
            let [gone, reset] = parts.remove(&removed);
            assert_eq!((gone.len(), reset), (ROWS as usize * 8 / 10, held.clone()));
            assert!(parts.rows.needs_layout(), "most slots are free");
            parts.lay_out();
            assert_eq!(parts.rows.slot_count(), ROWS as usize / 5);
            let changed = parts.apply_before(2);
            assert!(changed.iter().map(|(position, _)| *position).eq(held.iter().copied()));
            assert!(changed.iter().all(|row| parts.rows.rows_at(&[row.0]).is_ok_and(|found| found == [*row])));
            for position in all.iter().filter(|position| kept(position)) {
                let expected = if position % 10 == 3 { 0.5 } else { *position as f64 };
                assert_eq!(parts.value(*position), expected, "row {position}");
            }
            assert_eq!(parts.shown(), all.iter().copied().filter(kept).collect::<Vec<_>>());
        }
    }

    #[test]
    fn replica_removes_rows_that_a_held_clock_still_names() {
        let mut parts = Parts::new(&clock_table());
        parts.contribute(0, &[1, 2], &[1.0, 2.0]);
        let removed = follow_removal(&mut parts.rows, &mut parts.clocks, &[1, 9]).expect("they are in the range");
        assert_eq!(removed.iter().map(|(position, _)| *position).collect::<Vec<_>>(), [1]);
        // Another row gets the slot. The held clock does not change it.
        parts.rows.make_rows(&[7]).expect("there is room");
        assert_eq!(parts.apply_before(1).len(), 1);
        assert_eq!([1, 2, 7].map(|position| parts.value(position)), [0.0, 2.0, 0.0]);
    }

    #[test]
    fn removal_refuses_positions_of_other_shards() {
        let range = PositionRange { first: Position(10), last: Position(19) };
        let mut rows = Rows::<f64>::new(&clock_table(), range, &Updaters::builtin(), 1 << 20).expect("they fit");
        let mut clocks = Clocks::new(Combine::Each, [true].into_iter());
        rows.make_rows(&[12]).expect("there is room");
        let refusal = Refusal::OutOfRange { position: Position(20) };
        assert_eq!(remove_rows(&mut rows, &mut clocks, &[12, 20]), Err(refusal));
        assert_eq!(rows.row_states([0].into_iter(), &Pool::new()).len(), 8);
        assert_eq!(rows.len(), 1, "nothing is removed");
        assert_eq!(remove_rows(&mut rows, &mut clocks, &[]), Ok(RemovedRows::default()));
    }
}
