//! The rows of one shard: where they lie, how they are found, and what an update does to them.
//!
//! `Rows` owns the parts that know rows by their slots: the slab, the key lists, the pending rows,
//! which a scan does not show yet, and the active set of the KKT filter. When rows are laid out
//! anew, these follow. `Rows::lay_out` returns the moves for other parts of the shard.

pub(crate) mod active;
mod index;
mod initial;
pub(crate) mod key_lists;
pub(crate) mod pending_rows;
pub(crate) mod resolve;
mod resolved;
mod row_blocks;
mod row_state;
mod slab;
pub(crate) mod slot;
mod slot_allocator;
pub(crate) mod slot_set;
pub(crate) mod snapshot;
mod spread;

use crate::rows::active::ActiveSet;
use crate::rows::key_lists::KeyLists;
use crate::rows::pending_rows::PendingRows;
use crate::rows::resolved::as_slots;
use crate::rows::slab::Slab;
use crate::rows::slot::{BySlot, Forwarding, SlotCounts};
pub use index::Index;
pub(crate) use resolved::Resolved;
pub(crate) use slab::{LayoutPiece, PieceOfWork, RowsError};
use std::collections::BTreeMap;
use types::{Clock, Position, PositionRange, Setting, TableSpec};
use update::{ABSENT, Number, Slots, Updaters};
use wire::{Bits, Payload};

/// The rows of one shard.
pub(crate) struct Rows<T: Number> {
    slab: Slab<T>,
    lists: KeyLists,
    pending: PendingRows,
    /// The active set, if the table filters by KKT conditions.
    active: Option<ActiveSet>,
    /// Whether the positions of key lists are kept, because followers need positions of changed
    /// rows.
    names_rows: bool,
    /// Whether rows of a checkpoint are being set.
    awaited: bool,
}

/// The part of the shard metadata that [`Rows`] fills: everything but the numbers of the rows.
pub(crate) struct SavedRows {
    /// Learning rates, by the first clock each holds for.
    pub rates: Vec<(Clock, f64)>,
    /// Examples that were counted.
    pub examples: u64,
    /// Positions of pending rows: all of them, and those that each clock makes.
    pub pending: (Vec<u64>, Vec<(Clock, Vec<u64>)>),
}

impl<T: Number> Rows<T> {
    /// The rows of `range` of a table, with `list_bytes` of memory for key lists.
    pub fn new(
        spec: &TableSpec,
        range: PositionRange,
        registry: &Updaters,
        list_bytes: usize,
    ) -> Result<Self, RowsError> {
        Ok(Self {
            slab: Slab::new(spec, range, registry)?,
            lists: KeyLists::new(list_bytes),
            pending: PendingRows::new(spec),
            active: ActiveSet::of(spec),
            names_rows: false,
            awaited: false,
        })
    }

    /// Sets whether [`FoundRows`](resolve::FoundRows) must give positions even for a list that
    /// comes as a signature. If so, lists that were kept without positions are forgotten.
    pub fn name_rows(&mut self, names: bool) {
        if names && !self.names_rows {
            self.lists.clear();
        }
        self.names_rows = names;
    }

    /// Does a piece of work that would take too long at once: see [`PieceOfWork`]. A piece concerns
    /// at most `most` rows.
    pub fn work(&mut self, most: usize) -> PieceOfWork {
        self.slab.work(most)
    }

    /// Whether the rows are those of the table, so that they may be read and changed: every row has
    /// its initial weights, and no rows of a checkpoint are [awaited](Self::await_rows).
    pub fn are_made(&self) -> bool {
        self.slab.is_filled() && !self.awaited
    }

    /// Rows of a checkpoint are about to be set, or all are.
    pub fn await_rows(&mut self, awaited: bool) {
        self.awaited = awaited;
    }

    /// Gives every row its initial weights at once, if that is not done. It takes long only for a
    /// peer that uses a table before it is told that the table is there.
    pub fn fill(&mut self) {
        while !self.slab.is_filled() {
            self.slab.work(usize::MAX);
        }
    }

    /// Leaves initial weights out: every row is about to be set.
    pub fn skip_initial_weights(&mut self) {
        self.slab.skip_initial_weights();
    }

    /// How many rows exist.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// How many slots there are: of rows, and free ones.
    pub fn slot_count(&self) -> usize {
        self.slab.slot_count()
    }

    /// How many slots a list by slot needs room for on each side.
    pub fn slot_counts(&self) -> SlotCounts {
        self.slab.slot_counts()
    }

    /// Numbers in a row as readers see it.
    pub fn width(&self) -> usize {
        self.slab.width()
    }

    /// Whether the table is dense: every row of the range exists, in order.
    pub fn is_dense(&self) -> bool {
        self.slab.is_dense()
    }

    /// Whether reading a key makes its row.
    pub fn reads_create(&self) -> bool {
        self.slab.reads_create()
    }

