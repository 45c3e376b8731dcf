//! Tests of [`Replication`] by itself: arriving chunks, durability, resends.

use super::*;
use crate::testing::Parts;
use types::{ShardId, Source, TableId, TableSpec};
use wire::Payload;

const HEAD: NodeId = NodeId::Server(0);
const NEXT: NodeId = NodeId::Server(2);

/// A shard of four rows.
fn parts() -> Parts {
    Parts::new(&TableSpec::dense("t", 4, 1), 4)
}

/// A chunk of what changed after batch `from`, up to batch `to`.
fn chunk(from: u64, to: u64, chunk: u32, ends: bool, backfill: Option<u64>) -> ReplicaChunk {
    ReplicaChunk {
        table: TableId(0),
        shard: ShardId(0),
        changes: ChangeChunk { from, to, chunk, ends },
        backfill,
        contents: if ends { ChunkContents::Metadata { bytes: Vec::new() } } else { ChunkContents::Rows },
        positions: Payload::EMPTY,
        values: Payload::EMPTY,
    }
}

fn in_the_middle(whole: bool) -> (Replication, ChangeLog) {
    let mut replication = Replication::new();
    let log = ChangeLog::default();
    let role = ChainRole { from: Some(HEAD), next: Some(NEXT), backfilling: Vec::new() };
    replication.take_part(role, whole, Time(0), &log, &parts().view()).expect("a role in a chain");
    (replication, log)
}

/// The kind of an arrival, and how many chunks it hands over.
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
fn replica_takes_batches_whole_and_in_order() {
    let (mut replication, mut log) = in_the_middle(true);
    let parts = parts();
    // (sender, from, to, chunk, whether it ends the batch, expected kind and chunks)
    let cases = [
        (NEXT, 0, 1, 0, true, ("ignored", 0)),
        (HEAD, 1, 2, 0, true, ("answered", 0)), // a gap
        (HEAD, 0, 1, 1, true, ("answered", 0)), // its first chunk is missing
        (HEAD, 0, 1, 0, false, ("ignored", 0)),
        (HEAD, 0, 1, 0, false, ("ignored", 0)), // resent from the beginning
        (HEAD, 0, 1, 1, true, ("batch", 2)),
        (HEAD, 0, 1, 0, false, ("ignored", 0)), // held already
        (HEAD, 0, 1, 1, true, ("answered", 0)),
        (HEAD, 1, 2, 0, true, ("batch", 1)),
        (HEAD, 1, 5, 0, false, ("ignored", 0)), // resent after a gap, with all that came since
        (HEAD, 1, 5, 1, true, ("batch", 2)),
    ];
    for (index, (sender, from, to, number, ends, expected)) in cases.into_iter().enumerate() {
        let arrival = replication.arrive(sender, chunk(from, to, number, ends, None), &mut log);
        assert_eq!(kind(&arrival), expected, "arrival {index}");
        if let Arrival::Batch(chunks) = arrival {
            let mut out = Outbox::new();
            let acknowledge = replication.batch_taken(&chunks, Time(0), &mut log, &parts.view(), &mut out);
            assert!(!acknowledge, "only a head acknowledges to workers");
            let to: Vec<NodeId> = out.drain().map(|frame| frame.head.to).collect();
            assert!(to.contains(&NEXT), "it goes on down the chain: {to:?}");
        }
    }
    assert_eq!(log.last(), 5);
}

#[test]
fn replica_takes_a_refused_batch_when_it_is_resent() {
    let (mut replication, mut log) = in_the_middle(true);
    assert_eq!(kind(&replication.arrive(HEAD, chunk(0, 1, 0, true, None), &mut log)), ("batch", 1));
    replication.batch_refused(&log);
    assert_eq!(kind(&replication.arrive(HEAD, chunk(0, 1, 0, true, None), &mut log)), ("batch", 1));
}

