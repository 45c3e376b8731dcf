use super::*;
use crate::stream::ShardStream;
use crate::testing::{TABLE, acknowledge, ones, worker_with_table};
use crate::{Op, TicketId};
use codec::Formats;
use types::{Consistency, NodeId, NumberType, PositionRange, ShardId, Span, TableSpec};
use wire::{Keys, Message};

fn part(clock: u64, significance: f64, bytes: usize) -> PacedPart {
    let mut head = Head::plain(NodeId::Worker(0), NodeId::Server(0));
    head.clock = Clock(clock);
    let keys = Keys::run(0..1).slice(0..1);
    let values = Payload::new(vec![0u8; bytes]);
    let (ticket, formats, plain, writes) = (TicketId(0), Formats::default(), None, wire::Writes::GRADIENTS);
    let message = StreamMessage::Push { ticket, keys, values, formats, plain, writes };
    PacedPart { table: TABLE, shard: 0, head, message, significance, ordered: false }
}

fn order(pacer: &mut Pacer, clock: u64) -> Vec<f64> {
    std::iter::from_fn(|| pacer.next(Clock(clock)).map(|part| part.significance)).collect()
}

#[test]
fn what_is_overdue_goes_first_then_the_largest_changes() {
    let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(1000));
    for (clock, significance) in [(1, 0.5), (1, 0.7), (2, 0.1), (2, 0.9), (2, 0.4)] {
        pacer.add(part(clock, significance, 10));
    }
    assert_eq!(order(&mut pacer, 2), [0.5, 0.7, 0.9, 0.4, 0.1]);
    assert!(pacer.is_empty());
}

#[test]
fn a_clock_ends_for_a_shard_when_its_parts_have_gone() {
    let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(1000));
    let end = |pacer: &mut Pacer, clock| pacer.end_clock(TABLE, 0, part(clock, 0.0, 0).head);
    assert!(!pacer.has_waiting(TABLE, 0), "nothing waits");
    pacer.add(part(1, 1.0, 10));
    end(&mut pacer, 1);
    pacer.add(part(2, 2.0, 10));
    end(&mut pacer, 2);
    assert!(pacer.has_waiting(TABLE, 0) && !pacer.has_waiting(TABLE, 1), "another shard waits for nothing");
    let ended = |pacer: &mut Pacer| -> Vec<u64> {
        pacer.next(Clock(3));
        pacer.due_markers((TABLE, 0)).iter().map(|head| head.clock.0).collect()
    };
    assert_eq!((ended(&mut pacer), ended(&mut pacer)), (vec![1], vec![2]));
}

#[test]
fn where_the_last_value_stays_parts_for_a_shard_keep_their_order() {
    let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(1000));
    for (shard, significance) in [(0, 0.1), (0, 0.9), (1, 0.5), (1, 0.3), (0, 0.2)] {
        pacer.add(PacedPart { shard, ordered: true, ..part(1, significance, 10) });
    }
    assert_eq!(order(&mut pacer, 1), [0.5, 0.3, 0.1, 0.9, 0.2]);
}

#[test]
fn parts_that_a_read_waits_for_go_before_larger_later_ones() {
    let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(1000));
    let parts = [0.2, 0.1, 0.9].map(|significance| pacer.add(part(1, significance, 10)));
    pacer.expect(TABLE, parts[1]);
    assert_eq!(order(&mut pacer, 1), [0.2, 0.1, 0.9]);
}

#[test]
fn tokens_come_with_time_and_are_saved_for_a_while() {
    let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(10_000_000));
    pacer.refill(Time(0) + Span::from_millis(10));
    assert_eq!(pacer.tokens, 100_000.0);
    pacer.refill(Time(0) + Span::from_secs(9));
    assert_eq!(pacer.tokens, 500_000.0, "a twentieth of a second's");
}

#[test]
fn new_parts_take_their_full_credit_and_resent_ones_a_second_at_most() {
    let mut pacer = Pacer::new(Time(0), Bandwidth::from_bytes_per_second(1000));
    let values = Payload::new(vec![0u8; 5000]);
    let mut stream = ShardStream::new(
        types::Placed { shard: ShardId(0), owner: NodeId::Server(0), range: PositionRange::ALL },
        TABLE,
        NumberType::F32,
        types::Clock(0),
    );
    let push = StreamMessage::Push {
        ticket: TicketId(0),
        keys: Keys::distinct(types::Placement::Spread, &(0..100).collect::<Vec<u64>>()).slice(0..100),
        values,
        formats: Formats::default(),
        plain: None,
        writes: wire::Writes::GRADIENTS,
    };
    let frame = stream.append(part(0, 0.0, 0).head, push);
    pacer.charge_resent([&frame]);
    assert_eq!(pacer.tokens, -1000.0);
    pacer.spend(500);
    pacer.charge_resent([&frame]);
    assert_eq!(pacer.tokens, -1500.0, "and lifts no debt");
    let bytes = frame_bytes(&frame);
    let mut whole = Vec::new();
    wire::encode(&frame, &mut whole);
    let real = whole.len() + 800 + 5000;
    assert!((real..real + 64).contains(&bytes), "{bytes} bytes for {real}: keys count, too");
}

