//! The machine as a whole: rules that several parts keep together.

mod leases;

use super::*;
use crate::barriers::NAMED;
use crate::timeouts::NOTICE_AFTER;
use types::{Source, WorkerId};
use wire::NodeRole;

#[test]
fn a_place_asked_for_is_given_if_there_is_one_and_it_is_free() {
    // (who asks, the place asked for, the name given or a word of the refusal)
    let (server, worker) = (NodeRole::Server, NodeRole::Worker);
    let cases: [(NodeRole, Option<u32>, Result<NodeId, &str>); 8] = [
        (worker, Some(1), Ok(NodeId::Worker(1))),
        (worker, None, Ok(NodeId::Worker(0))),
        (worker, None, Ok(NodeId::Worker(2))),
        (worker, None, Err("has its 3 already")),
        (worker, Some(1), Err("another process is worker 1")),
        (worker, Some(3), Err("there is no worker 3")),
        (server, Some(0), Ok(NodeId::Server(0))),
        (server, None, Err("has its 1 already")),
    ];
    let mut coordinator = Coordinator::new(RunSize { servers: 1, workers: 3 }, Membership::Static, Span::from_secs(1));
    for (token, (role, place, expected)) in (0u64..).zip(cases) {
        let mut out = Outbox::new();
        let from = NodeId::Worker(1000 + token as u32);
        let message =
            Message::Control(Control::Join { role, address: String::new(), token, place, job: String::new() });
        let frame = Frame { head: Head::plain(from, NodeId::Coordinator), message };
        coordinator.handle(Time(0), frame, &mut out);
        let answer = out.drain().next().unwrap().message;
        match (answer, expected) {
            (Message::Control(Control::Welcome { node, .. }), Ok(expected)) => assert_eq!(node, expected),
            (Message::Control(Control::JoinRefused { reason, .. }), Err(words)) => {
                assert!(reason.contains(words), "{reason}");
            }
            (answer, expected) => panic!("{expected:?} became {answer:?}"),
        }
    }
}

/// A process that is started again by the same command asks for the place that it had.
#[test]
fn a_place_that_was_given_in_a_run_that_others_may_come_to_is_answered_with_another() {
    let membership = Membership::Elastic { replicas: 1, shards_per_server: 1 };
    let mut coordinator = Coordinator::new(RunSize { servers: 1, workers: 1 }, membership, Span::from_secs(2));
    let mut join_at = |token: u64, role: NodeRole, place: u32, begins: bool| {
        let join = Control::Join { role, address: String::new(), token, place: Some(place), job: String::new() };
        let answer = said(&mut coordinator, Time(0), NodeId::Worker(1000), Source(0), join);
        let Some(Control::Welcome { node, source, .. }) = answer.into_iter().next() else { panic!("it is welcome") };
        if begins {
            said(&mut coordinator, Time(0), node, source, Control::Heartbeat);
        }
        node
    };
    assert_eq!(join_at(1, NodeRole::Server, 0, true), NodeId::Server(0));
    assert_eq!(join_at(2, NodeRole::Worker, 0, true), NodeId::Worker(0));
    assert_eq!(join_at(3, NodeRole::Server, 0, false), NodeId::Server(1), "the run has begun");
    assert_eq!(join_at(4, NodeRole::Worker, 0, false), NodeId::Worker(1));
    assert_eq!(join_at(5, NodeRole::Worker, 7, false), NodeId::Worker(7));
}

/// (how long the clocks of each worker take in milliseconds, who is slow)
#[test]
fn who_takes_much_longer_than_most_is_slow() {
    let cases: [(&[u64], &[u32]); 5] = [
        (&[10, 10, 10, 11], &[]),
        (&[10, 10, 40, 10], &[2]),
        (&[10, 40], &[1]),
        (&[40, 40, 10], &[]),
        (&[50, 10, 10, 60, 10], &[0, 3]),
    ];
    for (steps, slow) in cases {
        let size = RunSize { servers: 1, workers: steps.len() as u32 };
        let mut coordinator = Coordinator::new(size, Membership::Static, Span::from_secs(2));
        let mut members = vec![join(&mut coordinator, Time(0), NodeRole::Server, 0).expect("a place")];
        members.extend(
            (1..)
                .zip(steps)
                .map(|(token, _)| join(&mut coordinator, Time(0), NodeRole::Worker, token).expect("a place")),
        );
        for (node, source) in &members {
            said(&mut coordinator, Time(0), *node, *source, Control::Heartbeat);
        }
        for ((node, source), step) in members[1..].iter().zip(steps) {
            let mut measured = types::Measured::default();
            measured.observe(Span::from_millis(*step));
            let report = wire::NodeReport { step: Some(measured), ..Default::default() };
            said(&mut coordinator, Time(0), *node, *source, Control::Report { report: Box::new(report) });
        }
        let found: Vec<u32> = coordinator.status().slow.into_iter().map(|worker| worker.0).collect();
        assert_eq!(found, slow, "{steps:?}");
    }
}

