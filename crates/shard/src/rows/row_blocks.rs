//! Row memory: row states one after the other in a block, two blocks while rows are laid out anew.
//!
//! Updaters work on one block. [`RowBlocks::parts`] cuts a batch where it goes from one block to
//! the other. Rows move in position order and batches are sorted, so a batch has few parts, but for
//! rows that were made meanwhile.
//!
//! A copy for a checkpoint numbers the rows of both blocks through, old block first: their
//! *places*. While it is made, no row moves.

use super::slot::{Move, index_of, side_of, slot_at};
use std::ops::Range;
use update::{ABSENT, Number, Slots};

/// The row states of a slab.
pub(crate) struct RowBlocks<T> {
    /// Numbers in a row state.
    stride: usize,
    /// By side: row states by index.
    blocks: [Vec<T>; 2],
    /// The side that new rows are on.
    side: usize,
    /// Whether rows may be on both sides.
    is_split: bool,
}

/// A part of a batch whose rows are in one block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    pub side: usize,
    /// As updaters take them.
    pub slots: Slots<'a>,
    /// Which rows of the batch.
    pub rows: Range<usize>,
}

/// How the rows of both blocks are numbered through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// The side that new rows are on.
    side: usize,
    /// Slots on the other side.
    others: usize,
}

impl Places {
    /// The place of a slot, which is not `ABSENT`.
    pub fn of(self, slot: u32) -> usize {
        if side_of(slot) == self.side { self.others + index_of(slot) } else { index_of(slot) }
    }

    /// The slot at a place.
    pub fn slot(self, place: usize) -> u32 {
        match place.checked_sub(self.others) {
            Some(index) => slot_at(self.side, index),
            None => slot_at(1 - self.side, place),
        }
    }
}

impl<T: Number> RowBlocks<T> {
    /// No rows.
    pub fn new(stride: usize) -> Self {
        Self { stride, blocks: [Vec::new(), Vec::new()], side: 0, is_split: false }
    }

    /// The row states of a dense table.
    pub fn dense(stride: usize, numbers: Vec<T>) -> Self {
        Self { blocks: [numbers, Vec::new()], ..Self::new(stride) }
    }

    /// How many numbers its memory has room for.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.blocks.iter().map(Vec::capacity).sum()
    }

    /// Makes room for `slots` slots on the side of new rows. New ones are zero.
    pub fn grow(&mut self, slots: usize) {
        self.blocks[self.side].resize(slots * self.stride, T::ZERO);
    }

    /// The row state at a slot.
    pub fn row(&self, slot: u32) -> &[T] {
        &self.blocks[side_of(slot)][index_of(slot) * self.stride..][..self.stride]
    }

    /// The row state at a slot, to change.
    pub fn row_mut(&mut self, slot: u32) -> &mut [T] {
        &mut self.blocks[side_of(slot)][index_of(slot) * self.stride..][..self.stride]
    }

    /// The block of a side.
    pub fn block(&self, side: usize) -> &[T] {
        &self.blocks[side]
    }

    /// The block of a side, to change.
    pub fn block_mut(&mut self, side: usize) -> &mut [T] {
        &mut self.blocks[side]
    }

    /// Cuts a batch into parts whose rows are in one block each. A row that is `ABSENT` belongs to
    /// the part before it.
    pub fn parts<'a>(&self, slots: Slots<'a>) -> Parts<'a> {
        if let (false, Slots::List(list)) = (self.is_split, slots) {
            debug_assert!(list.iter().all(|slot| *slot == ABSENT || side_of(*slot) == self.side), "an outdated slot");
        }
        Parts { rest: slots, done: 0, only: (!self.is_split).then_some(self.side) }
    }

    /// New rows are on the other side from now on, with room for `slots` of them before that block
    /// grows.
    pub fn begin_move(&mut self, slots: usize) {
        self.side = 1 - self.side;
        self.is_split = true;
        // If there is no room yet, the block grows as rows are added.
        let mut block = Vec::new();
        let _ = block.try_reserve_exact(slots * self.stride);
        self.blocks[self.side] = block;
    }

    /// Copies a row behind the last one on the side of new rows.
    pub fn move_row(&mut self, moved: Move) {
        let [first, second] = &mut self.blocks;
        let (from, to) = if self.side == 1 { (first, second) } else { (second, first) };
        debug_assert_eq!(to.len(), index_of(moved.to) * self.stride, "rows are appended");
        to.extend_from_slice(&from[index_of(moved.from) * self.stride..][..self.stride]);
    }

    /// All rows are on the side of new rows. Returns the block that they have left.
    pub fn end_move(&mut self) -> Vec<T> {
        self.is_split = false;
        std::mem::take(&mut self.blocks[1 - self.side])
    }

    /// How the rows of both blocks are numbered through.
    pub fn places(&self) -> Places {
        Places { side: self.side, others: self.blocks[1 - self.side].len() / self.stride }
    }

    /// Copies the row states at these places.
    pub fn copy_places(&self, places: Range<usize>, out: &mut [T]) {
        let others = self.places().others;
        let old = places.start.min(others)..places.end.min(others);
        let new = places.start.max(others) - others..places.end.max(others) - others;
        let (of_old, of_new) = out.split_at_mut(old.len() * self.stride);
        of_old.copy_from_slice(&self.blocks[1 - self.side][old.start * self.stride..old.end * self.stride]);
        of_new.copy_from_slice(&self.blocks[self.side][new.start * self.stride..new.end * self.stride]);
    }
}

