//! Copy on write: the rows as they are at one moment, copied in pieces while they change.
//!
//! [`Snapshot::new`] fixes the moment. [`Snapshot::copy_some`] copies the next rows, place by
//! place. The slab calls [`Snapshot::keep`] before it changes rows, and [`Snapshot::keep_removed`]
//! before it removes them: rows that are not copied yet are copied first. So the copy holds every
//! row as it was at the moment, and a change copies no row but its own.
//!
//! The rows must not move to other slots meanwhile.

#[cfg(test)]
mod tests;

use super::index::Index;
use super::row_blocks::{Places, RowBlocks};
use super::slot_set::SlotSet;
use types::{Position, PositionRange};
use update::{ABSENT, Number, Slots};

/// A copy of row state that is being made.
pub(crate) struct Snapshot<T> {
    stride: usize,
    /// How the rows are numbered through.
    places: Places,
    /// How many places there were at the moment. Later ones are not part of the copy.
    count: usize,
    /// The copy, by place.
    rows: Vec<T>,
    /// Places below this have been copied in order.
    copied: usize,
    /// Slots at places from there on that were copied early, because their rows changed.
    early: SlotSet,
    /// The slots that held a row; `None` if all did.
    live: Option<SlotSet>,
    /// Where the rows stand; `None` for a dense table, whose slots are positions.
    positions: Option<Positions>,
    /// Rows that have been moved together where slots were free: read from, written to.
    compacted: (usize, usize),
}

/// The positions of the rows of a copy, found by walking the index in pieces.
struct Positions {
    by_place: Vec<u64>,
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
    /// Begins a copy of the rows at the first `count` places. `live`: the slots that hold a row,
    /// `None` if all do. `first`: the first position of a sparse table.
    pub fn new(places: Places, count: usize, stride: usize, live: Option<SlotSet>, first: Option<Position>) -> Self {
        // Zeroed pages come from the system untouched: memory is taken as rows are copied.
        let positions = |first| Positions { by_place: vec![0; count], removed: SlotSet::default(), next: Some(first) };
        Self {
            stride,
            places,
            count,
            rows: vec![T::ZERO; count * stride],
            copied: 0,
            early: SlotSet::default(),
            live,
            positions: first.map(positions),
            compacted: (0, 0),
        }
    }

    /// Copies rows that are about to change.
    pub fn keep(&mut self, blocks: &RowBlocks<T>, slots: Slots<'_>) {
        match slots {
            Slots::Run { first, count } => {
                (first as u32..(first + count) as u32).for_each(|slot| self.keep_one(blocks, slot));
            }
            Slots::List(list) => {
                list.iter().filter(|slot| **slot != ABSENT).for_each(|slot| self.keep_one(blocks, *slot));
            }
        }
    }

    /// Copies rows that are about to be removed, and notes where they stood.
    pub fn keep_removed(&mut self, blocks: &RowBlocks<T>, positions: &[u64], slots: &[u32]) {
        self.keep(blocks, Slots::List(slots));
        let Self { positions: Some(known), live, places, count, .. } = self else { return };
        if known.next.is_none() {
            // The walk has found every position, and they may have been moved together since.
            return;
        }
        for (position, slot) in positions.iter().zip(slots) {
            if *slot == ABSENT || known.removed.contains(*slot) {
                continue;
            }
            let place = places.of(*slot);
            if place < *count && live.as_ref().is_none_or(|live| live.contains(*slot)) {
                known.removed.insert(*slot);
                known.by_place[place] = *position;
            }
        }
    }

    /// Does the next piece of the copy: at most `most` rows.
    pub fn copy_some(&mut self, blocks: &RowBlocks<T>, index: &Index, range: PositionRange, most: usize) {
        if self.copied < self.count {
            self.copy_rows(blocks, most);
        } else if !self.walk(index, range, most) {
            self.compact(most);
        }
    }

    /// Whether nothing is left to copy.
    pub fn is_whole(&self) -> bool {
        let is_walked = self.positions.as_ref().is_none_or(|positions| positions.next.is_none());
        let is_compacted = self.live.is_none() || self.compacted.0 == self.count;
        self.copied == self.count && is_walked && is_compacted
    }

    /// The copy, if it is whole.
    pub fn finish(self) -> Option<CopiedRows<T>> {
        if !self.is_whole() {
            return None;
        }
        let Self { mut rows, positions, live, stride, compacted, .. } = self;
        let mut positions = positions.map(|positions| positions.by_place);
        if live.is_some() {
            rows.truncate(compacted.1 * stride);
            positions.iter_mut().for_each(|positions| positions.truncate(compacted.1));
        }
        Some(CopiedRows { rows, positions })
    }

    fn keep_one(&mut self, blocks: &RowBlocks<T>, slot: u32) {
        let place = self.places.of(slot);
        if place < self.copied || place >= self.count || self.early.contains(slot) {
            return;
        }
        self.early.insert(slot);
        self.copy(blocks, place..place + 1);
    }

    fn copy(&mut self, blocks: &RowBlocks<T>, places: std::ops::Range<usize>) {
        let numbers = places.start * self.stride..places.end * self.stride;
        blocks.copy_places(places, &mut self.rows[numbers]);
    }

    /// Copies the next rows in order, but for those that were copied early.
    fn copy_rows(&mut self, blocks: &RowBlocks<T>, most: usize) {
        let end = self.count.min(self.copied.saturating_add(most));
        let mut begin = self.copied;
        if self.early.len() > 0 {
            for place in self.copied..end {
                if self.early.contains(self.places.slot(place)) {
                    self.copy(blocks, begin..place);
                    begin = place + 1;
                }
            }
        }
        self.copy(blocks, begin..end);
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
            let place = self.places.of(slot);
            let was_there = place < self.count && self.live.as_ref().is_none_or(|live| live.contains(slot));
            if was_there && !known.removed.contains(slot) {
                known.by_place[place] = position;
            }
        }
        true
    }

    /// Moves the next rows together over slots that were free.
    fn compact(&mut self, most: usize) {
        let Some(live) = &self.live else { return };
        let (read, mut write) = self.compacted;
        let end = self.count.min(read.saturating_add(most));
        for place in (read..end).filter(|place| live.contains(self.places.slot(*place))) {
            self.rows.copy_within(place * self.stride..(place + 1) * self.stride, write * self.stride);
            self.positions.iter_mut().for_each(|positions| positions.by_place[write] = positions.by_place[place]);
            write += 1;
        }
        self.compacted = (end, write);
    }
}
