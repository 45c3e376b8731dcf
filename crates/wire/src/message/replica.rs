//! Chain replication: the chunks that a head sends down its chain, and the acknowledgements that
//! come back up.

use crate::field::{fields, fields_and_payloads, variants};
use crate::{ChangeChunk, Payload};
use types::{Clock, ShardId, TableId};

/// One chunk of a replication batch (what changed since the last one that the replica holds) or of
/// a backfill (what a new replica has to hold). The last chunk is the shard's metadata.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaChunk {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// Which changes it carries. In a backfill `from` is 0, and the chunks count from its
    /// beginning.
    pub changes: ChangeChunk,
    /// The backfill that this chunk belongs to; none for a batch.
    pub backfill: Option<u64>,
    /// What the payloads hold.
    pub contents: ChunkContents,
    /// Which rows.
    pub positions: Payload,
    /// Row after row.
    pub values: Payload,
}

/// What a chunk holds.
#[derive(Clone, Debug, PartialEq)]
pub enum ChunkContents {
    /// Rows with their updater's state.
    Rows,
    /// Rows that are gone: positions alone.
    RemovedRows,
    /// Sums of contributions that are held for a clock.
    ClockSums {
        /// The clock.
        clock: Clock,
    },
    /// Rows that are removed once a clock is applied: positions alone.
    ClockRemovals {
        /// The clock.
        clock: Clock,
    },
    /// Everything else that a shard knows, and the end of the batch.
    Metadata {
        /// As the shard encodes it.
        bytes: Vec<u8>,
    },
}

/// Acknowledgement: every replica from the sender to the tail holds every batch up to this one.
#[derive(Clone, Debug, PartialEq)]
pub struct Replicated {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The last such batch.
    pub through: u64,
    /// If the sender is being backfilled: by which backfill, and how many of its chunks arrived.
    pub backfill: Option<(u64, u32)>,
}

variants!(ChunkContents {
    0 => Rows,
    1 => ClockSums { clock },
    2 => Metadata { bytes },
    3 => RemovedRows,
    4 => ClockRemovals { clock },
});
fields!(Replicated { table, shard, through, backfill });
fields_and_payloads!(ReplicaChunk { table, shard, changes, backfill, contents }, |input, [positions, values]| {
    positions,
    values,
});