/// The parts of a batch, in order.
pub(crate) struct Parts<'a> {
    rest: Slots<'a>,
    /// Rows of the batch in earlier parts.
    done: usize,
    /// The side of all rows, if it is known.
    only: Option<usize>,
}

impl<'a> Iterator for Parts<'a> {
    type Item = Part<'a>;

    fn next(&mut self) -> Option<Part<'a>> {
        let (side, slots, rest) = match self.rest {
            slots if slots.count() == 0 => return None,
            Slots::Run { first, count } => {
                let slot = first as u32;
                (side_of(slot), Slots::Run { first: index_of(slot), count }, &[][..])
            }
            Slots::List(list) => match self.only {
                Some(side) => (side, Slots::List(list), &[][..]),
                None => {
                    let side = list.iter().find(|slot| **slot != ABSENT).map_or(0, |slot| side_of(*slot));
                    let here = |slot: &u32| *slot == ABSENT || side_of(*slot) == side;
                    let (part, rest) = list.split_at(list.iter().take_while(|slot| here(slot)).count());
                    (side, Slots::List(part), rest)
                }
            },
        };
        let rows = self.done..self.done + slots.count();
        self.rest = Slots::List(rest);
        self.done = rows.end;
        Some(Part { side, slots, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: u32 = 1 << 31;

    /// Rows 0, 1, 2 on side 0, and a copy of row 1 on side 1.
    fn split() -> RowBlocks<i64> {
        let mut blocks = RowBlocks::new(2);
        blocks.grow(3);
        (0..3).for_each(|slot| blocks.row_mut(slot).fill(i64::from(slot)));
        blocks.begin_move(1);
        blocks.move_row(Move { from: 1, to: NEW });
        blocks
    }

    #[test]
    fn batch_is_cut_where_it_goes_from_one_block_to_the_other() {
        type Case = (&'static [u32], &'static [(usize, std::ops::Range<usize>)]);
        let cases: [Case; 6] = [
            (&[], &[]),
            (&[0, 2], &[(0, 0..2)]),
            (&[NEW, 0], &[(1, 0..1), (0, 1..2)]),
            (&[ABSENT, ABSENT], &[(0, 0..2)]),
            (&[ABSENT, NEW, ABSENT, 2, ABSENT], &[(1, 0..3), (0, 3..5)]),
            (&[0, NEW, 2], &[(0, 0..1), (1, 1..2), (0, 2..3)]),
        ];
        for (list, expected) in cases {
            let expected: Vec<Part<'_>> = expected
                .iter()
                .map(|(side, rows)| Part { side: *side, slots: Slots::List(&list[rows.clone()]), rows: rows.clone() })
                .collect();
            assert_eq!(split().parts(Slots::List(list)).collect::<Vec<_>>(), expected, "{list:?}");
        }
        let run = Slots::Run { first: NEW as usize, count: 1 };
        let expected = Part { side: 1, slots: Slots::Run { first: 0, count: 1 }, rows: 0..1 };
        assert_eq!(split().parts(run).collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn places_number_the_rows_of_both_blocks_through() {
        let mut blocks = split();
        let places = blocks.places();
        for (place, slot) in [0, 1, 2, NEW, NEW + 1].into_iter().enumerate() {
            assert_eq!((places.of(slot), places.slot(place)), (place, slot));
        }
        for (range, expected) in
            [(0..4, &[0, 1, 2, 1][..]), (1..3, &[1, 2]), (2..4, &[2, 1]), (3..4, &[1]), (2..2, &[])]
        {
            let mut copy = vec![9; range.len() * 2];
            blocks.copy_places(range, &mut copy);
            assert_eq!(copy.chunks(2).map(|row| row[0]).collect::<Vec<_>>(), expected);
        }
        assert_eq!(blocks.end_move().len(), 6);
        assert_eq!((blocks.places().of(NEW), blocks.block(0).len()), (0, 0));
    }
}
