//! The slab: all rows of a shard, found by position through the index. A row keeps its slot until
//! it is removed or moves because rows are laid out anew ([`layout`]). A freed slot is reused by a
//! new row.

mod layout;
#[cfg(test)]
mod tests;

use super::index::Index;
use super::initial::initial;
use super::resolved::Resolved;
use super::row_blocks::RowBlocks;
use super::slot::{BySlot, SlotCounts};
use super::slot_allocator::SlotAllocator;
use super::snapshot::{CopiedRows, Snapshot};
use layout::Layout;
pub(crate) use layout::LayoutPiece;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{Clock, Initial, Key, Placement, Position, PositionRange, Setting, TableShape, TableSpec, UpdaterSpec};
use update::{ABSENT, Number, SLOT_INDEX, Slots, UnknownUpdater, UpdateStep, Updater, Updaters};
use wire::{Payload, Refusal};

/// A shard has at most this many rows: slots have one bit for the side, and `ABSENT` names no row.
const MOST_ROWS: u64 = SLOT_INDEX as u64;

/// Why the rows of a table cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RowsError {
    /// There is no such updater.
    #[error(transparent)]
    Updater(#[from] UnknownUpdater),
    /// The rows do not fit into memory.
    #[error("{rows} rows of this width do not fit into this server's memory; use more servers or a sparse table")]
    TooLarge {
        /// How many rows the shard has.
        rows: u64,
    },
    /// The shard has more rows than slots have numbers.
    #[error("one shard has {rows} rows, and {MOST_ROWS} at most; use more servers")]
    TooMany {
        /// How many rows the shard has.
        rows: u64,
    },
    /// The codecs do not fit each other or the table.
    #[error("{0}")]
    Codecs(String),
}

/// The rows of one shard.
pub(crate) struct Slab<T: Number> {
    range: PositionRange,
    placement: Placement,
    index: Index,
    /// A sparse table has at most this many rows.
    max_rows: u64,
    /// Numbers in a row as readers see it.
    width: usize,
    /// Numbers in a row state: the weights and the updater's state.
    stride: usize,
    /// Row states, by slot.
    blocks: RowBlocks<T>,
    slots: SlotAllocator,
    /// The rows are being laid out anew.
    layout: Option<Layout<T>>,
    /// How often rows were laid out.
    layouts: u64,
    /// How the weights of a new row are made.
    rule: Initial,
    updater: Box<dyn Updater<T>>,
    /// Examples that were counted.
    examples: u64,
    /// Learning rates by the first clock they hold for.
    rates: BTreeMap<Clock, f64>,
    /// Whether the table is dense with the updater `assign`: a row is what was last applied to it.
    assigns: bool,
    /// If so: the first slot of the run of rows that was assigned last, and its values.
    set: Option<(usize, Arc<Vec<T>>)>,
    /// Memory of earlier values of `set`, to be used again.
    spare: Vec<T>,
    /// The first slot of a dense table whose row has not its initial weights yet.
    unfilled: Option<usize>,
    /// A copy of the rows that is being made.
    copy: Option<Snapshot<T>>,
}

/// What one call of [`Slab::work`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PieceOfWork {
    /// There was nothing to do.
    Nothing,
    /// A piece; there may be more.
    Piece,
}

