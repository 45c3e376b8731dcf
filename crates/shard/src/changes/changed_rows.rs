//! A set of changed rows, each with its position and its slot.

use crate::rows::slot_set::SlotSet;
use crate::view::Row;
use std::collections::BTreeSet;
use update::ABSENT;

/// Duplicate entries are not removed while there are fewer entries than this.
const SHRINK_ABOVE: usize = 64 << 10;

/// Some rows by position and slot, in the order in which they changed first.
#[derive(Debug, Default)]
pub(crate) struct ChangedRows {
    /// Slots of the rows in `rows` that exist.
    known: SlotSet,
    rows: Vec<Row>,
    /// Duplicate entries are removed once there are more entries than this.
    shrink_above: usize,
}

impl ChangedRows {
    /// Adds rows; their slot is `ABSENT` where a position has no row. Returns how many were given,
    /// repeated ones included.
    pub fn extend(&mut self, rows: impl Iterator<Item = Row>) -> usize {
        let mut times = 0;
        for (position, slot) in rows {
            times += 1;
            if slot == ABSENT {
                self.rows.push((position, ABSENT));
            } else if !self.known.contains(slot) {
                self.known.insert(slot);
                self.rows.push((position, slot));
            }
        }
        times
    }

    /// Adds a removed row. Its slot is free, and another row may take it from now on.
    pub fn removed(&mut self, position: u64, slot: u32) {
        self.known.remove(slot);
        self.rows.push((position, ABSENT));
        if self.rows.len() > self.shrink_above.max(SHRINK_ABOVE) {
            self.shrink();
        }
    }

    /// Keeps the last entry for each position. A row that is made and removed by turns has many.
    fn shrink(&mut self) {
        let mut seen = BTreeSet::new();
        let mut kept: Vec<Row> = self.rows.drain(..).rev().filter(|(position, _)| seen.insert(*position)).collect();
        kept.reverse();
        self.shrink_above = 2 * kept.len();
        self.rows = kept;
    }

    /// Forgets that these rows, which were removed, changed.
    pub fn forget(&mut self, removed: &[Row]) {
        if self.rows.is_empty() || removed.is_empty() {
            return;
        }
        let gone: BTreeSet<u64> = removed.iter().map(|(position, _)| *position).collect();
        self.rows.retain(|(position, _)| !gone.contains(position));
        removed.iter().for_each(|(_, slot)| self.known.remove(*slot));
    }

    /// How many rows it holds.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// The rows, in the order in which they changed first.
    pub fn iter(&self) -> impl Iterator<Item = Row> + Clone + '_ {
        self.rows.iter().copied()
    }

    /// Removes all rows and returns their positions, rising.
    pub fn take(&mut self) -> Vec<u64> {
        self.shrink_above = 0;
        let rows = std::mem::take(&mut self.rows);
        rows.iter().for_each(|(_, slot)| self.known.remove(*slot));
        let mut positions: Vec<u64> = rows.into_iter().map(|(position, _)| position).collect();
        positions.sort_unstable();
        positions.dedup();
        positions
    }

    /// All rows have been put in order: `moves` gives the new slot of each old one, `ABSENT` for a
    /// removed row.
    pub fn renumber(&mut self, moves: &[u32]) {
        self.known.renumber(moves);
        self.rows.iter_mut().for_each(|(_, slot)| *slot = moves.get(*slot as usize).copied().unwrap_or(ABSENT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_rows_hold_a_row_once_until_they_are_taken() {
        let mut changed = ChangedRows::default();
        assert_eq!(changed.extend([(9, 0), (4, 1), (9, 0)].into_iter()), 3);
        changed.renumber(&[5, 6]);
        changed.extend([(9, 5)].into_iter());
        assert_eq!((changed.len(), changed.take()), (2, vec![4, 9]));
        changed.extend([(4, 6)].into_iter());
        assert_eq!(changed.take(), [4]);
    }

    #[test]
    fn changed_rows_memory_is_bounded_by_rows_not_by_removals() {
        let mut changed = ChangedRows::default();
        for _ in 0..3 * SHRINK_ABOVE {
            changed.extend([(4, 1), (9, 2)].into_iter());
            changed.removed(4, 1);
        }
        changed.extend([(4, 1)].into_iter());
        assert!(changed.len() <= SHRINK_ABOVE + 2, "{}", changed.len());
        assert_eq!(changed.take(), [4, 9]);
        changed.extend([(4, 1), (9, 2)].into_iter());
        assert_eq!(changed.take(), [4, 9], "nothing of the batch before is left");
    }

    #[test]
    fn changed_rows_hold_a_removed_row_and_the_one_that_reuses_its_slot() {
        let mut changed = ChangedRows::default();
        changed.extend([(4, 1)].into_iter());
        changed.removed(4, 1);
        changed.extend([(9, 1)].into_iter());
        changed.renumber(&[ABSENT, 0]);
        changed.extend([(9, 0)].into_iter());
        assert_eq!(changed.take(), [4, 9]);
        changed.extend([(9, 0)].into_iter());
        assert_eq!(changed.take(), [9], "nothing of the batch before is left");
    }
}
