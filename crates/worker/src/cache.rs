//! The caches of one table: rows that the worker has read, and the frontier each is fresh at.
//!
//! | cache | for which tables | a row is fresh at |
//! | --- | --- | --- |
//! | [`rows`] | every table with a cache | the frontier it was read at, moved on by refreshes |
//! | [`deltas`] | also those whose reads go through a lossy codec | its shard's last delta |
//!
//! A read asks [`TableCache::read`] first, and requests the other rows from the shards.

mod backoff;
mod deltas;
mod failed;
mod rows;
mod slots;

pub(crate) use rows::{LaterWrites, OwnWrite, ShardRows};
pub(crate) use slots::positions;

use backoff::DeltaBackoff;
use codec::{CodecChoice, Percentage, Pipeline, TableCodecs};
use deltas::{CachedRead, DeltaCache};
use failed::FailedClocks;
use rows::RowCache;
use types::{CacheSpec, Clock, Combine, Source, TableSpec};
use wire::{ChangeChunk, FailedClock, KeySlice, Keys, Payload, READ_WHOLE};

/// The caches' answer to a read, besides the rows that they have copied into its target.
pub(crate) struct CacheAnswer {
    /// The smallest frontier among the copied rows; `Clock(u64::MAX)` if there are none.
    pub clock: Clock,
    /// By index into the keys: rows to request from shards; `None` for all.
    pub misses: Option<Vec<u32>>,
    /// By index into the keys: cached rows that deltas will bring up to date.
    pub stale: Vec<u32>,
    /// Whether rows that shards send whole join the delta cache, for deltas to keep up to date.
    pub asks_deltas: bool,
    /// Failed clocks within the reader's slack; empty if the read uses no cached row.
    pub failed: Vec<FailedClock>,
}

/// What a read does next, after a shard has sent the deltas that the read asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CaughtUp {
    /// The cached rows are fresh: use them.
    Fresh,
    /// Some deltas were lost on the way: ask for those after `last`, the last one that arrived.
    AskAgain { last: u64 },
    /// The deltas do not bring the cached rows up to date: read the rows whole.
    ReadWhole,
}

/// The cached rows of one table.
pub(crate) struct TableCache {
    /// The seed of the draw that chooses which pulls older cached rows may answer.
    source: Source,
    combine: Combine,
    rows: Option<Box<dyn RowCache>>,
    /// `None` for a table whose shards send rows and no deltas.
    deltas: Option<DeltaCache>,
    /// The codecs of deltas. With `Auto`, reads ask for deltas only while the link is slow.
    delta_codec: CodecChoice,
    /// The share of pulls that older cached rows may answer; `None` for all.
    skips: Option<Percentage>,
    /// How many pulls there have been.
    pulls: u64,
    backoff: DeltaBackoff,
    failed: FailedClocks,
}

impl TableCache {
    /// Keeps nothing until [`TableCache::make`] makes the caches.
    pub fn new(spec: &TableSpec, codecs: &TableCodecs, source: Source) -> Self {
        Self {
            source,
            combine: spec.combine,
            rows: None,
            deltas: None,
            delta_codec: codecs.down.clone(),
            skips: codecs.up.pipeline().and_then(Pipeline::skips),
            pulls: 0,
            backoff: DeltaBackoff::default(),
            failed: FailedClocks::new(spec.consistency),
        }
    }

    /// Makes the caches that the spec asks for, unless they exist.
    pub fn make(&mut self, spec: &TableSpec, shards: usize) {
        let CacheSpec::Rows { max_rows } = spec.cache else { return };
        self.rows.get_or_insert_with(|| rows::make(spec, max_rows, shards));
        let lossy = match &self.delta_codec {
            CodecChoice::Pipeline(pipeline) => pipeline.is_lossy(),
            CodecChoice::Auto => TableCodecs::can_step(spec),
        };
        if lossy {
            self.deltas.get_or_insert_with(|| DeltaCache::new(spec, max_rows, shards));
        }
    }

