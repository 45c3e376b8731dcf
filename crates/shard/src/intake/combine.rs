//! The sum of a clock's contributions, which a `clock` table holds until the frontier passes the
//! clock, and its end: a sum or a mean for each row.

use crate::rows::Resolved;
use crate::rows::slot::{BySlot, Move, SlotCounts};
use types::Reduce;
use update::{Number, add_into, first_not_finite};
use wire::FailedClock;

/// Numbers that [`Combination::finish`] handles at a time: a block that fits the first-level cache.
const BLOCK: usize = 2048;

/// What a shard holds for one clock.
pub(crate) enum HeldClock<T> {
    /// The sum so far.
    Sum(Combination<T>),
    /// A contribution was refused, so the clock fails for all workers.
    Failed(FailedClock),
}

/// The sum of contributions to some rows.
pub(crate) struct Combination<T> {
    /// The rows, in the order they were first touched.
    slots: Vec<u32>,
    /// Their sums, row after row.
    sums: Vec<T>,
    /// By slot: 1 + the index into `slots`, or 0. Memory pages of rows without contributions are
    /// never touched.
    places: BySlot<u32>,
}

impl<T: Number> Combination<T> {
    /// An empty sum, which uses `memory` for its numbers.
    pub fn new(mut memory: Vec<T>) -> Self {
        memory.clear();
        Self { slots: Vec::new(), sums: memory, places: BySlot::default() }
    }

    /// Adds a contribution. The shard has `slot_counts` slots.
    pub fn add(&mut self, width: usize, slot_counts: SlotCounts, resolved: &Resolved, values: &[T]) {
        self.places.grow(slot_counts);
        if let Resolved::Run { first, count } = resolved
            && self.add_run(width, *first, *count, values)
        {
            return;
        }
        for (slot, row) in resolved.each().zip(values.chunks_exact(width)) {
            let Some(place) = self.places.get_mut(slot) else { continue };
            if *place == 0 {
                self.slots.push(slot);
                *place = self.slots.len() as u32;
                self.sums.extend_from_slice(row);
            } else {
                add_into(&mut self.sums[(*place as usize - 1) * width..][..width], row);
            }
        }
    }

    /// The fast way for a run of slots that is wholly new, or whose sums are consecutive already.
    /// Returns whether it applied.
    fn add_run(&mut self, width: usize, first: usize, count: usize, values: &[T]) -> bool {
        if count == 0 {
            return true;
        }
        let places = self.places.run_mut(first as u32, count);
        if places.iter().all(|place| *place == 0) {
            let next = self.slots.len() as u32 + 1;
            places.iter_mut().zip(next..).for_each(|(place, index)| *place = index);
            self.slots.extend(first as u32..(first + count) as u32);
            self.sums.extend_from_slice(values);
            return true;
        }
        let start = places[0];
        let together = start != 0 && places.iter().zip(start..).all(|(place, index)| *place == index);
        if together {
            add_into(&mut self.sums[(start as usize - 1) * width..][..count * width], values);
        }
        together
    }

    /// Sets the sums of rows, replacing earlier ones.
    pub fn set(&mut self, width: usize, slot_counts: SlotCounts, resolved: &Resolved, sums: &[T]) {
        self.places.grow(slot_counts);
        for (slot, row) in resolved.each().zip(sums.chunks_exact(width)) {
            let Some(place) = self.places.get_mut(slot) else { continue };
            if *place == 0 {
                self.slots.push(slot);
                *place = self.slots.len() as u32;
                self.sums.extend_from_slice(row);
            } else {
                self.sums[(*place as usize - 1) * width..][..width].copy_from_slice(row);
            }
        }
    }

    /// The sum of a row, if a worker has contributed to it.
    pub fn get(&self, width: usize, slot: u32) -> Option<&[T]> {
        let place = self.places.get(slot).filter(|place| *place > 0)?;
        Some(&self.sums[(place as usize - 1) * width..][..width])
    }

    /// Whether a worker has contributed to a row.
    pub fn contains(&self, slot: u32) -> bool {
        self.places.get(slot).is_some_and(|place| place > 0)
    }

    /// Drops the sum of a row, if there is one. The last sum moves to its place.
    pub fn remove(&mut self, width: usize, slot: u32) {
        let Some(place) = self.places.get_mut(slot).filter(|place| **place > 0) else { return };
        let index = std::mem::take(place) as usize - 1;
        self.slots.swap_remove(index);
        let last = self.slots.len() * width;
        if let Some(moved) = self.slots.get(index) {
            self.places.get_mut(*moved).into_iter().for_each(|place| *place = index as u32 + 1);
            self.sums.copy_within(last.., index * width);
        }
        self.sums.truncate(last);
    }

    /// Slots of the rows that have a sum.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Rows have moved. The shard has `slot_counts` slots.
    pub fn rows_moved(&mut self, slot_counts: SlotCounts, moves: &[Move]) {
        if self.slots.is_empty() {
            return;
        }
        self.places.grow(slot_counts);
        for moved in moves {
            let place = self.places.get_mut(moved.from).map_or(0, std::mem::take);
            if place > 0 {
                self.slots[place as usize - 1] = moved.to;
                self.places.get_mut(moved.to).into_iter().for_each(|new| *new = place);
            }
        }
    }

