//! The state of a run as its coordinator knows it (`Control::Status`), and the reports of its nodes
//! (`Control::Report`).

use crate::field::{fields, variants};
use types::{Binding, Clock, Measured, NodeId, Plan, ShardId, Span, TableId, TableSpec, WorkerId};

/// The state of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The plan in force.
    pub plan: Plan,
    /// Servers that have not adopted the plan yet.
    pub adopting: Vec<NodeId>,
    /// All nodes that are or were in the run.
    pub members: Vec<MemberStatus>,
    /// Workers that are missing at a barrier where others wait.
    pub awaited: Vec<WorkerId>,
    /// The tables.
    pub tables: Vec<TableStatus>,
    /// Workers that parked reads at any server wait for.
    pub waited_for: Vec<WorkerId>,
    /// Workers whose clocks take much longer than those of most.
    pub slow: Vec<WorkerId>,
    /// The failure timeout.
    pub failure_timeout: Span,
    /// The length of a serving lease, if other servers could take over shards.
    pub lease: Option<Span>,
    /// The number of servers that hold each shard.
    pub replicas: u32,
    /// The time-outs of the coordinator.
    pub timeouts: Vec<Timeout>,
    /// Nodes that send heartbeats and do not do their part.
    pub troubles: Vec<Trouble>,
}

/// A node that sends heartbeats and does not do its part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The node.
    pub node: NodeId,
    /// What it does not do, in words.
    pub what: String,
    /// For how long.
    pub lasted: Span,
    /// After how long it is expelled, or the run ends; `None` if it is only reported.
    pub limit: Option<Span>,
}

/// The state of one table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableStatus {
    /// The number of the table.
    pub table: TableId,
    /// The spec of the table.
    pub spec: TableSpec,
    /// The lowest frontier of its shards; `None` before servers have reported it.
    pub frontier: Option<Clock>,
}

/// The state of one node.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberStatus {
    /// The name of the node.
    pub node: NodeId,
    /// The address at which it listens.
    pub address: String,
    /// What its name is bound to; `None` in an insecure run.
    pub binding: Option<Binding>,
    /// Whether it takes part.
    pub state: MemberState,
    /// The time since its last message.
    pub silent: Span,
    /// A worker's clock in its last message.
    pub clock: Clock,
    /// For how long a worker that takes part is in its clock.
    pub in_clock: Option<Span>,
    /// Its last report.
    pub report: NodeReport,
}

/// The measurements that a node sends beside its heartbeats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// From a server: the bytes of each shard that it answers for.
    pub shards: Vec<(ShardId, u64)>,
    /// From a server: the lowest frontier of the shards that it answers for, by table.
    pub frontiers: Vec<(TableId, Clock)>,
    /// From a server: the workers that parked reads wait for.
    pub waited_for: Vec<WorkerId>,
    /// From a server: parked reads that wait for other workers, one of each reader and table.
    pub waiting_reads: Vec<WaitingRead>,
    /// From a worker: for how long its program waits in one call. `None` if no thread of it waits.
    pub blocked: Option<Span>,
    /// Peers from which an answer is due and that the node has not heard since, and for how long.
    pub silent_peers: Vec<(NodeId, Span)>,
    /// From a worker: the duration of its clocks, without waiting for others.
    pub step: Option<Measured>,
    /// The time from a heartbeat to its answer.
    pub round_trip: Option<Measured>,
    /// The time-outs of the node.
    pub timeouts: Vec<Timeout>,
}

/// A parked read that waits until other workers end clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingRead {
    /// The table.
    pub table: TableId,
    /// The reader.
    pub reader: WorkerId,
    /// The reader's clock.
    pub clock: Clock,
    /// The clock that the frontier must reach.
    pub needs: Clock,
}

/// A time-out and what it is derived from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeout {
    /// What happens after it, in words.
    pub what: String,
    /// Its length.
    pub value: Span,
    /// What it is derived from, in words.
    pub why: String,
    /// The measurement that it is derived from, if any.
    pub measured: Option<Measured>,
}

impl Timeout {
    /// A time-out that follows from settings, and from a measurement if there is one.
    #[must_use]
    pub fn new(what: &str, value: Span, why: &str, measured: Option<Measured>) -> Self {
        Self { what: what.to_owned(), value, why: why.to_owned(), measured }
    }
}

/// Whether a node takes part in the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has a place, and does not take part yet.
    Joining,
    /// It takes part.
    Present,
    /// It takes part and is draining: other servers take over its shards first.
    Leaving,
    /// It has left.
    Left,
    /// It was lost.
    Lost {
        /// How the loss was noticed, in words.
        reason: String,
    },
}

variants!(MemberState { 0 => Joining, 1 => Present, 2 => Left, 3 => Lost { reason }, 4 => Leaving });
fields!(TableStatus { table, spec, frontier });
fields!(MemberStatus { node, address, binding, state, silent, clock, in_clock, report });
fields!(Trouble { node, what, lasted, limit });
fields!(WaitingRead { table, reader, clock, needs });
fields!(NodeReport { shards, frontiers, waited_for, waiting_reads, blocked, silent_peers, step, round_trip, timeouts });
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
    timeouts,
    troubles
});
