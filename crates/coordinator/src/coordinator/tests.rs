//! Tests of the whole machine: rules that several parts keep together.

mod leases;

use super::*;
use crate::barriers::NAMED;
use crate::timeouts::NOTICE_AFTER;
use types::limits::{ADDRESS_BYTES, JOINS_AT_ONCE, JOINS_PER_SECOND, NAME_BYTES};
use types::{Source, WorkerId};
use wire::NodeRole;

#[test]
fn a_free_place_that_a_node_asks_for_is_given() {
    // (role of the node, the place that it asks for, the name given or words of the refusal)
    let server = NodeRole::Server;
    let worker = NodeRole::Worker;
    let cases: [(NodeRole, Option<u32>, Result<NodeId, &str>); 8] = [
        (worker, Some(1), Ok(NodeId::Worker(1))),
        (worker, None, Ok(NodeId::Worker(0))),
        (worker, None, Ok(NodeId::Worker(2))),
        (worker, None, Err("has its 3 workers already")),
        (worker, Some(1), Err("another process is worker 1")),
        (worker, Some(3), Err("there is no worker 3")),
        (server, Some(0), Ok(NodeId::Server(0))),
        (server, None, Err("has its 1 servers already")),
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

#[test]
fn a_flood_of_joins_is_answered_at_the_rate_of_joins_only() {
    let mut coordinator = Coordinator::new(RunSize { servers: 1, workers: 1 }, Membership::Static, Span::from_secs(1));
    let mut answered = |at: Time, tokens: std::ops::Range<u64>| {
        let answers = |token| {
            let role = NodeRole::Worker;
            let join = Control::Join { role, address: String::new(), token, place: None, job: String::new() };
            said(&mut coordinator, at, NodeId::Worker(1000), Source(0), join).len()
        };
        tokens.map(answers).sum::<usize>()
    };
    assert_eq!(answered(Time(0), 0..5_000), JOINS_AT_ONCE);
    assert_eq!(answered(Time(0), 0..1), 1, "a node that has a place is answered again");
    assert_eq!(answered(Time(0) + Span::from_millis(500), 5_000..10_000), JOINS_PER_SECOND / 2);
}

#[test]
fn a_node_with_a_long_or_unprintable_address_or_job_is_refused() {
    let mut coordinator = Coordinator::new(RunSize { servers: 1, workers: 1 }, Membership::Static, Span::from_secs(1));
    let mut refused = |address: &str, job: &str| {
        let role = NodeRole::Worker;
        let join = Control::Join { role, address: address.to_owned(), token: 1, place: None, job: job.to_owned() };
        match said(&mut coordinator, Time(0), NodeId::Worker(1000), Source(0), join).into_iter().next() {
            Some(Control::JoinRefused { reason, .. }) => reason,
            answer => format!("{answer:?}"),
        }
    };
    let long = |bytes: usize| "a".repeat(bytes);
    assert!(refused(&long(ADDRESS_BYTES + 1), "").contains("its address has 257 bytes"));
    assert!(refused("", &long(NAME_BYTES + 1)).contains("its job name has 256 bytes"));
    assert!(refused("host:1\u{1b}[2J", "").contains(r#"its address has a control character: "host:1\u{1b}[2J""#));
    assert!(refused("", "clicks\n17").contains(r#"its job name has a control character: "clicks\n17""#));
    assert!(refused(&long(ADDRESS_BYTES), &long(NAME_BYTES)).contains("Welcome"));
}

/// A process that is started again by the same command asks for the place that it had.
#[test]
fn an_elastic_run_gives_another_place_for_one_that_is_taken() {
    let membership = Membership::Elastic { replicas: 1, shards_per_server: 1 };
    let mut coordinator = Coordinator::new(RunSize { servers: 1, workers: 1 }, membership, Span::from_secs(2));
    let mut join_at = |token: u64, role: NodeRole, place: u32, begins: bool| {
        let join = Control::Join { role, address: String::new(), token, place: Some(place), job: String::new() };
        let answer = said(&mut coordinator, Time(0), NodeId::Worker(1000), Source(0), join);
        let Some(Control::Welcome { node, source, .. }) = answer.into_iter().next() else { panic!("it is welcome") };
        if begins {
            said(&mut coordinator, Time(0), node, source, Control::Heartbeat { heard: 0 });
        }
        node
    };
    assert_eq!(join_at(1, NodeRole::Server, 0, true), NodeId::Server(0));
    assert_eq!(join_at(2, NodeRole::Worker, 0, true), NodeId::Worker(0));
    assert_eq!(join_at(3, NodeRole::Server, 0, false), NodeId::Server(1), "the run has begun");
    assert_eq!(join_at(4, NodeRole::Worker, 0, false), NodeId::Worker(1));
    assert_eq!(join_at(5, NodeRole::Worker, 7, false), NodeId::Worker(7));
}

#[test]
fn a_worker_is_slow_if_it_takes_much_longer_than_the_median() {
    // (how long a clock takes each worker, in milliseconds; the slow workers)
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
            said(&mut coordinator, Time(0), *node, *source, Control::Heartbeat { heard: 0 });
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

/// Ticks so often that the coordinator has run all the time until `end`.
fn run_until(coordinator: &mut Coordinator, begin: Time, end: Time) {
    let step = Span::from_millis(250);
    let mut now = begin;
    while now < end {
        now = end.min(now + step);
        coordinator.tick(now, &mut Outbox::new());
    }
}

pub(super) fn controls(out: &mut Outbox) -> Vec<Control> {
    let control = |frame: Frame| match frame.message {
        Message::Control(control) => Some(control),
        _ => None,
    };
    out.drain().filter_map(control).collect()
}

/// The source of the incarnation that has this place.
pub(super) fn source(coordinator: &Coordinator, node: NodeId) -> Source {
    coordinator.members.source(node).unwrap_or_default()
}

/// Joins in a role. Returns the name and the source given, if there is a place.
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
        "the same process gets the same source"
    );
    let (_, other) = join(&mut coordinator, Time(0), NodeRole::Worker, 2).expect("a place");
    // The first worker falls silent. The next one to join gets its rank, and a new source.
    let later = Time(0) + Span::from_secs(4);
    for (node, source) in [(NodeId::Server(0), server), (NodeId::Worker(1), other)] {
        said(&mut coordinator, later, node, source, Control::Heartbeat { heard: 0 });
    }
    let much_later = Time(0) + Span::from_secs(6);
    coordinator.tick(much_later, &mut Outbox::new());
    let (again, new) = join(&mut coordinator, much_later, NodeRole::Worker, 3).expect("a place");
    assert_eq!(again, name);
    assert!(new != old && new != other && other != old);
    // The coordinator does not take messages of the old incarnation for the new one's.
    let begins = |said: Vec<Control>| said.iter().any(|control| matches!(control, Control::Begin { .. }));
    assert!(!begins(said(&mut coordinator, much_later, name, old, Control::Heartbeat { heard: 0 })));
    assert!(begins(said(&mut coordinator, much_later, name, new, Control::Heartbeat { heard: 0 })));
    assert_eq!(coordinator.plan().workers, [Some(new), Some(other)]);
    assert!(said(&mut coordinator, much_later, name, old, Control::Bye).is_empty());
    assert!(coordinator.members.is_there(name));
}

#[test]
fn messages_before_the_run_begins_are_ignored() {
    let mut coordinator = Coordinator::new(RunSize { servers: 1, workers: 1 }, Membership::Static, Span::from_secs(1));
    for token in 0..3 {
        let now = Time(0) + Span::from_secs(2 * token);
        run_until(&mut coordinator, Time(0) + Span::from_secs(2 * token.saturating_sub(1)), now);
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
        said(&mut coordinator, Time(0), node, source, Control::Heartbeat { heard: 0 });
    }
    assert!(coordinator.has_begun());
    coordinator
}

#[test]
fn barrier_notices_grow_linearly_with_workers() {
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
fn barrier_notices_wait_for_as_long_as_a_clock_usually_takes() {
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
fn a_barrier_counts_workers_that_have_not_left() {
    let mut coordinator = begun(3);
    let mut say = |rank: u32, control: Control| {
        let source = source(&coordinator, NodeId::Worker(rank));
        let said = said(&mut coordinator, Time(0), NodeId::Worker(rank), source, control);
        said.iter().filter(|said| matches!(said, Control::BarrierPassed { .. })).count()
    };
    // (the worker, what it sends, how many workers are told that a barrier is passed)
    let cases = [
        (0, Control::Barrier { number: 1 }, 0),
        (0, Control::Barrier { number: 1 }, 0), // sent twice
        (1, Control::Bye, 0),
        (1, Control::Barrier { number: 1 }, 0), // after it has left
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
fn a_place_is_free_again_if_its_node_falls_silent_before_the_run_begins() {
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
    assert!(!welcomed(join(&mut coordinator, later, 2)), "the first node may still be alive");
    let much_later = Time(0) + Span::from_secs(6);
    coordinator.tick(much_later, &mut Outbox::new());
    assert!(welcomed(join(&mut coordinator, much_later, 2)));
}

/// Shells pass a time that never goes back. If one did, no node would be lost by that.
#[test]
fn no_node_is_lost_by_a_time_that_goes_back() {
    let mut coordinator = begun(1);
    let second = |seconds| Time(0) + Span::from_secs(seconds);
    for node in coordinator.everybody() {
        let source = source(&coordinator, node);
        said(&mut coordinator, second(5_000), node, source, Control::Heartbeat { heard: 0 });
    }
    let mut before = second(0);
    for (now, lost) in [(1, false), (4_000, false), (5_999, false), (6_001, true)] {
        run_until(&mut coordinator, before, second(now));
        before = second(now);
        assert_eq!(coordinator.lost().is_some(), lost, "second {now}");
    }
}

/// A coordinator that was stopped for long heard no node meanwhile, and expelled healthy ones.
#[test]
fn coordinator_forgives_silence_for_its_own_sleep() {
    for (silent_after_sleep, lost) in [(1_500, false), (2_500, true)] {
        let membership = Membership::Elastic { replicas: 1, shards_per_server: 1 };
        let mut coordinator = Coordinator::new(RunSize { servers: 1, workers: 2 }, membership, Span::from_secs(2));
        let roles = [NodeRole::Server, NodeRole::Worker, NodeRole::Worker];
        let members = (0..).zip(roles).map(|(token, role)| join(&mut coordinator, Time(0), role, token));
        let members: Vec<_> = members.map(|member| member.expect("a place")).collect();
        for (node, source) in &members {
            said(&mut coordinator, Time(0), *node, *source, Control::Heartbeat { heard: 0 });
        }
        coordinator.tick(Time(0), &mut Outbox::new());
        let woke = Time(0) + Span::from_secs(60);
        coordinator.tick(woke, &mut Outbox::new());
        run_until(&mut coordinator, woke, woke + Span::from_millis(silent_after_sleep));
        assert_eq!(!coordinator.members.is_there(NodeId::Worker(0)), lost, "{silent_after_sleep} ms after it woke");
    }
}

#[test]
fn a_node_of_another_job_is_refused_and_one_without_a_job_is_not() {
    let mut coordinator =
        Coordinator::new(RunSize { servers: 1, workers: 3 }, Membership::Static, Span::from_secs(1)).of_job("a");
    for (token, (job, welcome)) in (0..).zip([("b", false), ("a", true), ("", true)]) {
        let join =
            Control::Join { role: NodeRole::Worker, address: String::new(), token, place: None, job: job.to_owned() };
        let answers = said(&mut coordinator, Time(0), NodeId::Worker(1000), Source(0), join);
        let welcomed = answers.iter().any(|answer| matches!(answer, Control::Welcome { .. }));
        assert_eq!(welcomed, welcome, "{job}: {answers:?}");
    }
}

#[test]
fn shards_move_between_uneven_servers_when_it_is_worth_it_and_not_all_the_time() {
    let membership = Membership::Elastic { replicas: 1, shards_per_server: 4 };
    let mut coordinator = Coordinator::new(RunSize { servers: 2, workers: 1 }, membership, Span::from_secs(2));
    let roles = [NodeRole::Server, NodeRole::Server, NodeRole::Worker];
    let members = (0..).zip(roles).map(|(token, role)| join(&mut coordinator, Time(0), role, token).expect("a place"));
    let members: Vec<_> = members.collect();
    for (node, source) in &members {
        said(&mut coordinator, Time(0), *node, *source, Control::Heartbeat { heard: 0 });
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
    // (the second, the server that reports, bytes of each of its shards; shards that move then)
    let cases = [
        (1, 0, 8 << 20, 0),  // too soon: its tables may still grow
        (30, 1, 8 << 20, 0), // as much as the other server
        (31, 1, 100, 2),
        (32, 1, 100, 2), // the same two still move
    ];
    for (seconds, server, bytes, moving) in cases {
        assert_eq!(report(&mut coordinator, seconds, server, bytes), moving, "second {seconds}");
    }
    let moved = coordinator.plan().chains.iter().filter(|chain| chain.backfilling == [1]).count();
    assert_eq!(moved, 2, "from the first server to the second: {:?}", coordinator.plan().chains);
}

/// An elastic run with two replicas of each shard that has begun. Returns its nodes, too.
fn replicated(servers: u32, workers: u32) -> (Coordinator, Vec<(NodeId, Source)>) {
    let membership = Membership::Elastic { replicas: 2, shards_per_server: 1 };
    let mut coordinator = Coordinator::new(RunSize { servers, workers }, membership, Span::from_secs(2));
    let servers = (0..servers).map(|_| NodeRole::Server);
    let roles = servers.chain((0..workers).map(|_| NodeRole::Worker));
    let members = (0..).zip(roles).map(|(token, role)| join(&mut coordinator, Time(0), role, token).expect("a place"));
    let members: Vec<_> = members.collect();
    for (node, source) in &members {
        said(&mut coordinator, Time(0), *node, *source, Control::Heartbeat { heard: 0 });
    }
    coordinator.take_events();
    (coordinator, members)
}

/// Takes the coordinator's news as lines.
fn news(coordinator: &mut Coordinator) -> Vec<String> {
    coordinator.take_events().into_iter().map(|event| format!("{} {}", event.node, event.what)).collect()
}

#[test]
fn the_first_of_the_losses_that_end_a_run_is_named() {
    let (mut coordinator, members) = replicated(2, 2);
    let mut out = Outbox::new();
    coordinator.gone(NodeId::Server(1), &mut out);
    assert_eq!(news(&mut coordinator), ["server 1 is lost: its process has ended; other servers hold its shards"]);
    assert_eq!(coordinator.lost(), None);
    controls(&mut out);
    coordinator.gone(NodeId::Server(0), &mut out);
    let reason = "its process has ended; before others held its shards, server 0 was lost, too: its process has ended";
    assert_eq!(coordinator.lost(), Some((NodeId::Server(1), reason)));
    let told: Vec<_> =
        out.drain().filter(|frame| matches!(frame.message, Message::Control(Control::Lost { .. }))).collect();
    let to: Vec<NodeId> = told.iter().map(|frame| frame.head.to).collect();
    assert_eq!(to, [NodeId::Server(0), NodeId::Worker(0), NodeId::Worker(1)]);
    // The survivors end, and so do their processes.
    let now = Time(0) + Span::from_secs(1);
    for (node, source) in &members[2..] {
        coordinator.gone(*node, &mut out);
        said(&mut coordinator, now, *node, *source, Control::Fail { reason: "lost server 1".to_owned() });
    }
    assert!(news(&mut coordinator).is_empty(), "the run has ended");
    assert_eq!(coordinator.lost(), Some((NodeId::Server(1), reason)));
}

#[test]
fn a_loss_that_was_made_good_is_no_cause_of_a_later_one() {
    let (mut coordinator, _) = replicated(3, 1);
    let now = Time(0) + Span::from_secs(1);
    coordinator.gone(NodeId::Server(1), &mut Outbox::new());
    // The others adopt the plans that give every shard two replicas again.
    for _ in 0..4 {
        let plan = coordinator.plan().number;
        for server in [NodeId::Server(0), NodeId::Server(2)] {
            let source = source(&coordinator, server);
            let adopted = Control::Adopted { plan, enacted: false, frontier: types::Clock(0) };
            said(&mut coordinator, now, server, source, adopted);
        }
    }
    assert!(news(&mut coordinator).iter().any(|line| line.contains("has its replicas")));
    coordinator.gone(NodeId::Server(2), &mut Outbox::new());
    assert_eq!(coordinator.lost(), None);
    coordinator.gone(NodeId::Server(0), &mut Outbox::new());
    let reason = "its process has ended; before others held its shards, server 0 was lost, too: its process has ended";
    assert_eq!(coordinator.lost(), Some((NodeId::Server(2), reason)));
}

#[test]
fn a_worker_that_fails_by_itself_is_the_cause_whatever_was_lost_before() {
    let (mut coordinator, members) = replicated(3, 2);
    coordinator.gone(NodeId::Server(1), &mut Outbox::new());
    let (node, source) = members[4];
    said(&mut coordinator, Time(0), node, source, Control::Fail { reason: "no such file".to_owned() });
    assert_eq!(coordinator.lost(), Some((node, "it could not go on: no such file")));
}

#[test]
fn the_loss_of_a_worker_says_how_many_are_left() {
    let (mut coordinator, _) = replicated(2, 3);
    let lost = |worker: u32, left: &str| format!("worker {worker} is lost: its process has ended; {left} left");
    for (worker, left) in [(2, "2 workers are"), (0, "1 worker is")] {
        coordinator.gone(NodeId::Worker(worker), &mut Outbox::new());
        assert_eq!(news(&mut coordinator), [lost(worker, left)]);
    }
    coordinator.gone(NodeId::Worker(1), &mut Outbox::new());
    assert_eq!(coordinator.lost(), Some((NodeId::Worker(1), "its process has ended")));
}

/// A server that is given up may still hold a serving lease: no other head may be promoted before
/// the promotion delay has passed since its last answered heartbeat.
#[test]
fn a_server_that_is_given_up_is_expelled_only_when_its_serving_lease_has_ended() {
    let membership = Membership::Elastic { replicas: 2, shards_per_server: 1 };
    let mut coordinator = Coordinator::new(RunSize { servers: 3, workers: 1 }, membership, Span::from_secs(2));
    let roles = [NodeRole::Server, NodeRole::Server, NodeRole::Server, NodeRole::Worker];
    let members = (0..).zip(roles).map(|(token, role)| join(&mut coordinator, Time(0), role, token).expect("a place"));
    let members: Vec<_> = members.collect();
    for (node, source) in &members {
        said(&mut coordinator, Time(0), *node, *source, Control::Heartbeat { heard: 0 });
    }
    let late = join(&mut coordinator, Time(0), NodeRole::Worker, 9).expect("a place");
    said(&mut coordinator, Time(0), late.0, late.1, Control::Heartbeat { heard: 0 });
    let stubborn = NodeId::Server(2);
    let mut answered = Time(0);
    let mut expelled = Time(0);
    for number in 1..80 {
        let now = Time(0) + Span::from_millis(250 * number);
        for (node, source) in members.iter().chain([&late]) {
            let head = Head { source: *source, number, ..Head::plain(*node, NodeId::Coordinator) };
            let mut out = Outbox::new();
            let message = Message::Control(Control::Heartbeat { heard: number - 1 });
            coordinator.handle(now, Frame { head, message }, &mut out);
            let is_answered = controls(&mut out).iter().any(|answer| matches!(answer, Control::Heartbeat { .. }));
            answered = if *node == stubborn && is_answered { now } else { answered };
            if matches!(node, NodeId::Server(_)) && *node != stubborn {
                let adopted =
                    Control::Adopted { plan: coordinator.plan().number, enacted: false, frontier: types::Clock(0) };
                said(&mut coordinator, now, *node, *source, adopted);
            }
        }
        coordinator.tick(now, &mut Outbox::new());
        if !coordinator.members.is_there(stubborn) {
            expelled = now;
            break;
        }
    }
    assert!(coordinator.lost().is_none());
    assert!(expelled.since(answered) >= types::promotion_delay(Span::from_secs(2)), "{answered:?}, {expelled:?}");
    let seconds = expelled.since(Time(0)).as_secs_f64();
    assert!((6.0..12.0).contains(&seconds), "asked for 4 to 8 s, then the promotion delay: {seconds} s");
}
