//! Row cache: each row with the frontier it is fresh at. Shards of eager tables send refreshes,
//! which move the frontier of all cached rows of the shard on.
//!
//! Invariant: where the table combines `each`, a cached row holds all of the worker's own pushes to
//! it, also those that its shard has not applied.

use super::slots::{CachedRows, positions};
use types::{Clock, Consistency, TableSpec};
use update::{ABSENT, Number, add_into, first_not_finite};
use wire::{ChangeChunk, ChangeStep, FollowerCursor, KeySlice, Keys, Payload};

/// The numbered sequence of refreshes that keeps a shard's rows fresh, and how far it has arrived
/// without a gap.
#[derive(Clone, Copy, Debug, Default)]
struct RefreshSequence {
    id: u64,
    /// Which batches of changes have arrived.
    cursor: FollowerCursor,
    frontier: Clock,
    /// Counts up when a sequence starts or ends. Rows of an earlier generation keep the frontier
    /// they were read at.
    generation: u64,
}

impl RefreshSequence {
    /// A read at `frontier` names a sequence and the last batch that its rows hold. Returns the
    /// generation that the rows join, if refreshes have arrived up to exactly that batch.
    fn join(&mut self, frontier: Clock, refreshed: Option<(u64, u64)>) -> Option<u64> {
        let (id, last) = refreshed?;
        if id != self.id {
            let cursor = FollowerCursor::at(last);
            *self = Self { id, cursor, frontier, generation: self.generation + 1 };
        }
        (last == self.cursor.held()).then_some(self.generation)
    }

    /// A refresh arrives. Returns whether the cache keeps its rows.
    fn follow(&mut self, id: u64, changes: ChangeChunk, frontier: Clock) -> bool {
        if id != self.id {
            return false;
        }
        match self.cursor.take(changes) {
            ChangeStep::First | ChangeStep::Next => true,
            ChangeStep::Complete => {
                self.frontier = self.frontier.max(frontier);
                true
            }
            ChangeStep::Held => false,
            ChangeStep::Gap => {
                self.end();
                false
            }
        }
    }

    /// Ends the sequence after a gap: its rows are only as fresh as when they were read.
    fn end(&mut self) {
        *self = Self { generation: self.generation + 1, ..Self::default() };
    }
}

/// Rows that came from a shard.
#[derive(Clone, Copy)]
pub(crate) struct ShardRows<'a> {
    pub shard: usize,
    pub frontier: Clock,
    pub keys: &'a KeySlice,
    pub values: &'a Payload,
}

/// The worker's own later writes, which the rows of a shard's answer do not hold yet.
pub(crate) type LaterWrites<'a> = Vec<(&'a KeySlice, OwnWrite<'a>)>;

/// A worker's own write to rows.
#[derive(Clone, Copy)]
pub(crate) enum OwnWrite<'a> {
    /// A push of these gradients.
    Gradients(&'a Payload),
    /// The worker set or deleted the rows. The cache drops them, and the next read asks the shard.
    Rows,
}

/// A row cache of any number type.
pub(crate) trait RowCache: Send {
    /// Copies the rows that the consistency rule admits into `target`, and appends the indices of
    /// the others to `misses`. Returns the smallest frontier among the copied rows.
    fn read(&self, keys: &Keys, reader: Clock, target: &mut [u8], misses: &mut Vec<u32>) -> Option<Clock>;
    /// Keeps the rows of a read. `refreshed`: the sequence of refreshes that follows them, and the
    /// last number of it that they hold.
    fn store(&mut self, received: ShardRows<'_>, later: &LaterWrites<'_>, refreshed: Option<(u64, u64)>);
    /// Keeps the rows of refresh `number` of sequence `id`, if it follows the one before and the
    /// later writes are known. Otherwise ends the sequence.
    fn refresh(&mut self, received: ShardRows<'_>, later: Option<&LaterWrites<'_>>, id: u64, changes: ChangeChunk);
    /// The sum of squares of the cached ones among these rows, however old.
    fn squares(&self, keys: &KeySlice) -> Option<f64>;
    /// Adds the worker's own push to the cached rows.
    fn pushed(&mut self, keys: &KeySlice, values: &Payload);
    /// Drops these rows, because the worker sets or deletes them, or the shard refused a push that
    /// they hold.
    fn drop_rows(&mut self, keys: &KeySlice);
}

