//! Bounded reads of tables that apply every push by itself.

use sim::*;
use types::{Consistency, NumberType, TableSpec};

const SIZE: RunSize = RunSize { servers: 3, workers: 4 };

fn spec(consistency: Consistency) -> TableSpec {
    TableSpec::sparse("t", SIZE.workers).number(NumberType::I64).consistency(consistency)
}

fn run(seed: u64, spec: TableSpec, work: &Workload) -> Cluster {
    let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
    let table = cluster.table(spec.clone());
    cluster.programs(work.programs(seed, SIZE, table, &spec));
    cluster.run();
    cluster
}

fn check_all(cluster: &Cluster, slack: u64) {
    cluster.check(all_finished());
    cluster.check(no_acknowledged_push_lost_or_doubled());
    cluster.check(staleness_at_most(slack));
    cluster.check(reads_own_writes());
    cluster.check(reported_clock_is_true());
    cluster.check(fifo_per_worker());
    cluster.check(barriers_hold());
}

fn property(name: &str, slack: u64, spec: &TableSpec) {
    property_of(name, slack, spec, &Workload::default());
}

fn property_of(name: &str, slack: u64, spec: &TableSpec, work: &Workload) {
    for_seeds(name, |seed| {
        let cluster = run(seed, spec.clone(), work);
        check_all(&cluster, slack);
        cluster
    });
}

#[test]
fn lock_step_reads_hold_every_earlier_clock() {
    property("bounded, slack 0", 0, &spec(Consistency::slack(0)));
}

#[test]
fn reads_stay_within_a_slack_of_one() {
    property("bounded, slack 1", 1, &spec(Consistency::slack(1)));
}

/// Seed 14: a server that missed the end of the run never stopped.
#[test]
fn reads_stay_within_a_slack_of_three() {
    property("bounded, slack 3", 3, &spec(Consistency::slack(3)));
}

#[test]
fn cached_rows_are_as_fresh_as_the_slack_asks() {
    property("bounded, slack 2, cached", 2, &spec(Consistency::slack(2)).cached(100));
}

#[test]
fn a_cache_that_overflows_starts_over_and_stays_right() {
    property("bounded, slack 2, cache of 5 rows", 2, &spec(Consistency::slack(2)).cached(5));
}

#[test]
fn eager_refreshes_keep_cached_rows_fresh() {
    let eager = Consistency::Bounded { slack: 1, eager: true };
    property("bounded, slack 1, eager", 1, &spec(eager).cached(100));
}

#[test]
fn an_eager_dense_table_keeps_its_bounds() {
    let eager = Consistency::Bounded { slack: 2, eager: true };
    let dense = TableSpec::dense("t", 8, SIZE.workers).number(NumberType::I64).consistency(eager).cached(8);
    property("bounded, slack 2, eager, dense", 2, &dense);
}

/// Many reads under way at once, whose answers arrive in any order.
fn hasty() -> Workload {
    Workload { waits: 0.1, tasks: 6, ..Workload::default() }
}

#[test]
fn a_late_answer_does_not_replace_a_newer_cached_row() {
    property_of("bounded, slack 3, cached, hasty", 3, &spec(Consistency::slack(3)).cached(100), &hasty());
}

/// Seed 103: own pushes were added a second time to a row that was newer than the answer.
#[test]
fn a_late_answer_does_not_replace_an_eager_row() {
    let eager = Consistency::Bounded { slack: 3, eager: true };
    property_of("bounded, slack 3, eager, hasty", 3, &spec(eager).cached(100), &hasty());
}

fn check_refusals(cluster: &Cluster, slack: u64) {
    check_all(cluster, slack);
    cluster.check(not_finite_is_refused());
}

#[test]
fn a_push_with_nan_is_refused_whole_and_others_go_on() {
    let spec = spec(Consistency::slack(1)).number(NumberType::F64);
    for_seeds("bounded, slack 1, some NaN", |seed| {
        let cluster = run(seed, spec.clone(), &Workload { nan: 0.3, ..Workload::default() });
        check_refusals(&cluster, 1);
        cluster
    });
}

/// Seed 0: a worker read its own refused NaN from its cache.
#[test]
fn a_refused_push_leaves_its_workers_cache() {
    let spec = spec(Consistency::slack(1)).number(NumberType::F64).cached(100);
    for_seeds("bounded, slack 1, cached, some NaN", |seed| {
        let cluster = run(seed, spec.clone(), &Workload { nan: 0.3, ..Workload::default() });
        check_refusals(&cluster, 1);
        cluster
    });
}
