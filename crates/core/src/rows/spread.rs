//! The index of a `spread` table: positions to slots, in position order, with gaps.
//!
//! Positions are a mix of the keys, so they lie evenly in the shard's range. A position's home cell is its place in the
//! range scaled to the number of cells, and cells hold positions in rising order: linear probing whose probe order is
//! also the sort order. A sorted batch therefore walks the index from front to back (the prefetcher does the rest), a
//! lookup looks at a few neighbouring cells, and growing is one pass of merging two sorted sequences.

use types::PositionRange;
use update::ABSENT;

/// The fullest the index gets. Beyond this the runs of full cells grow fast.
const MAX_LOAD: (usize, usize) = (7, 8);
/// How much room growing makes: 12 bytes a cell at 0.73 to 0.875 full are about 15 bytes a row.
const GROWTH: (usize, usize) = (6, 5);
/// Cells behind the last home cell, so that the last run needs no wrapping.
const TAIL: usize = 64;
/// A batch that adds more than one new row for this many old ones is merged in a single pass.
const MERGE_SHARE: usize = 16;
/// Marks an empty cell's position. A real position of this value is told apart by its slot.
const EMPTY: u64 = u64::MAX;

/// Positions in rising order, each with a slot.
#[derive(Debug)]
pub struct SpreadIndex {
    /// Rising over the full cells; `EMPTY` in the others.
    positions: Vec<u64>,
    /// `ABSENT` in empty cells.
    slots: Vec<u32>,
    first: u64,
    span: u128,
    /// home = (position − first) × multiplier / 2⁶⁴.
    multiplier: u64,
    homes: usize,
    len: usize,
}

impl SpreadIndex {
    /// An empty index over `range`.
    pub fn new(range: PositionRange) -> Self {
        let mut index = Self {
            positions: Vec::new(),
            slots: Vec::new(),
            first: range.first.0,
            span: u128::from(range.last.0 - range.first.0) + 1,
            multiplier: 0,
            homes: 0,
            len: 0,
        };
        index.rebuild(1, &[], &[]);
        index
    }

    #[inline]
    fn home(&self, position: u64) -> usize {
        // A position below the range would wrap to a huge home; callers check the range first.
        ((u128::from(position.wrapping_sub(self.first)) * u128::from(self.multiplier)) >> 64) as usize
    }

    /// The first cell at or after its home whose position is not below `position`.
    #[inline]
    fn cell(&self, position: u64) -> usize {
        let mut cell = self.home(position);
        // The tail always ends in an empty cell, which stops the walk.
        while self.positions[cell] < position {
            cell += 1;
        }
        cell
    }

    /// The slot of each position, or `ABSENT`. Returns how many were absent. All must lie in the range.
    pub fn find(&self, positions: &[u64], slots: &mut Vec<u32>) -> usize {
        slots.reserve(positions.len());
        let mut absent = 0;
        for &position in positions {
            let cell = self.cell(position);
            let slot = if self.positions[cell] == position { self.slots[cell] } else { ABSENT };
            absent += usize::from(slot == ABSENT);
            slots.push(slot);
        }
        absent
    }

    /// Adds positions that are not there, rising, with slots counted up from `first_slot`.
    pub fn insert(&mut self, new: &[u64], first_slot: u32) {
        let room = self.homes * MAX_LOAD.0 / MAX_LOAD.1;
        let merge = new.len() * MERGE_SHARE > self.len;
        if merge || self.len + new.len() > room {
            let slots: Vec<u32> = (first_slot..).take(new.len()).collect();
            return self.rebuild(self.len + new.len(), new, &slots);
        }
        for (offset, &position) in new.iter().enumerate() {
            self.insert_one(position, first_slot + offset as u32);
        }
    }

    fn insert_one(&mut self, position: u64, slot: u32) {
        let cell = self.cell(position);
        let gap = cell + self.slots[cell..].iter().position(|&slot| slot == ABSENT).unwrap_or(self.slots.len() - cell);
        if gap + 1 >= self.slots.len() {
            // The last run has filled the tail. Rare: make room everywhere.
            return self.rebuild(self.len + 1, &[position], &[slot]);
        }
        self.positions.copy_within(cell..gap, cell + 1);
        self.slots.copy_within(cell..gap, cell + 1);
        self.positions[cell] = position;
        self.slots[cell] = slot;
        self.len += 1;
    }