pub(super) fn said(
    coordinator: &mut Coordinator,
    now: Time,
    from: NodeId,
    source: Source,
    control: Control,
) -> Vec<Control> {
    let mut out = Outbox::new();
    let mut head = Head::plain(from, NodeId::Coordinator);
    head.source = source;
    coordinator.handle(now, Frame { head, message: Message::Control(control) }, &mut out);
    controls(&mut out)
}

pub(super) fn controls(out: &mut Outbox) -> Vec<Control> {
    let control = |frame: Frame| match frame.message {
        Message::Control(control) => Some(control),
        _ => None,
    };
    out.drain().filter_map(control).collect()
}

/// The incarnation that has a node's place.
pub(super) fn source(coordinator: &Coordinator, node: NodeId) -> Source {
    coordinator.members.source(node).unwrap_or_default()
}

/// Joins as a worker; the name and the source given, if there is a place.
pub(super) fn join(coordinator: &mut Coordinator, now: Time, role: NodeRole, token: u64) -> Option<(NodeId, Source)> {
    let control = Control::Join { role, address: String::new(), token, place: None, job: String::new() };
    let answer = said(coordinator, now, NodeId::Worker(1000), Source(0), control);
    answer.into_iter().find_map(|answer| match answer {
        Control::Welcome { node, source, .. } => Some((node, source)),
        _ => None,
    })
}

#[test]
fn no_two_incarnations_share_a_source() {
    let mut coordinator = Coordinator::new(RunSize { servers: 1, workers: 2 }, Membership::Static, Span::from_secs(5));
    let (_, server) = join(&mut coordinator, Time(0), NodeRole::Server, 10).expect("a place");
    let (name, old) = join(&mut coordinator, Time(0), NodeRole::Worker, 1).expect("a place");
    assert_eq!(
        join(&mut coordinator, Time(0), NodeRole::Worker, 1),
        Some((name, old)),
        "the same process, the same one"
    );
    let (_, other) = join(&mut coordinator, Time(0), NodeRole::Worker, 2).expect("a place");
    // The first falls silent; whoever comes next gets its rank, and a source of its own.
    let later = Time(0) + Span::from_secs(4);
    for (node, source) in [(NodeId::Server(0), server), (NodeId::Worker(1), other)] {
        said(&mut coordinator, later, node, source, Control::Heartbeat);
    }
    let much_later = Time(0) + Span::from_secs(6);
    coordinator.tick(much_later, &mut Outbox::new());
    let (again, new) = join(&mut coordinator, much_later, NodeRole::Worker, 3).expect("a place");
    assert_eq!(again, name);
    assert!(new != old && new != other && other != old);
    // The old one is not taken for the new one, whatever it says.
    let begins = |said: Vec<Control>| said.iter().any(|control| matches!(control, Control::Begin { .. }));
    assert!(!begins(said(&mut coordinator, much_later, name, old, Control::Heartbeat)));
    assert!(begins(said(&mut coordinator, much_later, name, new, Control::Heartbeat)));
    assert_eq!(coordinator.plan().workers, [Some(new), Some(other)]);
    assert!(said(&mut coordinator, much_later, name, old, Control::Bye).is_empty());
    assert!(coordinator.members.is_there(name));
}

#[test]
fn nobody_leaves_a_run_or_waits_in_it_before_it_has_begun() {
    let mut coordinator = Coordinator::new(RunSize { servers: 1, workers: 1 }, Membership::Static, Span::from_secs(1));
    for token in 0..3 {
        let now = Time(0) + Span::from_secs(2 * token);
        coordinator.tick(now, &mut Outbox::new());
        let (node, source) = join(&mut coordinator, now, NodeRole::Worker, token).expect("the place is free again");
        for control in
            [Control::Barrier { number: 1 }, Control::MakeTable { spec: TableSpec::sparse("t", 1) }, Control::Bye]
        {
            let answers = said(&mut coordinator, now, node, source, control);
            assert!(answers.is_empty(), "{answers:?}");
        }
    }
    assert!(!coordinator.has_begun());
    assert_eq!(coordinator.members.present(), 0);
}

