//! Membership, tables and barriers: what passes between the coordinator and everybody else.

#![deny(clippy::wildcard_enum_match_arm)]

use super::{NodeReport, Status};
use crate::field::{fields, variants};
use types::{Clock, NodeId, Plan, PlanNumber, ShardId, Source, Span, TableId, TableSpec, WorkerId};

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRole {
    /// It holds shards.
    Server,
    /// It computes.
    Worker,
}

/// One party of the run and where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub node: NodeId,
    /// Where it listens: `host:port`, or empty in one process.
    pub address: String,
}

/// Membership, tables and barriers.
#[derive(Clone, Debug, PartialEq)]
pub enum Control {
    /// Anyone to the coordinator, first of all.
    Join {
        /// What it is.
        role: NodeRole,
        /// Where it listens.
        address: String,
        /// A random number that tells a repeated join from another process's.
        token: u64,
        /// The number it asks for among those of its role; without one it is given the first that
        /// is free.
        place: Option<u32>,
        /// The job that it was started for; empty if that does not matter.
        job: String,
    },
    /// Coordinator: who you are.
    Welcome {
        /// The name given.
        node: NodeId,
        /// The incarnation, for workers.
        source: Source,
        /// The token of the join this answers.
        token: u64,
    },
    /// Coordinator: no place for you, and why.
    JoinRefused {
        /// In words.
        reason: String,
        /// The token of the join this answers.
        token: u64,
    },
    /// Coordinator to a node: the run has begun, and you are part of this plan.
    Begin {
        /// The plan.
        plan: Plan,
        /// Where everybody listens.
        members: Vec<Member>,
        /// Where a worker's clock stands: at the end of what everybody else has finished.
        clock: Clock,
        /// Barriers that were passed without it.
        barriers: u64,
        /// How long the serving lease of a server is, where others could take over its shards. Each
        /// acknowledged heartbeat renews it.
        serving_lease: Option<Span>,
    },
    /// Coordinator to all: this plan replaces the one before.
    Adopt {
        /// The plan.
        plan: Plan,
        /// Where everybody listens.
        members: Vec<Member>,
        /// Whether every server goes by it. Only then does anybody answer for a shard that another
        /// did before.
        enacted: bool,
    },
    /// The answer: it is done.
    Adopted {
        /// The plan's number.
        plan: PlanNumber,
        /// Whether it is known that every server goes by it.
        enacted: bool,
        /// The highest frontier of any shard that the node answers for, which waits for whoever is
        /// new in the plan.
        frontier: Clock,
    },
    /// Worker to coordinator: make this table, or tell me its number if it is there.
    MakeTable {
        /// The spec.
        spec: TableSpec,
    },
    /// Coordinator to servers: hold shards of this table. To workers: there is this table, so end
    /// your clocks for it.
    AddTable {
        /// Its number.
        table: TableId,
        /// The spec.
        spec: TableSpec,
    },
    /// The answer: it is known, or why it cannot be held.
    TableAdded {
        /// Its number.
        table: TableId,
        /// A problem, in words.
        problem: Option<String>,
    },
    /// Coordinator to worker: the table is there.
    TableMade {
        /// Its number.
        table: TableId,
        /// Its name.
        name: String,
    },
    /// Coordinator to worker: the table cannot be, and why.
    TableRefused {
        /// Its name.
        name: String,
        /// In words.
        problem: String,
    },
    /// Worker to coordinator: I am at the barrier with this number.
    Barrier {
        /// The worker's count of barriers, from 1.
        number: u64,
    },
    /// Coordinator to workers: everybody is at the barrier.
    BarrierPassed {
        /// Which.
        number: u64,
    },
    /// Coordinator to a waiting worker: who is missing.
    BarrierWaiting {
        /// Which barrier.
        number: u64,
        /// Who is missing.
        on: Vec<WorkerId>,
    },
    /// Anyone to the coordinator and back: alive. The head's number is the asker's own.
    Heartbeat,
    /// Node to coordinator: done, not dead. A worker says it when everything it pushed is
    /// acknowledged.
    Bye,
    /// Coordinator to all: a node is lost, and how that was noticed.
    Lost {
        /// Which.
        node: NodeId,
        /// In words.
        reason: String,
    },
    /// Coordinator to servers: every worker has left.
    Finish,
    /// Tail to coordinator: a new replica is backfilled.
    Backfilled {
        /// Of which table.
        table: TableId,
        /// Which shard.
        shard: ShardId,
        /// The server that holds it.
        server: u32,
        /// The plan by which it was backfilled.
        plan: PlanNumber,
    },
    /// A coordinator that does not lead, to whoever asks it: go elsewhere.
    Follow {
        /// The address of the coordinator that leads, as it says; empty if none is known to.
        leader: String,
    },
    /// Anyone to the coordinator: how does the run stand?
    AskStatus,
    /// The answer.
    Status {
        /// How.
        status: Box<Status>,
    },
    /// Node to coordinator: I cannot go on, and why.
    Fail {
        /// In words.
        reason: String,
    },
    /// Coordinator to servers: copy what you answer for when its frontier reaches this clock, and
    /// write it there. To workers: what your codecs have still to send when you come to it. Said
    /// again until everything is written, and answered each time.
    Checkpoint {
        /// Which checkpoint of the run, from 1.
        number: u64,
        /// The clock.
        clock: Clock,
        /// Whether every worker has left: everything is copied as it is, wherever its frontier
        /// stands.
        last: bool,
        /// The store.
        location: String,
        /// The checkpoint's name there.
        name: String,
    },
    /// Head to coordinator: the clock of a checkpoint has passed here, and it was not copied.
    Missed {
        /// Which checkpoint.
        number: u64,
        /// Of which table.
        table: TableId,
        /// Which shard.
        shard: ShardId,
        /// Where its frontier stands.
        frontier: Clock,
    },
    /// Server to coordinator: the copy of a shard is in the store.
    Written {
        /// Of which checkpoint.
        number: u64,
        /// Of which table.
        table: TableId,
        /// Which shard.
        shard: ShardId,
        /// What the manifest is to say of it, as the store's writer put it.
        entry: String,
    },
    /// Server to coordinator: the copy of a shard could not be written, and why.
    Unwritten {
        /// Of which checkpoint.
        number: u64,
        /// In words.
        reason: String,
    },
    /// Worker to coordinator: what its codecs had still to send when it came to the clock of a
    /// checkpoint is in the store, or there was nothing.
    ResidualsWritten {
        /// Of which checkpoint.
        number: u64,
        /// What the manifest is to say of it, as the store's writer put it.
        entry: Option<String>,
    },
    /// Worker to coordinator: it was past the clock of a checkpoint when it heard of it, and has
    /// something to send.
    Passed {
        /// Of which checkpoint.
        number: u64,
        /// Where it is.
        clock: Clock,
    },
    /// Coordinator to servers: hold shards of this table, as a checkpoint has them. Answered as a
    /// table that is added.
    Restore {
        /// Its number.
        table: TableId,
        /// The spec.
        spec: TableSpec,
        /// The clock that the checkpoint is of.
        clock: Clock,
        /// The store.
        location: String,
        /// The checkpoint's name there.
        name: String,
    },
    /// Worker to coordinator: lease this data set, or tell me its number if it is leased already.
    OpenLeases {
        /// Its name.
        name: String,
        /// What is leased, and how.
        terms: LeaseTerms,
    },
    /// The answer.
    LeasesOpened {
        /// Its name.
        name: String,
        /// Its number, or why it cannot be leased.
        set: Result<u32, String>,
    },
    /// Worker to coordinator: give me leases.
    AskLeases {
        /// Of which data set.
        set: u32,
        /// The worker's count of what it asked of this data set, from 1: said again, it is answered
        /// again.
        number: u64,
        /// How many it would like.
        wanted: u64,
    },
    /// Coordinator to worker: these are yours, those among them that you know of included.
    Leased {
        /// Of which data set.
        set: u32,
        /// What this answers.
        number: u64,
        /// In the order of granting.
        leases: Vec<u64>,
        /// Minibatches to put into each clock from now on.
        share: u32,
    },
    /// Coordinator to worker: every lease is committed.
    LeasesOver {
        /// Of which data set.
        set: u32,
        /// What this answers.
        number: u64,
        /// The clock that the furthest of all workers is at: whoever has heard this ends clocks as
        /// far as that.
        clock: Clock,
    },
    /// Coordinator to a worker that asked: nothing is left, but what others hold may come back.
    LeasesAwaited {
        /// Of which data set.
        set: u32,
        /// What this answers.
        number: u64,
        /// The clock that the furthest of all workers is at: who waits ends clocks as far as that,
        /// so that nobody waits for it.
        clock: Clock,
        /// Who holds leases, where that is worth telling.
        on: Vec<WorkerId>,
    },
    /// Worker to coordinator: I learn no more of this, and nobody is to; what I hold is given back.
    /// Coordinator to workers: so says one of you.
    EndLeases {
        /// Of which data set.
        set: u32,
    },
    /// Coordinator to worker, in place of [`Control::LeasesOver`]: nobody holds leases any more,
    /// and what is not committed stays so.
    LeasesEnded {
        /// Of which data set.
        set: u32,
        /// What this answers.
        number: u64,
        /// The clock that the furthest of all workers is at: whoever has heard this ends clocks as
        /// far as that.
        clock: Clock,
    },
    /// Worker to coordinator: I hold leases and am at the head's clock.
    Learning {
        /// Of which data set.
        set: u32,
    },
    /// Worker to coordinator: this lease is done, and whatever was pushed of it is acknowledged.
    CommitLease {
        /// Of which data set.
        set: u32,
        /// Its number.
        lease: u64,
        /// The clock in which it was done.
        clock: Clock,
        /// Examples learnt from since the last commit…
        examples: u64,
        /// … and the time that took, waiting for others left out.
        busy: Span,
    },
    /// The answer.
    LeaseCommitted {
        /// Of which data set.
        set: u32,
        /// Its number.
        lease: u64,
        /// Why it is not, in words.
        problem: Option<String>,
    },
    /// Coordinator to servers: leases before a place are committed, and shards whose frontier is at
    /// a clock need not know of them any more.
    ForgetLeases {
        /// Of which data set.
        set: u32,
        /// Which lease stands at which place: how many ranges the data set has…
        ranges: u64,
        /// … and in which order they are granted.
        shuffle: Option<u64>,
        /// The first place that is not committed.
        through: u64,
        /// The frontier.
        clock: Clock,
    },
    /// Server to coordinator: I was told to leave; let others hold what I hold. Said again until it
    /// is answered.
    Retire,
    /// The answer: nothing depends on you any more.
    Released,
    /// The answer: you cannot leave now, and why.
    LeaveDeferred {
        /// In words.
        reason: String,
    },
    /// Node to coordinator, beside its heartbeats: how it does.
    Report {
        /// How.
        report: Box<NodeReport>,
    },
    /// The answer, when every shard that the server answers for is there.
    LeasesForgotten {
        /// Of which data set.
        set: u32,
        /// The place.
        through: u64,
    },
}

/// What is leased, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Pieces that the input is cut into.
    pub ranges: u64,
    /// How often each is read.
    pub epochs: u32,
    /// The seed of the order in which they are granted, where that is not their own.
    pub shuffle: Option<u64>,
    /// Minibatches that a worker of average speed puts into a clock.
    pub per_clock: u32,
    /// The same for all who cut and read alike.
    pub fingerprint: u128,
    /// The input in words.
    pub input: String,
}

variants!(NodeRole { 0 => Server, 1 => Worker });
fields!(Member { node, address });
variants!(Control {
    0 => Join { role, address, token, place, job },
    1 => Welcome { node, source, token },
    2 => JoinRefused { reason, token },
    3 => Begin { plan, members, clock, barriers, serving_lease },
    4 => MakeTable { spec },
    5 => AddTable { table, spec },
    6 => TableAdded { table, problem },
    7 => TableMade { table, name },
    8 => TableRefused { name, problem },
    9 => Barrier { number },
    10 => BarrierPassed { number },
    11 => BarrierWaiting { number, on },
    12 => Heartbeat,
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
