//! Tables whose contributions meet clock by clock.

use sim::*;
use types::{Combine, Consistency, NumberType, Reduce, TableSpec};

const SHAPE: Shape = Shape { servers: 3, workers: 4 };

fn spec(consistency: Consistency, reduce: Reduce) -> TableSpec {
    TableSpec::sparse("t", SHAPE.workers)
        .number(NumberType::F64)
        .consistency(consistency)
        .combine(Combine::Clock(reduce))
}

fn property(name: &str, slack: u64, spec: &TableSpec, work: &Work) {
    for_seeds(name, |seed| {
        let mut cluster = Cluster::new(seed, SHAPE, Faults::ALL);
        let table = cluster.table(spec.clone());
        cluster.programs(work.programs(seed, SHAPE, table, spec));
        cluster.run();
        cluster.check(all_finished());
        cluster.check(no_acknowledged_push_lost_or_doubled());
        cluster.check(staleness_at_most(slack));
        cluster.check(reported_clock_is_true());
        cluster.check(reads_hold_exactly_the_clocks_below_the_reported_one());
        cluster.check(failed_clocks_are_seen_alike());
        cluster.check(not_finite_is_refused());
        cluster
    });
}

#[test]
fn bulk_synchronous_reads_hold_exactly_the_earlier_clocks() {
    property("clock(sum), slack 0", 0, &spec(Consistency::slack(0), Reduce::Sum), &Work::default());
}

#[test]
fn clocks_are_held_apart_when_workers_run_ahead() {
    property("clock(sum), slack 2", 2, &spec(Consistency::slack(2), Reduce::Sum), &Work::default());
}

#[test]
fn a_mean_divides_by_the_workers_of_the_plan() {
    property("clock(mean), slack 1", 1, &spec(Consistency::slack(1), Reduce::Mean), &Work::default());
}

#[test]
fn cached_copies_hold_whole_clocks() {
    property("clock(sum), slack 2, cached", 2, &spec(Consistency::slack(2), Reduce::Sum).cached(100), &Work::default());
}

/// Seed 8: rows were told of when a contribution was held, and not when its clock was applied.
#[test]
fn eager_copies_hold_whole_clocks() {
    let eager = Consistency::Bounded { slack: 2, eager: true };
    property("clock(sum), slack 2, eager", 2, &spec(eager, Reduce::Sum).cached(100), &Work::default());
}

#[test]
fn a_clock_with_nan_fails_for_everybody_alike() {
    let work = Work { nan: 0.1, ..Work::default() };
    property("clock(sum), slack 1, some NaN", 1, &spec(Consistency::slack(1), Reduce::Sum), &work);
}

#[test]
fn many_reads_under_way_hold_whole_clocks() {
    let eager = Consistency::Bounded { slack: 3, eager: true };
    let hasty = Work { waits: 0.1, tasks: 6, ..Work::default() };
    property("clock(sum), slack 3, eager, hasty", 3, &spec(eager, Reduce::Sum).cached(100), &hasty);
}

#[test]
fn a_failed_clock_stays_out_of_eager_copies() {
    let eager = Consistency::Bounded { slack: 1, eager: true };
    let work = Work { nan: 0.1, ..Work::default() };
    property("clock(sum), slack 1, eager, some NaN", 1, &spec(eager, Reduce::Sum).cached(100), &work);
}
