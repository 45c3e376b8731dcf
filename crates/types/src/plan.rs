//! The plan: the immutable, numbered map from key range to owner.

use crate::{NodeId, PlanNumber, PositionRange, Shape, ShardId, Source};

/// Who holds what, and who counts for the frontier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Replaces every plan with a lower number.
    pub number: PlanNumber,
    /// How many servers share each table.
    pub servers: u32,
    /// The incarnation of each worker, by rank.
    pub workers: Vec<Source>,
}

/// One shard of a table, placed on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The shard's number within its table, in key order.
    pub shard: ShardId,
    /// The positions it holds.
    pub range: PositionRange,
    /// The server that owns it.
    pub owner: NodeId,
}

impl Plan {
    /// The shards of a table of this shape, in key order.
    #[must_use]
    pub fn shards(&self, shape: Shape) -> Vec<Placed> {
        shape
            .extent()
            .split(self.servers as usize)
            .into_iter()
            .zip(0..)
            .map(|(range, index)| Placed { shard: ShardId(index), range, owner: NodeId::Server(index) })
            .collect()
    }
}
