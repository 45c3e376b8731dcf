//! Names of nodes, tables, shards and plans, as they appear in frames.

use std::fmt;

/// A worker's rank in the plan, 0 to n − 1.
///
/// ```
/// use types::{NodeId, WorkerId};
///
/// assert_eq!(NodeId::from(WorkerId(2)), NodeId::Worker(2));
/// assert_eq!(WorkerId(2).to_string(), "worker 2");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u32);

/// A node that can be addressed. Each server thread is a node of its own.
///
/// ```
/// use types::NodeId;
///
/// let nodes = [NodeId::Coordinator, NodeId::Server(0), NodeId::Worker(1)];
/// assert_eq!(nodes.map(|node| node.to_string()), ["coordinator", "server 0", "worker 1"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeId {
    /// The coordinator, which keeps membership and the plan.
    Coordinator,
    /// A server, which holds shards.
    Server(u32),
    /// A worker, which computes, and reads and writes tables.
    Worker(u32),
}

impl NodeId {
    const KIND_SHIFT: u32 = 30;

    /// The name as sent in frames: two bits of kind, thirty of index.
    ///
    /// ```
    /// use types::NodeId;
    ///
    /// assert_eq!(NodeId::Server(5).to_bits(), 1 << 30 | 5);
    /// ```
    #[must_use]
    pub fn to_bits(self) -> u32 {
        match self {
            Self::Coordinator => 0,
            Self::Server(index) => 1 << Self::KIND_SHIFT | index,
            Self::Worker(index) => 2 << Self::KIND_SHIFT | index,
        }
    }

    /// Decodes a name. Returns `None` if no node has these bits.
    ///
    /// ```
    /// use types::NodeId;
    ///
    /// assert_eq!(NodeId::from_bits(2 << 30 | 7), Some(NodeId::Worker(7)));
    /// assert_eq!(NodeId::from_bits(3 << 30), None);
    /// ```
    #[must_use]
    pub fn from_bits(bits: u32) -> Option<Self> {
        let index = bits & ((1 << Self::KIND_SHIFT) - 1);
        match bits >> Self::KIND_SHIFT {
            0 if index == 0 => Some(Self::Coordinator),
            1 => Some(Self::Server(index)),
            2 => Some(Self::Worker(index)),
            _ => None,
        }
    }
}

impl From<WorkerId> for NodeId {
    fn from(worker: WorkerId) -> Self {
        Self::Worker(worker.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => write!(f, "coordinator"),
            Self::Server(index) => write!(f, "server {index}"),
            Self::Worker(index) => write!(f, "worker {index}"),
        }
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {}", self.0)
    }
}

/// One incarnation of a worker, as the origin of updates. A worker that rejoins is a new source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(pub u64);

/// The number of a table, given by the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u32);

/// The number of a shard within its table, in position order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u32);

/// The number of a plan. A plan with a higher number replaces one with a lower number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlanNumber(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ids_round_trip_and_invalid_bits_are_refused() {
        for node in [NodeId::Coordinator, NodeId::Server(0), NodeId::Server(7), NodeId::Worker(12_345)] {
            assert_eq!(NodeId::from_bits(node.to_bits()), Some(node));
        }
        assert_eq!(NodeId::from_bits(3 << 30), None);
        assert_eq!(NodeId::from_bits(1), None, "there is one coordinator");
    }
}
