//! The slot allocator of a slab: a free list of slots without a row.
//!
//! A new row takes a freed slot before the slab grows. So the slab has no more slots than the most
//! rows that existed at once since it was last compacted. The cost of a removal depends only on the
//! removed rows. The allocator also counts the rows that were made out of position order, and says
//! when laying all rows out anew pays.

/// With fewer free slots than this, all rows are not laid out anew to free memory.
const COMPACT_FREE_SLOTS: usize = 4096;

/// The slots of one slab.
#[derive(Debug, Default)]
pub(super) struct SlotAllocator {
    /// How many slots there are: one more than the largest.
    slots: usize,
    /// Slots without a row. The last one freed is reused first.
    free: Vec<u32>,
    /// Rows made out of position order since all rows were last laid out. Removals do not lower it,
    /// so the cost of laying rows out is always spread over the rows that were made.
    out_of_order: usize,
    /// The highest position of the rows that were made in order.
    in_order_to: u64,
}

impl SlotAllocator {
    /// `slots` slots with a row each, in position order. `last`: the position of the last row.
    pub fn full(slots: usize, last: u64) -> Self {
        Self { slots, free: Vec::new(), out_of_order: 0, in_order_to: last }
    }

    /// How many rows exist.
    pub fn rows(&self) -> usize {
        self.slots - self.free.len()
    }

    /// One more than the largest slot.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Up to `count` freed slots for new rows, rising, so that a batch is laid out front to back.
    pub fn reuse(&mut self, count: usize) -> Vec<u32> {
        let mut reused = self.free.split_off(self.free.len() - count.min(self.free.len()));
        reused.sort_unstable();
        reused
    }

    /// Rows were made at these positions and slots, rising. The first `reused` of them have slots
    /// that [`reuse`](Self::reuse) gave. The others are appended to the slab.
    pub fn made(&mut self, rows: &[(u64, u32)], reused: usize) {
        let (Some((first, _)), Some((last, _))) = (rows.first(), rows.last()) else { return };
        let continues = reused == 0 && self.out_of_order == 0 && (self.slots == 0 || *first > self.in_order_to);
        if continues {
            self.in_order_to = *last;
        } else {
            self.out_of_order += rows.len();
        }
        self.slots += rows.len() - reused;
    }

    /// The rows at these slots were removed.
    pub fn free(&mut self, slots: &[u32]) {
        self.free.extend_from_slice(slots);
    }

    /// Whether half of the rows were made out of position order. So a row moves for this reason
    /// only a few times in its life, however many rows there are in the end.
    pub fn are_out_of_order(&self) -> bool {
        self.out_of_order > 0 && self.out_of_order * 2 >= self.rows()
    }

    /// Whether more than half of the slots are free, and enough to be worth moving the other rows.
    pub fn are_mostly_free(&self) -> bool {
        self.free.len() * 2 > self.slots && self.free.len() >= COMPACT_FREE_SLOTS
    }

    /// For each slot, whether it holds a row; `None` if all do.
    pub fn live(&self) -> Option<Vec<bool>> {
        if self.free.is_empty() {
            return None;
        }
        let mut live = vec![true; self.slots];
        self.free.iter().for_each(|slot| live[*slot as usize] = false);
        Some(live)
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
        assert_eq!((allocator.rows(), allocator.slots(), allocator.live()), (1, 3, Some(vec![false, true, false])));
        assert_eq!(allocator.reuse(1), [0], "the last one freed");
        allocator.made(&[(5, 0)], 1);
        assert_eq!(allocator.reuse(4), [2]);
        allocator.made(&[(1, 2), (7, 3)], 1);
        assert_eq!((allocator.rows(), allocator.slots(), allocator.live()), (4, 4, None));
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
                let slots = reused.iter().copied().chain(allocator.slots() as u32..);
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
            let mut allocator = SlotAllocator::full(slots as usize, 0);
            allocator.free(&(0..freed).collect::<Vec<_>>());
            assert_eq!(allocator.are_mostly_free(), expected, "{freed} of {slots}");
        }
    }
}
