//! A set of slots as a bitmap.

use update::ABSENT;

/// Some of a shard's rows, by slot.
#[derive(Debug, Default)]
pub(crate) struct SlotSet {
    words: Vec<u64>,
    len: u64,
}

impl SlotSet {
    /// Adds a slot.
    pub fn insert(&mut self, slot: u32) {
        let word = slot as usize / 64;
        let bit = 1 << (slot % 64);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.len += u64::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    /// Removes a slot.
    pub fn remove(&mut self, slot: u32) {
        let bit = 1 << (slot % 64);
        if let Some(word) = self.words.get_mut(slot as usize / 64) {
            self.len -= u64::from(*word & bit != 0);
            *word &= !bit;
        }
    }

    /// Removes all slots.
    pub fn clear(&mut self) {
        self.words.fill(0);
        self.len = 0;
    }

    /// Whether a slot is in it.
    pub fn contains(&self, slot: u32) -> bool {
        self.words.get(slot as usize / 64).is_some_and(|word| word & (1 << (slot % 64)) != 0)
    }

    /// How many slots are in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The rows have moved: `moves` gives the new slot of each old one, `ABSENT` for a removed row,
    /// whose slot is dropped.
    pub fn renumber(&mut self, moves: &[u32]) {
        let old = std::mem::take(self);
        let bits = |word: u64| (0..64).filter(move |bit| word & (1 << bit) != 0);
        let slots = old.words.iter().enumerate().flat_map(|(index, word)| bits(*word).map(move |bit| index * 64 + bit));
        slots.map(|slot| moves[slot]).filter(|slot| *slot != ABSENT).for_each(|slot| self.insert(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_set_holds_and_counts_each_slot_once() {
        let mut set = SlotSet::default();
        for slot in [3, 70, 3] {
            set.insert(slot);
        }
        set.remove(1000);
        assert_eq!((set.len(), set.contains(3), set.contains(70), set.contains(71)), (2, true, true, false));
        set.renumber(&(0..100).rev().collect::<Vec<u32>>());
        assert_eq!((set.len(), set.contains(96), set.contains(29), set.contains(3)), (2, true, true, false));
        set.remove(96);
        set.remove(96);
        assert_eq!((set.len(), set.contains(96)), (1, false));
        set.renumber(&[0; 29].into_iter().chain([ABSENT]).collect::<Vec<u32>>());
        assert_eq!((set.len(), set.contains(29), set.contains(0)), (0, false, false), "its row was removed");
        set.insert(29);
        set.clear();
        assert_eq!((set.len(), set.contains(29)), (0, false));
    }
}