/// A worker with one table on one server, which may send so much.
fn worker(spec: TableSpec, rate: u64) -> Worker {
    let mut worker = worker_with_table(spec, 1);
    worker.limit(Time(0), Some(Bandwidth::from_bytes_per_second(rate)), &mut Outbox::new());
    worker
}

fn read_after(frame: &Frame) -> Option<u64> {
    if let Message::Pull(pull) = &frame.message { Some(pull.after) } else { None }
}

fn at_ms(milliseconds: u64) -> Time {
    Time(0) + Span::from_millis(milliseconds)
}

/// New keys in every push and every read: the lists take most of the bytes.
#[test]
fn pushes_and_reads_together_take_the_bandwidth_and_no_more() {
    let rate = 100_000;
    for rule in [Consistency::slack(0), Consistency::Unbounded] {
        let mut worker = worker(TableSpec::sparse("t", 1).consistency(rule), rate);
        let mut out = Outbox::new();
        let mut sent = 0;
        for turn in 0..500u64 {
            let now = at_ms(turn * 10);
            let keys = |from: u64| {
                let ids: Vec<u64> = (0..400).map(|id| (turn * 2000 + from + id) * 7).collect();
                Keys::distinct(types::Placement::Spread, &ids)
            };
            let op = match turn % 4 {
                0 => Op::Push { batch: ones(keys(0), 1, 1) },
                1 => Op::Pull { keys: keys(400) },
                2 => Op::Active { keys: keys(800) },
                _ => Op::Scan { range: PositionRange::ALL, row_state: false },
            };
            worker.submit(now, TABLE, op, None, &[], &mut out).expect("fits");
            worker.tick(now, &mut out);
            for frame in out.drain() {
                let mut bytes = Vec::new();
                wire::encode(&frame, &mut bytes);
                sent += bytes.len() + frame.message.payloads().iter().map(|payload| payload.len()).sum::<usize>();
            }
            let most = rate as f64 * turn as f64 / 100.0 + SAVED_BYTES;
            assert!(sent as f64 <= most, "{rule}: {sent} bytes after {turn} turns");
        }
        assert!(sent > 450_000, "{rule}: {sent} bytes sent");
    }
}

#[test]
fn the_pull_of_a_push_pull_goes_when_all_of_its_push_has_gone() {
    let mut worker = worker(TableSpec::dense("t", 2, 8192).consistency(Consistency::Unbounded), 32_768);
    let mut out = Outbox::new();
    let both = Op::PushPull { batch: ones(Keys::run(0..2), 8192, 1) };
    let ticket = worker.submit(Time(0), TABLE, both, None, &[], &mut out).expect("fits");
    // (when, which frames go then: parts of the push by number, then the pull by what it follows)
    for (milliseconds, pushes, pulls) in [(1, vec![1], vec![]), (1500, vec![2], vec![]), (3000, vec![], vec![2])] {
        worker.tick(at_ms(milliseconds), &mut out);
        let frames: Vec<Frame> = out.drain().collect();
        let pulled: Vec<u64> = frames.iter().filter_map(read_after).collect();
        let pushed: Vec<u64> = frames.iter().map(|frame| frame.head.number).filter(|number| *number > 0).collect();
        assert_eq!((&pushed, pulled), (&pushes, pulls), "at {milliseconds} ms");
        for number in pushed {
            acknowledge(&mut worker, at_ms(milliseconds), 0, number, Vec::new(), &mut out);
        }
        assert!(!worker.is_finished(ticket), "at {milliseconds} ms nothing has been read");
    }
}

#[test]
fn a_part_that_waits_tells_of_the_examples_of_its_own_clock() {
    let mut worker = worker(TableSpec::dense("t", 2, 1).consistency(Consistency::slack(3)), 1000);
    let mut out = Outbox::new();
    for (clock, row) in [(0, 0), (1, 1), (2, 0)] {
        let push = Op::Push { batch: ones(Keys::run(row..row + 1), 1, 10 + clock) };
        worker.submit(Time(0), TABLE, push, None, &[], &mut out).expect("fits");
        worker.end_clock(Time(0), &mut out);
    }
    assert_eq!(out.drain().count(), 0, "everything waits");
    (1..2000).for_each(|turn| worker.tick(at_ms(turn), &mut out));
    let told: Vec<_> = out.drain().map(|frame| (frame.head.clock.0, frame.head.examples)).collect();
    assert_eq!(told, [(0, 10), (0, 0), (1, 11), (1, 0), (2, 12), (2, 0)], "a push and its end of each");
}