/// A row cache for a table.
pub(crate) fn make(spec: &TableSpec, max_rows: u64, shards: usize) -> Box<dyn RowCache> {
    match spec.number {
        types::NumberType::F32 => Box::new(Cache::<f32>::new(spec, max_rows, shards)),
        types::NumberType::F64 => Box::new(Cache::<f64>::new(spec, max_rows, shards)),
        types::NumberType::I64 => Box::new(Cache::<i64>::new(spec, max_rows, shards)),
    }
}

#[derive(Clone, Copy)]
struct Tag {
    frontier: Clock,
    shard: u32,
    generation: Option<u64>,
}

struct Cache<T> {
    consistency: Consistency,
    /// Whether the updater adds a push to its rows, so that the cache can do the same.
    additive: bool,
    /// A row without a tag is not cached, or lacks one of the worker's own pushes.
    rows: CachedRows<T, Tag>,
    sequences: Vec<RefreshSequence>,
}

impl<T: Number> Cache<T> {
    fn new(spec: &TableSpec, max_rows: u64, shards: usize) -> Self {
        Self {
            consistency: spec.consistency,
            additive: spec.updater.is_additive(),
            rows: CachedRows::new(spec, max_rows),
            sequences: vec![RefreshSequence::default(); shards],
        }
    }

    /// The frontier that a row is fresh at now: refreshes may have moved it on since it was read.
    fn frontier(&self, tag: Tag) -> Clock {
        let sequence = self.sequences[tag.shard as usize];
        if tag.generation == Some(sequence.generation) { tag.frontier.max(sequence.frontier) } else { tag.frontier }
    }

    fn keep(&mut self, received: ShardRows<'_>, later: &LaterWrites<'_>, generation: Option<u64>) {
        let Some(values) = received.values.numbers::<T>() else { return };
        let positions = positions(received.keys);
        let slots = self.rows.slots_or_new(&positions);
        let mut kept = Vec::with_capacity(positions.len());
        for ((&slot, position), row) in slots.iter().zip(&positions).zip(values.chunks_exact(self.rows.width())) {
            let Some(tag) = self.rows.tag_mut(slot) else { continue };
            // A late answer must not put an older row in place of a newer one.
            if tag.is_some_and(|tag| tag.frontier > received.frontier) {
                continue;
            }
            *tag = Some(Tag { frontier: received.frontier, shard: received.shard as u32, generation });
            self.rows.row_mut(slot).copy_from_slice(row);
            kept.push(*position);
        }
        // Adds them only to rows that were just replaced: a newer row that stayed holds them
        // already.
        for (keys, own) in later {
            match own {
                OwnWrite::Gradients(values) => self.add_own(keys, values, Some(&kept)),
                OwnWrite::Rows => self.drop_rows(keys),
            }
        }
    }

    /// Adds an own push to cached rows, if the updater is additive. Otherwise drops the rows,
    /// because the worker does not know the push's effect. `only`: the positions to change.
    fn add_own(&mut self, keys: &KeySlice, values: &Payload, only: Option<&[u64]>) {
        let Some(values) = values.numbers::<T>() else { return };
        if first_not_finite(values).is_some() {
            // The shard will refuse the whole part, so the rows stay as they are.
            return;
        }
        let positions = positions(keys);
        let slots = self.rows.slots(&positions);
        for ((slot, position), row) in slots.into_iter().zip(&positions).zip(values.chunks_exact(self.rows.width())) {
            if slot == ABSENT || only.is_some_and(|only| only.binary_search(position).is_err()) {
                continue;
            }
            if self.additive {
                add_into(self.rows.row_mut(slot), row);
            } else {
                self.rows.tag_mut(slot).into_iter().for_each(|tag| *tag = None);
            }
        }
    }
}

