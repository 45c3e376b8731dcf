//! Nodes that send heartbeats and do not do their part: each is noticed and expelled, or the run
//! ends with a reason that names it. And a coordinator that does not run for a while expels nobody.

mod elastic;

use elastic::{FAILURE_TIMEOUT, SIZE, check};
use sim::*;
use std::cell::Cell;
use types::{Consistency, NodeId, NumberType, Span, TableSpec};

/// A run in which a node is given up ends within this virtual time.
const BOUND: Span = Span::from_secs(30);

fn rows(workers: u32) -> TableSpec {
    elastic::rows(workers).consistency(Consistency::slack(1))
}

/// Makes all workers push and read for a while.
fn works(cluster: &mut Cluster, seed: u64, size: RunSize) {
    let spec = rows(size.workers);
    let table = cluster.table(spec.clone());
    let work = Workload { clocks: 8, ..Workload::default() };
    cluster.programs(work.programs(seed, size, table, &spec));
}

/// The nodes that were expelled, each with the reason.
fn expelled(cluster: &Cluster) -> Vec<(NodeId, String)> {
    let events = cluster.events().iter().filter(|event| event.what.starts_with("is lost: "));
    events.map(|event| (event.node, event.what.clone())).collect()
}

/// Whether some seed does not hold without the rule: the run does not end.
fn hangs_without(limits: LivenessLimits, build: impl Fn(u64) -> Cluster) -> bool {
    let stuck = some_seed(|seed| {
        let mut cluster = build(seed);
        cluster.limit(limits);
        cluster.try_run().err()
    });
    stuck.into_iter().inspect(|stuck| println!("{stuck}")).next().is_some()
}

const LIMITS: fn() -> LivenessLimits = || LivenessLimits::of(FAILURE_TIMEOUT);

/// A server crashes, and another one sends heartbeats and adopts no plan, so the failover waits for
/// it.
fn a_server_never_adopts(seed: u64) -> (Cluster, NodeId) {
    let size = RunSize { servers: 4, workers: 3 };
    let mut cluster = Cluster::elastic(seed, size, Faults::ALL, FAILURE_TIMEOUT, 3);
    works(&mut cluster, seed, size);
    let mut random = Xoshiro256::new(seed ^ 0x57_0BB0);
    let crashed = random.below(4) as u32;
    let stubborn = (crashed + 1 + random.below(3) as u32) % 4;
    cluster.make_stubborn(stubborn, Span(0));
    cluster.crash_server(crashed, Span(random.below(60_000_000)));
    (cluster, NodeId::Server(stubborn))
}

#[test]
fn a_server_that_adopts_no_plan_is_expelled_and_the_failover_goes_on() {
    for_seeds("never adopts", |seed| {
        let (mut cluster, stubborn) = a_server_never_adopts(seed);
        cluster.run();
        check(&cluster, 1);
        let lost = expelled(&cluster);
        let reason = lost.iter().find(|(node, _)| *node == stubborn).map(|(_, reason)| reason.as_str());
        assert!(reason.is_some_and(|reason| reason.contains("did not adopt plan")), "seed {seed}: {lost:?}");
        assert!(cluster.elapsed() < BOUND, "seed {seed}: {:?}", cluster.elapsed());
        cluster
    });
    let limits = LivenessLimits { adoption: None, ..LIMITS() };
    assert!(hangs_without(limits, |seed| a_server_never_adopts(seed).0), "the rule is not needed");
}

/// A link is cut in one direction for good. Returns both of its nodes.
fn a_link_is_cut_one_way(seed: u64) -> (Cluster, [NodeId; 2]) {
    let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
    works(&mut cluster, seed, SIZE);
    let mut random = Xoshiro256::new(seed ^ 0x0_4E3A);
    let index = random.below(3) as u32;
    let server = NodeId::Server(index);
    let next = NodeId::Server((index + 1) % 3);
    let worker = NodeId::Worker(random.below(3) as u32);
    let coordinator = NodeId::Coordinator;
    let links = [(coordinator, server), (coordinator, worker), (server, next), (server, worker)];
    let (one, other) = links[random.below(4) as usize];
    // A node whose heartbeats do not arrive is silent, which other properties test.
    let is_back = one != coordinator && random.chance(0.5);
    let [from, to] = if is_back { [other, one] } else { [one, other] };
    cluster.cut_one_way(from, to, Span(random.below(40_000_000)));
    (cluster, [from, to])
}

