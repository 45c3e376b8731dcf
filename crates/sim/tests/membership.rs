//! Workers crash and join while others go on: reads keep their bounds, no acknowledged push is
//! lost, and every run ends.

mod elastic;

use elastic::{EVERYBODY, FAILURE_TIMEOUT, SIZE};
use sim::*;
use types::{Combine, Consistency, Reduce, Span, TableSpec};

/// One worker crashes and another joins while the run lasts.
fn coming_and_going(seed: u64, spec: &TableSpec, work: &Workload, faults: Faults) -> Cluster {
    let mut cluster = Cluster::elastic(seed, SIZE, faults, FAILURE_TIMEOUT, 1);
    let table = cluster.table(spec.clone());
    let mut programs = work.programs_with_a_late_one(seed, RunSize { workers: EVERYBODY, ..SIZE }, table, spec);
    let mut random = Xoshiro256::new(seed ^ 0xC0_FFEE);
    let later = programs.pop().expect("one for each");
    cluster.programs(programs);
    cluster.join_worker(Span(random.below(40_000_000)), later);
    cluster.crash_worker(random.below(SIZE.workers.into()) as u32, Span(random.below(60_000_000)));
    cluster.run();
    cluster
}

fn rows() -> TableSpec {
    elastic::rows(EVERYBODY)
}

#[test]
fn bounds_hold_and_nothing_is_lost_while_workers_crash_and_join() {
    let work = Workload { clocks: 8, ..Workload::default() };
    for slack in [0, 2] {
        let spec = rows().consistency(Consistency::slack(slack));
        for_seeds(&format!("coming and going, slack {slack}"), |seed| {
            let cluster = coming_and_going(seed, &spec, &work, Faults::ALL);
            cluster.check(staleness_at_most(slack));
            cluster.check(reported_clock_is_true());
            cluster.check(reads_own_writes());
            cluster.check(no_acknowledged_push_lost_or_doubled());
            cluster.check(barriers_hold());
            cluster.check(all_finished());
            cluster
        });
    }
}

#[test]
fn clocks_are_whole_while_workers_crash_and_join() {
    let work = Workload { clocks: 8, ..Workload::default() };
    let spec = rows().consistency(Consistency::slack(1)).combine(Combine::Clock(Reduce::Sum));
    for_seeds("coming and going, by clock", |seed| {
        let cluster = coming_and_going(seed, &spec, &work, Faults::ALL);
        cluster.check(reads_hold_exactly_the_clocks_below_the_reported_one());
        cluster.check(staleness_at_most(1));
        cluster.check(no_acknowledged_push_lost_or_doubled());
        cluster.check(all_finished());
        cluster
    });
}
