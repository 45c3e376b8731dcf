//! Control messages between the coordinator and servers or workers: membership, plans, tables,
//! barriers, checkpoints and data leases.
//!
//! Each variant says who sends it to whom, when, and what the receiver does. Nodes repeat a request
//! until it is answered, so receivers accept repetitions.

#![deny(clippy::wildcard_enum_match_arm)]

use super::{NodeReport, Status};
use crate::field::{fields, variants};
use types::{Binding, Clock, NodeId, Plan, PlanNumber, ShardId, Source, Span, TableId, TableSpec, WorkerId};

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRole {
    /// A server, which holds shards.
    Server,
    /// A worker, which computes.
    Worker,
}

/// A node of the run and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The name of the node.
    pub node: NodeId,
    /// The address at which it listens: `host:port`, or empty within one process.
    pub address: String,
    /// What its name is bound to; `None` in an insecure run.
    pub binding: Option<Binding>,
}

/// A control message.
#[derive(Clone, Debug, PartialEq)]
pub enum Control {
    /// Process to coordinator, as its first message: asks for a place in the run. Answered by
    /// `Welcome` or `JoinRefused`.
    Join {
        /// The role that the process wants.
        role: NodeRole,
        /// The address at which it listens.
        address: String,
        /// A random number by which the coordinator tells a repeated join from that of another
        /// process.
        token: u64,
        /// The place that it wants among the nodes of its role; `None` for the first free one.
        place: Option<u32>,
        /// The job that it was started for; empty for any job. The coordinator refuses nodes of
        /// another job.
        job: String,
    },
    /// Coordinator to a process, in answer to `Join`: it has a place. The node then sends
    /// heartbeats and waits for `Begin`.
    Welcome {
        /// The name of the node.
        node: NodeId,
        /// The incarnation of a worker.
        source: Source,
        /// The token of the join that this answers.
        token: u64,
    },
    /// Coordinator to a process, in answer to `Join`: it has no place. The process gives up and
    /// reports the reason.
    JoinRefused {
        /// Why, in words.
        reason: String,
        /// The token of the join that this answers.
        token: u64,
    },
    /// Coordinator to a node, when the run begins or, for a late node, when it is part of the plan.
    /// The node takes part from now on.
    Begin {
        /// The plan.
        plan: Plan,
        /// The addresses of all nodes.
        members: Vec<Member>,
        /// The clock at which a worker starts: the first that the other workers have not finished.
        clock: Clock,
        /// The number of barriers that were passed before this node joined.
        barriers: u64,
        /// The length of a serving lease, if other servers could take over shards. Each
        /// acknowledged heartbeat renews it.
        serving_lease: Option<Span>,
        /// Where the run reads and writes checkpoints. A server that may not use one of these
        /// locations refuses now, not at the first checkpoint.
        locations: Vec<String>,
    },
    /// Coordinator to servers, and then to workers: replaces the plan. The node adopts it and
    /// answers by `Adopted`.
    Adopt {
        /// The plan.
        plan: Plan,
        /// The addresses of all nodes.
        members: Vec<Member>,
        /// Whether every server has adopted the plan. Only then may a server answer for a shard
        /// that another server answered for before.
        enacted: bool,
    },
    /// Node to coordinator, in answer to `Adopt`: it has adopted the plan. The coordinator enacts
    /// the plan when all servers have.
    Adopted {
        /// The number of the plan.
        plan: PlanNumber,
        /// Whether the node knows that the plan is enacted.
        enacted: bool,
        /// The highest frontier of the shards that the node answers for. A worker that is new in
        /// the plan starts at the highest of all servers.
        frontier: Clock,
    },
    /// Worker to coordinator, when its program opens a table: make it, or find it if it exists.
    /// Answered by `TableMade` or `TableRefused`.
    MakeTable {
        /// The spec of the table.
        spec: TableSpec,
    },
    /// Coordinator to servers, when a table is made: each creates its shards of it. To workers,
    /// when all servers have: each sends its clock markers to the new shards too. Both answer
    /// by `TableAdded`.
    AddTable {
        /// The number of the table.
        table: TableId,
        /// The spec of the table.
        spec: TableSpec,
    },
    /// Node to coordinator, in answer to `AddTable` or `Restore`: the table is ready, or why it
    /// cannot be.
    TableAdded {
        /// The number of the table.
        table: TableId,
        /// What went wrong, in words; `None` if nothing did.
        problem: Option<String>,
    },
    /// Coordinator to a worker, in answer to `MakeTable`: all servers hold the table. The worker
    /// may use it.
    TableMade {
        /// The number of the table.
        table: TableId,
        /// The name of the table.
        name: String,
    },
    /// Coordinator to a worker, in answer to `MakeTable`: the table cannot be made. The worker
    /// fails the call.
    TableRefused {
        /// The name of the table.
        name: String,
        /// Why, in words.
        problem: String,
    },
    /// Worker to coordinator, when its program reaches a barrier. Answered by `BarrierPassed`, when
    /// all workers are there.
    Barrier {
        /// The worker's count of barriers, from 1.
        number: u64,
    },
    /// Coordinator to workers, when all have reached a barrier. The worker's program goes on.
    BarrierPassed {
        /// The number of the barrier.
        number: u64,
    },
    /// Coordinator to a worker that has waited at a barrier for a while. The worker reports the
    /// missing workers to its program.
    BarrierWaiting {
        /// The number of the barrier.
        number: u64,
        /// The missing workers.
        on: Vec<WorkerId>,
    },
    /// Node to coordinator, periodically: it is alive. The head's clock is a worker's clock, or the
    /// furthest frontier of a server. The coordinator answers by the same message with the same
    /// number in the head, which renews a server's serving lease; or by `Begin` or `Lost`.
    ///
    /// Node to a server that it waits for: it asks whether the server lives. The server answers by
    /// the same message with number 0 in the head.
    Heartbeat {
        /// To the coordinator: the number of the last heartbeat whose answer the node has heard, 0
        /// before the first. In an answer of a server: the number of the heartbeat that it answers.
        heard: u64,
    },
    /// Node to coordinator: it leaves the run in order. A worker sends it when everything that it
    /// pushed is acknowledged.
    Bye,
    /// Coordinator to all nodes, when the run cannot go on without a lost node; and to an expelled
    /// node, which learns that it is lost itself. The receiver stops with this reason.
    Lost {
        /// The lost node.
        node: NodeId,
        /// How the loss was noticed, in words.
        reason: String,
    },
    /// Coordinator to servers, when every worker has left: the run is over, and the server ends.
    Finish,
    /// Tail to coordinator, when a new replica holds all of a shard. The coordinator makes it part
    /// of the chain in the next plan.
    Backfilled {
        /// The table.
        table: TableId,
        /// The shard of it.
        shard: ShardId,
        /// The server with the new replica.
        server: u32,
        /// The plan in which it was backfilled. The coordinator ignores a report for another plan.
        plan: PlanNumber,
    },
    /// Standby coordinator to a node that contacts it: it does not lead. The node contacts the
    /// leader instead.
    Follow {
        /// The address of the leading coordinator; empty if the sender knows none.
        leader: String,
    },
    /// Any process to the coordinator: asks for the state of the run. Answered by `Status`.
    AskStatus,
    /// Coordinator to the asking process, in answer to `AskStatus`.
    Status {
        /// The state of the run.
        status: Box<Status>,
    },
    /// Node to coordinator: it cannot go on. The coordinator ends the run with this reason.
    Fail {
        /// Why, in words.
        reason: String,
    },
    /// Coordinator to servers and workers, repeatedly until the checkpoint is written.
    ///
    /// - A server copies each shard that it answers for when its frontier reaches the clock, and
    ///   writes the copies to the store. It answers by `Written`, `Unwritten` or `Missed` for each
    ///   shard.
    /// - A worker writes its residuals when it reaches the clock. It answers by `ResidualsWritten`,
    ///   `Unwritten` or `Passed`.
    Checkpoint {
        /// The number of the checkpoint in the run, from 1.
        number: u64,
        /// The clock of the checkpoint.
        clock: Clock,
        /// Whether every worker has left. Servers then copy each shard as it is, at any frontier.
        last: bool,
        /// The location of the store.
        location: String,
        /// The name of the checkpoint in the store.
        name: String,
    },
    /// Server to coordinator, in answer to `Checkpoint`: the frontier of a shard was past the clock
    /// when the request arrived. The coordinator gives up this checkpoint and chooses a later
    /// clock.
    Missed {
        /// The number of the checkpoint.
        number: u64,
        /// The table.
        table: TableId,
        /// The shard of it.
        shard: ShardId,
        /// The frontier of the shard.
        frontier: Clock,
    },
    /// Server to coordinator, in answer to `Checkpoint`: the copy of a shard is in the store. The
    /// coordinator publishes the manifest when everything is.
    Written {
        /// The number of the checkpoint.
        number: u64,
        /// The table.
        table: TableId,
        /// The shard of it.
        shard: ShardId,
        /// The entry of this shard in the manifest, as the store's writer made it.
        entry: String,
    },
    /// Server or worker to coordinator, in answer to `Checkpoint`: its part could not be written.
    /// The coordinator gives up this checkpoint.
    Unwritten {
        /// The number of the checkpoint.
        number: u64,
        /// Why, in words.
        reason: String,
    },
    /// Worker to coordinator, in answer to `Checkpoint`: its residuals at the clock are in the
    /// store, or it had none.
    ResidualsWritten {
        /// The number of the checkpoint.
        number: u64,
        /// The entry of the residuals in the manifest, as the store's writer made it; `None`
        /// without residuals.
        entry: Option<String>,
    },
    /// Worker to coordinator, in answer to `Checkpoint`: it was past the clock when the request
    /// arrived, and has residuals. The coordinator gives up this checkpoint and chooses a later
    /// clock.
    Passed {
        /// The number of the checkpoint.
        number: u64,
        /// The worker's clock.
        clock: Clock,
    },
    /// Coordinator to servers of a resumed run, in place of `AddTable`: each reads its shards of
    /// the table from the checkpoint, and answers by `TableAdded`.
    Restore {
        /// The number of the table.
        table: TableId,
        /// The spec of the table.
        spec: TableSpec,
        /// The clock of the checkpoint.
        clock: Clock,
        /// The location of the store.
        location: String,
        /// The name of the checkpoint in the store.
        name: String,
    },
    /// Worker to coordinator, when its program opens a data set: lease it out, or find it if
    /// another worker opened it. Answered by `LeasesOpened`.
    OpenLeases {
        /// The name of the data set.
        name: String,
        /// The terms of its leases. They must be the same in all workers.
        terms: LeaseTerms,
    },
    /// Coordinator to a worker, in answer to `OpenLeases`.
    LeasesOpened {
        /// The name of the data set.
        name: String,
        /// The number of the data set, or why it cannot be leased, in words.
        set: Result<u32, String>,
    },
    /// Worker to coordinator, when it needs leases. Answered by `Leased`, `LeasesOver` or
    /// `LeasesEnded`; until then, `LeasesAwaited` may come.
    AskLeases {
        /// The number of the data set.
        set: u32,
        /// The number of the worker's request for this data set, from 1. A repeated request is
        /// answered again.
        number: u64,
        /// The number of leases wanted.
        wanted: u64,
    },
    /// Coordinator to a worker, in answer to `AskLeases`: all leases that the worker holds. The
    /// worker starts on those that are new to it.
    Leased {
        /// The number of the data set.
        set: u32,
        /// The number of the request that this answers.
        number: u64,
        /// The leases, in the order of granting.
        leases: Vec<u64>,
        /// The number of minibatches to put into each clock from now on.
        share: u32,
    },
    /// Coordinator to a worker, in answer to `AskLeases`: every lease is committed. The worker ends
    /// clocks up to the given one and finishes the data set.
    LeasesOver {
        /// The number of the data set.
        set: u32,
        /// The number of the request that this answers.
        number: u64,
        /// The clock of the furthest worker.
        clock: Clock,
    },
    /// Coordinator to a worker that waits for an answer to `AskLeases`: no lease is left, but other
    /// workers may give theirs back. The worker keeps waiting. It ends clocks up to the given one,
    /// so that no worker waits for it.
    LeasesAwaited {
        /// The number of the data set.
        set: u32,
        /// The number of the request that waits.
        number: u64,
        /// The clock of the furthest worker.
        clock: Clock,
        /// Workers that hold leases, after a longer wait; otherwise empty.
        on: Vec<WorkerId>,
    },
    /// Worker to coordinator, when its program ends a data set early: no more leases are granted,
    /// and the worker gives back its own. Coordinator to workers: a worker has ended the data set,
    /// so they stop too.
    EndLeases {
        /// The number of the data set.
        set: u32,
    },
    /// Coordinator to a worker, in place of [`Control::LeasesOver`]: a worker has ended the data
    /// set early, and no worker holds leases any more. The remaining leases stay uncommitted. The
    /// worker ends clocks up to the given one and finishes the data set.
    LeasesEnded {
        /// The number of the data set.
        set: u32,
        /// The number of the request that this answers.
        number: u64,
        /// The clock of the furthest worker.
        clock: Clock,
    },
    /// Worker to coordinator, repeatedly while it holds leases; the head has its clock. The
    /// coordinator passes the furthest clock to waiting workers, and repeats `EndLeases` if the
    /// data set was ended.
    Learning {
        /// The number of the data set.
        set: u32,
    },
    /// Worker to coordinator: a lease is done, and everything pushed for it is acknowledged.
    /// Answered by `LeaseCommitted`.
    CommitLease {
        /// The number of the data set.
        set: u32,
        /// The number of the lease.
        lease: u64,
        /// The clock in which the worker finished it.
        clock: Clock,
        /// The number of examples since the last commit.
        examples: u64,
        /// The time spent on these examples, without waiting for others.
        busy: Span,
    },
    /// Coordinator to a worker, in answer to `CommitLease`.
    LeaseCommitted {
        /// The number of the data set.
        set: u32,
        /// The number of the lease.
        lease: u64,
        /// Why the lease was not committed, in words; `None` if it was.
        problem: Option<String>,
    },
    /// Coordinator to servers, when more leases are committed. Each shard whose frontier has
    /// reached the clock forgets its applied parts of leases below the place. The server answers by
    /// `LeasesForgotten` when all its shards have.
    ForgetLeases {
        /// The number of the data set.
        set: u32,
        /// The number of ranges of the data set. With `shuffle`, it maps leases to places.
        ranges: u64,
        /// The seed of the order of granting; `None` for the order of numbers.
        shuffle: Option<u64>,
        /// The place in the order of granting below which all leases are committed.
        through: u64,
        /// The frontier that a shard must have reached.
        clock: Clock,
    },
    /// Server to coordinator, repeatedly, when it is told to leave: asks that other servers take
    /// over its shards. Answered by `Released` or `LeaveDeferred`.
    Retire,
    /// Coordinator to a server, in answer to `Retire`: other servers hold its shards. The server
    /// ends.
    Released,
    /// Coordinator to a server, in answer to `Retire`: it cannot leave now. The server logs the
    /// reason and stays.
    LeaveDeferred {
        /// Why, in words.
        reason: String,
    },
    /// Node to coordinator, beside its heartbeats: its measurements, for `Status` and for
    /// placement.
    Report {
        /// The measurements.
        report: Box<NodeReport>,
    },
    /// Server to coordinator, in answer to `ForgetLeases`, when every shard that the server answers
    /// for has forgotten them.
    LeasesForgotten {
        /// The number of the data set.
        set: u32,
        /// The place in `ForgetLeases`.
        through: u64,
    },
}

