//! The slab: all rows of a shard in one block of memory, found by position through the index. A row
//! keeps its slot until it is removed or the rows are put in position order; that step returns the
//! new slots. A freed slot is reused by a new row.

use super::index::Index;
use super::initial::initial;
use super::slot_allocator::SlotAllocator;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{Clock, Initial, Key, Placement, Position, PositionRange, Setting, TableShape, TableSpec, UpdaterSpec};
use update::{ABSENT, Number, Slots, UnknownUpdater, UpdateStep, Updater, Updaters};
use wire::{Payload, Refusal};

/// Rows that share a cache line with their neighbours are kept roughly in position order: a sorted
/// batch then walks through the slab instead of jumping about in it. Longer rows gain nothing by
/// it.
const ORDERED_BELOW_BYTES: usize = 64;

/// Why there cannot be rows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RowsError {
    /// No such updater.
    #[error(transparent)]
    Updater(#[from] UnknownUpdater),
    /// They do not fit into memory.
    #[error("{rows} rows of this width do not fit into this server's memory; use more servers or a sparse table")]
    TooLarge {
        /// How many there would be on this server.
        rows: u64,
    },
    /// Its codecs do not go together, or not with the table.
    #[error("{0}")]
    Codecs(String),
}

/// The slots of some keys, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// Neighbouring rows.
    Run {
        /// The first slot.
        first: usize,
        /// How many.
        count: usize,
    },
    /// One slot each; `ABSENT` where there is no row.
    List(Vec<u32>),
}

impl Resolved {
    /// As an updater wants them.
    pub fn slots(&self) -> Slots<'_> {
        match self {
            Self::Run { first, count } => Slots::Run { first: *first, count: *count },
            Self::List(list) => Slots::List(list),
        }
    }

    /// The same rows after all have been put in order.
    pub fn moved(&self, moves: &[u32]) -> Self {
        let moved = |slot: &u32| moves.get(*slot as usize).copied().unwrap_or(ABSENT);
        match self {
            Self::Run { .. } => self.clone(),
            Self::List(list) => Self::List(list.iter().map(moved).collect()),
        }
    }

    /// The slots that exist, one by one.
    pub fn each(&self) -> impl Iterator<Item = u32> + '_ {
        let (run, list) = match self {
            Self::Run { first, count } => (*first as u32..(*first + *count) as u32, &[][..]),
            Self::List(list) => (0..0, &list[..]),
        };
        run.chain(list.iter().copied().filter(|slot| *slot != ABSENT))
    }
}

/// Slots as an updater wants them: a run where they are one.
pub fn as_slots(slots: &[u32]) -> Slots<'_> {
    match slots.first() {
        Some(&first) if slots.iter().zip(first..).all(|(slot, expected)| *slot == expected) => {
            Slots::Run { first: first as usize, count: slots.len() }
        }
        _ => Slots::List(slots),
    }
}

