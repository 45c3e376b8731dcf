//! A set of slots as a bitmap.

use super::slot::{Move, index_of, side_of};

/// Some of a shard's rows, by slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotSet {
    /// By side.
    words: [Vec<u64>; 2],
    len: u64,
}

impl SlotSet {
    /// Adds a slot.
    pub fn insert(&mut self, slot: u32) {
        let words = &mut self.words[side_of(slot)];
        let word = index_of(slot) / 64;
        let bit = 1 << (slot % 64);
        if words.len() <= word {
            words.resize(word + 1, 0);
        }
        self.len += u64::from(words[word] & bit == 0);
        words[word] |= bit;
    }

    /// Removes a slot.
    pub fn remove(&mut self, slot: u32) {
        let bit = 1 << (slot % 64);
        if let Some(word) = self.words[side_of(slot)].get_mut(index_of(slot) / 64) {
            self.len -= u64::from(*word & bit != 0);
            *word &= !bit;
        }
    }

    /// Removes all slots.
    pub fn clear(&mut self) {
        self.words.iter_mut().for_each(|words| words.fill(0));
        self.len = 0;
    }

    /// Whether a slot is in it.
    pub fn contains(&self, slot: u32) -> bool {
        self.words[side_of(slot)].get(index_of(slot) / 64).is_some_and(|word| word & (1 << (slot % 64)) != 0)
    }

    /// How many slots are in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// A row has moved: if its old slot is in the set, the new one takes its place. Returns whether
    /// it was.
    pub fn row_moved(&mut self, moved: Move) -> bool {
        let is_held = self.contains(moved.from);
        if is_held {
            self.remove(moved.from);
            self.insert(moved.to);
        }
        is_held
    }

    /// Rows have moved.
    pub fn rows_moved(&mut self, moves: &[Move]) {
        if self.len > 0 {
            moves.iter().for_each(|moved| {
                self.row_moved(*moved);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: u32 = 1 << 31;

    #[test]
    fn slot_set_holds_and_counts_each_slot_once() {
        let mut set = SlotSet::default();
        for slot in [3, 70, 3, NEW + 70] {
            set.insert(slot);
        }
        set.remove(1000);
        set.remove(NEW + 3);
        assert_eq!(set.len(), 3);
        assert_eq!([3, 70, 71, NEW + 3, NEW + 70].map(|slot| set.contains(slot)), [true, true, false, false, true]);
        set.remove(70);
        set.remove(70);
        assert_eq!((set.len(), set.contains(70), set.contains(NEW + 70)), (2, false, true));
        set.clear();
        assert_eq!((set.len(), set.contains(3), set.contains(NEW + 70)), (0, false, false));
    }

    #[test]
    fn slot_set_follows_rows_that_move() {
        let mut set = SlotSet::default();
        [3, 70].into_iter().for_each(|slot| set.insert(slot));
        let moves = [Move { from: 4, to: NEW }, Move { from: 3, to: NEW + 1 }];
        assert_eq!(moves.map(|moved| set.clone().row_moved(moved)), [false, true]);
        set.rows_moved(&moves);
        assert_eq!(set.len(), 2);
        assert_eq!([3, 70, NEW, NEW + 1].map(|slot| set.contains(slot)), [false, true, false, true]);
    }
}
