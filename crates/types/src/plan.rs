//! The plan: the immutable, numbered map from shards to servers, and the live workers.

use crate::{NodeId, PlanNumber, PositionRange, ShardId, Source, TableShape, WorkerId};

/// Which servers hold each shard, and which workers count for the frontier. Every change of either
/// is a new plan.
///
/// ```
/// use types::{NodeId, Plan, TableShape, Source};
///
/// let plan = Plan::first(2, vec![Source(7)]);
/// let shards = plan.shards(TableShape::Dense { rows: 10 });
/// assert_eq!(shards.iter().map(|placed| placed.owner).collect::<Vec<_>>(), [NodeId::Server(0), NodeId::Server(1)]);
/// assert_eq!(plan.live_workers().count(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Replaces every plan with a lower number.
    pub number: PlanNumber,
    /// The servers of each shard, for every table. A table is cut into shards once, when it is
    /// made; plans move whole shards.
    pub chains: Vec<Chain>,
    /// The incarnation of each worker, by rank; `None` for a rank without a worker.
    pub workers: Vec<Option<Source>>,
}

/// The servers that hold a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Servers that hold all of the shard. The first is the head, which takes writes and answers
    /// reads. The last is the tail: a write counts when the tail has it.
    pub replicas: Vec<u32>,
    /// Servers that the tail backfills.
    pub backfilling: Vec<u32>,
}

impl Chain {
    /// The server that takes writes and answers reads of the shard.
    #[must_use]
    pub fn head(&self) -> Option<NodeId> {
        self.replicas.first().copied().map(NodeId::Server)
    }

    /// Whether a server holds all or part of the shard.
    #[must_use]
    pub fn holds(&self, server: u32) -> bool {
        self.replicas.contains(&server) || self.backfilling.contains(&server)
    }
}

/// One shard of a table, placed on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The shard's number within its table, in position order.
    pub shard: ShardId,
    /// The positions that the shard holds.
    pub range: PositionRange,
    /// The head of its chain.
    pub owner: NodeId,
}

impl Plan {
    /// Whether any shard is held by more than one server.
    #[must_use]
    pub fn has_replicas(&self) -> bool {
        self.chains.iter().any(|chain| chain.replicas.len() > 1)
    }

    /// The plan of a run in which each server holds one shard of each table, without replicas.
    #[must_use]
    pub fn first(servers: u32, workers: Vec<Source>) -> Self {
        let chains = (0..servers).map(|server| Chain { replicas: vec![server], backfilling: Vec::new() }).collect();
        Self { number: PlanNumber(1), chains, workers: workers.into_iter().map(Some).collect() }
    }

    /// The shards of a table of this shape, in position order.
    #[must_use]
    pub fn shards(&self, shape: TableShape) -> Vec<Placed> {
        let ranges = shape.extent().split(self.chains.len());
        let placed = ranges.into_iter().zip(&self.chains).zip(0..).map(|((range, chain), index)| {
            // No server holds this shard now. Requests go unanswered until a later plan names one.
            let owner = chain.head().unwrap_or(NodeId::Coordinator);
            Placed { shard: ShardId(index), range, owner }
        });
        placed.collect()
    }

    /// The incarnation of the worker at a rank.
    #[must_use]
    pub fn source(&self, worker: WorkerId) -> Option<Source> {
        self.workers.get(worker.0 as usize).copied().flatten()
    }

    /// The workers that count for the frontier, by rank.
    pub fn live_workers(&self) -> impl Iterator<Item = (WorkerId, Source)> + '_ {
        let present = |(rank, source): (u32, &Option<Source>)| source.map(|source| (WorkerId(rank), source));
        (0..).zip(&self.workers).filter_map(present)
    }

    /// Every server that holds a shard or is being backfilled, in order, without repeats.
    #[must_use]
    pub fn servers(&self) -> Vec<u32> {
        let held = self.chains.iter().flat_map(|chain| chain.replicas.iter().chain(&chain.backfilling));
        let mut servers: Vec<u32> = held.copied().collect();
        servers.sort_unstable();
        servers.dedup();
        servers
    }
}
