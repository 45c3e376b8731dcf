//! The sum of a clock's contributions, which a `clock` table holds until the frontier passes the
//! clock, and its end: a sum or a mean for each row.

use crate::rows::Resolved;
use types::Reduce;
use update::{ABSENT, Number, add_into, first_not_finite};
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
    places: Vec<u32>,
}

impl<T: Number> Combination<T> {
    /// An empty sum, which uses `memory` for its numbers.
    pub fn new(mut memory: Vec<T>) -> Self {
        memory.clear();
        Self { slots: Vec::new(), sums: memory, places: Vec::new() }
    }

    /// Adds a contribution. All slots of the shard are below `slot_count`.
    pub fn add(&mut self, width: usize, slot_count: usize, resolved: &Resolved, values: &[T]) {
        if self.places.len() < slot_count {
            if self.slots.is_empty() {
                self.places = vec![0; slot_count];
            } else {
                self.places.resize(slot_count, 0);
            }
        }
        if let Resolved::Run { first, count } = resolved
            && self.add_run(width, *first, *count, values)
        {
            return;
        }
        for (slot, row) in resolved.each().zip(values.chunks_exact(width)) {
            let place = &mut self.places[slot as usize];
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
        let places = &mut self.places[first..first + count];
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
    pub fn set(&mut self, width: usize, slot_count: usize, resolved: &Resolved, sums: &[T]) {
        if self.places.len() < slot_count {
            self.places.resize(slot_count, 0);
        }
        for (slot, row) in resolved.each().zip(sums.chunks_exact(width)) {
            let place = &mut self.places[slot as usize];
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
        let place = self.places.get(slot as usize).copied().filter(|place| *place > 0)?;
        Some(&self.sums[(place as usize - 1) * width..][..width])
    }

    /// Whether a worker has contributed to a row.
    pub fn contains(&self, slot: u32) -> bool {
        self.places.get(slot as usize).is_some_and(|place| *place > 0)
    }

    /// Drops the sum of a row, if there is one. The last sum moves to its place.
    pub fn remove(&mut self, width: usize, slot: u32) {
        let Some(place) = self.places.get_mut(slot as usize).filter(|place| **place > 0) else { return };
        let index = std::mem::take(place) as usize - 1;
        self.slots.swap_remove(index);
        let last = self.slots.len() * width;
        if let Some(moved) = self.slots.get(index) {
            self.places[*moved as usize] = index as u32 + 1;
            self.sums.copy_within(last.., index * width);
        }
        self.sums.truncate(last);
    }

    /// Slots of the rows that have a sum.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// The rows have moved: `moves` gives the new slot of each old one, `ABSENT` for a removed row,
    /// whose sum is dropped.
    pub fn renumber(&mut self, width: usize, moves: &[u32]) {
        let removed: Vec<u32> = self.slots.iter().copied().filter(|slot| moves[*slot as usize] == ABSENT).collect();
        removed.into_iter().for_each(|slot| self.remove(width, slot));
        self.places = vec![0; moves.iter().filter(|slot| **slot != ABSENT).count()];
        for (slot, place) in self.slots.iter_mut().zip(1..) {
            *slot = moves[*slot as usize];
            self.places[*slot as usize] = place;
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
                combination.add(width, 30, &resolved, &values);
            }
            let (slots, sums) = combination.finish(Reduce::Sum, 3);
            let found: BTreeMap<u32, Vec<i64>> =
                slots.into_iter().zip(sums.chunks(width).map(<[i64]>::to_vec)).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn combination_drops_removed_rows_and_keeps_the_other_sums() {
        /// Removed slots, moves, and the sums that are left.
        type Case = (&'static [u32], &'static [u32], &'static [(u32, i64)]);
        let cases: [Case; 5] = [
            (&[], &[0, 1, 2, 3], &[(0, 1), (2, 3), (3, 4)]),
            (&[0], &[0, 1, 2, 3], &[(2, 3), (3, 4)]),
            (&[3, 1, 9], &[0, 1, 2, 3], &[(0, 1), (2, 3)]),
            (&[2, 0, 3], &[0, 1, 2, 3], &[]),
            (&[3], &[ABSENT, ABSENT, 0, ABSENT], &[(0, 3)]),
        ];
        for (removed, moves, expected) in cases {
            let mut combination = Combination::<i64>::new(Vec::new());
            combination.add(2, 4, &Resolved::List(vec![0, 2, 3]), &[1, -1, 3, -3, 4, -4]);
            removed.iter().for_each(|slot| combination.remove(2, *slot));
            assert!(removed.iter().all(|slot| !combination.contains(*slot)));
            combination.renumber(2, moves);
            let held = (0..9).filter(|slot| combination.contains(*slot));
            assert!(held.eq(expected.iter().map(|(slot, _)| *slot)), "{removed:?}: only the expected rows have sums");
            let rows = moves.iter().filter(|slot| **slot != ABSENT).count();
            assert_eq!(combination.places.len(), rows, "memory follows the rows");
            for (slot, sum) in expected {
                assert_eq!(combination.get(2, *slot), Some(&[*sum, -sum][..]), "{removed:?}, row {slot}");
            }
            // Sums that are left can be added to: they are found at their new places.
            combination.add(2, 4, &Resolved::Run { first: 0, count: 1 }, &[10, 10]);
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
            combination.add(1, 4, &Resolved::Run { first: 0, count: 2 }, &[sign * 3e38, sign * -3e38]);
        }
        assert_eq!(combination.finish(Reduce::Sum, 1), (vec![0, 1], vec![f32::MAX, f32::MIN]));
    }

    #[test]
    fn combination_mean_divides_by_the_given_workers() {
        let mut combination = Combination::<f32>::new(Vec::new());
        combination.add(1, 4, &Resolved::Run { first: 1, count: 2 }, &[4.0, 8.0]);
        assert_eq!(combination.finish(Reduce::Mean, 4), (vec![1, 2], vec![1.0, 2.0]));
    }
}
