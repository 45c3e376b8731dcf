//! The slot allocator of a slab: a free list of slots without a row.
//!
//! A new row takes a freed slot before the slab grows. So the slab has no more slots than the most
//! rows that existed at once since it was last laid out. The cost of a removal depends only on the
//! removed rows. The allocator also counts the rows that were made out of position order, and says
//! when laying all rows out anew pays.
//!
//! While they are laid out, rows move to the slots of the other side. Slots of the side that they
//! leave are not used again.

use super::slot::{Move, SlotCounts, side_of, slot_at};
use super::slot_set::SlotSet;

/// With fewer free slots than this, all rows are not laid out anew to free memory.
const COMPACT_FREE_SLOTS: usize = 4096;

/// The slots of one slab.
#[derive(Debug, Default)]
pub(super) struct SlotAllocator {
    /// The side of new rows.
    side: usize,
    /// How many slots each side has.
    counts: SlotCounts,
    /// How many rows exist.
    rows: usize,
    /// Slots with a row. Not kept in a dense table, where all have one.
    live: SlotSet,
    /// Slots without a row on the side of new rows. The last one freed is reused first.
    free: Vec<u32>,
    /// Rows made out of position order since all rows were last laid out. Removals do not lower it,
    /// so the cost of laying rows out is always spread over the rows that were made.
    out_of_order: usize,
    /// The highest position of the rows that were made in order.
    in_order_to: u64,
}

impl SlotAllocator {
    /// The slots of a dense table, each with a row.
    pub fn dense(slots: usize) -> Self {
        Self { counts: SlotCounts([slots, 0]), rows: slots, ..Self::default() }
    }

    /// How many rows exist.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many slots each side has.
    pub fn counts(&self) -> SlotCounts {
        self.counts
    }

    /// How many slots the side of new rows has.
    pub fn newest(&self) -> usize {
        self.counts.0[self.side]
    }

    /// Up to `count` freed slots for new rows, rising, so that a batch is laid out front to back.
    pub fn reuse(&mut self, count: usize) -> Vec<u32> {
        let mut reused = self.free.split_off(self.free.len() - count.min(self.free.len()));
        reused.sort_unstable();
        reused
    }

    /// The slots behind the last one, rising.
    pub fn unused(&self) -> impl Iterator<Item = u32> + use<> {
        let side = self.side;
        (self.newest()..).map(move |index| slot_at(side, index))
    }

    /// Rows were made at these positions and slots, rising. The first `reused` of them have slots
    /// that [`reuse`](Self::reuse) gave. The others are appended to the slab.
    pub fn made(&mut self, rows: &[(u64, u32)], reused: usize) {
        let (Some((first, _)), Some((last, _))) = (rows.first(), rows.last()) else { return };
        let is_behind = self.counts.all() == 0 || *first > self.in_order_to;
        if reused == 0 && self.out_of_order == 0 && !self.is_moving() && is_behind {
            self.in_order_to = *last;
        } else {
            self.out_of_order += rows.len();
        }
        self.counts.0[self.side] += rows.len() - reused;
        self.rows += rows.len();
        rows.iter().for_each(|(_, slot)| self.live.insert(*slot));
    }

    /// The rows at these slots were removed.
    pub fn free(&mut self, slots: &[u32]) {
        self.rows -= slots.len();
        slots.iter().for_each(|slot| self.live.remove(*slot));
        self.free.extend(slots.iter().copied().filter(|slot| side_of(*slot) == self.side));
    }

    /// Whether half of the rows were made out of position order. So a row moves for this reason
    /// only a few times in its life, however many rows there are in the end.
    pub fn are_out_of_order(&self) -> bool {
        self.out_of_order > 0 && self.out_of_order * 2 >= self.rows
    }

    /// Whether more than half of the slots are free, and enough to be worth moving the other rows.
    pub fn are_mostly_free(&self) -> bool {
        self.free.len() * 2 > self.counts.all() && self.free.len() >= COMPACT_FREE_SLOTS
    }

    /// Whether rows are moving to the other side.
    fn is_moving(&self) -> bool {
        self.counts.0[1 - self.side] > 0
    }

    /// Rows are about to move to the other side, where new ones are made from now on. Returns the
    /// side that they leave, and memory that may take long to free.
    pub fn begin_move(&mut self) -> (usize, Vec<u32>) {
        let old = self.side;
        self.side = 1 - old;
        self.out_of_order = 0;
        (old, std::mem::take(&mut self.free))
    }

    /// The row at this slot moves. Its new slot is behind the last one.
    pub fn move_row(&mut self, from: u32) -> Move {
        let moved = Move { from, to: slot_at(self.side, self.newest()) };
        self.counts.0[self.side] += 1;
        self.live.row_moved(moved);
        moved
    }

