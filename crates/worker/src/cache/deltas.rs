//! Delta-encoded cache: for tables whose reads go through a lossy codec, the worker keeps the rows
//! that each shard published and adds the shard's deltas to them, in order.
//!
//! Invariant: a cached row is as its shard published it, and holds at least every delta that the
//! cache has added for that shard.

use super::slots::{CachedRows, positions};
use types::{Clock, Consistency, TableSpec};
use update::add_into;
use wire::{ChangeChunk, ChangeStep, FollowerCursor, KeySlice, Keys};

/// The most chunks that one move of the frontier may have: enough for a table of a terabyte.
const MOST_DELTAS: usize = 1 << 20;

/// How far a shard's deltas have arrived.
#[derive(Clone, Debug, Default)]
struct FollowedShard {
    /// The id of the numbered sequence of deltas. A later sequence has a larger id.
    sequence: u64,
    /// Which batches of changes have arrived.
    cursor: FollowerCursor,
    frontier: Clock,
    /// Chunks of a move of the frontier whose last chunk has not arrived.
    staged: Vec<StagedDelta>,
}

#[derive(Clone, Debug)]
struct StagedDelta {
    positions: Vec<u64>,
    changes: Vec<f32>,
}

/// Which version of a shard's rows a row was when the worker read it.
#[derive(Clone, Copy, Debug)]
struct Tag {
    shard: u32,
    sequence: u64,
    /// The last delta that the row held when it was read.
    last: u64,
    frontier: Clock,
}

/// Published rows of a table, kept up to date by deltas.
pub(crate) struct DeltaCache {
    consistency: Consistency,
    rows: CachedRows<f32, Tag>,
    shards: Vec<FollowedShard>,
}

/// The cache's answer to a read, besides the rows that it copied out.
#[derive(Debug, Default)]
pub(crate) struct CachedRead {
    /// The smallest frontier among the copied rows.
    pub clock: Option<Clock>,
    /// By index into the keys: cached rows that need more deltas before the consistency rule admits
    /// them.
    pub stale: Vec<u32>,
    /// By index into the keys: rows that are not cached.
    pub absent: Vec<u32>,
}

impl DeltaCache {
    pub fn new(spec: &TableSpec, max_rows: u64, shards: usize) -> Self {
        Self {
            consistency: spec.consistency,
            rows: CachedRows::new(spec, max_rows),
            shards: vec![FollowedShard::default(); shards],
        }
    }

    /// The number of the last batch of changes that the deltas of a shard have brought.
    pub fn last_delta(&self, shard: usize) -> u64 {
        self.shards[shard].cursor.held()
    }

    /// The frontier that a row is fresh at; `None` unless it belongs to its shard's present
    /// sequence.
    fn frontier(&self, slot: u32) -> Option<Clock> {
        let tag = self.rows.tag(slot)?;
        let shard = &self.shards[tag.shard as usize];
        let carried = if shard.cursor.held() >= tag.last { shard.frontier } else { Clock(0) };
        (tag.sequence == shard.sequence).then_some(tag.frontier.max(carried))
    }

    /// Copies the rows that the consistency rule admits into `target`, and lists the others.
    pub fn read(&self, keys: &Keys, reader: Clock, target: &mut [u8]) -> CachedRead {
        let row_bytes = self.rows.width() * 4;
        let mut answer = CachedRead::default();
        let slots = self.rows.slots(&positions(&keys.slice(0..keys.len())));
        for (place, &slot) in (0..).zip(&slots) {
            match self.frontier(slot) {
                Some(frontier) if self.consistency.admits(reader, frontier) => {
                    self.copy(slot, &mut target[place as usize * row_bytes..][..row_bytes]);
                    answer.clock = Some(answer.clock.map_or(frontier, |clock: Clock| clock.min(frontier)));
                }
                Some(_) => answer.stale.push(place),
                None => answer.absent.push(place),
            }
        }
        answer
    }

    fn copy(&self, slot: u32, target: &mut [u8]) {
        target.copy_from_slice(bytemuck::cast_slice(self.rows.row(slot)));
    }

