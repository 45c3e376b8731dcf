//! Identity of a shard's replica: its table, shard and plan, and the heads of the frames it sends.

use types::{NodeId, Placed, PlanNumber, ShardId, TableId};
use wire::Head;

/// Which replica of which shard this is, and under which plan.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// The table.
    pub table: TableId,
    /// The shard's number, its range, and the server that holds this replica.
    pub placed: Placed,
    /// The plan that this replica goes by.
    pub plan: PlanNumber,
}

impl Identity {
    /// The shard's number.
    pub fn shard(&self) -> ShardId {
        self.placed.shard
    }

    /// The head of a frame that needs no plan.
    pub fn plain_head(&self, to: NodeId) -> Head {
        Head::plain(self.placed.owner, to)
    }

    /// The head of a frame to a node that checks the plan.
    pub fn head(&self, to: NodeId) -> Head {
        Head { plan: self.plan, ..self.plain_head(to) }
    }
}
