//! Which shard of which table this is, under which plan: what the heads of its frames say.

use types::{NodeId, Placed, PlanNumber, ShardId, TableId};
use wire::Head;

/// The name of a shard's replica.
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
