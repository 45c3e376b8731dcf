//! Laying rows out anew, in pieces while the table is in use: a copying collector.
//!
//! Rows are laid out in position order without gaps, if one of these holds:
//! - Rows are short, the index is walked, and half of the rows were made out of order. So a row
//!   moves only a few times in its life, however many rows there are in the end.
//! - More than half of the slots are free, and these are many. So memory follows the rows that
//!   exist.
//!
//! Each piece moves the next rows in position order from their block of row memory to the other
//! one, changes the index, and returns the moves. Rows that are made meanwhile are appended to the
//! other block. A row moves once, and its old slot is not used again. So parts that know many slots
//! need not look for moved ones: the [`Forwarding`] gives the new slot of an old one, until these
//! parts have forgotten all old slots.
//!
//! A copy for a checkpoint knows rows by their slots, so no row moves while one is made.

use super::Slab;
use crate::rows::slot::{Forwarding, Move};
use update::Number;

/// Rows shorter than this many bytes are kept roughly in position order. They share cache lines, so
/// a sorted batch then walks through the slab instead of jumping about in it. Longer rows gain
/// nothing.
const ORDERED_BELOW_BYTES: usize = 64;
/// Room for rows that are made meanwhile: one for so many rows that move.
const ROOM_SHARE: usize = 8;

/// Rows that are being laid out.
pub(super) struct Layout<T> {
    forwarding: Forwarding,
    /// Where the walk through the index goes on; `None` once all rows have moved.
    next: Option<u64>,
    /// Memory that is no longer used. It may take long to free.
    left: (Vec<T>, Vec<u32>),
}

/// What a piece of laying rows out did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LayoutPiece {
    /// There was nothing to do.
    Nothing,
    /// These rows have moved.
    Moved(Vec<Move>),
    /// All rows have moved before: old slots are to be forgotten.
    AllMoved,
}

impl<T: Number> Slab<T> {
    /// Whether rows are to be laid out or are being laid out.
    pub fn needs_layout(&self) -> bool {
        let is_walked = self.stride * size_of::<T>() < ORDERED_BELOW_BYTES && self.index.is_walked();
        let is_time = || is_walked && self.slots.are_out_of_order() || self.slots.are_mostly_free();
        self.layout.is_some() || is_time()
    }

    /// Where rows have moved to, while they are being laid out.
    pub fn forwarding(&self) -> Option<&Forwarding> {
        self.layout.as_ref().map(|layout| &layout.forwarding)
    }

    /// Moves the next rows, at most `most`, if it is time.
    pub fn lay_out(&mut self, most: usize) -> LayoutPiece {
        if self.copy.is_some() || !self.needs_layout() {
            return LayoutPiece::Nothing;
        }
        if self.layout.is_none() {
            self.begin_layout();
        }
        let Self { layout: Some(layout), index, slots, blocks, .. } = self else { return LayoutPiece::Nothing };
        let Some(next) = layout.next else { return LayoutPiece::AllMoved };
        let mut moves = Vec::with_capacity(most.min(slots.rows()));
        layout.next = index.renumber_some(next, most, |slot| {
            if !layout.forwarding.is_old(slot) {
                return slot;
            }
            let moved = slots.move_row(slot);
            blocks.move_row(moved);
            layout.forwarding.insert(moved);
            moves.push(moved);
            moved.to
        });
        if layout.next.is_none() {
            slots.end_move(index.highest().unwrap_or(0));
            layout.left.0 = blocks.end_move();
        }
        LayoutPiece::Moved(moves)
    }

    fn begin_layout(&mut self) {
        self.layouts += 1;
        let rows = self.slots.rows();
        let (old_side, free) = self.slots.begin_move();
        let forwarding = Forwarding::new(self.layouts, old_side, self.slots.counts().0[old_side]);
        self.blocks.begin_move(rows + rows / ROOM_SHARE);
        self.layout = Some(Layout { forwarding, next: Some(self.range.first.0), left: (Vec::new(), free) });
    }

    /// All parts have forgotten the slots that rows have left. Returns memory, which may take long
    /// to free.
    pub fn end_layout(&mut self) -> impl Send + use<T> {
        self.layout.take().map(|Layout { forwarding, left, .. }| (forwarding, left))
    }
}