#[test]
fn one_of_two_nodes_whose_link_is_cut_one_way_is_expelled() {
    let given_up = Cell::new(0u64);
    let seeds = for_seeds("links cut one way", |seed| {
        let (mut cluster, link) = a_link_is_cut_one_way(seed);
        cluster.try_run().unwrap_or_else(|stuck| panic!("{stuck}"));
        if let Some((node, reason)) = cluster.lost() {
            // The other workers have finished, so the run cannot go on without this one.
            assert!(matches!(node, NodeId::Worker(_)) && link.contains(&node), "seed {seed}: {node} is lost: {reason}");
            given_up.set(given_up.get() + 1);
            return cluster;
        }
        check(&cluster, 1);
        let lost = expelled(&cluster);
        assert!(lost.len() <= 1 && lost.iter().all(|(node, _)| link.contains(node)), "seed {seed}, {link:?}: {lost:?}");
        let is_worker = |node: &NodeId| matches!(node, NodeId::Worker(_));
        if link.iter().any(is_worker) {
            assert!(lost.iter().all(|(node, _)| is_worker(node)), "seed {seed}: the worker goes: {lost:?}");
        }
        given_up.set(given_up.get() + lost.len() as u64);
        assert!(cluster.elapsed() < BOUND, "seed {seed}: {:?}", cluster.elapsed());
        cluster
    });
    assert!(given_up.get() * 4 >= seeds * 3, "a node was given up in only {} of {seeds} seeds", given_up.get());
    for limits in [LivenessLimits { link: None, ..LIMITS() }, LivenessLimits { deaf: None, ..LIMITS() }] {
        assert!(hangs_without(limits, |seed| a_link_is_cut_one_way(seed).0), "{limits:?}");
    }
}

/// Worker 0 waits at a barrier in clock 0, and worker 1 reads in clock 3, with a slack of 1.
fn a_barrier_and_a_read_wait_for_each_other(seed: u64, is_elastic: bool) -> Cluster {
    let faults = Faults::ALL;
    let mut cluster = if is_elastic {
        Cluster::elastic(seed, SIZE, faults, FAILURE_TIMEOUT, 2)
    } else {
        Cluster::new(seed, SIZE, faults)
    };
    let table =
        cluster.table(TableSpec::sparse("weights", 1).number(NumberType::I64).consistency(Consistency::slack(1)));
    let mut random = Xoshiro256::new(seed ^ 0xBA22);
    let pause = |random: &mut Xoshiro256| Action::Compute(Span(random.below(40_000_000)));
    let first = vec![Action::MakeTable(table), pause(&mut random), Action::Barrier, Action::EndClock];
    let read = Action::pull(table, &[1, 2, 3]);
    let clocks = [Action::EndClock, Action::EndClock, Action::EndClock];
    let second = [vec![Action::MakeTable(table), pause(&mut random)], clocks.to_vec(), vec![read, Action::Barrier]];
    let third = [vec![Action::MakeTable(table)], clocks.to_vec(), vec![pause(&mut random), Action::Barrier]];
    cluster.programs(vec![first, second.concat(), third.concat()]);
    cluster
}

#[test]
fn a_barrier_and_a_read_that_wait_for_each_other_end_the_run() {
    for is_elastic in [false, true] {
        for_seeds(&format!("barrier against read, elastic: {is_elastic}"), |seed| {
            let mut cluster = a_barrier_and_a_read_wait_for_each_other(seed, is_elastic);
            cluster.try_run().unwrap_or_else(|stuck| panic!("{stuck}"));
            let (node, reason) = cluster.lost().expect("the run ends");
            assert_eq!(node, NodeId::Worker(0), "seed {seed}: {reason}");
            for words in
                ["worker 0", "worker 1", "table 'weights'", "clock 3 ", "ended clock 1", "end the clock before"]
            {
                assert!(reason.contains(words), "seed {seed}: {reason:?} lacks {words:?}");
            }
            cluster
        });
        let limits = LivenessLimits { deadlock: None, ..LIMITS() };
        assert!(hangs_without(limits, |seed| a_barrier_and_a_read_wait_for_each_other(seed, is_elastic)));
    }
}

