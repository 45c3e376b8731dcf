//! Nodes whose process does not run for a while. A coordinator that was stopped expels nobody for
//! its own sleep, and a server that was stopped answers for no shard that another has taken over.

mod elastic;

use elastic::{FAILURE_TIMEOUT, SIZE, check};
use sim::*;
use types::{Consistency, Span, TableSpec};

fn rows() -> TableSpec {
    elastic::rows(SIZE.workers).consistency(Consistency::slack(1))
}

fn nobody_is_expelled(cluster: &Cluster, seed: u64) {
    assert_eq!(cluster.fault_counts().expelled, 0, "seed {seed}: healthy nodes were expelled");
}

/// The coordinator is stopped for longer than the failure timeout. What nodes sent meanwhile waits
/// for it, or is lost as on a suspended host: then it has heard nobody and must forgive that.
fn the_coordinator_sleeps(seed: u64, inbox: StoppedInbox) -> Cluster {
    let mut cluster = elastic::cluster(seed, &rows(), None);
    let mut random = Xoshiro256::new(seed ^ 0x51EE_9E12);
    let length = Span(FAILURE_TIMEOUT.0 + random.below(3_000_000_000));
    // It has ticked by then, so that it knows how long it slept.
    let after = Span(110_000_000 + random.below(200_000_000));
    cluster.stop_coordinator(inbox, after, length);
    cluster
}

#[test]
fn a_coordinator_that_slept_expels_nobody() {
    for inbox in [StoppedInbox::Kept, StoppedInbox::Lost] {
        for_seeds(&format!("the coordinator sleeps, inbox {inbox:?}"), |seed| {
            let mut cluster = the_coordinator_sleeps(seed, inbox);
            cluster.run();
            check(&cluster, 1);
            nobody_is_expelled(&cluster, seed);
            cluster
        });
    }
}

/// A worker cannot reach the coordinator, and then reaches it while it is stopped. The coordinator
/// sleeps too briefly to forgive silence for that. The network loses nothing, because a worker
/// whose heartbeats are lost was silent indeed.
fn a_worker_is_heard_in_the_sleep(seed: u64, sabotage: Option<Sabotage>) -> Cluster {
    let faults = Faults { loss: 0.0, disconnection: 0.0, ..Faults::ALL };
    let mut cluster = Cluster::elastic(seed, SIZE, faults, FAILURE_TIMEOUT, 2);
    let table = cluster.table(rows());
    let work = Workload { clocks: 8, ..Workload::default() };
    cluster.programs(work.programs(seed, SIZE, table, &rows()));
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    let mut random = Xoshiro256::new(seed ^ 0x0_1DEA);
    let begin = Span(random.below(20_000_000));
    let worker = random.below(SIZE.workers.into()) as u32;
    // Together they are longer than the failure timeout. The sleep alone is shorter than its half.
    let cut_off = Span(FAILURE_TIMEOUT.0 / 5 * 3);
    let asleep = Span(FAILURE_TIMEOUT.0 / 20 * 9);
    cluster.isolate_worker(worker, begin, cut_off);
    cluster.stop_coordinator(StoppedInbox::Kept, Span(begin.0 + cut_off.0 - 5_000_000), asleep);
    cluster
}

#[test]
fn a_coordinator_reads_its_inbox_before_it_judges() {
    for_seeds("a worker is heard in the sleep", |seed| {
        let mut cluster = a_worker_is_heard_in_the_sleep(seed, None);
        cluster.run();
        check(&cluster, 1);
        nobody_is_expelled(&cluster, seed);
        cluster
    });
}

#[test]
fn a_coordinator_that_judges_before_it_reads_is_noticed() {
    let expels = |seed| {
        let mut cluster = a_worker_is_heard_in_the_sleep(seed, Some(Sabotage::JudgeBeforeReading));
        cluster.run();
        (cluster.fault_counts().expelled > 0).then_some(seed)
    };
    assert!(some_seed(expels).is_some(), "no seed shows the broken rule");
}

#[test]
fn servers_and_workers_that_slept_break_no_rule() {
    for_seeds("servers and workers sleep", |seed| {
        let mut cluster = elastic::cluster(seed, &rows(), None);
        let mut random = Xoshiro256::new(seed ^ 0xD0_2E5);
        let inbox = if random.chance(0.5) { StoppedInbox::Kept } else { StoppedInbox::Lost };
        let server = random.below(SIZE.servers.into()) as u32;
        let worker = random.below(SIZE.workers.into()) as u32;
        // Longer than the failure timeout, or shorter: then nobody takes the server's place.
        let asleep = Span(50_000_000 + random.below(3 * FAILURE_TIMEOUT.0));
        cluster.stop_server(server, inbox, Span(random.below(60_000_000)), asleep);
        // Shorter, because pushes of an expelled worker may be applied or not.
        let asleep = Span(20_000_000 + random.below(FAILURE_TIMEOUT.0 / 3));
        cluster.stop_worker(worker, inbox, Span(random.below(60_000_000)), asleep);
        cluster.run();
        check(&cluster, 1);
        cluster
    });
}
