//! Draining: nodes that are told to leave lose nothing, no node waits for them, and no shard has
//! too few replicas meanwhile.

mod elastic;

use elastic::{SIZE, check};
use sim::*;
use types::{Combine, Consistency, Reduce, Span, TableSpec};

fn rows() -> TableSpec {
    elastic::rows(SIZE.workers)
}

/// While workers run their programs, a worker and two servers are told to leave, and another server
/// joins.
fn leave(seed: u64, spec: &TableSpec, prepare: impl FnOnce(&mut Cluster, &mut Xoshiro256)) -> Cluster {
    let mut cluster = elastic::cluster(seed, spec, None);
    let mut random = Xoshiro256::new(seed ^ 0x1EA_5E5);
    let first = random.below(SIZE.servers.into()) as u32;
    cluster.drain_server(first, Span(random.below(40_000_000)));
    cluster.drain_worker(random.below(SIZE.workers.into()) as u32, Span(random.below(60_000_000)));
    cluster.join_server(Span(random.below(20_000_000)));
    cluster.drain_server((first + 1) % SIZE.servers, Span(random.below(40_000_000)));
    prepare(&mut cluster, &mut random);
    cluster.run();
    cluster
}

#[test]
fn a_drained_server_loses_nothing_and_no_shard_has_fewer_replicas() {
    for slack in [0, 2] {
        let spec = rows().consistency(Consistency::slack(slack));
        for_seeds(&format!("leaving, slack {slack}"), |seed| {
            let cluster = leave(seed, &spec, |_, _| {});
            check(&cluster, slack);
            cluster.check(reads_own_writes());
            assert_eq!(cluster.fewest_replicas(), 2, "seed {seed}");
            cluster
        });
    }
}

#[test]
fn clocks_are_whole_when_nodes_are_told_to_leave() {
    let spec = rows().consistency(Consistency::slack(1)).combine(Combine::Clock(Reduce::Sum));
    for_seeds("leaving, by clock", |seed| {
        let cluster = leave(seed, &spec, |_, _| {});
        check(&cluster, 1);
        cluster.check(reads_hold_exactly_the_clocks_below_the_reported_one());
        assert_eq!(cluster.fewest_replicas(), 2, "seed {seed}");
        cluster
    });
}

#[test]
fn a_server_leaves_although_the_coordinator_crashes_meanwhile() {
    let spec = rows().consistency(Consistency::slack(1));
    for_seeds("leaving, coordinators lost", |seed| {
        let cluster = leave(seed, &spec, |cluster, random| {
            for longest in [40_000_000, 200_000_000] {
                let away = Span(random.below(400_000_000));
                cluster.crash_coordinator(Span(random.below(longest)), away);
            }
        });
        check(&cluster, 1);
        assert_eq!(cluster.fewest_replicas(), 2, "seed {seed}");
        cluster
    });
}