    /// The position of the row at each slot, 0 at a free one.
    pub fn positions(&self) -> BySlot<u64> {
        self.slab.positions()
    }

    /// The rows that exist in `range`, in order, at most `limit`, and where the next page starts.
    pub fn scan(&self, range: PositionRange, limit: usize) -> (Vec<u64>, Resolved, Option<Position>) {
        self.slab.scan(range, limit)
    }

    /// Like [`scan`](Self::scan), without pending rows: what a reader's scan shows.
    pub fn scan_shown(&self, range: PositionRange, limit: usize) -> (Vec<u64>, Resolved, Option<Position>) {
        let (mut found, mut resolved, next) = self.slab.scan(range, limit);
        if let Resolved::List(slots) = &mut resolved
            && self.pending.are_kept()
        {
            let shown: Vec<bool> = found.iter().map(|position| !self.pending.contains(*position)).collect();
            let mut each = shown.iter();
            slots.retain(|_| each.next().is_none_or(|shown| *shown));
            let mut each = shown.iter();
            found.retain(|_| each.next().is_none_or(|shown| *shown));
        }
        (found, resolved, next)
    }

    /// Whether a reader's scan shows the row at this position, if it exists.
    pub fn shows(&self, position: u64) -> bool {
        !self.pending.contains(position)
    }

    /// A contribution to a held clock has made these rows: a reader's scan shows them once the
    /// clock is applied.
    pub fn make_pending(&mut self, clock: Clock, positions: &[u64]) {
        self.pending.add(clock, positions);
    }

    /// A read has made these rows, with their initial values.
    pub fn made_by_read(&mut self, positions: impl Iterator<Item = u64>) {
        self.pending.read(positions);
    }

    /// A held clock is applied, so that its rows are pending no more, or has failed.
    pub fn end_clock(&mut self, clock: Clock, applied: bool) {
        self.pending.finish(clock, applied);
    }

    /// Applies one push by itself. The rows must all exist.
    pub fn apply(&mut self, clock: Clock, slots: Slots<'_>, gradients: &[T]) {
        self.slab.apply(clock, slots, gradients);
    }

    /// Applies the combined contributions of a clock. If the table filters by KKT conditions, also
    /// decides which of the rows are active.
    pub fn apply_clock(&mut self, clock: Clock, slots: &[u32], gradients: Vec<T>) {
        if let Some(active) = &mut self.active {
            let mut before = vec![T::ZERO; gradients.len()];
            let mut after = before.clone();
            self.slab.read(clock, as_slots(slots), &mut before);
            self.slab.apply(clock, as_slots(slots), &gradients);
            self.slab.read(clock, as_slots(slots), &mut after);
            active.stepped(self.slab.width(), slots, &before, &gradients, &after);
        } else {
            self.slab.apply(clock, as_slots(slots), &gradients);
        }
        self.slab.keep_applied(as_slots(slots), gradients);
    }

    /// Memory for the contributions that will be applied next: of earlier ones that no reader uses
    /// any more, if there is some.
    pub fn take_spare(&mut self) -> Vec<T> {
        self.slab.take_spare()
    }

    /// Reads the values that a reader at this frontier sees.
    pub fn read(&self, frontier: Clock, slots: Slots<'_>, out: &mut [T]) {
        self.slab.read(frontier, slots, out);
    }

    /// Reads the values that a reader at this frontier sees at these positions and slots. Where
    /// there is no row, the values of a new row.
    pub fn read_all(&self, frontier: Clock, positions: &[u64], slots: &[u32], out: &mut [T]) {
        self.slab.read(frontier, Slots::List(slots), out);
        if !self.reads_create() || !slots.contains(&ABSENT) {
            return;
        }
        let width = self.width();
        for ((row, position), slot) in out.chunks_exact_mut(width).zip(positions).zip(slots) {
            if *slot == ABSENT {
                self.slab.read_new(frontier, &[*position], row);
            }
        }
    }

    /// The values of these rows without a copy, if the shard still holds them as they were
    /// assigned.
    pub fn lend(&self, resolved: &Resolved) -> Option<Payload> {
        self.slab.lend(resolved)
    }

    /// A bit for each of these rows, set if it is active. All are set in a table without a KKT
    /// filter.
    pub fn active_bits(&self, slots: &[u32]) -> Bits {
        let mut bits = Bits::none(slots.len());
        let is_active = |slot: u32| self.active.as_ref().is_none_or(|active| active.contains(slot));
        slots.iter().enumerate().filter(|(_, slot)| is_active(**slot)).for_each(|(index, _)| bits.set(index));
        bits
    }

    /// Counts examples that pushes were computed from.
    pub fn count_examples(&mut self, examples: u64) {
        self.slab.count_examples(examples);
    }