    /// Answers a read as far as the table's consistency rule admits. `pushes` is the pipeline that
    /// encodes pushes now: it is lossy while the link is slow.
    pub fn read(&mut self, keys: &Keys, reader: Clock, pushes: &Pipeline, target: &mut [u8]) -> CacheAnswer {
        self.pulls += 1;
        let asks_deltas = self.backoff.allows(self.pulls)
            && (self.delta_codec != CodecChoice::Auto || pushes.is_lossy())
            && self.deltas.is_some();
        let mut answer =
            CacheAnswer { clock: Clock(u64::MAX), misses: None, stale: Vec::new(), asks_deltas, failed: Vec::new() };
        let misses = if let (Some(deltas), true) = (&self.deltas, asks_deltas) {
            let CachedRead { clock, stale, absent } = deltas.read(keys, reader, target);
            // With many misses, a request for the whole list by its signature is shorter.
            if absent.len() * 4 > keys.len() {
                return answer;
            }
            answer.clock = clock.unwrap_or(answer.clock);
            answer.stale = stale;
            absent
        } else {
            let Some(rows) = &self.rows else { return answer };
            if self.skips.is_some_and(|share| !skips(self.source, self.pulls, share)) {
                return answer;
            }
            let mut misses = Vec::new();
            let clock = rows.read(keys, reader, target, &mut misses);
            // With few misses, the read requests only those. With many, a request for the whole
            // list by its signature is shorter.
            if misses.len() * 4 > keys.len() {
                return answer;
            }
            answer.clock = clock.unwrap_or(answer.clock);
            misses
        };
        answer.misses = Some(misses);
        if answer.clock < Clock(u64::MAX) || !answer.stale.is_empty() {
            answer.failed = self.failed.in_view(reader);
        }
        answer
    }

