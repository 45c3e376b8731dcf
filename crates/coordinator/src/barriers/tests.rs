use super::*;
use crate::members::tests::begun;

/// The workers that are told that a barrier is passed, and which barrier.
fn told(out: &mut Outbox) -> Vec<(NodeId, u64)> {
    let passed = |frame: wire::Frame| match frame.message {
        wire::Message::Control(Control::BarrierPassed { number }) => Some((frame.head.to, number)),
        _ => None,
    };
    out.drain().filter_map(passed).collect()
}

#[test]
fn a_barrier_is_passed_when_every_live_worker_has_reached_it_or_a_later_one() {
    let mut barriers = Barriers::default();
    let mut members = begun(1, 3);
    let mut out = Outbox::new();
    let worker = NodeId::Worker;
    // (rank, the barrier that the worker reaches, or none if it leaves; which workers are told of
    // which barrier)
    type Told<'a> = &'a [(NodeId, u64)];
    let cases: [(u32, Option<u64>, Told); 8] = [
        (0, Some(1), &[]),
        (0, Some(1), &[]),
        (1, Some(2), &[]),
        (2, Some(1), &[(worker(0), 1), (worker(1), 1), (worker(2), 1)]),
        (2, Some(1), &[(worker(2), 1)]),
        (0, Some(2), &[]),
        (2, None, &[(worker(0), 2), (worker(1), 2)]),
        (2, Some(3), &[]),
    ];
    for (rank, reached, expected) in cases {
        match reached {
            Some(number) => barriers.reach(Time(0), worker(rank), number, &members, &mut out),
            None => {
                members.depart(worker(rank));
                barriers.forget(WorkerId(rank), &members, &mut out);
            }
        }
        assert_eq!(told(&mut out), expected, "worker {rank}: {reached:?}");
    }
    assert_eq!(barriers.passed(), 2);
}

#[test]
fn workers_are_awaited_only_while_another_waits() {
    let mut barriers = Barriers::default();
    let members = begun(1, 3);
    let awaited = |barriers: &Barriers| barriers.awaited(&members).collect::<Vec<_>>();
    assert_eq!(awaited(&barriers), []);
    barriers.reach(Time(0), NodeId::Worker(1), 1, &members, &mut Outbox::new());
    assert_eq!(awaited(&barriers), [WorkerId(0), WorkerId(2)]);
}

#[test]
fn a_notice_is_repeated_after_each_interval() {
    let mut barriers = Barriers::default();
    let members = begun(1, 2);
    let after = Span(10);
    barriers.reach(Time(0), NodeId::Worker(1), 1, &members, &mut Outbox::new());
    let mut notices_at = |now| {
        let mut out = Outbox::new();
        barriers.notice(Time(now), after, &members, &mut out);
        out.drain().count()
    };
    assert_eq!([9, 10, 19, 20].map(&mut notices_at), [0, 1, 0, 1]);
}
