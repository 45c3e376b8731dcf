//! Checkpoints while messages are lost, servers crash and join, and heads change: each checkpoint
//! holds exactly the clocks before its own.

use sim::*;
use std::cell::Cell;
use types::{Combine, Consistency, NodeId, NumberType, Reduce, Span, TableSpec};

const SIZE: RunSize = RunSize { servers: 3, workers: 3 };
const FAILURE_TIMEOUT: Span = Span::from_millis(500);

fn spec() -> TableSpec {
    let rows = TableSpec::sparse("t", SIZE.workers).number(NumberType::F64);
    rows.consistency(Consistency::slack(3)).combine(Combine::Clock(Reduce::Sum))
}

fn run(seed: u64, mut cluster: Cluster) -> Cluster {
    let spec = spec();
    let table = cluster.table(spec.clone());
    let work = Workload { clocks: 12, ..Workload::default() };
    cluster.programs(work.programs(seed, SIZE, table, &spec));
    let mut random = Xoshiro256::new(seed ^ 0xC4EC_4B01);
    cluster.checkpoint(Span(random.below(60_000_000)));
    cluster
}

#[test]
fn a_checkpoint_holds_exactly_the_clocks_before_its_own() {
    let whole = Cell::new(0);
    let seeds = for_seeds("checkpoints", |seed| {
        let mut cluster = run(seed, Cluster::new(seed, SIZE, Faults::ALL));
        cluster.run();
        cluster.check_checkpoints();
        cluster.check(all_finished());
        whole.set(whole.get() + cluster.checkpoint_counts().0 as u64);
        cluster
    });
    println!("{} checkpoints were whole", whole.get());
    assert!(4 * whole.get() >= 3 * seeds, "{} checkpoints were whole in {seeds} seeds", whole.get());
}

#[test]
fn a_checkpoint_holds_exactly_its_clocks_when_a_server_crashes_in_its_middle() {
    let whole = Cell::new(0);
    let missed = Cell::new(0);
    let seeds = for_seeds("checkpoints, servers", |seed| {
        let mut cluster = run(seed, Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2));
        let mut random = Xoshiro256::new(seed ^ 0x5E12_7E12);
        cluster.join_server(Span(random.below(90_000_000)));
        let server = NodeId::Server(random.below(SIZE.servers.into()) as u32);
        cluster.crash_amid(Moment::Checkpoint, Some(server));
        cluster.run();
        cluster.check_checkpoints();
        cluster.check(all_finished());
        let counts = cluster.checkpoint_counts();
        whole.set(whole.get() + counts.0 as u64);
        missed.set(missed.get() + counts.1);
        cluster
    });
    println!("{} checkpoints were whole, {} were given up", whole.get(), missed.get());
    assert!(4 * whole.get() >= 3 * seeds, "{} checkpoints were whole in {seeds} seeds", whole.get());
}