#[test]
fn backfill_starts_over_under_a_later_plan_and_ignores_an_earlier_one() {
    let (mut replication, mut log) = in_the_middle(false);
    // (backfill, chunk, whether it ends the backfill, expected kind and chunks)
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
        let arrival = replication.arrive(HEAD, chunk(0, 7, number, ends, Some(backfill)), &mut log);
        assert_eq!(kind(&arrival), expected, "arrival {index}");
        if let Arrival::Backfill { chunk: Some(chunk), .. } = arrival {
            replication.backfill_taken(&chunk, &mut log);
        }
    }
    assert_eq!(
        kind(&replication.arrive(HEAD, chunk(7, 8, 0, true, None), &mut log)),
        ("batch", 1),
        "batches follow it"
    );
}

#[test]
fn head_acknowledges_what_the_tail_holds() {
    let mut parts = parts();
    let mut replication = Replication::new();
    let role = ChainRole { from: None, next: Some(NEXT), backfilling: Vec::new() };
    let mut log = ChangeLog::default();
    let change = replication.take_part(role, true, Time(0), &log, &parts.view()).expect("a role in a chain");
    assert_eq!(change, RoleChange { is_head: true, is_new_head: false });
    let worker = WorkerId(0);
    parts.streams.judge(Source(1), 1, 0);
    parts.streams.finish(worker, None);
    let times = log.note_rows([(2, 2)].into_iter());
    replication.note_changes(log.open_len(), times);
    replication.note_push(worker);
    replication.note_progress(Time(0));
    let mut out = Outbox::new();
    assert!(replication.close_batch(Time(0), &mut log, &parts.view(), &mut out));
    assert_eq!(out.drain().count(), 2, "the row and the metadata");
    assert_eq!(replication.durable(worker), 0, "the tail has not answered");
    let replicated = |through| Replicated { table: TableId(0), shard: ShardId(0), through, backfill: None };
    assert!(replication.acknowledged(NEXT, &replicated(1), Time(0), &mut log, &parts.view(), &mut out));
    assert_eq!(replication.durable(worker), 1);
}

/// What is sent to a replica: the range of each batch and the rows in it.
fn sent(out: &mut Outbox) -> Vec<(u64, u64, Vec<u64>)> {
    let rows = |frame: wire::Frame| match frame.message {
        Message::ReplicaChunk(ReplicaChunk { changes, contents: ChunkContents::Rows, positions, .. }) => {
            Some((changes.from, changes.to, positions.numbers::<u64>().map(<[u64]>::to_vec).unwrap_or_default()))
        }
        _ => None,
    };
    out.drain().filter_map(rows).collect()
}

#[test]
fn resend_is_one_batch_of_everything_that_the_replica_lacks() {
    let parts = parts();
    let mut replication = Replication::new();
    let mut log = ChangeLog::default();
    let role = ChainRole { from: None, next: Some(NEXT), backfilling: Vec::new() };
    replication.take_part(role, true, Time(0), &log, &parts.view()).expect("a role in a chain");
    let mut out = Outbox::new();
    let push = |replication: &mut Replication, log: &mut ChangeLog, row: u32, now: Time| {
        let before = log.open_len();
        let times = log.note_rows([(u64::from(row), row)].into_iter());
        replication.note_changes(log.open_len() - before, times);
        replication.note_progress(now);
    };
    for row in [0, 1] {
        push(&mut replication, &mut log, row, Time(0));
        replication.close_batch(Time(0) + Span::from_millis(20), &mut log, &parts.view(), &mut out);
        // The second batch waits for the first one: it is closed when a read needs it.
        replication.need_batch();
        replication.close_batch(Time(0), &mut log, &parts.view(), &mut out);
    }
    assert_eq!(sent(&mut out), [(0, 1, vec![0]), (1, 2, vec![1])]);
    // Both batches are lost. A third row changes before the resend, and is part of it.
    push(&mut replication, &mut log, 3, Time(0));
    replication.tick(Time(0) + Span::from_secs(9), &mut log, &parts.view(), &mut out);
    assert_eq!(sent(&mut out), [(0, 3, vec![0, 1, 3])]);
    let replicated = Replicated { table: TableId(0), shard: ShardId(0), through: 3, backfill: None };
    replication.acknowledged(NEXT, &replicated, Time(0) + Span::from_secs(9), &mut log, &parts.view(), &mut out);
    assert_eq!((replication.needs_after(), log.since(3).rows.len()), (Some(3), 0));
}
