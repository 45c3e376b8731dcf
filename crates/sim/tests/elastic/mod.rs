//! Elastic runs for tests: their size, and the rules that must hold.

#![allow(dead_code, reason = "not every test needs all of it")]

use sim::*;
use types::{NumberType, Span, TableSpec};

pub const SIZE: RunSize = RunSize { servers: 3, workers: 3 };
pub const FAILURE_TIMEOUT: Span = Span::from_millis(500);
/// The number of workers that begin, and one that joins later.
pub const EVERYBODY: u32 = SIZE.workers + 1;

/// A table with a column for each of these workers.
pub fn rows(workers: u32) -> TableSpec {
    TableSpec::sparse("t", workers).number(NumberType::F64)
}

/// A cluster with two replicas of every shard, whose workers run random programs on one table.
pub fn cluster(seed: u64, spec: &TableSpec, sabotage: Option<Sabotage>) -> Cluster {
    let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    let table = cluster.table(spec.clone());
    let work = Workload { clocks: 8, ..Workload::default() };
    cluster.programs(work.programs(seed, SIZE, table, spec));
    cluster
}

/// The rules that must hold while nodes join, leave and crash.
pub fn check(cluster: &Cluster, slack: u64) {
    cluster.check(one_head_at_a_time());
    cluster.check(staleness_at_most(slack));
    cluster.check(reported_clock_is_true());
    cluster.check(no_acknowledged_push_lost_or_doubled());
    cluster.check(barriers_hold());
    cluster.check(all_finished());
}
