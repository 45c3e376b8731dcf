use super::*;
use crate::Op;
use crate::testing::{TABLE, acknowledge, ones, worker_with_table};
use types::{Consistency, PositionRange, Span, TableSpec};
use wire::{Frame, Keys, Message};

/// How many bytes may go at once at a low rate: the least size of the token bucket.
const SAVED_BYTES: f64 = 65_536.0;

/// A worker with one table on one server, which may send `rate` bytes a second.
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

/// Every push and every read has new keys, so that key lists take most of the bytes.
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
                wire::encode(&frame, &mut bytes).expect("sendable");
                sent += bytes.len() + frame.message.payloads().iter().map(|payload| payload.len()).sum::<usize>();
            }
            let most = rate as f64 * turn as f64 / 100.0 + SAVED_BYTES;
            assert!(sent as f64 <= most, "{rule}: {sent} bytes after {turn} turns");
        }
        assert!(sent > 450_000, "{rule}: {sent} bytes sent");
    }
}

#[test]
fn push_pull_sends_its_pull_after_all_parts_of_its_push() {
    let mut worker = worker(TableSpec::dense("t", 2, 8192).consistency(Consistency::Unbounded), 32_768);
    let mut out = Outbox::new();
    let both = Op::PushPull { batch: ones(Keys::run(0..2), 8192, 1) };
    let ticket = worker.submit(Time(0), TABLE, both, None, &[], &mut out).expect("fits");
    // (when, the numbers of the push parts that go then, the number that the pull follows)
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
fn waiting_part_carries_the_examples_of_its_own_clock() {
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
    assert_eq!(told, [(0, 10), (0, 0), (1, 11), (1, 0), (2, 12), (2, 0)], "a push and the end of each clock");
}
