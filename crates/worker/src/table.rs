//! A worker's side of one table: the streams to its shards, its codecs and its caches.

use crate::cache::{self, AnyCache};
use crate::delta_cache::DeltaCache;
use crate::push_codec::PushCodec;
use crate::stream::ShardStream;
use codec::{CodecChoice, Meter, Percentage, Stopwatch, TableCodecs};
use std::collections::{BTreeSet, VecDeque};
use types::{CacheSpec, Clock, Source, TableId, TableSpec};
use wire::FailedClock;

/// Whole rows are asked for at once for up to two to the power of this pulls.
const LONGEST_PAUSE: u32 = 8;

/// Failed clocks that a worker remembers of each table.
const FAILED_CLOCKS: usize = 64;

/// One table that the worker takes part in.
pub(crate) struct Table {
    pub spec: TableSpec,
    pub streams: Vec<ShardStream>,
    pub cache: Option<Box<dyn AnyCache>>,
    /// What encodes pushes.
    pub push_codec: PushCodec,
    /// Where shards send deltas instead of rows.
    pub delta_cache: Option<DeltaCache>,
    /// The codecs of deltas. Where the link decides, they are asked for only if it is slow.
    pub delta_codec: CodecChoice,
    /// The share of pulls that older cached rows may answer, and how many pulls there were.
    pub skips: Option<Percentage>,
    pub pulls: u64,
    /// How often in a row deltas would have taken more than the rows, and until which pull whole
    /// rows are asked for at once.
    pub declined: u32,
    pub whole_until: u64,
    /// What decoding has cost.
    pub decoded: Meter,
    /// The last clocks that were failed for all workers alike: reads from the cache must tell, too.
    pub failed: VecDeque<FailedClock>,
    /// For a table with a delay: operations started or queued so far, and those not finished.
    pub operations: u64,
    pub unfinished: BTreeSet<u64>,
}

impl Table {
    pub fn new(
        spec: TableSpec,
        mut streams: Vec<ShardStream>,
        source: Source,
        id: TableId,
        stopwatch: Stopwatch,
    ) -> Self {
        // Checked before the table was made.
        let codecs = TableCodecs::of(&spec).unwrap_or_else(|_| TableCodecs::none());
        let push_codec = PushCodec::new(&spec, &codecs, source.0 ^ (u64::from(id.0) << 48), stopwatch);
        streams.iter_mut().for_each(|stream| stream.key_form = push_codec.key_form());
        Self {
            skips: codecs.up.pipeline().and_then(codec::Pipeline::skips),
            delta_codec: codecs.down,
            spec,
            streams,
            cache: None,
            push_codec,
            delta_cache: None,
            pulls: 0,
            declined: 0,
            whole_until: 0,
            decoded: Meter::default(),
            failed: VecDeque::new(),
            operations: 0,
            unfinished: BTreeSet::new(),
        }
    }

    /// Makes the caches that the spec asks for.
    pub fn make_caches(&mut self) {
        let CacheSpec::Rows { max_rows } = self.spec.cache else { return };
        let shards = self.streams.len();
        self.cache.get_or_insert_with(|| cache::make(&self.spec, max_rows, shards));
        let lossy = match &self.delta_codec {
            CodecChoice::Pipeline(pipeline) => pipeline.is_lossy(),
            CodecChoice::Auto => TableCodecs::can_step(&self.spec),
        };
        if lossy {
            self.delta_cache.get_or_insert_with(|| DeltaCache::new(&self.spec, max_rows, shards));
        }
    }

    /// Whether reads ask for deltas now.
    pub fn follows_deltas(&self) -> bool {
        self.delta_cache.is_some()
            && self.pulls >= self.whole_until
            && (self.delta_codec != CodecChoice::Auto || self.push_codec.pipeline().is_lossy())
    }

    /// Deltas took more than the rows that were wanted, or did not. Where they do again and again,
    /// as with few rows of many, they are asked for less and less often (exponential backoff).
    pub fn deltas_declined(&mut self, declined: bool) {
        self.declined = if declined { (self.declined + 1).min(LONGEST_PAUSE) } else { 0 };
        if declined {
            self.whole_until = self.pulls + (1 << self.declined);
        }
    }

    /// Remembers failed clocks that a shard has told of.
    pub fn note_failed(&mut self, failed: &[FailedClock]) {
        for failed in failed {
            if self.failed.iter().all(|known| known.clock != failed.clock) {
                self.failed.push_back(failed.clone());
            }
        }
        let beyond = self.failed.len().saturating_sub(FAILED_CLOCKS);
        self.failed.drain(..beyond);
    }

    /// Those that a reader at this clock has in view.
    pub fn failed_in_view(&self, reader: Clock) -> Vec<FailedClock> {
        let slack = self.spec.consistency.bound().unwrap_or(0);
        let in_view = |failed: &&FailedClock| failed.clock.0.saturating_add(slack).saturating_add(1) >= reader.0;
        self.failed.iter().filter(in_view).cloned().collect()
    }
}
