//! The caches of one table: rows that a worker has read, and how fresh each of them is.
//!
//! | kept in | where | a row is fresh at |
//! | --- | --- | --- |
//! | [`rows`] | the table has a cache | the frontier it was read at, moved on by refreshes |
//! | [`deltas`] | besides, where a lossy codec shrinks what is read | the frontier of its shard's last delta |
//!
//! A read asks [`TableCache::read`] first, and requests from the shards what that does not bring.

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

/// What the caches answer to a read, besides the rows that they have put into its target.
pub(crate) struct CacheAnswer {
    /// The smallest frontier among those rows.
    pub clock: Clock,
    /// By index into the keys: rows to be read; `None` for all.
    pub misses: Option<Vec<u32>>,
    /// By index into the keys: cached rows that deltas will bring up to date.
    pub stale: Vec<u32>,
    /// Whether rows that are read whole are to be brought up to date by deltas later.
    pub asks_deltas: bool,
    /// Where cached rows are used: clocks in view that were failed for all workers alike.
    pub failed: Vec<FailedClock>,
}

/// Where the cached rows of a shard stand, now that it has sent the deltas that a reader asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CaughtUp {
    /// They are fresh.
    Fresh,
    /// Some deltas were lost on the way; this is the last one that arrived.
    AskAgain { last: u64 },
    /// They are not: the rows are to be read whole.
    ReadWhole,
}

/// The cached rows of one table.
pub(crate) struct TableCache {
    /// Chooses the pulls that older cached rows may answer.
    source: Source,
    combine: Combine,
    rows: Option<Box<dyn RowCache>>,
    /// Where shards send deltas instead of rows.
    deltas: Option<DeltaCache>,
    /// The codecs of deltas. Where the link decides, they are asked for only if it is slow.
    delta_codec: CodecChoice,
    /// The share of pulls that older cached rows may answer.
    skips: Option<Percentage>,
    /// Pulls so far.
    pulls: u64,
    backoff: DeltaBackoff,
    failed: FailedClocks,
}

impl TableCache {
    /// Keeps nothing until caches are made.
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

    /// Makes the caches that the spec asks for, unless they are there.
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
    /// pushes are encoded with now.
    pub fn read(&mut self, keys: &Keys, reader: Clock, pushes: &Pipeline, target: &mut [u8]) -> CacheAnswer {
        self.pulls += 1;
        let asks_deltas = self.backoff.allows(self.pulls)
            && (self.delta_codec != CodecChoice::Auto || pushes.is_lossy())
            && self.deltas.is_some();
        let mut answer =
            CacheAnswer { clock: Clock(u64::MAX), misses: None, stale: Vec::new(), asks_deltas, failed: Vec::new() };
        let misses = if let (Some(deltas), true) = (&self.deltas, asks_deltas) {
            let CachedRead { clock, stale, absent } = deltas.read(keys, reader, target);
            // With many misses the whole list goes by its signature.
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
            // A few misses are asked for by themselves; with many, the whole list goes by its
            // signature.
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

    /// Keeps the rows that a shard has answered a read with. `at`: the numbered sequence of
    /// refreshes or deltas that they belong to, and the last number they hold. `asked_deltas`: the
    /// read was to be followed by deltas. `later`: own writes that the rows do not hold; `None` if
    /// they are not known any more.
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

    /// Whether refreshes are of use.
    pub fn has_rows(&self) -> bool {
        self.rows.is_some()
    }

    /// Keeps the rows of a refresh of sequence `id`, if it follows the one before. If one is
    /// missing, the rows of its shard are only as fresh as when they were read. `later` as for
    /// [`TableCache::store`].
    pub fn refresh(&mut self, rows: ShardRows<'_>, later: Option<&LaterWrites<'_>>, id: u64, changes: ChangeChunk) {
        if let Some(cache) = &mut self.rows {
            cache.refresh(rows, later, id, changes);
        }
    }

    /// Whether cached rows take the worker's own pushes in, so that they must be known as shards
    /// decode them.
    pub fn adds_own_pushes(&self) -> bool {
        self.rows.is_some() && self.combine == Combine::Each
    }

    /// The worker itself pushes to these rows.
    pub fn pushed(&mut self, keys: &KeySlice, values: &Payload) {
        if let (Some(cache), Combine::Each) = (&mut self.rows, self.combine) {
            cache.pushed(keys, values);
        }
    }

    /// Drops these rows: the worker has set or deleted them, or the shard refused a push that they
    /// hold.
    pub fn drop_rows(&mut self, keys: &KeySlice) {
        if let Some(cache) = &mut self.rows {
            cache.drop_rows(keys);
        }
    }

    /// The sum of squares of those rows that are cached, however old; `None` where there are none.
    pub fn squares(&self, keys: &KeySlice) -> Option<f64> {
        self.rows.as_ref()?.squares(keys)
    }

    /// The batch of changes that the deltas of a shard have brought it to.
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

    /// A shard says that it has sent the deltas of its rows as far as `frontier`: `at` is their
    /// sequence and the number of the last one. The reader had those up to `had` when it asked.
    pub fn caught_up(&mut self, shard: usize, frontier: Clock, at: Option<(u64, u64)>, had: Option<u64>) -> CaughtUp {
        let Some(deltas) = &mut self.deltas else { return CaughtUp::ReadWhole };
        let caught_up = match at {
            Some((sequence, last)) if deltas.reach(shard, frontier, sequence, last) => CaughtUp::Fresh,
            // Others of the shard may still be brought up to date later.
            Some(READ_WHOLE) => CaughtUp::ReadWhole,
            // If none arrived since, it is no use to ask again.
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

    /// Copies rows that are up to date to their places in `target`. Returns the smallest frontier
    /// among them, and by index those that are no longer cached.
    pub fn fill(&self, keys: &KeySlice, places: &[u32], target: &mut [u8]) -> (Option<Clock>, Vec<u32>) {
        match &self.deltas {
            Some(deltas) => deltas.fill(keys, places, target),
            None => (None, (0..keys.len() as u32).collect()),
        }
    }

    /// A shard has told of clocks that were failed for all workers alike.
    pub fn note_failed(&mut self, failed: &[FailedClock]) {
        self.failed.note(failed);
    }
}

/// Whether this pull is one of the share that older cached rows may answer: a draw of its own for
/// each.
fn skips(source: Source, pull: u64, share: Percentage) -> bool {
    let mut bits = source.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ pull.wrapping_mul(0xD1B5_4A32_D192_ED03);
    bits = (bits ^ (bits >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    bits ^= bits >> 32;
    ((bits >> 11) as f64) < share.percent() / 100.0 * (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;