impl<T: Number> Slab<T> {
    /// The rows of `range` of a table.
    pub fn new(spec: &TableSpec, range: PositionRange, registry: &Updaters) -> Result<Self, RowsError> {
        let updater = registry.make::<T>(&spec.updater)?;
        let width = spec.width as usize;
        let stride = width + updater.state(width);
        let mut rows = Self {
            range,
            placement: spec.shape.placement(),
            index: Index::new(spec.shape, range),
            max_rows: u64::MAX,
            width,
            stride,
            blocks: RowBlocks::new(stride),
            slots: SlotAllocator::default(),
            layout: None,
            layouts: 0,
            rule: spec.initial,
            updater,
            examples: 0,
            rates: BTreeMap::new(),
            assigns: matches!(spec.updater, UpdaterSpec::Assign) && matches!(spec.shape, TableShape::Dense { .. }),
            set: None,
            spare: Vec::new(),
            unfilled: None,
            copy: None,
        };
        match spec.shape {
            TableShape::Dense { .. } => {
                let rows_of_range = range.last.0 - range.first.0 + 1;
                if rows_of_range > MOST_ROWS {
                    return Err(RowsError::TooMany { rows: rows_of_range });
                }
                let count = rows_of_range as usize;
                // Reserved and freed at once: a table that does not fit is refused instead of
                // aborting the process.
                let numbers = count.checked_mul(stride).ok_or(RowsError::TooLarge { rows: count as u64 })?;
                let room = Vec::<T>::new().try_reserve_exact(numbers);
                room.map_err(|_| RowsError::TooLarge { rows: count as u64 })?;
                // The system gives zeroed pages lazily, so a large table takes no memory until it
                // is used.
                rows.blocks = RowBlocks::dense(stride, vec![T::ZERO; numbers]);
                rows.slots = SlotAllocator::dense(count);
                rows.unfilled = (rows.rule != Initial::Zero).then_some(0);
            }
            TableShape::Sparse { max_rows, .. } => rows.max_rows = max_rows.min(MOST_ROWS),
        }
        Ok(rows)
    }

    /// Does a piece of work that would take too long at once: gives `most` rows of a new dense
    /// table their initial weights, or copies `most` rows.
    pub fn work(&mut self, most: usize) -> PieceOfWork {
        if let Some(first) = self.unfilled {
            self.fill_some(first, most);
            return PieceOfWork::Piece;
        }
        match &mut self.copy {
            Some(copy) if !copy.is_whole() => {
                copy.copy_some(&self.blocks, &self.index, self.range, most);
                PieceOfWork::Piece
            }
            Some(_) | None => PieceOfWork::Nothing,
        }
    }

    /// Whether every row has its initial weights, so that rows may be read and changed.
    pub fn is_filled(&self) -> bool {
        self.unfilled.is_none()
    }

    /// Leaves initial weights out: every row is about to be set.
    pub fn skip_initial_weights(&mut self) {
        self.unfilled = None;
    }

    fn fill_some(&mut self, first: usize, most: usize) {
        let end = self.slot_count().min(first.saturating_add(most));
        let first_position = self.range.first.0;
        self.fill((first..end).map(|slot| (first_position + slot as u64, slot as u32)));
        self.unfilled = (end < self.slot_count()).then_some(end);
    }

    /// Begins a copy of all rows as they are now. [`work`](Self::work) makes it.
    pub fn begin_copy(&mut self) {
        let (count, live) = (self.slot_count(), self.slots.live());
        let first = (!self.index.is_dense()).then_some(self.range.first);
        self.copy = Some(Snapshot::new(self.blocks.places(), count, self.stride, live, first));
    }

    /// Whether a copy is being made, or is whole and was not taken.
    pub fn is_being_copied(&self) -> bool {
        self.copy.is_some()
    }

    /// The copy, once it is whole.
    pub fn take_copy(&mut self) -> Option<CopiedRows<T>> {
        self.copy.take_if(|copy| copy.is_whole())?.finish()
    }

    /// Gives up the copy. Returns its memory, which may take long to free.
    pub fn drop_copy(&mut self) -> Option<Snapshot<T>> {
        self.copy.take()
    }

    /// Rows are about to change: a copy that is being made takes them first.
    fn will_change(&mut self, slots: Slots<'_>) {
        if let Some(copy) = &mut self.copy {
            copy.keep(&self.blocks, slots);
        }
    }

    /// How many rows exist.
    pub fn len(&self) -> usize {
        self.slots.rows()
    }

    /// How many slots there are: of rows, and free ones.
    pub fn slot_count(&self) -> usize {
        self.slots.counts().all()
    }

    /// How many slots a list by slot needs room for on each side.
    pub fn slot_counts(&self) -> SlotCounts {
        let mut counts = self.slots.counts();
        if counts.0.iter().all(|count| *count > 0) {
            // Rows are moving: room for all of them, so that lists are not made longer piece by
            // piece.
            counts.0 = counts.0.map(|count| count.max(self.len()));
        }
        counts
    }