    /// The rows and the combined contribution of each: the sum, or the mean over `workers`, the
    /// workers that ended the clock. A sum that overflowed counts as the largest number.
    pub fn finish(mut self, reduce: Reduce, workers: usize) -> (Vec<u32>, Vec<T>) {
        let largest = T::LARGEST.to_f64();
        let share = if reduce == Reduce::Mean { 1.0 / workers as f64 } else { 1.0 };
        // Block by block, so that each is read from memory once.
        for block in self.sums.chunks_mut(BLOCK) {
            if first_not_finite(block).is_some() {
                let not_finite = block.iter_mut().filter(|sum| !sum.is_finite());
                not_finite.for_each(|sum| *sum = T::from_f64(sum.to_f64().clamp(-largest, largest)));
            }
            if reduce == Reduce::Mean {
                block.iter_mut().for_each(|sum| *sum = T::from_f64(sum.to_f64() * share));
            }
        }
        (self.slots, self.sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const NEW: u32 = 1 << 31;

    proptest! {
        #[test]
        fn combination_adds_runs_and_lists_row_by_row(
            contributions in prop::collection::vec((0usize..20, 1usize..6, any::<bool>()), 1..8),
        ) {
            let width = 2;
            let mut combination = Combination::<i64>::new(Vec::new());
            let mut expected: BTreeMap<u32, Vec<i64>> = BTreeMap::new();
            for (number, (first, count, as_run)) in contributions.into_iter().enumerate() {
                let slots: Vec<u32> = (first as u32..(first + count) as u32).collect();
                let values: Vec<i64> = (0..count * width).map(|i| (number * 100 + i) as i64).collect();
                for (slot, row) in slots.iter().zip(values.chunks(width)) {
                    let sums = expected.entry(*slot).or_insert_with(|| vec![0; width]);
                    sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
                }
                let resolved = if as_run { Resolved::Run { first, count } } else { Resolved::List(slots) };
                combination.add(width, SlotCounts([30, 0]), &resolved, &values);
            }
            let (slots, sums) = combination.finish(Reduce::Sum, 3);
            let found: BTreeMap<u32, Vec<i64>> =
                slots.into_iter().zip(sums.chunks(width).map(<[i64]>::to_vec)).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn combination_drops_removed_rows_and_keeps_the_other_sums() {
        /// Removed slots, new slots by old ones, and the sums that are left.
        type Case = (&'static [u32], &'static [(u32, u32)], &'static [(u32, i64)]);
        let cases: [Case; 6] = [
            (&[], &[], &[(0, 1), (2, 3), (3, 4)]),
            (&[0], &[], &[(2, 3), (3, 4)]),
            (&[3, 1, 9], &[], &[(0, 1), (2, 3)]),
            (&[2, 0, 3], &[(1, NEW)], &[]),
            (&[3], &[(2, NEW), (1, NEW + 1)], &[(0, 1), (NEW, 3)]),
            (&[], &[(3, NEW), (1, NEW + 2), (0, NEW + 3), (2, NEW + 1)], &[(NEW, 4), (NEW + 1, 3), (NEW + 3, 1)]),
        ];
        for (removed, moves, expected) in cases {
            let counts = SlotCounts([4, 4]);
            let mut combination = Combination::<i64>::new(Vec::new());
            combination.add(2, counts, &Resolved::List(vec![0, 2, 3]), &[1, -1, 3, -3, 4, -4]);
            removed.iter().for_each(|slot| combination.remove(2, *slot));
            assert!(removed.iter().all(|slot| !combination.contains(*slot)));
            let moves: Vec<Move> = moves.iter().map(|(from, to)| Move { from: *from, to: *to }).collect();
            combination.rows_moved(counts, &moves);
            let held = (0..9).chain(NEW..NEW + 9).filter(|slot| combination.contains(*slot));
            assert!(held.eq(expected.iter().map(|(slot, _)| *slot)), "{removed:?}: only the expected rows have sums");
            for (slot, sum) in expected {
                assert_eq!(combination.get(2, *slot), Some(&[*sum, -sum][..]), "{removed:?}, row {slot}");
            }
            // Sums that are left can be added to: they are found at their new places.
            combination.add(2, counts, &Resolved::Run { first: 0, count: 1 }, &[10, 10]);
            let (slots, sums) = combination.finish(Reduce::Sum, 1);
            let found: BTreeMap<u32, i64> = slots.into_iter().zip(sums.chunks(2).map(|sum| sum[0])).collect();
            let mut expected: BTreeMap<u32, i64> = expected.iter().copied().collect();
            *expected.entry(0).or_default() += 10;
            assert_eq!(found, expected, "{removed:?}");
        }
    }

    #[test]
    fn combination_clamps_overflowed_sums_to_the_largest_number() {
        let mut combination = Combination::<f32>::new(Vec::new());
        for sign in [1.0, 1.0] {
            combination.add(1, SlotCounts([4, 0]), &Resolved::Run { first: 0, count: 2 }, &[sign * 3e38, sign * -3e38]);
        }
        assert_eq!(combination.finish(Reduce::Sum, 1), (vec![0, 1], vec![f32::MAX, f32::MIN]));
    }

    #[test]
    fn combination_mean_divides_by_the_given_workers() {
        let mut combination = Combination::<f32>::new(Vec::new());
        combination.add(1, SlotCounts([4, 0]), &Resolved::Run { first: 1, count: 2 }, &[4.0, 8.0]);
        assert_eq!(combination.finish(Reduce::Mean, 4), (vec![1, 2], vec![1.0, 2.0]));
    }
}