/// The terms of the data leases of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// The number of ranges of the input.
    pub ranges: u64,
    /// The number of passes over the input.
    pub epochs: u32,
    /// The seed that shuffles the leases of each epoch; `None` grants them in order of their
    /// numbers.
    pub shuffle: Option<u64>,
    /// The number of minibatches that a worker of average speed puts into a clock.
    pub per_clock: u32,
    /// A hash of how the input is cut and read. It must be the same in all workers.
    pub fingerprint: u128,
    /// The input in words, for error messages.
    pub input: String,
}

variants!(NodeRole { 0 => Server, 1 => Worker });
fields!(Member { node, address, binding });
variants!(Control {
    0 => Join { role, address, token, place, job },
    1 => Welcome { node, source, token },
    2 => JoinRefused { reason, token },
    3 => Begin { plan, members, clock, barriers, serving_lease, locations },
    4 => MakeTable { spec },
    5 => AddTable { table, spec },
    6 => TableAdded { table, problem },
    7 => TableMade { table, name },
    8 => TableRefused { name, problem },
    9 => Barrier { number },
    10 => BarrierPassed { number },
    11 => BarrierWaiting { number, on },
    12 => Heartbeat { heard },
    13 => Bye,
    14 => Lost { node, reason },
    15 => Finish,
    16 => Adopt { plan, members, enacted },
    17 => Fail { reason },
    18 => Adopted { plan, enacted, frontier },
    19 => Backfilled { table, shard, server, plan },
    20 => AskStatus,
    21 => Status { status },
    40 => Follow { leader },
    30 => Checkpoint { number, clock, last, location, name },
    31 => Missed { number, table, shard, frontier },
    32 => Written { number, table, shard, entry },
    33 => Unwritten { number, reason },
    34 => Restore { table, spec, clock, location, name },
    45 => ResidualsWritten { number, entry },
    46 => Passed { number, clock },
    22 => OpenLeases { name, terms },
    23 => LeasesOpened { name, set },
    24 => AskLeases { set, number, wanted },
    25 => Leased { set, number, leases, share },
    26 => LeasesOver { set, number, clock },
    27 => LeasesAwaited { set, number, clock, on },
    28 => Learning { set },
    29 => CommitLease { set, lease, clock, examples, busy },
    35 => LeaseCommitted { set, lease, problem },
    36 => ForgetLeases { set, ranges, shuffle, through, clock },
    37 => LeasesForgotten { set, through },
    50 => Retire,
    51 => Released,
    52 => LeaveDeferred { reason },
    53 => Report { report },
    41 => EndLeases { set },
    42 => LeasesEnded { set, number, clock },
});
fields!(LeaseTerms { ranges, epochs, shuffle, per_clock, fingerprint, input });
