//! The worker's side of one table: the streams to its shards, its codecs and its caches.

use crate::cache::TableCache;
use crate::decode::AnswerDecoder;
use crate::schedule::frontier_for_push;
use crate::send::push_codec::PushCodec;
use crate::send::stream::ShardStream;
use codec::{Stopwatch, TableCodecs};
use types::{Clock, Source, TableId, TableSpec};

/// One table that the worker takes part in.
pub(super) struct Table {
    pub(super) spec: TableSpec,
    /// One stream for each shard, in the order of shard numbers.
    pub(super) streams: Vec<ShardStream>,
    pub(super) cache: TableCache,
    /// Encodes pushes.
    pub(super) push_codec: PushCodec,
    /// Decodes answers and deltas.
    pub(super) decoder: AnswerDecoder,
}

impl Table {
    pub fn new(
        spec: TableSpec,
        mut streams: Vec<ShardStream>,
        source: Source,
        id: TableId,
        stopwatch: Stopwatch,
    ) -> Self {
        // Cannot fail: the coordinator checked the codecs before it made the table.
        let codecs = TableCodecs::of(&spec).unwrap_or_else(|_| TableCodecs::none());
        let push_codec = PushCodec::new(&spec, &codecs, source.0 ^ (u64::from(id.0) << 48), stopwatch);
        streams.iter_mut().for_each(|stream| stream.set_key_form(push_codec.key_form()));
        Self {
            cache: TableCache::new(&spec, &codecs, source),
            spec,
            streams,
            push_codec,
            decoder: AnswerDecoder::new(stopwatch),
        }
    }

    /// Whether the shards take pushes of a worker at `clock`, by the frontiers that they have told.
    pub fn may_push(&self, clock: Clock) -> bool {
        let needed = frontier_for_push(clock);
        !self.spec.combine.holds_clocks() || self.streams.iter().all(|stream| stream.frontier() >= needed)
    }
}