impl<T: Number> RowCache for Cache<T> {
    fn read(&self, keys: &Keys, reader: Clock, target: &mut [u8], misses: &mut Vec<u32>) -> Option<Clock> {
        let row_bytes = self.rows.width() * size_of::<T>();
        let slots = self.rows.slots(&positions(&keys.slice(0..keys.len())));
        let mut lowest = None;
        for (index, &slot) in slots.iter().enumerate() {
            let fresh = self.rows.tag(slot).map(|tag| self.frontier(tag));
            match fresh.filter(|frontier| self.consistency.admits(reader, *frontier)) {
                Some(frontier) => {
                    let row = bytemuck::cast_slice(self.rows.row(slot));
                    target[index * row_bytes..][..row_bytes].copy_from_slice(row);
                    lowest = Some(lowest.map_or(frontier, |lowest: Clock| lowest.min(frontier)));
                }
                None => misses.push(index as u32),
            }
        }
        lowest
    }

    fn store(&mut self, received: ShardRows<'_>, later: &LaterWrites<'_>, refreshed: Option<(u64, u64)>) {
        let generation = self.sequences[received.shard].join(received.frontier, refreshed);
        self.keep(received, later, generation);
    }

    fn refresh(&mut self, received: ShardRows<'_>, later: Option<&LaterWrites<'_>>, id: u64, changes: ChangeChunk) {
        let sequence = &mut self.sequences[received.shard];
        let Some(later) = later else {
            if sequence.id == id {
                sequence.end();
            }
            return;
        };
        if sequence.follow(id, changes, received.frontier) {
            let generation = sequence.generation;
            self.keep(received, later, Some(generation));
        }
    }

    fn squares(&self, keys: &KeySlice) -> Option<f64> {
        let slots = self.rows.slots(&positions(keys));
        let cached = slots.into_iter().filter(|slot| self.rows.tag(*slot).is_some());
        let rows = cached.flat_map(|slot| self.rows.row(slot));
        let squares: Vec<f64> = rows.map(|value| value.to_f64() * value.to_f64()).collect();
        (!squares.is_empty()).then(|| squares.iter().sum())
    }

    fn pushed(&mut self, keys: &KeySlice, values: &Payload) {
        self.add_own(keys, values, None);
    }

