//! Data leases while workers and servers crash and join: every example counts exactly once.

use sim::*;
use types::{Combine, Consistency, NumberType, Reduce, Span, TableSpec};

const SIZE: RunSize = RunSize { servers: 3, workers: 3 };
const FAILURE_TIMEOUT: Span = Span::from_millis(500);

fn counts() -> TableSpec {
    TableSpec::sparse("counts", 1).number(NumberType::I64)
}

fn lessons(table: TableIndex) -> Lessons {
    Lessons { table, ranges: 12, minibatches: 4, keys: 3, epochs: 2, per_clock: 3, at_once: 2 }
}

fn program(lessons: Lessons, slack: u64) -> Vec<Action> {
    let mut steps = vec![Action::MakeTable(lessons.table), Action::Learn(lessons)];
    steps.extend(vec![Action::EndClock; slack as usize + 1]);
    steps.extend([Action::WaitUntilIdle, Action::Barrier, Action::pull_last(lessons.table, &lessons.all_keys())]);
    steps
}

/// Which nodes crash and join.
#[derive(Clone, Copy)]
struct Kills {
    /// One worker crashes, and another joins.
    workers: bool,
    /// One server crashes, and another joins.
    servers: bool,
    /// A worker is cut off from the coordinator alone for longer than the failure timeout. Shards
    /// still hear it.
    cut_off: bool,
}

const WORKERS: Kills = Kills { workers: true, servers: false, cut_off: false };
const ALL: Kills = Kills { workers: true, servers: true, cut_off: false };

fn learning(seed: u64, spec: &TableSpec, kills: Kills, sabotage: Option<Sabotage>) -> (Cluster, Lessons) {
    let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, if kills.servers { 2 } else { 1 });
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    let slack = spec.consistency.bound().unwrap_or(0);
    let table = cluster.table(spec.clone());
    let lessons = lessons(table);
    let mut random = Xoshiro256::new(seed ^ 0x1EA5E);
    cluster.programs(vec![program(lessons, slack); SIZE.workers as usize]);
    if kills.workers {
        cluster.join_worker(Span(random.below(60_000_000)), program(lessons, slack));
        cluster.crash_worker(random.below(SIZE.workers.into()) as u32, Span(random.below(80_000_000)));
    }
    if kills.servers {
        cluster.join_server(Span(random.below(60_000_000)));
        cluster.crash_server(random.below(SIZE.servers.into()) as u32, Span(random.below(80_000_000)));
    }
    if kills.cut_off {
        let worker = random.below(SIZE.workers.into()) as u32;
        cluster.isolate_worker(worker, Span(random.below(40_000_000)), Span::from_millis(1_500));
    }
    (cluster, lessons)
}

fn every_example_counts_once(name: &str, spec: &TableSpec, kills: Kills) {
    for_seeds(name, |seed| {
        let (mut cluster, lessons) = learning(seed, spec, kills, None);
        cluster.run();
        cluster.check(every_lease_counted_once(lessons));
        cluster.check(one_head_at_a_time());
        cluster.check(all_finished());
        cluster
    });
}

#[test]
fn every_example_counts_once_while_workers_crash_and_join() {
    for slack in [0, 2] {
        let spec = counts().consistency(Consistency::slack(slack));
        every_example_counts_once(&format!("leases, workers, slack {slack}"), &spec, WORKERS);
    }
}

#[test]
fn pushes_of_a_worker_that_counts_as_lost_count_once() {
    let kills = Kills { workers: false, servers: false, cut_off: true };
    let spec = counts().consistency(Consistency::slack(1));
    every_example_counts_once("leases, a worker cut off", &spec, kills);
}

/// Every shard is told of every example once, even if it has no rows of it, and forgets leases that
/// are done.
#[test]
fn shards_count_every_example_once_and_forget_done_leases() {
    let spec = counts().consistency(Consistency::slack(1));
    let forgot_all = std::cell::Cell::new(0);
    let seeds = for_seeds("leases, examples", |seed| {
        let (mut cluster, lessons) = learning(seed, &spec, WORKERS, None);
        cluster.run();
        let servers = (0..SIZE.servers).map(|server| cluster.server_counts(server).shards);
        let (examples, leases) =
            servers.fold((0, 0), |(examples, leases), counts| (examples + counts.examples, leases + counts.leases));
        let shards = 2 * u64::from(SIZE.servers);
        // Servers forget step by step, and the run may end before the last step.
        forgot_all.set(forgot_all.get() + u64::from(leases == 0));
        assert_eq!(examples, shards * u64::from(lessons.epochs) * lessons.all_keys().len() as u64, "seed {seed}");
        cluster
    });
    println!("all leases were forgotten in {} of {seeds} seeds", forgot_all.get());
    assert!(3 * forgot_all.get() >= seeds, "all leases were forgotten in {} of {seeds} seeds", forgot_all.get());
}

#[test]
fn every_example_counts_once_while_servers_and_workers_crash_and_join() {
    let spec = counts().consistency(Consistency::slack(1));
    every_example_counts_once("leases, servers and workers", &spec, ALL);
}

#[test]
fn a_crashed_workers_open_clock_counts_the_pushes_that_arrived() {
    let spec = counts().consistency(Consistency::slack(1)).combine(Combine::Clock(Reduce::Sum));
    every_example_counts_once("leases, by clock", &spec, ALL);
}

#[test]
fn broken_leases_are_noticed() {
    let spec = counts().consistency(Consistency::slack(1));
    // Parts that two workers push count twice. Parts of a worker that crashes after its commit do
    // not count at all.
    for (sabotage, counts) in
        [(Sabotage::ForgetLeasedParts, "counts 3 times"), (Sabotage::CommitUnseen, "counts 1 times")]
    {
        // Each run has one table.
        let checker = || every_lease_counted_once(lessons(TableIndex(0)));
        let violation =
            caught_by(checker, sabotage, |seed, broken| learning(seed, &spec, WORKERS, broken.then_some(sabotage)).0);
        assert!(violation.what.contains(counts), "{violation}");
    }
}