    /// Lays everything out anew with room for `rows`, merging in `new` (rising).
    fn rebuild(&mut self, rows: usize, new: &[u64], new_slots: &[u32]) {
        let room = self.homes * MAX_LOAD.0 / MAX_LOAD.1;
        let homes = if rows <= room { self.homes } else { (rows * GROWTH.0 / GROWTH.1) * MAX_LOAD.1 / MAX_LOAD.0 + 8 };
        let mut tail = TAIL;
        let (old_positions, old_slots) = (std::mem::take(&mut self.positions), std::mem::take(&mut self.slots));
        self.homes = homes;
        self.multiplier = u64::try_from(((homes as u128) << 64) / self.span).unwrap_or(u64::MAX);
        loop {
            match self.lay_out(&old_positions, &old_slots, new, new_slots, homes + tail) {
                Some((positions, slots)) => {
                    (self.positions, self.slots) = (positions, slots);
                    break;
                }
                None => tail *= 4,
            }
        }
        self.len += new.len();
    }

    /// The cells of the merged sequence, or nothing if they do not fit `cells`.
    fn lay_out(
        &self,
        old_positions: &[u64],
        old_slots: &[u32],
        new: &[u64],
        new_slots: &[u32],
        cells: usize,
    ) -> Option<(Vec<u64>, Vec<u32>)> {
        let mut positions = vec![EMPTY; cells];
        let mut slots = vec![ABSENT; cells];
        let mut free = 0;
        let mut place = |position: u64, slot: u32| -> Option<()> {
            let cell = self.home(position).max(free);
            if cell + 1 >= cells {
                return None;
            }
            positions[cell] = position;
            slots[cell] = slot;
            free = cell + 1;
            Some(())
        };
        let mut new = new.iter().copied().zip(new_slots.iter().copied()).peekable();
        for (&position, &slot) in old_positions.iter().zip(old_slots).filter(|(_, slot)| **slot != ABSENT) {
            while let Some((position, slot)) = new.next_if(|(next, _)| *next < position) {
                place(position, slot)?;
            }
            place(position, slot)?;
        }
        for (position, slot) in new {
            place(position, slot)?;
        }
        Some((positions, slots))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use types::Position;

    fn check(range: PositionRange, batches: &[Vec<u64>]) {
        let mut index = SpreadIndex::new(range);
        let mut model = BTreeMap::new();
        for batch in batches {
            let mut sorted: Vec<u64> = batch.iter().copied().filter(|p| range.contains(Position(*p))).collect();
            sorted.sort_unstable();
            sorted.dedup();
            let mut slots = Vec::new();
            let absent = index.find(&sorted, &mut slots);
            let expected: Vec<u32> = sorted.iter().map(|p| model.get(p).copied().unwrap_or(ABSENT)).collect();
            assert_eq!(slots, expected);
            let new: Vec<u64> = sorted.iter().copied().filter(|p| !model.contains_key(p)).collect();
            assert_eq!(absent, new.len());
            let first = model.len() as u32;
            index.insert(&new, first);
            model.extend(new.into_iter().zip(first..));
            assert_eq!(index.len, model.len());
        }
        let mut slots = Vec::new();
        index.find(&model.keys().copied().collect::<Vec<_>>(), &mut slots);
        assert_eq!(slots, model.values().copied().collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn it_answers_as_a_sorted_map_does(
            batches in prop::collection::vec(prop::collection::vec(any::<u64>(), 0..60), 0..12),
            ends in any::<(u64, u64)>(),
        ) {
            let (first, last) = (ends.0.min(ends.1), ends.0.max(ends.1));
            check(PositionRange { first: Position(first), last: Position(last) }, &batches);
            check(PositionRange::ALL, &batches);
        }

        #[test]
        fn crowded_positions_are_found_too(
            batches in prop::collection::vec(prop::collection::vec(0u64..300, 0..60), 0..12),
            high in any::<bool>(),
        ) {
            // All in one corner of the range: the worst case for home cells.
            let corner = |p: &u64| if high { u64::MAX - p } else { *p };
            let batches: Vec<Vec<u64>> = batches.iter().map(|batch| batch.iter().map(corner).collect()).collect();
            check(PositionRange::ALL, &batches);
        }
    }

    #[test]
    fn growing_one_by_one_keeps_everything() {
        let batches: Vec<Vec<u64>> = (0..3_000u64).map(|i| vec![i.wrapping_mul(0x9E37_79B9_7F4A_7C15)]).collect();
        check(PositionRange::ALL, &batches);
    }
}
