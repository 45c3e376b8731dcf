//! Servers come and go: their copies take over, and nothing acknowledged is lost or counted twice.

use sim::*;
use types::{Combine, Consistency, NumberType, Reduce, Span, TableSpec};

const SHAPE: Shape = Shape { servers: 3, workers: 3 };
const PATIENCE: Span = Span::from_millis(500);

fn rows() -> TableSpec {
    TableSpec::sparse("t", SHAPE.workers).number(NumberType::F64)
}

/// A server crashes and another one comes, both somewhere in the middle of the run.
fn servers_come_and_go(seed: u64, spec: &TableSpec, faults: Faults) -> Cluster {
    let mut cluster = Cluster::open(seed, SHAPE, faults, PATIENCE, 2);
    let table = cluster.table(spec.clone());
    let work = Work { clocks: 8, ..Work::default() };
    cluster.programs(work.programs(seed, SHAPE, table, spec));
    let mut random = Random::new(seed ^ 0x5E12_7E12);
    cluster.join_server(Span(random.below(60_000_000)));
    cluster.crash_server(random.below(SHAPE.servers.into()) as u32, Span(random.below(60_000_000)));
    cluster.run();
    cluster
}

fn check(cluster: &Cluster, slack: u64) {
    cluster.check(staleness_at_most(slack));
    cluster.check(reported_clock_is_true());
    cluster.check(no_acknowledged_push_lost_or_doubled());
    cluster.check(barriers_hold());
    cluster.check(all_finished());
}

#[test]
fn nothing_acknowledged_is_lost_or_doubled_when_a_server_is_lost() {
    for slack in [0, 2] {
        let spec = rows().consistency(Consistency::slack(slack));
        for_seeds(&format!("servers, slack {slack}"), |seed| {
            let cluster = servers_come_and_go(seed, &spec, Faults::ALL);
            check(&cluster, slack);
            cluster.check(reads_own_writes());
            cluster
        });
    }
}

#[test]
fn clocks_are_whole_when_a_server_is_lost() {
    let spec = rows().consistency(Consistency::slack(1)).combine(Combine::Clock(Reduce::Sum));
    for_seeds("servers, by clock", |seed| {
        let cluster = servers_come_and_go(seed, &spec, Faults::ALL);
        check(&cluster, 1);
        cluster.check(reads_hold_exactly_the_clocks_below_the_reported_one());
        cluster
    });
}
