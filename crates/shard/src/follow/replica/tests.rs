//! Replication alone: what arrives, what is taken, what counts as durable.

use super::*;
use crate::intake::clocks::Clocks;
use crate::intake::gate::Streams;
use crate::leases::LeasedParts;
use crate::rows::Rows;
use types::{Combine, Placed, Plan, PlanNumber, Position, PositionRange, ShardId, Source, TableId, TableSpec};
use update::Updaters;
use wire::Pool;

const HEAD: NodeId = NodeId::Server(0);
const HERE: NodeId = NodeId::Server(1);
const NEXT: NodeId = NodeId::Server(2);

/// The parts of a shard that replication reads.
struct Parts {
    identity: Identity,
    streams: Streams,
    clocks: Clocks<f32>,
    leases: LeasedParts,
    rows: Rows<f32>,
    pool: Pool,
}

impl Parts {
    fn new() -> Self {
        let range = PositionRange { first: Position(0), last: Position(3) };
        let placed = Placed { shard: ShardId(0), range, owner: HERE };
        let spec = TableSpec::dense("t", 4, 1);
        Self {
            identity: Identity { table: TableId(0), placed, plan: PlanNumber(1) },
            streams: Streams::new(&Plan::first(1, vec![Source(1)])),
            clocks: Clocks::new(Combine::Each, [true].into_iter()),
            leases: LeasedParts::default(),
            rows: Rows::new(&spec, range, &Updaters::builtin(), 1 << 20).expect("they fit"),
            pool: Pool::new(),
        }
    }

    fn view(&self) -> ShardView<'_, f32> {
        let Self { identity, streams, clocks, leases, rows, pool } = self;
        ShardView { identity, streams, clocks, leases, rows, pool }
    }
}

fn chunk(batch: u64, chunk: u32, ends: bool, backfill: Option<u64>) -> ReplicaChunk {
    let contents = if ends { ChunkContents::Metadata { bytes: Vec::new() } } else { ChunkContents::Rows };
    let (positions, values) = (Payload::EMPTY, Payload::EMPTY);
    ReplicaChunk { table: TableId(0), shard: ShardId(0), batch, chunk, backfill, contents, positions, values }
}

fn in_the_middle(whole: bool) -> Replication {
    let mut replication = Replication::new();
    let role = ChainRole { from: Some(HEAD), next: Some(NEXT), backfilling: Vec::new() };
    replication.take_part(role, whole, Time(0), &Parts::new().view()).expect("a role in a chain");
    replication
}

/// What an arrival is, as a word and the chunks it hands over.
fn kind(arrival: &Arrival) -> (&'static str, usize) {
    match arrival {
        Arrival::Ignored => ("ignored", 0),
        Arrival::Answered => ("answered", 0),
        Arrival::Backfill { chunk, begins } => {
            (if *begins { "first of a backfill" } else { "of a backfill" }, usize::from(chunk.is_some()))
        }
        Arrival::Batch(chunks) => ("batch", chunks.len()),
    }
}

#[test]
fn a_replica_takes_batches_whole_and_in_order() {
    let mut replication = in_the_middle(true);
    let parts = Parts::new();
    // (from, batch, chunk, whether it ends the batch, what it is)
    let cases = [
        (NEXT, 1, 0, true, ("ignored", 0)),
        (HEAD, 2, 0, true, ("answered", 0)), // a gap
        (HEAD, 1, 1, true, ("answered", 0)), // its first chunk is missing
        (HEAD, 1, 0, false, ("ignored", 0)),
        (HEAD, 1, 0, false, ("ignored", 0)), // resent from the beginning
        (HEAD, 1, 1, true, ("batch", 2)),
        (HEAD, 1, 0, false, ("ignored", 0)), // held already
        (HEAD, 1, 1, true, ("answered", 0)),
        (HEAD, 2, 0, true, ("batch", 1)),
    ];
    for (index, (from, batch, number, ends, expected)) in cases.into_iter().enumerate() {
        let arrival = replication.arrive(from, chunk(batch, number, ends, None));
        assert_eq!(kind(&arrival), expected, "arrival {index}");
        if let Arrival::Batch(chunks) = arrival {
            let mut out = Outbox::new();
            let effect = replication.batch_taken(chunks, Time(0), &parts.view(), &mut out);
            assert_eq!(effect, ReplicationEffect::default(), "only a head acknowledges to workers");
            let to: Vec<NodeId> = out.drain().map(|frame| frame.head.to).collect();
            assert!(to.contains(&NEXT), "it goes on down the chain: {to:?}");
        }
    }
}

#[test]
fn a_backfill_begins_anew_under_a_later_plan_and_an_earlier_one_is_ignored() {
    let mut replication = in_the_middle(false);
    // (backfill, chunk, whether it ends the backfill, what it is)
    let cases = [
        (3, 0, false, ("first of a backfill", 1)),
        (3, 2, false, ("of a backfill", 0)), // a gap
        (3, 1, false, ("of a backfill", 1)),
        (4, 1, false, ("first of a backfill", 0)), // its first chunk is missing
        (4, 0, false, ("of a backfill", 1)),
        (3, 2, false, ("answered", 0)),
        (4, 1, true, ("of a backfill", 1)),
    ];
    for (index, (backfill, number, ends, expected)) in cases.into_iter().enumerate() {
        let arrival = replication.arrive(HEAD, chunk(7, number, ends, Some(backfill)));
        assert_eq!(kind(&arrival), expected, "arrival {index}");
        if let Arrival::Backfill { chunk: Some(chunk), .. } = arrival {
            replication.backfill_taken(&chunk);
        }
    }
    assert_eq!(kind(&replication.arrive(HEAD, chunk(8, 0, true, None))), ("batch", 1), "batches follow it");
}

#[test]
fn a_head_acknowledges_what_the_tail_holds() {
    let mut parts = Parts::new();
    let mut replication = Replication::new();
    let role = ChainRole { from: None, next: Some(NEXT), backfilling: Vec::new() };
    let change = replication.take_part(role, true, Time(0), &parts.view()).expect("a role in a chain");
    assert_eq!(change, RoleChange { is_head: true, is_new_head: false, begins: true });
    let worker = WorkerId(0);
    parts.streams.judge(Source(1), 1, 0);
    parts.streams.finish(worker, None);
    replication.note_rows([(2, 2)].into_iter());
    replication.note_push(worker);
    replication.note_progress(Time(0));
    let mut out = Outbox::new();
    let effect = replication.close_batch(Time(0), &parts.view(), &mut out);
    assert!(effect.acknowledge && out.drain().count() == 2, "the row and the metadata");
    assert_eq!(replication.durable(worker), 0, "the tail has not answered");
    let replicated = Replicated { table: TableId(0), shard: ShardId(0), through: 1, backfill: None };
    let effect = replication.acknowledged(NEXT, &replicated, Time(0), &parts.view(), &mut out);
    assert!(effect.acknowledge && replication.durable(worker) == 1);
}