    /// Copies rows into `target` without asking the consistency rule. Returns the smallest frontier
    /// among them, and the indices of the keys that are no longer cached.
    pub fn fill(&self, keys: &KeySlice, rows: &[u32], target: &mut [u8]) -> (Option<Clock>, Vec<u32>) {
        let row_bytes = self.rows.width() * 4;
        let slots = self.rows.slots(&positions(keys));
        let mut clock = None;
        let mut gone = Vec::new();
        for (index, (&slot, &row)) in (0..).zip(slots.iter().zip(rows)) {
            match self.frontier(slot) {
                Some(frontier) => {
                    self.copy(slot, &mut target[row as usize * row_bytes..][..row_bytes]);
                    clock = Some(clock.map_or(frontier, |clock: Clock| clock.min(frontier)));
                }
                None => gone.push(index),
            }
        }
        (clock, gone)
    }

    /// Keeps published rows that hold all deltas of `sequence` up to `last`.
    pub fn keep(
        &mut self,
        shard: usize,
        frontier: Clock,
        (sequence, last): (u64, u64),
        keys: &KeySlice,
        values: &[f32],
    ) {
        let followed = &mut self.shards[shard];
        if followed.sequence > sequence {
            return;
        }
        if followed.sequence < sequence {
            *followed = FollowedShard { sequence, cursor: FollowerCursor::at(last), frontier, staged: Vec::new() };
        }
        // A late answer: the shard will not send the deltas that it lacks again.
        if last < followed.cursor.held() {
            return;
        }
        let slots = self.rows.slots_or_new(&positions(keys));
        for (&slot, row) in slots.iter().zip(values.chunks_exact(self.rows.width())) {
            let Some(tag) = self.rows.tag_mut(slot) else { continue };
            if tag.is_some_and(|tag| tag.sequence == sequence && tag.last > last) {
                continue;
            }
            *tag = Some(Tag { shard: shard as u32, sequence, last, frontier });
            self.rows.row_mut(slot).copy_from_slice(row);
        }
    }

    /// How many of these rows are cached.
    pub fn cached(&self, positions: &[u64]) -> usize {
        self.rows.slots(positions).into_iter().filter(|slot| self.rows.tag(*slot).is_some()).count()
    }

    /// Whether a shard's rows are kept up to date by this sequence of deltas.
    pub fn is_of(&self, shard: usize, sequence: u64) -> bool {
        self.shards[shard].sequence == sequence
    }

    /// Whether a delta is the next one of a shard.
    pub fn follows(&self, shard: usize, sequence: u64, changes: ChangeChunk) -> bool {
        let cursor = self.shards[shard].cursor;
        // A delta must not be added twice: it begins exactly where the cached rows stand.
        self.is_of(shard, sequence) && changes.from == cursor.held() && cursor.fits(changes)
    }

    /// Takes a delta that [`DeltaCache::follows`]. Rows change with the last chunk of a move of the
    /// frontier, so that all of them hold the same clocks.
    pub fn add(&mut self, shard: usize, chunk: ChangeChunk, positions: Vec<u64>, changes: Vec<f32>, reaches: Clock) {
        let followed = &mut self.shards[shard];
        let step = followed.cursor.take(chunk);
        followed.staged.truncate(chunk.chunk as usize);
        followed.staged.push(StagedDelta { positions, changes });
        if step != ChangeStep::Complete {
            // An honest shard never sends this many chunks for one move: stops following the shard.
            if followed.staged.len() > MOST_DELTAS {
                self.lose(shard);
            }
            return;
        }
        followed.frontier = followed.frontier.max(reaches);
        let sequence = followed.sequence;
        let number = chunk.to;
        for StagedDelta { positions, changes } in std::mem::take(&mut followed.staged) {
            let slots = self.rows.slots(&positions);
            for (&slot, change) in slots.iter().zip(changes.chunks_exact(self.rows.width())) {
                if self.rows.tag(slot).is_some_and(|tag| tag.sequence == sequence && tag.last < number) {
                    add_into(self.rows.row_mut(slot), change);
                }
            }
        }
    }

    /// A shard says that a reader with all deltas up to `last` is fresh at `frontier`. Returns
    /// whether this cache has them.
    pub fn reach(&mut self, shard: usize, frontier: Clock, sequence: u64, last: u64) -> bool {
        let followed = &mut self.shards[shard];
        let has_all = followed.sequence == sequence && followed.cursor.held() >= last;
        if has_all {
            followed.frontier = followed.frontier.max(frontier);
        }
        has_all
    }