    /// Keeps the rows of a shard's answer to a read.
    ///
    /// - `at`: the numbered sequence of refreshes or deltas that follow the rows, and the last
    ///   number that the rows hold.
    /// - `asked_deltas`: whether the read asked for rows that deltas keep up to date.
    /// - `later`: own writes that the rows do not hold; `None` if the worker has freed them.
    pub fn store<'a>(
        &mut self,
        rows: ShardRows<'a>,
        at: Option<(u64, u64)>,
        asked_deltas: bool,
        later: impl FnOnce() -> Option<LaterWrites<'a>>,
    ) {
        if let (Some(deltas), Some(at), true) = (&mut self.deltas, at, asked_deltas)
            && let Some(values) = rows.values.numbers::<f32>()
        {
            deltas.keep(rows.shard, rows.frontier, at, rows.keys, values);
        } else if let Some(cache) = &mut self.rows
            && let Some(later) = later()
        {
            cache.store(rows, &later, at);
        }
    }

    /// Whether there is a row cache, which refreshes keep fresh.
    pub fn has_rows(&self) -> bool {
        self.rows.is_some()
    }

    /// Keeps the rows of a refresh of sequence `id`, if it follows the one before. After a gap, the
    /// rows of its shard are only as fresh as when they were read. `later` as for
    /// [`TableCache::store`].
    pub fn refresh(&mut self, rows: ShardRows<'_>, later: Option<&LaterWrites<'_>>, id: u64, changes: ChangeChunk) {
        if let Some(cache) = &mut self.rows {
            cache.refresh(rows, later, id, changes);
        }
    }

    /// Whether the cache adds the worker's own pushes to cached rows. The caller then passes them
    /// to [`TableCache::pushed`] as shards decode them.
    pub fn adds_own_pushes(&self) -> bool {
        self.rows.is_some() && !self.combine.holds_clocks()
    }

    /// The worker pushes these values to these rows: adds them to the cached rows.
    pub fn pushed(&mut self, keys: &KeySlice, values: &Payload) {
        if self.adds_own_pushes()
            && let Some(cache) = &mut self.rows
        {
            cache.pushed(keys, values);
        }
    }

    /// Drops these rows, because the worker sets or deletes them, or the shard refused a push that
    /// they hold.
    pub fn drop_rows(&mut self, keys: &KeySlice) {
        if let Some(cache) = &mut self.rows {
            cache.drop_rows(keys);
        }
    }

    /// The sum of squares of the cached ones among these rows, however old; `None` if none is
    /// cached.
    pub fn squares(&self, keys: &KeySlice) -> Option<f64> {
        self.rows.as_ref()?.squares(keys)
    }

    /// The number of the last batch of changes that the deltas of a shard have brought.
    pub fn last_delta(&self, shard: usize) -> u64 {
        self.deltas.as_ref().map_or(0, |deltas| deltas.last_delta(shard))
    }

    /// Whether a delta is the next one of a shard.
    pub fn follows(&self, shard: usize, sequence: u64, changes: ChangeChunk) -> bool {
        self.deltas.as_ref().is_some_and(|deltas| deltas.follows(shard, sequence, changes))
    }

    /// How many of the rows of a delta are cached.
    pub fn cached(&self, positions: &[u64]) -> usize {
        self.deltas.as_ref().map_or(0, |deltas| deltas.cached(positions))
    }

    /// Takes a delta that [`TableCache::follows`]. `reaches`: the frontier that the shard's rows
    /// have with the last chunk.
    pub fn add_delta(
        &mut self,
        shard: usize,
        chunk: ChangeChunk,
        positions: Vec<u64>,
        changes: Vec<f32>,
        reaches: Clock,
    ) {
        if let Some(deltas) = &mut self.deltas {
            deltas.add(shard, chunk, positions, changes, reaches);
        }
    }

    /// A shard says that it has sent the deltas of its rows up to `frontier`. `at` is their
    /// sequence and the number of the last one. The reader had the deltas up to `had` when it
    /// asked.
    pub fn caught_up(&mut self, shard: usize, frontier: Clock, at: Option<(u64, u64)>, had: Option<u64>) -> CaughtUp {
        let Some(deltas) = &mut self.deltas else { return CaughtUp::ReadWhole };
        let caught_up = match at {
            Some((sequence, last)) if deltas.reach(shard, frontier, sequence, last) => CaughtUp::Fresh,
            // Deltas may still bring other rows of the shard up to date later.
            Some(READ_WHOLE) => CaughtUp::ReadWhole,
            // Asks again only if some delta has arrived since the last request.
            Some((sequence, _))
                if deltas.is_of(shard, sequence) && had.is_some_and(|had| deltas.last_delta(shard) > had) =>
            {
                return CaughtUp::AskAgain { last: deltas.last_delta(shard) };
            }
            _ => {
                deltas.lose(shard);
                CaughtUp::ReadWhole
            }
        };
        self.backoff.declined(self.pulls, at == Some(READ_WHOLE));
        caught_up
    }

    /// Copies up-to-date rows to their places in `target`. Returns the smallest frontier among
    /// them, and the indices of the keys that are no longer cached.
    pub fn fill(&self, keys: &KeySlice, places: &[u32], target: &mut [u8]) -> (Option<Clock>, Vec<u32>) {
        match &self.deltas {
            Some(deltas) => deltas.fill(keys, places, target),
            None => (None, (0..keys.len() as u32).collect()),
        }
    }

    /// Remembers the failed clocks that a shard reports.
    pub fn note_failed(&mut self, failed: &[FailedClock]) {
        self.failed.note(failed);
    }
}

/// Whether this pull is one of the share that older cached rows may answer: a pseudo-random draw
/// for each pull.
fn skips(source: Source, pull: u64, share: Percentage) -> bool {
    let mut bits = source.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ pull.wrapping_mul(0xD1B5_4A32_D192_ED03);
    bits = (bits ^ (bits >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    bits ^= bits >> 32;
    ((bits >> 11) as f64) < share.percent() / 100.0 * (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;