    fn drop_rows(&mut self, keys: &KeySlice) {
        for slot in self.rows.slots(&positions(keys)) {
            self.rows.tag_mut(slot).into_iter().for_each(|tag| *tag = None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: std::ops::Range<usize> = 0..2;

    /// A cache of two rows of one number, both of shard 0.
    fn cache(spec: TableSpec) -> Box<dyn RowCache> {
        make(&spec.consistency(Consistency::slack(0)), 2, 1)
    }

    fn payload(values: &[f32]) -> Payload {
        Payload::new(values.to_vec())
    }

    /// Rows 0 and 1 arrive at `frontier`; `later` are own pushes to both that they do not hold.
    fn store(cache: &mut dyn RowCache, frontier: u64, at: Option<(u64, u64)>, values: [f32; 2], later: &[f32]) {
        let keys = Keys::run(0..2).slice(KEYS);
        let pushes: Vec<Payload> = later.iter().map(|value| payload(&[*value; 2])).collect();
        let later = pushes.iter().map(|push| (&keys, OwnWrite::Gradients(push))).collect();
        let rows = ShardRows { shard: 0, frontier: Clock(frontier), keys: &keys, values: &payload(&values) };
        cache.store(rows, &later, at);
    }

    /// A refresh brings row 1. `known`: whether the worker still has its own later writes.
    fn refresh(cache: &mut dyn RowCache, frontier: u64, id: u64, number: u64, value: f32, known: bool) {
        let keys = Keys::run(1..2).slice(0..1);
        let rows = ShardRows { shard: 0, frontier: Clock(frontier), keys: &keys, values: &payload(&[value]) };
        let later = Vec::new();
        let changes = ChangeChunk { from: number - 1, to: number, chunk: 0, ends: true };
        cache.refresh(rows, known.then_some(&later), id, changes);
    }

    /// The rows that a reader at this clock gets.
    fn read(cache: &dyn RowCache, reader: u64) -> [Option<f32>; 2] {
        let mut values = [0f32; 2];
        let mut misses = Vec::new();
        cache.read(&Keys::run(0..2), Clock(reader), bytemuck::cast_slice_mut(&mut values), &mut misses);
        [0, 1].map(|row| (!misses.contains(&(row as u32))).then_some(values[row]))
    }

    #[test]
    fn row_cache_is_as_fresh_as_refreshes_that_follow_without_a_gap() {
        // (sequence, number, whether own writes are known, what a reader at clock 5 gets then)
        for (id, number, known, expected) in [
            (7, 4, true, [Some(1.0), Some(9.0)]),
            (7, 5, true, [None, None]),
            (7, 4, false, [None, None]),
            (6, 4, true, [None, None]),
            (6, 4, false, [None, None]),
        ] {
            let mut cache = cache(TableSpec::dense("t", 2, 1));
            store(&mut *cache, 3, Some((7, 3)), [1.0, 2.0], &[]);
            assert_eq!(read(&*cache, 3), [Some(1.0), Some(2.0)]);
            refresh(&mut *cache, 5, id, number, 9.0, known);
            assert_eq!(read(&*cache, 5), expected, "refresh {number} of {id}, own writes known: {known}");
            // A sequence that goes on is followed; one that has ended is not.
            let goes_on = (id, number, known) == (7, 4, true) || id == 6;
            let next = if id == 7 && goes_on { 5 } else { 4 };
            refresh(&mut *cache, 6, 7, next, 8.0, true);
            assert_eq!(read(&*cache, 6), if goes_on { [Some(1.0), Some(8.0)] } else { [None, None] }, "then {next}");
        }
    }

    #[test]
    fn row_cache_adds_own_pushes_and_ignores_late_answers() {
        let mut cache = cache(TableSpec::dense("t", 2, 1));
        store(&mut *cache, 3, None, [1.0, 2.0], &[0.5, 0.25]);
        assert_eq!(read(&*cache, 3), [Some(1.75), Some(2.75)], "with the pushes that the shard has not applied");
        cache.pushed(&Keys::run(1..2).slice(0..1), &payload(&[10.0]));
        assert_eq!(read(&*cache, 3), [Some(1.75), Some(12.75)]);
        store(&mut *cache, 2, None, [7.0, 7.0], &[100.0]);
        assert_eq!(read(&*cache, 3), [Some(1.75), Some(12.75)], "a late answer changes nothing");
        cache.pushed(&Keys::run(0..1).slice(0..1), &payload(&[f32::NAN]));
        assert_eq!(read(&*cache, 3)[0], Some(1.75), "the shard refuses values that are not finite");
        cache.drop_rows(&Keys::run(0..1).slice(0..1));
        assert_eq!(read(&*cache, 3), [None, Some(12.75)]);
    }

    #[test]
    fn row_cache_drops_pushed_rows_where_the_updater_is_not_additive() {
        let adagrad = types::UpdaterSpec::Adagrad { rate: 0.1, epsilon: 1e-8 };
        let mut cache = cache(TableSpec::dense("t", 2, 1).updater(adagrad));
        store(&mut *cache, 3, None, [1.0, 2.0], &[]);
        cache.pushed(&Keys::run(1..2).slice(0..1), &payload(&[10.0]));
        assert_eq!(read(&*cache, 3), [Some(1.0), None]);
    }
}