    /// Examples that were counted.
    pub fn examples(&self) -> u64 {
        self.slab.examples()
    }

    /// A setting changes for updates made in clock `at` and later.
    pub fn tune(&mut self, at: Clock, setting: Setting) {
        self.slab.tune(at, setting);
    }

    /// Forgets settings that no update can use any more: those before the one that holds at
    /// `frontier`.
    pub fn forget_settings(&mut self, frontier: Clock) {
        self.slab.forget_settings(frontier);
    }

    /// Removes the rows at rising positions of a sparse table, with their state. Skips positions
    /// without a row. Returns the freed slots, in the order of their positions.
    ///
    /// Later rows reuse these slots, with initial values. So the caller must tell all parts that
    /// know rows by their slots in the same step.
    pub fn remove(&mut self, positions: &[u64]) -> Vec<u32> {
        debug_assert!(!self.is_dense(), "every row of a dense table exists");
        debug_assert!(positions.is_sorted_by(|one, next| one < next), "positions rise");
        let freed = self.slab.remove(positions);
        if !freed.is_empty() {
            self.lists.rows_removed();
            self.pending.remove(positions);
            self.active.iter_mut().for_each(|active| active.remove(&freed));
        }
        freed
    }

    /// Gives the rows at these slots and positions their initial values and zero state, as if each
    /// had been removed and made again. They keep their slots.
    ///
    /// Used in place of [`remove`](Self::remove) for rows that a held sum of an open clock names
    /// ([`Clocks::holds_any`](crate::intake::clocks::Clocks::holds_any)): a later contribution has
    /// made them anew. The caller must [make them pending](Self::make_pending) for those clocks.
    pub fn reset(&mut self, slots: &[u32], positions: &[u64]) {
        debug_assert!(!self.is_dense() && slots.len() == positions.len(), "a position for each slot");
        self.slab.reset(slots, positions);
        self.pending.remove(positions);
        self.active.iter_mut().for_each(|active| active.remove(slots));
    }

    /// Removes all rows of a sparse table, with their state. Returns their memory, which may take
    /// long to free. The caller must tell all parts that know rows by their slots in the same step.
    pub fn clear(&mut self, spec: &TableSpec) -> impl Send + use<T> {
        debug_assert!(!self.is_dense(), "every row of a dense table exists");
        self.lists.clear();
        self.pending = PendingRows::new(spec);
        self.active = ActiveSet::of(spec);
        self.slab.clear(spec.shape)
    }

    /// Whether rows are to be laid out anew, to be in position order or to free the memory of
    /// removed ones, or are being laid out.
    pub fn needs_layout(&self) -> bool {
        self.slab.needs_layout()
    }

    /// Does the next piece of laying rows out: at most `most` rows. The caller must tell all parts
    /// that know rows by their slots in the same step, and [end the layout](Self::end_layout) once
    /// all rows have moved and these parts have forgotten the slots that rows have left.
    pub fn lay_out(&mut self, most: usize) -> LayoutPiece {
        let piece = self.slab.lay_out(most);
        match &piece {
            LayoutPiece::Nothing => {}
            LayoutPiece::Moved(moves) => self.active.iter_mut().for_each(|active| active.rows_moved(moves)),
            LayoutPiece::AllMoved => {
                let looked_at = self.slab.forwarding().map_or(0, |forwarding| self.lists.forward(forwarding, most));
                if looked_at > 0 {
                    return LayoutPiece::Moved(Vec::new());
                }
            }
        }
        piece
    }

    /// Where rows have moved to, while they are being laid out.
    pub fn forwarding(&self) -> Option<&Forwarding> {
        self.slab.forwarding()
    }

    /// No part knows a slot any more that a row has left. Returns memory, which may take long to
    /// free.
    pub fn end_layout(&mut self) -> impl Send + use<T> {
        self.slab.end_layout()
    }

    /// Saves everything but the numbers of the rows.
    pub fn save(&self) -> SavedRows {
        let rates = self.slab.rates().iter().map(|(clock, rate)| (*clock, *rate)).collect();
        SavedRows { rates, examples: self.slab.examples(), pending: self.pending.parts() }
    }

    /// Loads what was saved. The numbers of the rows stay as they are.
    pub fn load(&mut self, spec: &TableSpec, saved: SavedRows) {
        self.slab.restore(saved.examples, saved.rates.into_iter().collect::<BTreeMap<_, _>>());
        self.pending = PendingRows::from_parts(spec, saved.pending);
    }

    /// Forgets which rows each open clock makes, because those clocks are lost.
    pub fn lose_open_clocks(&mut self, spec: &TableSpec) {
        let (pending, _) = self.pending.parts();
        self.pending = PendingRows::from_parts(spec, (pending, Vec::new()));
    }
}

#[cfg(test)]
mod measurements;
#[cfg(test)]
mod tests;
