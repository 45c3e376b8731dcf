//! How a run stands, as its coordinator knows it.

use crate::field::{fields, variants};
use types::{Clock, Measured, NodeId, Plan, ShardId, Span, TableId, TableSpec, WorkerId};

/// How a run stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The plan in force.
    pub plan: Plan,
    /// Servers that have not adopted it.
    pub adopting: Vec<NodeId>,
    /// Everybody who ever was in the run.
    pub members: Vec<MemberStatus>,
    /// Workers that are missing at a barrier at which others stand.
    pub awaited: Vec<WorkerId>,
    /// The tables.
    pub tables: Vec<TableStatus>,
    /// Workers that reads wait for at some server.
    pub waited_for: Vec<WorkerId>,
    /// Workers whose clocks take them much longer than most.
    pub slow: Vec<WorkerId>,
    /// A node that is silent for this long is given up.
    pub failure_timeout: Span,
    /// How long the serving lease of a server is, where others could take over its shards.
    pub lease: Option<Span>,
    /// How many servers hold each shard.
    pub replicas: u32,
    /// How long the coordinator waits for what.
    pub timeouts: Vec<Timeout>,
}

/// How one table stands.
#[derive(Clone, Debug, PartialEq)]
pub struct TableStatus {
    /// Its number.
    pub table: TableId,
    /// Its spec.
    pub spec: TableSpec,
    /// Its lowest frontier, where servers have said so.
    pub frontier: Option<Clock>,
}

/// How one node stands.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberStatus {
    /// Its name.
    pub node: NodeId,
    /// Where it listens.
    pub address: String,
    /// What it is up to.
    pub state: MemberState,
    /// How long ago it was heard.
    pub silent: Span,
    /// A worker's clock, when it was last heard.
    pub clock: Clock,
    /// What it has said of itself.
    pub report: NodeReport,
}

/// What a node says of itself, beside its heartbeats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// Of a server: bytes of each shard that it answers for.
    pub shards: Vec<(ShardId, u64)>,
    /// Of a server: the lowest frontier among the shards that it answers for, by table.
    pub frontiers: Vec<(TableId, Clock)>,
    /// Of a server: workers that reads wait for.
    pub waited_for: Vec<WorkerId>,
    /// Of a worker: how long its clocks take it, without the time in which it waits for others.
    pub step: Option<Measured>,
    /// From a heartbeat to its answer.
    pub round_trip: Option<Measured>,
    /// How long it waits for what.
    pub timeouts: Vec<Timeout>,
}

/// How long is waited for something, and why so long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeout {
    /// What happens after it, in words.
    pub what: String,
    /// How long.
    pub value: Span,
    /// What it is derived from, in words.
    pub why: String,
    /// The measurement that it is derived from, if it is.
    pub measured: Option<Measured>,
}

impl Timeout {
    /// One that follows from settings alone, or from a measurement, too.
    #[must_use]
    pub fn new(what: &str, value: Span, why: &str, measured: Option<Measured>) -> Self {
        Self { what: what.to_owned(), value, why: why.to_owned(), measured }
    }
}

/// What a node is up to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It was given a place, and does not take part yet.
    Joining,
    /// It takes part.
    Present,
    /// It takes part, and is about to leave: what it holds goes to others first.
    Leaving,
    /// It has left.
    Left,
    /// The run went on without it.
    Lost {
        /// Why.
        reason: String,
    },
}

variants!(MemberState { 0 => Joining, 1 => Present, 2 => Left, 3 => Lost { reason }, 4 => Leaving });
fields!(TableStatus { table, spec, frontier });
fields!(MemberStatus { node, address, state, silent, clock, report });
fields!(NodeReport { shards, frontiers, waited_for, step, round_trip, timeouts });
fields!(Timeout { what, value, why, measured });
fields!(Status {
    plan,
    adopting,
    members,
    awaited,
    tables,
    waited_for,
    slow,
    failure_timeout,
    lease,
    replicas,
    timeouts
});
