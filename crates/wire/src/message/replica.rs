//! Chain replication: chunks of changes, which replicas send down the chain, and acknowledgements,
//! which come back up.

use crate::field::{fields, fields_and_payloads, variants};
use crate::{ChangeChunk, Payload};
use types::{Clock, ShardId, TableId};

/// One chunk of a replication batch or of a backfill. A replica sends the batch, all changes since
/// the last batch that its successor holds, to that successor. The tail sends a backfill to a new
/// replica. The last chunk is the shard's metadata; with it, the receiver applies the batch as a
/// whole.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaChunk {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The changes that it carries. In a backfill, `from` is 0, and chunks are numbered from its
    /// start.
    pub changes: ChangeChunk,
    /// The number of the backfill; `None` in a replication batch.
    pub backfill: Option<u64>,
    /// The kind of the payloads.
    pub contents: ChunkContents,
    /// The positions of the rows, u64 each.
    pub positions: Payload,
    /// The rows, one after the other.
    pub values: Payload,
}

/// The contents of a chunk.
#[derive(Clone, Debug, PartialEq)]
pub enum ChunkContents {
    /// Row states.
    Rows,
    /// Positions of rows that were removed, without values.
    RemovedRows,
    /// Sums of pushes that the shard holds for an open clock.
    ClockSums {
        /// The clock.
        clock: Clock,
    },
    /// Positions of rows that will be removed when a clock is applied, without values.
    ClockRemovals {
        /// The clock.
        clock: Clock,
    },
    /// The shard's metadata, which ends the batch.
    Metadata {
        /// The metadata as the shard encodes it.
        bytes: Vec<u8>,
    },
}

/// A replica's acknowledgement to its predecessor: every replica from the sender to the tail holds
/// the batches up to this one.
#[derive(Clone, Debug, PartialEq)]
pub struct Replicated {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The number of the last such batch.
    pub through: u64,
    /// From a replica that is being backfilled: the number of the backfill, and how many of its
    /// chunks have arrived.
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
