//! Copy on write: the rows as they are at one moment, copied in pieces while they change.
//!
//! [`Snapshot::new`] fixes the moment. [`Snapshot::copy_some`] copies the next rows, in slot order.
//! The slab calls [`Snapshot::keep`] before it changes rows, and [`Snapshot::keep_removed`] before
//! it removes them: rows that are not copied yet are copied first. So the copy holds every row as
//! it was at the moment, and a change copies no row but its own.
//!
//! The rows must not move to other slots meanwhile.

#[cfg(test)]
mod tests;

use super::index::Index;
use super::slot_set::SlotSet;
use types::{Position, PositionRange};
use update::{ABSENT, Number, Slots};

/// A copy of row state that is being made.
pub(crate) struct Snapshot<T> {
    stride: usize,
    /// How many slots there were at the moment. Later slots are not part of the copy.
    slots: usize,
    /// The copy, by slot.
    rows: Vec<T>,
    /// Slots below this have been copied in slot order.
    copied: usize,
    /// Slots from there on that were copied early, because their rows changed.
    early: SlotSet,
    /// Whether each slot held a row; `None` if all did.
    live: Option<Vec<bool>>,
    /// Where the rows stand; `None` for a dense table, whose slots are positions.
    positions: Option<Positions>,
    /// Rows that have been moved together where slots were free: read from, written to.
    compacted: (usize, usize),
}

/// The positions of the rows of a copy, found by walking the index in pieces.
struct Positions {
    by_slot: Vec<u64>,
    /// Slots whose position is known because their rows were removed. The index no longer has
    /// them, or has another row there.
    removed: SlotSet,
    /// Where the walk goes on; `None` once it has ended.
    next: Option<Position>,
}

/// A whole copy.
pub(crate) struct CopiedRows<T> {
    /// Row state, row after row.
    pub rows: Vec<T>,
    /// Where each row stands; `None` for a dense table.
    pub positions: Option<Vec<u64>>,
}

impl<T: Number> Snapshot<T> {
    /// Begins a copy of all rows. `live` says which slots hold a row, `None` that all do.
    pub fn new(slots: usize, stride: usize, live: Option<Vec<bool>>, is_dense: bool, range: PositionRange) -> Self {
        // Zeroed pages come from the system untouched: memory is taken as rows are copied.
        let by_slot = || Positions { by_slot: vec![0; slots], removed: SlotSet::default(), next: Some(range.first) };
        Self {
            stride,
            slots,
            rows: vec![T::ZERO; slots * stride],
            copied: 0,
            early: SlotSet::default(),
            live,
            positions: (!is_dense).then(by_slot),
            compacted: (0, 0),
        }
    }

    /// Copies rows that are about to change.
    pub fn keep(&mut self, slab: &[T], slots: Slots<'_>) {
        match slots {
            Slots::Run { first, count } => self.keep_run(slab, first, count),
            Slots::List(list) => {
                list.iter().filter(|slot| **slot != ABSENT).for_each(|slot| self.keep_one(slab, *slot))
            }
        }
    }

    /// Copies rows that are about to be removed, and notes where they stood.
    pub fn keep_removed(&mut self, slab: &[T], positions: &[u64], slots: &[u32]) {
        self.keep(slab, Slots::List(slots));
        let Self { positions: Some(known), live, slots: count, .. } = self else { return };
        if known.next.is_none() {
            // The walk has found every position, and they may have been moved together since.
            return;
        }
        for (position, slot) in positions.iter().zip(slots) {
            let index = *slot as usize;
            let was_there = *slot != ABSENT && index < *count && live.as_ref().is_none_or(|live| live[index]);
            if was_there && !known.removed.contains(*slot) {
                known.removed.insert(*slot);
                known.by_slot[index] = *position;
            }
        }
    }

    /// Does the next piece of the copy: at most `most` rows.
    pub fn copy_some(&mut self, slab: &[T], index: &Index, range: PositionRange, most: usize) {
        if self.copied < self.slots {
            self.copy_rows(slab, most);
        } else if !self.walk(index, range, most) {
            self.compact(most);
        }
    }

    /// Whether nothing is left to copy.
    pub fn is_whole(&self) -> bool {
        let is_walked = self.positions.as_ref().is_none_or(|positions| positions.next.is_none());
        let is_compacted = self.live.is_none() || self.compacted.0 == self.slots;
        self.copied == self.slots && is_walked && is_compacted
    }

    /// The copy, if it is whole.
    pub fn finish(self) -> Option<CopiedRows<T>> {
        if !self.is_whole() {
            return None;
        }
        let Self { mut rows, positions, live, stride, compacted, .. } = self;
        let mut positions = positions.map(|positions| positions.by_slot);
        if live.is_some() {
            rows.truncate(compacted.1 * stride);
            positions.iter_mut().for_each(|positions| positions.truncate(compacted.1));
        }
        Some(CopiedRows { rows, positions })
    }

    fn keep_run(&mut self, slab: &[T], first: usize, count: usize) {
        let first = first.max(self.copied);
        let end = (first + count).min(self.slots);
        (first..end).for_each(|slot| self.keep_one(slab, slot as u32));
    }

    fn keep_one(&mut self, slab: &[T], slot: u32) {
        let index = slot as usize;
        if index < self.copied || index >= self.slots || self.early.contains(slot) {
            return;
        }
        self.early.insert(slot);
        self.copy(slab, index..index + 1);
    }

    fn copy(&mut self, slab: &[T], slots: std::ops::Range<usize>) {
        let numbers = slots.start * self.stride..slots.end * self.stride;
        self.rows[numbers.clone()].copy_from_slice(&slab[numbers]);
    }

    /// Copies the next rows in slot order, but for those that were copied early.
    fn copy_rows(&mut self, slab: &[T], most: usize) {
        let end = self.slots.min(self.copied.saturating_add(most));
        let mut begin = self.copied;
        if self.early.len() > 0 {
            for slot in self.copied..end {
                if self.early.contains(slot as u32) {
                    self.copy(slab, begin..slot);
                    begin = slot + 1;
                }
            }
        }
        self.copy(slab, begin..end);
        self.copied = end;
    }

    /// Walks the next entries of the index. Returns false if there are none left to walk.
    fn walk(&mut self, index: &Index, range: PositionRange, most: usize) -> bool {
        let Some(known) = &mut self.positions else { return false };
        let Some(next) = known.next else { return false };
        let (mut found, mut slots) = index.entries(next.0..=range.last.0, most.saturating_add(1));
        known.next = found.get(most).copied().map(Position);
        found.truncate(most);
        slots.truncate(most);
        for (position, slot) in found.into_iter().zip(slots) {
            // A slot that was free at the moment, or came later, holds a new row.
            let index = slot as usize;
            let was_there = index < self.slots && self.live.as_ref().is_none_or(|live| live[index]);
            if was_there && !known.removed.contains(slot) {
                known.by_slot[index] = position;
            }
        }
        true
    }

    /// Moves the next rows together over slots that were free.
    fn compact(&mut self, most: usize) {
        let Some(live) = &self.live else { return };
        let (read, mut write) = self.compacted;
        let end = self.slots.min(read.saturating_add(most));
        for slot in (read..end).filter(|slot| live[*slot]) {
            self.rows.copy_within(slot * self.stride..(slot + 1) * self.stride, write * self.stride);
            self.positions.iter_mut().for_each(|positions| positions.by_slot[write] = positions.by_slot[slot]);
            write += 1;
        }
        self.compacted = (end, write);
    }
}