/// A run of one server and this many workers that has begun.
fn begun(workers: u32) -> Coordinator {
    let mut coordinator = Coordinator::new(RunSize { servers: 1, workers }, Membership::Static, Span::from_secs(1_000));
    let server = join(&mut coordinator, Time(0), NodeRole::Server, 0);
    let others = (1..=u64::from(workers)).map(|token| join(&mut coordinator, Time(0), NodeRole::Worker, token));
    let members: Vec<_> = others.chain([server]).map(|member| member.expect("a place")).collect();
    for (node, source) in members {
        said(&mut coordinator, Time(0), node, source, Control::Heartbeat);
    }
    assert!(coordinator.has_begun());
    coordinator
}

#[test]
fn what_is_said_of_a_barrier_grows_with_the_workers_and_not_with_their_square() {
    let workers = 1_000;
    let mut coordinator = begun(workers);
    for rank in 0..workers / 2 {
        let node = NodeId::Worker(rank);
        let source = source(&coordinator, node);
        assert!(said(&mut coordinator, Time(0), node, source, Control::Barrier { number: 1 }).is_empty());
    }
    let mut out = Outbox::new();
    coordinator.tick(Time(0) + NOTICE_AFTER, &mut out);
    let told: Vec<_> = controls(&mut out);
    assert_eq!(told.len(), workers as usize / 2);
    let expected: Vec<_> = (workers / 2..).map(WorkerId).take(NAMED).collect();
    assert!(told.iter().all(|told| matches!(told, Control::BarrierWaiting { on, .. } if *on == expected)));
}

#[test]
fn who_is_waited_for_is_no_news_while_it_takes_as_long_as_it_always_does() {
    let mut coordinator = begun(2);
    let mut step = types::Measured::default();
    (0..100).for_each(|_| step.observe(Span::from_secs(8)));
    let report = Box::new(wire::NodeReport { step: Some(step), ..Default::default() });
    let [first, second] = [0, 1].map(|rank| source(&coordinator, NodeId::Worker(rank)));
    said(&mut coordinator, Time(0), NodeId::Worker(1), second, Control::Report { report });
    said(&mut coordinator, Time(0), NodeId::Worker(0), first, Control::Barrier { number: 1 });
    let mut told_at = |seconds| {
        let mut out = Outbox::new();
        coordinator.tick(Time(0) + Span::from_secs(seconds), &mut out);
        controls(&mut out).len()
    };
    assert_eq!([3, 7, 9, 12, 18].map(&mut told_at), [0, 0, 1, 0, 1]);
}

#[test]
fn a_barrier_counts_those_who_have_not_left() {
    let mut coordinator = begun(3);
    let mut say = |rank: u32, control: Control| {
        let source = source(&coordinator, NodeId::Worker(rank));
        let said = said(&mut coordinator, Time(0), NodeId::Worker(rank), source, control);
        said.iter().filter(|said| matches!(said, Control::BarrierPassed { .. })).count()
    };
    // (who, what, how many hear that it is passed)
    let cases = [
        (0, Control::Barrier { number: 1 }, 0),
        (0, Control::Barrier { number: 1 }, 0), // said twice
        (1, Control::Bye, 0),
        (1, Control::Barrier { number: 1 }, 0), // late
        (2, Control::Barrier { number: 1 }, 2),
        (2, Control::Barrier { number: 1 }, 1), // the answer was lost
        (0, Control::Barrier { number: 2 }, 0),
        (2, Control::Bye, 1),
    ];
    for (step, (rank, control, expected)) in cases.into_iter().enumerate() {
        assert_eq!(say(rank, control), expected, "step {step}");
    }
}

