//! Coordinators crash, one after the other, while servers and workers join and crash: each
//! successor goes on from the saved memory.

mod elastic;

use elastic::{EVERYBODY, FAILURE_TIMEOUT, SIZE, check};
use sim::*;
use types::{Combine, Consistency, Reduce, Span, TableSpec};

fn rows() -> TableSpec {
    elastic::rows(EVERYBODY)
}

/// A server and a worker crash, others join, and the coordinator crashes twice. The run has no
/// coordinator for less than the failure timeout, or for longer. If shards move meanwhile, the
/// successor finds them half moved.
fn coming_and_going(seed: u64, spec: &TableSpec, sabotage: Option<Sabotage>) -> Cluster {
    let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    let table = cluster.table(spec.clone());
    let work = Workload { clocks: 8, ..Workload::default() };
    let mut programs = work.programs_with_a_late_one(seed, RunSize { workers: EVERYBODY, ..SIZE }, table, spec);
    let mut random = Xoshiro256::new(seed ^ 0x1EAD_E125);
    let later = programs.pop().expect("one for each");
    cluster.programs(programs);
    cluster.join_worker(Span(random.below(40_000_000)), later);
    cluster.join_server(Span(random.below(60_000_000)));
    cluster.crash_server(random.below(SIZE.servers.into()) as u32, Span(random.below(60_000_000)));
    cluster.crash_worker(random.below(SIZE.workers.into()) as u32, Span(random.below(60_000_000)));
    // Once near the beginning, and once about when the crashes are noticed.
    for longest in [60_000_000, 900_000_000] {
        let away = Span(random.below(1_500_000_000));
        cluster.crash_coordinator(Span(random.below(longest)), away);
    }
    cluster
}

#[test]
fn nothing_acknowledged_is_lost_or_doubled_when_the_coordinator_is_lost() {
    for slack in [0, 2] {
        let spec = rows().consistency(Consistency::slack(slack));
        for_seeds(&format!("coordinators, slack {slack}"), |seed| {
            let mut cluster = coming_and_going(seed, &spec, None);
            cluster.run();
            check(&cluster, slack);
            cluster.check(reads_own_writes());
            cluster
        });
    }
}

#[test]
fn clocks_are_whole_when_the_coordinator_is_lost() {
    let spec = rows().consistency(Consistency::slack(1)).combine(Combine::Clock(Reduce::Sum));
    for_seeds("coordinators, by clock", |seed| {
        let mut cluster = coming_and_going(seed, &spec, None);
        cluster.run();
        check(&cluster, 1);
        cluster.check(reads_hold_exactly_the_clocks_below_the_reported_one());
        cluster
    });
}

/// A successor decides anew what its predecessor sent and did not save: two plans get the same
/// number.
#[test]
fn coordinators_that_send_before_they_save_are_noticed() {
    let spec = rows().consistency(Consistency::slack(1));
    for sabotage in [Sabotage::KeepNothingNew, Sabotage::TellBeforeSaving] {
        caught_by(one_head_at_a_time, sabotage, |seed, broken| {
            coming_and_going(seed, &spec, broken.then_some(sabotage))
        });
    }
}