/// The rows of one shard, one after the other in memory.
pub(crate) struct Slab<T: Number> {
    range: PositionRange,
    placement: Placement,
    index: Index,
    max_rows: u64,
    width: usize,
    stride: usize,
    slab: Vec<T>,
    slots: SlotAllocator,
    rule: Initial,
    updater: Box<dyn Updater<T>>,
    examples: u64,
    /// Learning rates by the first clock they hold for.
    rates: BTreeMap<Clock, f64>,
    /// Whether a row is what was last applied to it, and there is one for every position.
    assigns: bool,
    /// Where they are so: the first row of neighbours that were last set together, and what they
    /// were set to.
    set: Option<(usize, Arc<Vec<T>>)>,
    /// Memory that has held such rows.
    spare: Vec<T>,
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
            slab: Vec::new(),
            slots: SlotAllocator::default(),
            rule: spec.initial,
            updater,
            examples: 0,
            rates: BTreeMap::new(),
            assigns: matches!(spec.updater, UpdaterSpec::Assign) && matches!(spec.shape, TableShape::Dense { .. }),
            set: None,
            spare: Vec::new(),
        };
        match spec.shape {
            TableShape::Dense { .. } => {
                let count = (range.last.0 - range.first.0 + 1) as usize;
                // Asked for and given back at once: a table that does not fit is refused, not
                // fatal.
                let numbers = count.checked_mul(stride).ok_or(RowsError::TooLarge { rows: count as u64 })?;
                let room = Vec::<T>::new().try_reserve_exact(numbers);
                room.map_err(|_| RowsError::TooLarge { rows: count as u64 })?;
                // Zeroed pages come from the system untouched, so a large table costs nothing until
                // it is used.
                rows.slab = vec![T::ZERO; numbers];
                rows.slots = SlotAllocator::full(count, range.last.0);
                rows.fill((range.first.0..=range.last.0).zip(0..));
            }
            TableShape::Sparse { max_rows, .. } => rows.max_rows = max_rows,
        }
        Ok(rows)
    }

    /// How many rows exist.
    pub fn len(&self) -> usize {
        self.slots.rows()
    }

    /// One more than the largest slot: what is kept by slot has so many places.
    pub fn slot_count(&self) -> usize {
        self.slots.slots()
    }

    /// Numbers that its memory has room for.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// Numbers in a row as readers see it.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether reading a key makes its row.
    pub fn reads_create(&self) -> bool {
        self.rule != Initial::Zero && !self.index.is_dense()
    }

    /// The slots of neighbouring positions.
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

    /// The slots of sorted positions. With `create`, absent rows are made, or nothing is if they do
    /// not fit.
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

    /// As [`resolve_list`](Self::resolve_list), where what was found `before` still holds: only the
    /// rest is looked for.
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

    fn create(&mut self, positions: &[u64], slots: &mut [u32], absent: usize) -> Result<(), Refusal> {
        if (self.len() + absent) as u64 > self.max_rows {
            return Err(Refusal::TooManyRows { max_rows: self.max_rows });
        }
        let reused = self.slots.reuse(absent);
        let mut unused = reused.iter().copied().chain(self.slot_count() as u32..);
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
        self.slab.resize(self.slot_count() * self.stride, T::ZERO);
        self.clear(&reused);
        self.fill(new.into_iter());
        Ok(())
    }

    /// Zeroes the weights and the updater's state of rows.
    fn clear(&mut self, slots: &[u32]) {
        for slot in slots {
            self.slab[*slot as usize * self.stride..][..self.stride].fill(T::ZERO);
        }
    }

    /// Writes the initial weights of rows, which are zero, by position and slot.
    fn fill(&mut self, rows: impl Iterator<Item = (u64, u32)>) {
        if self.rule == Initial::Zero {
            return;
        }
        for (position, slot) in rows {
            let key = self.placement.key(Position(position));
            let row = &mut self.slab[slot as usize * self.stride..][..self.width];
            set_initial(self.rule, key, row);
        }
    }

    /// What a reader at this frontier would see of new rows at these positions.
    pub fn read_new(&self, frontier: Clock, positions: &[u64], out: &mut [T]) {
        let mut rows = vec![T::ZERO; positions.len() * self.stride];
        for (row, position) in rows.chunks_exact_mut(self.stride).zip(positions) {
            set_initial(self.rule, self.placement.key(Position(*position)), &mut row[..self.width]);
        }
        let all = Slots::Run { first: 0, count: positions.len() };
        self.updater.read_rows(&self.step(frontier), self.width, &rows, all, out);
    }

    /// Removes the rows at rising positions, and passes over those that have none. Returns the
    /// freed slots, in the order of their positions. What they held is cleared when they are
    /// reused.
    pub fn remove(&mut self, positions: &[u64]) -> Vec<u32> {
        let freed = self.index.remove(positions);
        self.slots.free(&freed);
        freed
    }

    /// Gives rows their initial weights and zero state, where they lie.
    pub fn reset(&mut self, slots: &[u32], positions: &[u64]) {
        self.clear(slots);
        self.fill(positions.iter().copied().zip(slots.iter().copied()));
    }

    /// Lays the rows out in position order, without gaps, once half of them have come out of it, so
    /// that a row moves a few times in its life, however many there come to be. Or once more than
    /// half of many slots are free, so that memory follows the rows that exist. Returns the new
    /// slot of each old one, `ABSENT` for a free one.
    pub fn put_in_order(&mut self) -> Option<Vec<u32>> {
        let short = self.stride * size_of::<T>() < ORDERED_BELOW_BYTES;
        let is_walked = short && self.index.is_walked();
        if !(is_walked && self.slots.are_out_of_order() || self.slots.are_mostly_free()) {
            return None;
        }
        let (moves, last) = self.index.renumber(self.slot_count())?;
        let mut slab = vec![T::ZERO; self.len() * self.stride];
        let moved = self.slab.chunks_exact(self.stride).zip(&moves).filter(|(_, new)| **new != ABSENT);
        for (row, new) in moved {
            slab[*new as usize * self.stride..][..self.stride].copy_from_slice(row);
        }
        self.slab = slab;
        self.slots = SlotAllocator::full(self.len(), last);
        Some(moves)
    }

    /// The rows that exist between two positions, in order, at most `limit`, and where the next
    /// ones start.
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

    /// Numbers in a row as it is kept: its weights, and its updater's state.
    pub fn row_state_width(&self) -> usize {
        self.stride
    }

    /// A row as it is kept.
    pub fn row_state(&self, slot: u32) -> &[T] {
        &self.slab[slot as usize * self.stride..][..self.stride]
    }

    /// The rows that exist as they are kept, by slot.
    pub fn all_row_state(&self) -> Vec<T> {
        let Some(live) = self.slots.live() else { return self.slab.clone() };
        let mut rows = Vec::with_capacity(self.len() * self.stride);
        let each = self.slab.chunks_exact(self.stride).zip(live);
        each.filter(|(_, is_live)| *is_live).for_each(|(row, _)| rows.extend_from_slice(row));
        rows
    }

    /// The positions of the rows that exist, by slot.
    pub fn all_positions(&self) -> Vec<u64> {
        let mut positions = self.positions();
        if let Some(live) = self.slots.live() {
            let mut live = live.into_iter();
            positions.retain(|_| live.next().unwrap_or(false));
        }
        positions
    }

    /// Whether every row of the range is there, in order.
    pub fn is_dense(&self) -> bool {
        self.index.is_dense()
    }

    /// Puts rows as they are kept in place of those that are there. Nothing, if these are not so
    /// many.
    pub fn put_row_state(&mut self, resolved: &Resolved, values: &[T]) -> Option<()> {
        let rows = values.chunks_exact(self.stride);
        if rows.len() != resolved.each().count() || !rows.remainder().is_empty() {
            return None;
        }
        self.forget_set();
        for (slot, row) in resolved.each().zip(rows) {
            self.slab[slot as usize * self.stride..][..self.stride].copy_from_slice(row);
        }
        Some(())
    }

    /// The position of the row at each slot, 0 at a free one.
    pub fn positions(&self) -> Vec<u64> {
        let mut positions = vec![0; self.slot_count()];
        let mut next = Some(self.range.first);
        while let Some(first) = next {
            let (found, resolved, more) = self.scan(PositionRange { first, last: self.range.last }, 1 << 16);
            resolved.each().zip(found).for_each(|(slot, position)| positions[slot as usize] = position);
            next = more;
        }
        positions
    }

    /// The learning rates that hold, by the first clock each does for.
    pub fn rates(&self) -> &BTreeMap<Clock, f64> {
        &self.rates
    }

    /// Knows of so many examples, and of these learning rates.
    pub fn restore(&mut self, examples: u64, rates: BTreeMap<Clock, f64>) {
        (self.examples, self.rates) = (examples, rates);
    }

    /// Examples that were counted.
    pub fn examples(&self) -> u64 {
        self.examples
    }

    /// Counts examples that the shard was told of.
    pub fn count_examples(&mut self, examples: u64) {
        self.examples = self.examples.saturating_add(examples);
    }

    /// A setting changes for updates made in clock `at` and later.
    pub fn tune(&mut self, at: Clock, setting: Setting) {
        let Setting::Rate(rate) = setting;
        self.rates.insert(at, rate);
    }

    /// Forgets settings that no update can use again: all but the last that holds at `frontier`.
    pub fn forget_settings(&mut self, frontier: Clock) {
        if let Some((&current, _)) = self.rates.range(..=frontier).next_back() {
            self.rates = self.rates.split_off(&current);
        }
    }

    fn step(&self, clock: Clock) -> UpdateStep {
        let rate = self.rates.range(..=clock).next_back().map(|(_, rate)| *rate);
        UpdateStep { rate, examples: self.examples }
    }

    /// Applies gradients made in `clock`. The slots must all exist.
    pub fn apply(&mut self, clock: Clock, slots: Slots<'_>, gradients: &[T]) {
        self.forget_set();
        let step = self.step(clock);
        self.updater.update_rows(&step, self.width, &mut self.slab, slots, gradients);
    }

    /// Keeps what has just been applied, if readers see just that: they are lent it, where a copy
    /// would be made for each.
    pub fn keep_applied(&mut self, slots: Slots<'_>, gradients: Vec<T>) {
        if let (true, Slots::Run { first, .. }) = (self.assigns, slots) {
            self.set = Some((first, Arc::new(gradients)));
        }
    }

    /// Memory for what will be applied next: warm, if readers have let go of it.
    pub fn take_spare(&mut self) -> Vec<T> {
        std::mem::take(&mut self.spare)
    }

    /// What a reader sees of these rows, if it is kept as they were set.
    pub fn lend(&self, resolved: &Resolved) -> Option<Payload> {
        let (Some((kept, numbers)), Resolved::Run { first, count }) = (&self.set, resolved) else { return None };
        let begin = first.checked_sub(*kept)? * self.width;
        let end = begin + count * self.width;
        let bytes = size_of::<T>();
        (end <= numbers.len()).then(|| Payload::new(numbers.clone()).slice(begin * bytes..end * bytes))
    }

    fn forget_set(&mut self) {
        if let Some(mut numbers) = self.set.take().and_then(|(_, numbers)| Arc::try_unwrap(numbers).ok()) {
            numbers.clear();
            self.spare = numbers;
        }
    }

    /// What a reader sees at this frontier: the rate in force there counts where weights are
    /// computed when they are read.
    pub fn read(&self, frontier: Clock, slots: Slots<'_>, out: &mut [T]) {
        let step = self.step(frontier);
        self.updater.read_rows(&step, self.width, &self.slab, slots, out);
    }
}

