//! Slots: where a row lies. A slot's highest bit says which of the two blocks of row memory holds
//! the row, its *side*; the other bits are the row's index in that block.
//!
//! All rows are on one side, except while they are laid out anew: then they move one by one to the
//! other side (`slab/layout.rs`). So a slot of one layout is never mistaken for a slot of
//! the next.

use update::{ABSENT, SLOT_INDEX};

/// The side of a slot, 0 or 1. `ABSENT` has none, though this gives 1.
#[inline]
pub(crate) fn side_of(slot: u32) -> usize {
    (slot >> 31) as usize
}

/// The index of a slot's row in its block.
#[inline]
pub(crate) fn index_of(slot: u32) -> usize {
    (slot & SLOT_INDEX) as usize
}

/// The slot of the row with this index on this side.
#[inline]
pub(crate) fn slot_at(side: usize, index: usize) -> u32 {
    ((side as u32) << 31) | index as u32
}

/// A row has moved to another slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub from: u32,
    pub to: u32,
}

/// How many slots each side has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotCounts(pub [usize; 2]);

impl SlotCounts {
    /// How many slots there are.
    pub fn all(self) -> usize {
        self.0.iter().sum()
    }
}

/// A value for each slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct BySlot<V> {
    sides: [Vec<V>; 2],
}

impl<V: Copy + Default> BySlot<V> {
    /// Makes room for these slots. New ones have the default value. Where it is zero, memory pages
    /// of a side that is new are not touched.
    pub fn grow(&mut self, counts: SlotCounts) {
        for (values, count) in self.sides.iter_mut().zip(counts.0) {
            if values.is_empty() && count > 0 {
                *values = vec![V::default(); count];
            } else if values.len() < count {
                values.resize(count, V::default());
            }
        }
    }

    /// The value of a slot, if there is room for the slot.
    #[inline]
    pub fn get(&self, slot: u32) -> Option<V> {
        self.sides[side_of(slot)].get(index_of(slot)).copied()
    }

    /// The value of a slot, to change, if there is room for the slot.
    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut V> {
        self.sides[side_of(slot)].get_mut(index_of(slot))
    }

    /// The values of `count` slots from `first` on, to change. There must be room for them.
    pub fn run_mut(&mut self, first: u32, count: usize) -> &mut [V] {
        &mut self.sides[side_of(first)][index_of(first)..][..count]
    }
}

/// Where each row has moved to, while rows are laid out anew: the forwarding table of a copying
/// collector.
#[derive(Debug)]
pub(crate) struct Forwarding {
    /// Tells this layout from earlier ones.
    number: u64,
    /// The side that rows leave.
    old_side: usize,
    /// By index on the old side: 1 + the index on the other side, or 0 for a row that has not
    /// moved. Memory pages are not touched before a row moves.
    moved: Vec<u32>,
}

impl Forwarding {
    /// No row of `slots` on `old_side` has moved yet.
    pub fn new(number: u64, old_side: usize, slots: usize) -> Self {
        Self { number, old_side, moved: vec![0; slots] }
    }

    /// A row has moved.
    pub fn insert(&mut self, moved: Move) {
        self.moved[index_of(moved.from)] = index_of(moved.to) as u32 + 1;
    }

    /// Tells this layout from earlier ones.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether a slot is on the side that rows leave.
    #[inline]
    pub fn is_old(&self, slot: u32) -> bool {
        slot != ABSENT && side_of(slot) == self.old_side
    }

    /// The slot that a row has now. `None` for a row that has not moved yet, or was removed before
    /// it moved. A row that was removed before an earlier layout may have had a slot that this side
    /// no longer has.
    #[inline]
    pub fn of(&self, slot: u32) -> Option<u32> {
        if !self.is_old(slot) {
            return Some(slot);
        }
        let moved = self.moved.get(index_of(slot)).copied().unwrap_or(0);
        (moved > 0).then(|| slot_at(1 - self.old_side, moved as usize - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_names_a_side_and_an_index() {
        for (side, index) in [(0, 0), (1, 0), (0, 7), (1, SLOT_INDEX as usize - 1), (0, SLOT_INDEX as usize)] {
            let slot = slot_at(side, index);
            assert_eq!((side_of(slot), index_of(slot)), (side, index));
            assert_ne!(slot, ABSENT);
        }
    }

    #[test]
    fn forwarding_gives_the_slots_of_rows_on_both_sides() {
        for old_side in [0, 1] {
            let old = |index| slot_at(old_side, index);
            let new = |index| slot_at(1 - old_side, index);
            let mut forwarding = Forwarding::new(1, old_side, 3);
            forwarding.insert(Move { from: old(2), to: new(0) });
            forwarding.insert(Move { from: old(0), to: new(5) });
            assert_eq!([old(0), old(1), old(2)].map(|slot| forwarding.of(slot)), [Some(new(5)), None, Some(new(0))]);
            assert_eq!([new(9), ABSENT].map(|slot| forwarding.of(slot)), [Some(new(9)), Some(ABSENT)]);
            assert_eq!(forwarding.of(old(3)), None, "the side had this slot in an earlier layout");
            assert_eq!([old(1), new(1), ABSENT].map(|slot| forwarding.is_old(slot)), [true, false, false]);
        }
    }

    #[test]
    fn values_by_slot_are_kept_apart_by_side() {
        let mut values = BySlot::<u32>::default();
        values.grow(SlotCounts([2, 0]));
        values.grow(SlotCounts([1, 3]));
        *values.get_mut(slot_at(1, 1)).expect("there is room") = 5;
        values.run_mut(slot_at(0, 0), 2)[1] = 7;
        let all: Vec<Option<u32>> = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)]
            .map(|(side, index)| values.get(slot_at(side, index)))
            .to_vec();
        assert_eq!(all, [Some(0), Some(7), None, Some(0), Some(5), Some(0), None]);
    }
}
