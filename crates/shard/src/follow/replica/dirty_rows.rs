//! The rows that changed since the last batch, each once.

use crate::rows::slot_set::SlotSet;

/// Some rows by position and slot, in the order in which they changed first.
#[derive(Debug, Default)]
pub(crate) struct DirtyRows {
    known: SlotSet,
    rows: Vec<(u64, u32)>,
    times: usize,
}

impl DirtyRows {
    /// These have changed.
    pub fn extend(&mut self, rows: impl Iterator<Item = (u64, u32)>) {
        for (position, slot) in rows {
            self.times += 1;
            if !self.known.contains(slot) {
                self.known.insert(slot);
                self.rows.push((position, slot));
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// How often any of them changed.
    pub fn times(&self) -> usize {
        self.times
    }

    /// All of them, by position; none are left.
    pub fn take(&mut self) -> Vec<(u64, u32)> {
        self.times = 0;
        let mut rows = std::mem::take(&mut self.rows);
        rows.iter().for_each(|(_, slot)| self.known.remove(*slot));
        rows.sort_unstable();
        rows
    }

    /// All rows have been put in order.
    pub fn renumber(&mut self, moves: &[u32]) {
        self.known.renumber(moves);
        self.rows.iter_mut().for_each(|(_, slot)| *slot = moves[*slot as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_in_it_once_until_it_is_taken() {
        let mut dirty = DirtyRows::default();
        dirty.extend([(9, 0), (4, 1), (9, 0)].into_iter());
        dirty.renumber(&[5, 6]);
        dirty.extend([(9, 5)].into_iter());
        assert_eq!((dirty.len(), dirty.times(), dirty.take()), (2, 4, vec![(4, 6), (9, 5)]));
        dirty.extend([(4, 6)].into_iter());
        assert_eq!(dirty.take(), [(4, 6)]);
    }
}