    /// How many numbers its memory has room for.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.blocks.capacity()
    }

    /// Numbers in a row as readers see it.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether reading a key makes its row.
    pub fn reads_create(&self) -> bool {
        self.rule != Initial::Zero && !self.index.is_dense()
    }

    /// The slots of `count` consecutive positions. With `create`, makes absent rows.
    pub fn resolve_run(&mut self, first: Position, count: u64, create: bool) -> Result<Resolved, Refusal> {
        if count == 0 {
            return Ok(Resolved::Run { first: 0, count: 0 });
        }
        let last = first.0.checked_add(count - 1).ok_or(Refusal::OutOfRange { position: first })?;
        if first < self.range.first {
            return Err(Refusal::OutOfRange { position: first });
        }
        if last > self.range.last.0 {
            return Err(Refusal::OutOfRange { position: Position(last) });
        }
        if self.index.is_dense() {
            return Ok(Resolved::Run { first: (first.0 - self.range.first.0) as usize, count: count as usize });
        }
        if self.placement != Placement::Ordered {
            return Err(Refusal::NotOrdered);
        }
        let positions: Vec<u64> = (first.0..=last).collect();
        self.resolve_list(&positions, create)
    }

    /// The slots of sorted positions. With `create`, makes all absent rows, or refuses and makes
    /// none if they are too many.
    pub fn resolve_list(&mut self, positions: &[u64], create: bool) -> Result<Resolved, Refusal> {
        let (mut slots, absent) = self.find_list(positions)?;
        if absent > 0 && create {
            self.create(positions, &mut slots, absent)?;
        }
        Ok(Resolved::List(slots))
    }

    /// The slots of sorted positions, and how many of them have no row.
    pub fn find_list(&self, positions: &[u64]) -> Result<(Vec<u32>, usize), Refusal> {
        for position in [positions.first(), positions.last()].into_iter().flatten().copied().map(Position) {
            if !self.range.contains(position) {
                return Err(Refusal::OutOfRange { position });
            }
        }
        let mut slots = Vec::new();
        let absent = self.index.find(positions, &mut slots);
        Ok((slots, absent))
    }

    /// Like [`resolve_list`](Self::resolve_list), but looks up only the positions that were absent
    /// in `before`. The slots in `before` must still be valid.
    pub fn resolve_rest(&mut self, positions: &[u64], before: &[u32], create: bool) -> Result<Resolved, Refusal> {
        let mut slots = before.to_vec();
        let rest = || before.iter().zip(0..).filter(|(slot, _)| **slot == ABSENT).map(|(_, index): (_, usize)| index);
        let wanted: Vec<u64> = rest().map(|index| positions[index]).collect();
        let mut found = Vec::new();
        let absent = self.index.find(&wanted, &mut found);
        rest().zip(found).for_each(|(index, slot)| slots[index] = slot);
        if absent > 0 && create {
            self.create(positions, &mut slots, absent)?;
        }
        Ok(Resolved::List(slots))
    }

    /// Makes a row for each of the `absent` positions and writes its slot to `slots`.
    fn create(&mut self, positions: &[u64], slots: &mut [u32], absent: usize) -> Result<(), Refusal> {
        if (self.len() + absent) as u64 > self.max_rows {
            return Err(Refusal::TooManyRows { max_rows: self.max_rows });
        }
        let reused = self.slots.reuse(absent);
        let mut unused = reused.iter().copied().chain(self.slots.unused());
        let mut new = Vec::with_capacity(absent);
        for (slot, &position) in slots.iter_mut().zip(positions) {
            if *slot == ABSENT
                && let Some(free) = unused.next()
            {
                *slot = free;
                new.push((position, free));
            }
        }
        self.index.insert(&new);
        self.slots.made(&new, reused.len());
        self.blocks.grow(self.slots.newest());
        self.zero(&reused);
        self.fill(new.into_iter());
        Ok(())
    }

    /// Zeroes the weights and the updater's state of rows.
    fn zero(&mut self, slots: &[u32]) {
        self.will_change(Slots::List(slots));
        for slot in slots {
            self.blocks.row_mut(*slot).fill(T::ZERO);
        }
    }

    /// Writes the initial weights of rows, by position and slot. The rows must be zero.
    fn fill(&mut self, rows: impl Iterator<Item = (u64, u32)>) {
        if self.rule == Initial::Zero {
            return;
        }
        for (position, slot) in rows {
            let key = self.placement.key(Position(position));
            set_initial(self.rule, key, &mut self.blocks.row_mut(slot)[..self.width]);
        }
    }

    /// Reads the values that a reader at this frontier would see of new rows at these positions.
    pub fn read_new(&self, frontier: Clock, positions: &[u64], out: &mut [T]) {
        let mut rows = vec![T::ZERO; positions.len() * self.stride];
        for (row, position) in rows.chunks_exact_mut(self.stride).zip(positions) {
            set_initial(self.rule, self.placement.key(Position(*position)), &mut row[..self.width]);
        }
        let all = Slots::Run { first: 0, count: positions.len() };
        self.updater.read_rows(&self.step(frontier), self.width, &rows, all, out);
    }

    /// Removes the rows at rising positions. Skips positions without a row. Returns the freed
    /// slots, in the order of their positions. A freed slot is cleared when it is reused.
    pub fn remove(&mut self, positions: &[u64]) -> Vec<u32> {
        if let Some(copy) = &mut self.copy {
            let mut slots = Vec::new();
            self.index.find(positions, &mut slots);
            copy.keep_removed(&self.blocks, positions, &slots);
        }
        let freed = self.index.remove(positions);
        self.slots.free(&freed);
        freed
    }

    /// Removes all rows of a sparse table. Returns their memory, which may take long to free. Keeps
    /// the learning rates and the count of examples.
    pub fn clear(&mut self, shape: TableShape) -> impl Send + use<T> {
        let index = std::mem::replace(&mut self.index, Index::new(shape, self.range));
        let blocks = std::mem::replace(&mut self.blocks, RowBlocks::new(self.stride));
        let layout = self.end_layout();
        (index, std::mem::take(&mut self.slots), blocks, layout, self.copy.take())
    }

    /// Gives rows their initial weights and zero state. They keep their slots.
    pub fn reset(&mut self, slots: &[u32], positions: &[u64]) {
        self.zero(slots);
        self.fill(positions.iter().copied().zip(slots.iter().copied()));
    }

    /// The rows that exist in `range`, in order, at most `limit`, and where the next page starts.
    pub fn scan(&self, range: PositionRange, limit: usize) -> (Vec<u64>, Resolved, Option<Position>) {
        let first = range.first.max(self.range.first);
        let last = range.last.min(self.range.last);
        if first > last {
            return (Vec::new(), Resolved::List(Vec::new()), None);
        }
        if self.index.is_dense() {
            let count = ((last.0 - first.0) as usize).saturating_add(1).min(limit);
            let next = first.0 + count as u64;
            let more = (next <= last.0).then_some(Position(next));
            let run = Resolved::Run { first: (first.0 - self.range.first.0) as usize, count };
            return ((first.0..next).collect(), run, more);
        }
        let (mut positions, mut slots) = self.index.entries(first.0..=last.0, limit.saturating_add(1));
        let more = positions.get(limit).copied().map(Position);
        positions.truncate(limit);
        slots.truncate(limit);
        (positions, Resolved::List(slots), more)
    }

    /// Numbers in a row state: the weights and the updater's state.
    pub fn row_state_width(&self) -> usize {
        self.stride
    }

    /// The row state at a slot.
    pub fn row_state(&self, slot: u32) -> &[T] {
        self.blocks.row(slot)
    }

    /// Whether the table is dense: every row of the range exists, in order.
    pub fn is_dense(&self) -> bool {
        self.index.is_dense()
    }

    /// Replaces the state of rows. `None`, and no change, if `values` do not fill exactly these
    /// rows.
    pub fn put_row_state(&mut self, resolved: &Resolved, values: &[T]) -> Option<()> {
        let rows = values.chunks_exact(self.stride);
        if rows.len() != resolved.each().count() || !rows.remainder().is_empty() {
            return None;
        }
        self.forget_set();
        self.will_change(resolved.slots());
        for (slot, row) in resolved.each().zip(rows) {
            self.blocks.row_mut(slot).copy_from_slice(row);
        }
        Some(())
    }

    /// The position of the row at each slot, 0 at a free one.
    pub fn positions(&self) -> BySlot<u64> {
        let mut positions = BySlot::default();
        positions.grow(self.slots.counts());
        let mut next = Some(self.range.first);
        while let Some(first) = next {
            let (found, resolved, more) = self.scan(PositionRange { first, last: self.range.last }, 1 << 16);
            for (slot, position) in resolved.each().zip(found) {
                positions.get_mut(slot).into_iter().for_each(|place| *place = position);
            }
            next = more;
        }
        positions
    }

    /// Learning rates, by the first clock each holds for.
    pub fn rates(&self) -> &BTreeMap<Clock, f64> {
        &self.rates
    }

    /// Restores the count of examples and the learning rates.
    pub fn restore(&mut self, examples: u64, rates: BTreeMap<Clock, f64>) {
        self.examples = examples;
        self.rates = rates;
    }

    /// Examples that were counted.
    pub fn examples(&self) -> u64 {
        self.examples
    }

    /// Counts examples that pushes were computed from.
    pub fn count_examples(&mut self, examples: u64) {
        self.examples = self.examples.saturating_add(examples);
    }

    /// A setting changes for updates made in clock `at` and later.
    pub fn tune(&mut self, at: Clock, setting: Setting) {
        let Setting::Rate(rate) = setting;
        self.rates.insert(at, rate);
    }

    /// Forgets settings that no update can use any more: those before the one that holds at
    /// `frontier`.
    pub fn forget_settings(&mut self, frontier: Clock) {
        if let Some((&current, _)) = self.rates.range(..=frontier).next_back() {
            self.rates = self.rates.split_off(&current);
        }
    }

    /// The learning rate and the examples for an update in `clock`.
    fn step(&self, clock: Clock) -> UpdateStep {
        let rate = self.rates.range(..=clock).next_back().map(|(_, rate)| *rate);
        UpdateStep { rate, examples: self.examples }
    }

    /// Applies gradients made in `clock`. The slots must all exist.
    pub fn apply(&mut self, clock: Clock, slots: Slots<'_>, gradients: &[T]) {
        self.forget_set();
        self.will_change(slots);
        let step = self.step(clock);
        let width = self.width;
        for part in self.blocks.parts(slots) {
            let gradients = &gradients[part.rows.start * width..part.rows.end * width];
            self.updater.update_rows(&step, width, self.blocks.block_mut(part.side), part.slots, gradients);
        }
    }

    /// Keeps the values that were just applied, if the table assigns and the slots are a run. Reads
    /// then share them instead of copying rows.
    pub fn keep_applied(&mut self, slots: Slots<'_>, gradients: Vec<T>) {
        if let (true, Slots::Run { first, .. }) = (self.assigns, slots) {
            self.set = Some((first, Arc::new(gradients)));
        }
    }

    /// Memory for the values that will be applied next: of earlier ones that no reader uses any
    /// more, if there is some.
    pub fn take_spare(&mut self) -> Vec<T> {
        std::mem::take(&mut self.spare)
    }

    /// The values of these rows without a copy, if they are within the run that was assigned last.
    pub fn lend(&self, resolved: &Resolved) -> Option<Payload> {
        let (Some((kept, numbers)), Resolved::Run { first, count }) = (&self.set, resolved) else { return None };
        let begin = first.checked_sub(*kept)? * self.width;
        let end = begin + count * self.width;
        let bytes = size_of::<T>();
        (end <= numbers.len()).then(|| Payload::new(numbers.clone()).slice(begin * bytes..end * bytes))
    }

    /// Rows change: forgets the run that was assigned last. Keeps its memory if no reader uses it.
    fn forget_set(&mut self) {
        if let Some(mut numbers) = self.set.take().and_then(|(_, numbers)| Arc::try_unwrap(numbers).ok()) {
            numbers.clear();
            self.spare = numbers;
        }
    }

    /// Reads the values that a reader at this frontier sees. Updaters that compute weights at
    /// reading use the learning rate that holds at the frontier.
    pub fn read(&self, frontier: Clock, slots: Slots<'_>, out: &mut [T]) {
        let step = self.step(frontier);
        let width = self.width;
        for part in self.blocks.parts(slots) {
            let out = &mut out[part.rows.start * width..part.rows.end * width];
            self.updater.read_rows(&step, width, self.blocks.block(part.side), part.slots, out);
        }
    }
}

/// Writes the initial weights of a key's row.
fn set_initial<T: Number>(rule: Initial, key: Key, row: &mut [T]) {
    for (column, weight) in row.iter_mut().enumerate() {
        *weight = T::from_f64(initial(rule, key, column));
    }
}
