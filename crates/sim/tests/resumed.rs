//! Runs that lease their data, lose nodes, and resume from any of their checkpoints with other
//! numbers of servers and workers: every example counts exactly once.

use sim::*;
use std::cell::Cell;
use types::{Combine, Consistency, NodeId, NumberType, Reduce, Span, TableSpec};

const SIZE: RunSize = RunSize { servers: 3, workers: 3 };
const FAILURE_TIMEOUT: Span = Span::from_millis(500);
const SLACK: u64 = 3;

fn counts() -> TableSpec {
    TableSpec::sparse("counts", 1).number(NumberType::I64).consistency(Consistency::slack(SLACK))
}

fn lessons(table: TableIndex) -> Lessons {
    Lessons { table, ranges: 12, minibatches: 4, keys: 3, epochs: 2, per_clock: 3, at_once: 2 }
}

fn program(lessons: Lessons) -> Vec<Action> {
    let mut steps = vec![Action::MakeTable(lessons.table), Action::Learn(lessons)];
    steps.extend(vec![Action::EndClock; SLACK as usize + 1]);
    steps.extend([Action::WaitUntilIdle, Action::Barrier, Action::pull_last(lessons.table, &lessons.all_keys())]);
    steps
}

/// Gives a cluster its table, and every worker the program that learns from leases.
fn learns(cluster: &mut Cluster, spec: &TableSpec, workers: u32) -> Lessons {
    let lessons = lessons(cluster.table(spec.clone()));
    cluster.programs(vec![program(lessons); workers as usize]);
    lessons
}

/// A run in which a worker joins, one node crashes in the middle of the first checkpoint, and
/// another node crashes at a random time.
fn first_run(seed: u64, spec: &TableSpec, random: &mut Xoshiro256) -> Cluster {
    let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
    let lessons = learns(&mut cluster, spec, SIZE.workers);
    cluster.join_worker(Span(random.below(40_000_000)), program(lessons));
    let server = random.below(3) as u32;
    let worker = random.below(3) as u32;
    if random.chance(0.5) {
        cluster.crash_amid(Moment::Checkpoint, Some(NodeId::Server(server)));
        cluster.crash_worker(worker, Span(random.below(60_000_000)));
    } else {
        cluster.crash_amid(Moment::Checkpoint, Some(NodeId::Worker(worker)));
        cluster.crash_server(server, Span(random.below(60_000_000)));
    }
    cluster.checkpoint_every(Span(random.below(30_000_000)), Span::from_millis(5));
    cluster.run();
    cluster.check(every_lease_counted_once(lessons));
    cluster.check(all_finished());
    cluster
}

/// Resumes from a checkpoint, with other numbers of nodes, of which some crash again.
fn resume(seed: u64, spec: &TableSpec, from: &SavedCheckpoint, random: &mut Xoshiro256) -> Cluster {
    let size = RunSize { servers: 2 + random.below(3) as u32, workers: 1 + random.below(4) as u32 };
    let mut cluster = Cluster::resumed(seed, size, Faults::ALL, FAILURE_TIMEOUT, 2, from);
    let lessons = learns(&mut cluster, spec, size.workers);
    if size.servers > 2 && random.chance(0.5) {
        cluster.crash_server(random.below(size.servers.into()) as u32, Span(random.below(60_000_000)));
    }
    if size.workers > 1 && random.chance(0.5) {
        cluster.crash_worker(random.below(size.workers.into()) as u32, Span(random.below(60_000_000)));
    }
    cluster.run();
    cluster.check(every_lease_counted_once(lessons));
    cluster.check(all_finished());
    cluster
}

fn every_example_counts_once(name: &str, spec: &TableSpec) {
    let resumed = Cell::new(0);
    let done = Cell::new(0);
    let left = Cell::new(0);
    let seeds = for_seeds(name, |seed| {
        let mut random = Xoshiro256::new(seed ^ 0x0009_E50B);
        let cluster = first_run(seed, spec, &mut random);
        if !cluster.saved_checkpoints().is_empty() {
            let from = &cluster.saved_checkpoints()[random.below(cluster.saved_checkpoints().len() as u64) as usize];
            let second = resume(seed, spec, from, &mut random);
            resumed.set(resumed.get() + u64::from(second.all_happened()));
            done.set(done.get() + from.leases_done());
            left.set(left.get() + 24 - from.leases_done());
        }
        cluster
    });
    let resumed = resumed.get();
    let done = done.get();
    let left = left.get();
    let what = format!("{name}: {resumed} of {seeds} runs resumed, with {done} leases done and {left} left");
    println!("{what}");
    assert!(4 * resumed >= 3 * seeds, "{what}: too few resumed, or planned crashes did not happen");
    // Most runs resume from the middle of the data, not from its beginning or end.
    let third = |leases: u64| seeds == 0 || 3 * leases >= done + left;
    assert!(third(done) && third(left), "{what}");
}