    /// Drops the rows of a shard, whose next deltas this cache cannot get any more.
    pub fn lose(&mut self, shard: usize) {
        // No cached row belongs to sequence 0, and the next answer starts a new one with any id.
        self.shards[shard] = FollowedShard::default();
        for tag in self.rows.tags_mut() {
            if tag.is_some_and(|tag| tag.shard as usize == shard) {
                *tag = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(cache: &DeltaCache, ids: &[u64], reader: u64) -> (Vec<f32>, CachedRead) {
        let keys = Keys::in_order(types::Placement::Ordered, ids).expect("sorted");
        let mut values = vec![0f32; ids.len()];
        let answer = cache.read(&keys, Clock(reader), bytemuck::cast_slice_mut(&mut values));
        (values, answer)
    }

    fn keep(cache: &mut DeltaCache, frontier: u64, at: (u64, u64), ids: &[u64], values: &[f32]) {
        let keys = Keys::in_order(types::Placement::Ordered, ids).expect("sorted");
        cache.keep(0, Clock(frontier), at, &keys.slice(0..keys.len()), values);
    }

    #[test]
    fn delta_cache_adds_deltas_in_order_to_the_rows_that_lack_them() {
        let spec = TableSpec::sparse("t", 1).ordered();
        let mut cache = DeltaCache::new(&spec, 100, 1);
        keep(&mut cache, 0, (1, 4), &[10, 20], &[1.0, 2.0]);
        let chunk = |from, to, chunk, ends| ChangeChunk { from, to, chunk, ends };
        assert!(!cache.follows(0, 1, chunk(5, 6, 0, true)), "one is missing");
        assert!(!cache.follows(0, 1, chunk(3, 5, 0, true)), "it covers what is added already");
        assert!(!cache.follows(0, 2, chunk(4, 5, 0, true)), "of another sequence");
        assert!(cache.follows(0, 1, chunk(4, 5, 0, true)));
        // A row that is read later holds that delta already.
        keep(&mut cache, 1, (1, 5), &[30], &[3.0]);
        cache.add(0, chunk(4, 5, 0, false), vec![10, 30, 40], vec![0.25, 0.5, 0.5], Clock(1));
        assert_eq!(read(&cache, &[10], 0).0, [1.0], "rows change with the last chunk");
        assert!(!cache.follows(0, 1, chunk(4, 5, 0, false)), "it is sent again, and not added twice");
        cache.add(0, chunk(4, 5, 1, true), vec![10], vec![0.25], Clock(1));
        assert!(!cache.reach(0, Clock(2), 1, 6) && cache.reach(0, Clock(1), 1, 5));
        let (values, answer) = read(&cache, &[10, 20, 30, 40], 1);
        assert_eq!((values, answer.clock), (vec![1.5, 2.0, 3.0, 0.0], Some(Clock(1))));
        assert_eq!((answer.stale, answer.absent), (vec![], vec![3]));
        let (_, answer) = read(&cache, &[10, 30], 2);
        assert_eq!((answer.stale, answer.absent), (vec![0, 1], vec![]), "not fresh enough");
        keep(&mut cache, 0, (1, 4), &[10], &[1.0]);
        assert_eq!(read(&cache, &[10], 1).0, [1.5], "a late answer changes nothing");
    }

    #[test]
    fn delta_cache_drops_rows_of_an_old_or_lost_sequence() {
        let spec = TableSpec::dense("t", 4, 1);
        let mut cache = DeltaCache::new(&spec, 100, 1);
        keep(&mut cache, 0, (1, 4), &[0, 1], &[1.0, 2.0]);
        keep(&mut cache, 0, (2, 0), &[1], &[5.0]);
        assert_eq!(read(&cache, &[0, 1], 0).1.absent, [0]);
        keep(&mut cache, 0, (1, 9), &[0], &[1.0]);
        assert_eq!(read(&cache, &[0], 0).1.absent, [0], "of the old sequence");
        cache.lose(0);
        assert_eq!(read(&cache, &[0, 1], 0).1.absent, [0, 1]);
    }
}
