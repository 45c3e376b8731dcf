use super::*;
use crate::testing::{self, TABLE, ones, worker_with_table};
use types::{Consistency, TableSpec};
use wire::{Keys, Message};

fn worker(consistency: Consistency) -> Worker {
    worker_with_table(TableSpec::dense("t", 1, 1).consistency(consistency), 1)
}

fn push(worker: &mut Worker, after: &[TicketId], out: &mut Outbox) -> TicketId {
    worker.submit(Time(0), TABLE, Op::Push { batch: ones(Keys::run(0..1), 1, 1) }, None, after, out).expect("fits")
}

fn pull(worker: &mut Worker, out: &mut Outbox) -> TicketId {
    worker.submit(Time(0), TABLE, Op::Pull { keys: Keys::run(0..1) }, None, &[], out).expect("fits")
}

fn acknowledge(worker: &mut Worker, through: u64, out: &mut Outbox) {
    testing::acknowledge(worker, Time(0), 0, through, Vec::new(), out);
}

fn sent(out: &mut Outbox) -> (usize, usize) {
    let frames: Vec<_> = out.drain().collect();
    let pulls = frames.iter().filter(|frame| matches!(frame.message, Message::Pull(_))).count();
    (frames.len() - pulls, pulls)
}

/// Releases many waiting operations one by one: the worker looks at each only a few times.
#[test]
fn worker_looks_at_waiting_operations_only_when_they_may_start() {
    const MANY: usize = 2_000;
    let bounded = Consistency::slack(0);
    // (how each waits, the rule, whether it names the operation before it or the first)
    for (what, rule, in_a_row) in [
        ("each after the one before", bounded, true),
        ("all after the first", bounded, false),
        ("delay 0", Consistency::Delay { tau: 0 }, false),
    ] {
        let mut worker = worker(rule);
        let mut out = Outbox::new();
        let first = push(&mut worker, &[], &mut out);
        let mut before = first;
        for _ in 1..MANY {
            before = push(&mut worker, &[if in_a_row { before } else { first }], &mut out);
        }
        assert_eq!(sent(&mut out), (1, 0), "{what}: the others wait");
        let mut pushes = 1;
        for through in 1..=MANY as u64 {
            acknowledge(&mut worker, through, &mut out);
            pushes += sent(&mut out).0;
        }
        assert_eq!(pushes, MANY, "{what}: all are sent");
        assert!(worker.is_idle() && worker.unacknowledged_bytes() == 0, "{what}");
        assert!(worker.schedule.looks() <= 2 * MANY, "{what}: {} looks at {MANY} operations", worker.schedule.looks());
    }
}

#[test]
fn read_follows_own_pushes_before_it_and_no_later_ones() {
    let mut worker = worker(Consistency::slack(0));
    let mut out = Outbox::new();
    let first = push(&mut worker, &[], &mut out);
    let second = push(&mut worker, &[first], &mut out);
    pull(&mut worker, &mut out);
    push(&mut worker, &[second], &mut out);
    pull(&mut worker, &mut out);
    assert_eq!(sent(&mut out), (1, 0));
    acknowledge(&mut worker, 1, &mut out);
    assert_eq!(sent(&mut out), (1, 1), "the second push, and the read behind it");
    acknowledge(&mut worker, 2, &mut out);
    assert_eq!(sent(&mut out), (1, 1));
    assert_eq!(worker.schedule.looks(), 4);
}