    /// All rows have moved. `last`: the highest position of a row.
    pub fn end_move(&mut self, last: u64) {
        self.counts.0[1 - self.side] = 0;
        self.in_order_to = last;
    }

    /// The slots that hold a row; `None` if all do.
    pub fn live(&self) -> Option<SlotSet> {
        (self.rows < self.counts.all()).then(|| self.live.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocator_hands_out_freed_slots_before_it_grows() {
        let mut allocator = SlotAllocator::default();
        allocator.made(&[(10, 0), (20, 1), (30, 2)], 0);
        allocator.free(&[2, 0]);
        assert_eq!((allocator.rows(), allocator.newest()), (1, 3));
        assert_eq!(allocator.live().map(|live| [0, 1, 2].map(|slot| live.contains(slot))), Some([false, true, false]));
        assert_eq!(allocator.reuse(1), [0], "the last one freed");
        allocator.made(&[(5, 0)], 1);
        assert_eq!(allocator.reuse(4), [2]);
        allocator.made(&[(1, 2), (7, 3)], 1);
        assert_eq!((allocator.rows(), allocator.newest(), allocator.live().is_some()), (4, 4, false));
    }

    #[test]
    fn allocator_counts_rows_that_are_made_out_of_order() {
        /// Batches of positions, slots freed before the last batch, whether rows are out of order.
        type Case = (&'static [&'static [u64]], &'static [u32], bool);
        let cases: [Case; 5] = [
            (&[&[1, 2], &[3, 9]], &[], false),
            (&[&[1, 2, 5], &[3]], &[], false),
            (&[&[1, 2], &[0, 3]], &[], true),
            (&[&[1, 2, 3], &[7, 8, 9]], &[0, 1, 2], true),
            (&[&[1, 2, 3, 4], &[9]], &[3], false),
        ];
        for (batches, freed, out_of_order) in cases {
            let mut allocator = SlotAllocator::default();
            for (index, batch) in batches.iter().enumerate() {
                if index + 1 == batches.len() {
                    allocator.free(freed);
                }
                let reused = allocator.reuse(batch.len());
                let slots = reused.iter().copied().chain(allocator.unused());
                let rows: Vec<(u64, u32)> = batch.iter().copied().zip(slots).collect();
                allocator.made(&rows, reused.len());
            }
            assert_eq!(allocator.are_out_of_order(), out_of_order, "{batches:?}, {freed:?} freed");
        }
    }

    #[test]
    fn allocator_asks_for_compaction_when_most_of_many_slots_are_free() {
        let many = COMPACT_FREE_SLOTS as u32;
        // (slots, how many of them are freed, whether it asks for compaction)
        for (slots, freed, expected) in
            [(many, many - 1, false), (many, many, true), (2 * many, many, false), (2 * many, many + 1, true)]
        {
            let mut allocator = SlotAllocator::default();
            allocator.made(&(0..slots).map(|slot| (u64::from(slot), slot)).collect::<Vec<_>>(), 0);
            allocator.free(&(0..freed).collect::<Vec<_>>());
            assert_eq!(allocator.are_mostly_free(), expected, "{freed} of {slots}");
        }
    }

    #[test]
    fn allocator_uses_no_slot_of_the_side_that_rows_leave() {
        let new = |index| slot_at(1, index);
        let mut allocator = SlotAllocator::default();
        allocator.made(&[(10, 0), (20, 1), (30, 2)], 0);
        allocator.free(&[1]);
        assert_eq!(allocator.begin_move(), (0, vec![1]));
        assert_eq!(allocator.move_row(0), Move { from: 0, to: new(0) });
        assert_eq!(allocator.reuse(1), [], "slot 1 is on the side that rows leave");
        allocator.made(&[(40, new(1))], 0);
        allocator.free(&[2, new(0)]);
        assert_eq!((allocator.rows(), allocator.counts()), (1, SlotCounts([3, 2])));
        assert_eq!(allocator.reuse(2), [new(0)], "slot 2 is on the side that rows leave");
        allocator.made(&[(5, new(0))], 1);
        let live = allocator.live().expect("those that rows have left hold none");
        assert_eq!([0, 1, 2, new(0), new(1)].map(|slot| live.contains(slot)), [false, false, false, true, true]);
        allocator.end_move(40);
        assert_eq!((allocator.rows(), allocator.counts()), (2, SlotCounts([0, 2])));
        assert!(allocator.are_out_of_order(), "rows that were made meanwhile lie anywhere");
    }
}
