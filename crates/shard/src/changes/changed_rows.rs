//! A set of changed rows, each with its position and its slot.

use crate::rows::slot::{Forwarding, Move};
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
    /// So many of the first `rows` may have slots that they have left.
    outdated: usize,
    /// The slots in `known` that such rows have moved to.
    moved_to: Vec<u32>,
    /// The layout whose moves [`forward`](Self::forward) follows, and how many of `rows` do.
    forwarded: (u64, usize),
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
        self.forwarded.1 = 0;
        self.outdated = self.outdated.min(kept.len());
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
        self.forwarded.1 = 0;
        self.outdated = self.outdated.min(self.rows.len());
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
        self.forwarded.1 = 0;
        self.outdated = 0;
        let rows = std::mem::take(&mut self.rows);
        rows.iter().for_each(|(_, slot)| self.known.remove(*slot));
        self.moved_to.drain(..).for_each(|slot| self.known.remove(slot));
        let mut positions: Vec<u64> = rows.into_iter().map(|(position, _)| position).collect();
        positions.sort_unstable();
        positions.dedup();
        positions
    }

    /// Rows have moved.
    pub fn rows_moved(&mut self, moves: &[Move]) {
        if self.known.len() == 0 {
            return;
        }
        let before = self.moved_to.len();
        let moved = moves.iter().filter(|moved| self.known.row_moved(**moved));
        self.moved_to.extend(moved.map(|moved| moved.to));
        if self.moved_to.len() > before {
            self.outdated = self.rows.len();
        }
    }

    /// All rows have moved: forgets slots that they have left, at most `most`. Returns how many it
    /// has looked at, 0 if none is left.
    pub fn forward(&mut self, forwarding: &Forwarding, most: usize) -> usize {
        if self.forwarded.0 != forwarding.number() {
            self.forwarded = (forwarding.number(), 0);
        }
        let begin = self.forwarded.1.min(self.outdated);
        let end = self.outdated.min(begin.saturating_add(most));
        for (_, slot) in &mut self.rows[begin..end] {
            // A row that was removed before it moved has no slot.
            *slot = forwarding.of(*slot).unwrap_or(ABSENT);
        }
        self.forwarded.1 = end;
        if end == self.outdated {
            self.outdated = 0;
            self.forwarded.1 = 0;
            self.moved_to.clear();
        }
        end - begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: u32 = 1 << 31;

    #[test]
    fn changed_rows_hold_a_row_once_until_they_are_taken() {
        let mut changed = ChangedRows::default();
        assert_eq!(changed.extend([(9, 0), (4, 1), (9, 0)].into_iter()), 3);
        changed.rows_moved(&[Move { from: 0, to: NEW + 5 }]);
        changed.extend([(9, NEW + 5), (4, 1)].into_iter());
        assert_eq!((changed.len(), changed.take()), (2, vec![4, 9]));
        changed.extend([(9, NEW + 5)].into_iter());
        assert_eq!(changed.take(), [9], "nothing of the batch before is left");
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
        changed.rows_moved(&[Move { from: 1, to: NEW }]);
        changed.extend([(9, NEW)].into_iter());
        assert_eq!(changed.take(), [4, 9]);
        changed.extend([(9, NEW)].into_iter());
        assert_eq!(changed.take(), [9], "nothing of the batch before is left");
    }

    /// Seeds 59 and 107 of `feed_shows_every_change` panicked.
    #[test]
    fn changed_rows_hold_a_removed_row_over_layouts_with_fewer_slots() {
        let mut changed = ChangedRows::default();
        changed.extend([(4, 5)].into_iter());
        changed.removed(4, 5);
        // Rows move from side 0 to side 1 and back; none of them has changed.
        changed.rows_moved(&[Move { from: 0, to: NEW }]);
        changed.rows_moved(&[Move { from: NEW, to: 0 }]);
        changed.extend([(9, 0)].into_iter());
        let mut forwarding = Forwarding::new(3, 0, 1);
        let moved = Move { from: 0, to: NEW };
        forwarding.insert(moved);
        changed.rows_moved(&[moved]);
        assert_eq!(changed.forward(&forwarding, 9), 3);
        assert_eq!(changed.take(), [4, 9]);
        assert_eq!(changed.known.len(), 0);
    }

    #[test]
    fn changed_rows_forget_slots_that_rows_have_left() {
        let moves = [Move { from: 2, to: NEW }, Move { from: 1, to: NEW + 1 }];
        let mut forwarding = Forwarding::new(1, 0, 4);
        moves.into_iter().for_each(|moved| forwarding.insert(moved));
        for most in [1, 2, 9] {
            let mut changed = ChangedRows::default();
            changed.extend([(10, 1), (20, 2), (40, 3)].into_iter());
            changed.rows_moved(&moves[..1]);
            // Row 40 is removed before it moves.
            changed.removed(40, 3);
            changed.rows_moved(&moves[1..]);
            changed.extend([(10, NEW + 1), (20, NEW), (50, NEW + 2)].into_iter());
            let mut seen = 0;
            while seen < 4 {
                seen += changed.forward(&forwarding, most);
                // Rows that change meanwhile have no old slots.
                changed.extend([(60 + seen as u64, NEW + 5)].into_iter());
            }
            assert_eq!((seen, changed.forward(&forwarding, most)), (4, 0), "rows that changed later are not looked at");
            assert!(changed.iter().all(|(_, slot)| !forwarding.is_old(slot)));
            // The next layout gives slots of the old side to other rows.
            changed.rows_moved(&[Move { from: NEW + 1, to: 1 }]);
            changed.extend([(10, 1), (70, 2), (80, 3)].into_iter());
            let taken = changed.take();
            assert!([10, 20, 40, 50, 70, 80].iter().all(|position| taken.contains(position)), "{taken:?}");
            assert_eq!(changed.known.len(), 0, "nothing of the batch before is left");
        }
    }
}