/// A read that no program waits for may need a clock of a worker at a barrier: its reader comes to
/// the barrier later.
#[test]
fn a_read_that_no_program_waits_for_does_not_end_the_run() {
    for_seeds("barrier and a read in the background", |seed| {
        let mut cluster = a_barrier_and_a_read_wait_for_each_other(seed, true);
        let table = TableIndex(0);
        let later = Action::pull_later(table, &[1, 2, 3]);
        let long = Action::Compute(Span::from_secs(4));
        let clocks = vec![Action::EndClock; 3];
        cluster
            .program(1, [vec![Action::MakeTable(table)], clocks.clone(), vec![later, long, Action::Barrier]].concat());
        cluster.program(0, [vec![Action::MakeTable(table), Action::Barrier], clocks].concat());
        cluster.run();
        cluster.check(all_finished());
        cluster
    });
}

/// A worker computes for an hour in this clock: the first that it takes part in, or a later one.
fn a_worker_never_ends_its_clock(seed: u64, clock: u64) -> (Cluster, NodeId) {
    let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
    let spec = rows(elastic::EVERYBODY);
    let table = cluster.table(spec.clone());
    let work = Workload { clocks: 8, ..Workload::default() };
    let size = RunSize { workers: elastic::EVERYBODY, ..SIZE };
    let mut programs = work.programs(seed, size, table, &spec);
    let hour = Action::Compute(Span::from_secs(3_600));
    let mut random = Xoshiro256::new(seed ^ 0x10_C10C);
    let hangs = [vec![Action::MakeTable(table)], vec![Action::EndClock; clock as usize], vec![hour]].concat();
    let last = programs.pop().expect("one for each");
    if clock == 0 {
        cluster.programs(programs);
        let rank = cluster.join_worker(Span(random.below(20_000_000)), hangs);
        return (cluster, NodeId::Worker(rank));
    }
    drop(last);
    programs[0] = hangs;
    cluster.programs(programs);
    (cluster, NodeId::Worker(0))
}

#[test]
fn a_worker_that_never_ends_its_first_clock_is_expelled() {
    let limits = LivenessLimits { first_clock: Some(Span::from_secs(3)), ..LIMITS() };
    for_seeds("no first clock", |seed| {
        let (mut cluster, worker) = a_worker_never_ends_its_clock(seed, 0);
        cluster.limit(limits);
        cluster.run();
        check(&cluster, 1);
        let lost = expelled(&cluster);
        assert!(
            matches!(&lost[..], [(node, reason)] if *node == worker && reason.contains("did not end its first clock")),
            "seed {seed}: {lost:?}"
        );
        assert!(cluster.elapsed() < BOUND, "seed {seed}: {:?}", cluster.elapsed());
        cluster
    });
    let off = LivenessLimits { first_clock: None, ..limits };
    assert!(hangs_without(off, |seed| a_worker_never_ends_its_clock(seed, 0).0));
}

#[test]
fn a_worker_that_is_long_in_a_clock_is_expelled_only_with_a_clock_timeout() {
    let limits = LivenessLimits { clock: Some(Span::from_secs(3)), ..LIMITS() };
    for_seeds("long in a clock", |seed| {
        let (mut cluster, worker) = a_worker_never_ends_its_clock(seed, 2);
        cluster.limit(limits);
        cluster.run();
        check(&cluster, 1);
        let lost = expelled(&cluster);
        assert!(
            matches!(&lost[..], [(node, reason)] if *node == worker && reason.contains("it was in clock 2 for 3")),
            "seed {seed}: {lost:?}"
        );
        cluster
    });
    let mut patient = a_worker_never_ends_its_clock(0, 2).0;
    patient.try_run().expect_err("the others wait for it");
    assert_eq!((expelled(&patient), patient.lost()), (Vec::new(), None));
    let reported: Vec<_> =
        patient.events().iter().filter(|event| event.what.contains("has been in clock 2 for")).collect();
    assert!((2..9).contains(&reported.len()), "each time that it has doubled: {reported:?}");
}

#[test]
fn a_coordinator_that_does_not_run_for_a_while_expels_nobody() {
    for_seeds("stopped coordinator", |seed| {
        let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
        let spec = rows(SIZE.workers);
        let table = cluster.table(spec.clone());
        let work = Workload { clocks: 12, ..Workload::default() };
        cluster.programs(work.programs(seed, SIZE, table, &spec));
        let mut random = Xoshiro256::new(seed ^ 0x51_EE9);
        let length = Span(600_000_000 + random.below(5_000_000_000));
        cluster.stop_coordinator(StoppedInbox::Kept, Span(110_000_000 + random.below(40_000_000)), length);
        cluster.run();
        check(&cluster, 1);
        assert_eq!(expelled(&cluster), [], "seed {seed}");
        cluster
    });
}