#[test]
fn a_place_whose_node_fell_silent_before_the_run_began_is_free_again() {
    let mut coordinator = Coordinator::new(RunSize { servers: 1, workers: 1 }, Membership::Static, Span::from_secs(5));
    let mut out = Outbox::new();
    let mut join = |coordinator: &mut Coordinator, now: Time, token: u64| {
        let control =
            Control::Join { role: NodeRole::Worker, address: String::new(), token, place: None, job: String::new() };
        let head = Head::plain(NodeId::Worker(1000), NodeId::Coordinator);
        coordinator.handle(now, Frame { head, message: Message::Control(control) }, &mut out);
        out.drain().next().map(|frame| frame.message)
    };
    let welcomed = |answer| matches!(answer, Some(Message::Control(Control::Welcome { .. })));
    assert!(welcomed(join(&mut coordinator, Time(0), 1)));
    let later = Time(0) + Span::from_secs(4);
    coordinator.tick(later, &mut Outbox::new());
    assert!(!welcomed(join(&mut coordinator, later, 2)), "the first may still be there");
    let much_later = Time(0) + Span::from_secs(6);
    coordinator.tick(much_later, &mut Outbox::new());
    assert!(welcomed(join(&mut coordinator, much_later, 2)));
}

/// Shells hand in a clock that never goes back; if one did, nobody would be given up for it.
#[test]
fn a_clock_that_is_set_back_gives_nobody_up() {
    let mut coordinator = begun(1);
    let second = |seconds| Time(0) + Span::from_secs(seconds);
    for node in coordinator.everybody() {
        let source = source(&coordinator, node);
        said(&mut coordinator, second(5_000), node, source, Control::Heartbeat);
    }
    for (now, lost) in [(1, false), (4_000, false), (5_999, false), (6_001, true)] {
        coordinator.tick(second(now), &mut Outbox::new());
        assert_eq!(coordinator.lost().is_some(), lost, "second {now}");
    }
}

#[test]
fn who_is_of_another_job_is_turned_away_and_who_does_not_say_is_not() {
    let mut coordinator =
        Coordinator::new(RunSize { servers: 1, workers: 3 }, Membership::Static, Span::from_secs(1)).of_job("a");
    for (token, (job, welcome)) in (0..).zip([("b", false), ("a", true), ("", true)]) {
        let (address, place) = (String::new(), None);
        let join = Control::Join { role: NodeRole::Worker, address, token, place, job: job.to_owned() };
        let answers = said(&mut coordinator, Time(0), NodeId::Worker(1000), Source(0), join);
        let welcomed = answers.iter().any(|answer| matches!(answer, Control::Welcome { .. }));
        assert_eq!(welcomed, welcome, "{job}: {answers:?}");
    }
}

#[test]
fn what_servers_hold_unevenly_is_moved_when_it_is_worth_it_and_not_all_the_time() {
    let membership = Membership::Elastic { replicas: 1, shards_per_server: 4 };
    let mut coordinator = Coordinator::new(RunSize { servers: 2, workers: 1 }, membership, Span::from_secs(2));
    let roles = [NodeRole::Server, NodeRole::Server, NodeRole::Worker];
    let members = (0..).zip(roles).map(|(token, role)| join(&mut coordinator, Time(0), role, token).expect("a place"));
    let members: Vec<_> = members.collect();
    for (node, source) in &members {
        said(&mut coordinator, Time(0), *node, *source, Control::Heartbeat);
    }
    let make = Control::MakeTable { spec: TableSpec::sparse("t", 1) };
    said(&mut coordinator, Time(0), members[2].0, members[2].1, make);
    let shards = |server: u32| (4 * server..4 * server + 4).map(types::ShardId);
    let report = |coordinator: &mut Coordinator, seconds: u64, server: u32, bytes: u64| {
        let report =
            wire::NodeReport { shards: shards(server).map(|shard| (shard, bytes)).collect(), ..Default::default() };
        let (node, source) = members[server as usize];
        let now = Time(0) + Span::from_secs(seconds);
        said(coordinator, now, node, source, Control::Report { report: Box::new(report) });
        coordinator.plan().chains.iter().filter(|chain| !chain.backfilling.is_empty()).count()
    };
    // (when, who, bytes of each of its shards; shards that are on their way then)
    let cases = [
        (1, 0, 8 << 20, 0),  // too soon: its tables may still grow
        (30, 1, 8 << 20, 0), // as much as the other
        (31, 1, 100, 2),
        (32, 1, 100, 2), // on their way
    ];
    for (seconds, server, bytes, moving) in cases {
        assert_eq!(report(&mut coordinator, seconds, server, bytes), moving, "second {seconds}");
    }
    let moved = coordinator.plan().chains.iter().filter(|chain| chain.backfilling == [1]).count();
    assert_eq!(moved, 2, "from the first server to the second: {:?}", coordinator.plan().chains);
}