#[test]
fn every_example_counts_once_in_a_resumed_run() {
    every_example_counts_once("resumed", &counts());
}

#[test]
fn every_example_counts_once_in_a_resumed_run_by_clock() {
    every_example_counts_once("resumed, by clock", &counts().combine(Combine::Clock(Reduce::Sum)));
}

/// A run that ends leaves a last checkpoint in which all leases are done, even if nodes crashed.
#[test]
fn the_last_checkpoint_of_a_run_holds_all_of_it() {
    for (name, spec) in [("each", counts()), ("by clock", counts().combine(Combine::Clock(Reduce::Sum)))] {
        for_seeds(&format!("the last checkpoint, {name}"), |seed| {
            let mut random = Xoshiro256::new(seed ^ 0x1A57);
            let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
            let lessons = learns(&mut cluster, &spec, SIZE.workers);
            cluster.crash_worker(random.below(3) as u32, Span(random.below(60_000_000)));
            cluster.crash_server(random.below(3) as u32, Span(random.below(40_000_000)));
            cluster.last_checkpoint();
            cluster.run();
            cluster.check(every_lease_counted_once(lessons));
            let last = cluster.saved_checkpoints().last().expect("one at the end");
            assert_eq!(last.leases_done(), 24, "seed {seed}");
            resume(seed, &spec, last, &mut random);
            cluster
        });
    }
}

#[test]
fn a_coordinator_that_crashes_in_a_checkpoint_leaves_earlier_ones_whole() {
    let whole = Cell::new(0);
    let spec = counts();
    let seeds = for_seeds("resumed, coordinators", |seed| {
        let mut random = Xoshiro256::new(seed ^ 0xC00D);
        let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
        let lessons = learns(&mut cluster, &spec, SIZE.workers);
        cluster.crash_amid(Moment::Checkpoint, Some(NodeId::Coordinator));
        cluster.checkpoint_every(Span(random.below(30_000_000)), Span::from_millis(5));
        cluster.run();
        cluster.check(every_lease_counted_once(lessons));
        cluster.check(all_finished());
        whole.set(whole.get() + u64::from(!cluster.saved_checkpoints().is_empty()));
        cluster.saved_checkpoints().last().into_iter().for_each(|from| drop(resume(seed, &spec, from, &mut random)));
        cluster
    });
    println!("{} of {seeds} runs have a whole checkpoint", whole.get());
    assert!(4 * whole.get() >= 3 * seeds, "{} of {seeds} runs have a whole checkpoint", whole.get());
}

/// A worker that is ahead leaves, and a worker behind it learns from its lease again. The first
/// worker's parts count in a clock that the second has not reached. A checkpoint between the two
/// must not count the lease as done.
#[test]
#[ignore = "one seed in a thousand shows it: takes a minute, run nightly"]
fn a_lease_that_is_done_before_its_parts_count_is_noticed() {
    let spec = counts().combine(Combine::Clock(Reduce::Sum));
    let found = (0..5000).find_map(|seed| {
        let mut random = Xoshiro256::new(seed ^ 0xA4EAD);
        let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 1);
        cluster.sabotage(Sabotage::HideWhereItCounts);
        learns(&mut cluster, &spec, SIZE.workers);
        cluster.drain_worker(random.below(3) as u32, Span(random.below(40_000_000)));
        cluster.checkpoint_every(Span(random.below(30_000_000)), Span::from_millis(1));
        cluster.try_run().ok()?;
        cluster.saved_checkpoints().iter().find_map(|from| {
            let mut resumed = Cluster::resumed(seed, SIZE, Faults::NONE, FAILURE_TIMEOUT, 1, from);
            let lessons = learns(&mut resumed, &spec, SIZE.workers);
            resumed.try_run().ok()?;
            resumed.violation(every_lease_counted_once(lessons)).map(|violation| violation.to_string())
        })
    });
    println!("{}", found.expect("a lease counts as done that is not"));
}