/// Writes the initial weights of a key's row.
fn set_initial<T: Number>(rule: Initial, key: Key, row: &mut [T]) {
    for (column, weight) in row.iter_mut().enumerate() {
        *weight = T::from_f64(initial(rule, key, column));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: Slots<'_> = Slots::Run { first: 0, count: 4 };

    fn rows(updater: UpdaterSpec) -> Slab<f32> {
        let spec = TableSpec::dense("t", 4, 2).updater(updater);
        let range = PositionRange { first: Position(0), last: Position(3) };
        Slab::new(&spec, range, &Updaters::builtin()).expect("they fit")
    }

    fn set(rows: &mut Slab<f32>, slots: Slots<'_>, values: Vec<f32>) {
        rows.apply(Clock(0), slots, &values);
        rows.keep_applied(slots, values);
    }

    #[test]
    fn what_is_lent_is_what_is_read_and_stays_so_when_rows_change() {
        let mut rows = rows(UpdaterSpec::Assign);
        set(&mut rows, FOUR, (0..8).map(|number| number as f32).collect());
        for (first, count) in [(0, 4), (1, 2), (3, 1), (2, 0)] {
            let resolved = Resolved::Run { first, count };
            let mut read = vec![0.0; count * 2];
            rows.read(Clock(0), resolved.slots(), &mut read);
            let lent = rows.lend(&resolved).expect("they were set together");
            assert_eq!(lent.numbers::<f32>(), Some(&read[..]));
        }
        assert!(rows.lend(&Resolved::List(vec![1, 2])).is_none(), "only neighbours");
        let before = rows.lend(&Resolved::Run { first: 1, count: 1 }).expect("it was set");
        set(&mut rows, Slots::Run { first: 1, count: 2 }, vec![9.0; 4]);
        assert_eq!(before.numbers::<f32>(), Some(&[2.0, 3.0][..]));
        // (first, count; whether it was set with the last ones)
        for (first, count, is_lent) in [(0, 1, false), (0, 4, false), (1, 2, true), (2, 1, true), (2, 2, false)] {
            assert_eq!(rows.lend(&Resolved::Run { first, count }).is_some(), is_lent, "{count} from {first}");
        }
        rows.put_row_state(&Resolved::Run { first: 3, count: 1 }, &[5.0; 2]).expect("a row");
        assert!(rows.lend(&Resolved::Run { first: 1, count: 1 }).is_none(), "rows were put in from elsewhere");
    }

    #[test]
    fn memory_is_used_again_once_readers_have_let_go_of_it() {
        let mut rows = rows(UpdaterSpec::Assign);
        set(&mut rows, FOUR, vec![1.0; 8]);
        let held = rows.lend(&Resolved::Run { first: 0, count: 4 });
        set(&mut rows, FOUR, vec![2.0; 8]);
        assert_eq!(rows.take_spare().capacity(), 0, "somebody still reads it");
        drop(held);
        set(&mut rows, FOUR, vec![3.0; 8]);
        assert!(rows.take_spare().capacity() >= 8);
    }

    #[test]
    fn rows_that_are_not_what_was_applied_are_never_lent() {
        let mut rows = rows(UpdaterSpec::Sum);
        set(&mut rows, FOUR, vec![1.0; 8]);
        set(&mut rows, FOUR, vec![1.0; 8]);
        assert!(rows.lend(&Resolved::Run { first: 0, count: 4 }).is_none());
    }
}
