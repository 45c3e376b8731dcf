//! Failover: servers crash, join or are cut off. Other replicas take over, and no acknowledged push
//! is lost or counted twice.

mod elastic;

use elastic::{FAILURE_TIMEOUT, SIZE, check};
use sim::*;
use types::{Combine, Consistency, Reduce, Span, TableSpec};

fn rows() -> TableSpec {
    elastic::rows(SIZE.workers)
}

/// A server crashes and another one joins while the run lasts.
fn servers_come_and_go(seed: u64, spec: &TableSpec, sabotage: Option<Sabotage>) -> Cluster {
    let mut cluster = elastic::cluster(seed, spec, sabotage);
    let mut random = Xoshiro256::new(seed ^ 0x5E12_7E12);
    cluster.join_server(Span(random.below(60_000_000)));
    cluster.crash_server(random.below(SIZE.servers.into()) as u32, Span(random.below(60_000_000)));
    cluster
}

/// A server is cut off, from all nodes or from the coordinator alone, for longer than the failure
/// timeout. Then it is connected again.
fn a_server_is_cut_off(seed: u64, spec: &TableSpec, sabotage: Option<Sabotage>) -> Cluster {
    let mut cluster = elastic::cluster(seed, spec, sabotage);
    let mut random = Xoshiro256::new(seed ^ 0x150_1A7E);
    let from = if random.chance(0.5) { Isolation::Everybody } else { Isolation::Coordinator };
    let server = random.below(SIZE.servers.into()) as u32;
    cluster.isolate_server(server, from, Span(random.below(60_000_000)), Span::from_millis(1_500));
    cluster
}

#[test]
fn nothing_acknowledged_is_lost_or_doubled_when_a_server_is_lost() {
    for slack in [0, 2] {
        let spec = rows().consistency(Consistency::slack(slack));
        for_seeds(&format!("servers, slack {slack}"), |seed| {
            let mut cluster = servers_come_and_go(seed, &spec, None);
            cluster.run();
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
        let mut cluster = servers_come_and_go(seed, &spec, None);
        cluster.run();
        check(&cluster, 1);
        cluster.check(reads_hold_exactly_the_clocks_below_the_reported_one());
        cluster
    });
}

#[test]
fn a_server_that_is_cut_off_answers_for_no_shard_of_another() {
    let spec = rows().consistency(Consistency::slack(1));
    for_seeds("servers cut off", |seed| {
        let mut cluster = a_server_is_cut_off(seed, &spec, None);
        cluster.run();
        check(&cluster, 1);
        cluster
    });
}

/// A server crashes when all pushes are acknowledged, and workers read when another has taken its
/// place. Only the rows show whether a push is missing: no worker pushes after the crash, and no
/// read waits for clocks.
fn a_server_crashes_between_pushes_and_reads(seed: u64, sabotage: Option<Sabotage>) -> Cluster {
    let spec = rows().consistency(Consistency::Unbounded);
    let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    let table = cluster.table(spec);
    let keys: Vec<u64> = (0..8).collect();
    let mut steps = vec![Action::MakeTable(table)];
    for _ in 0..6 {
        steps.extend([Action::push(table, &keys, Write::Marks), Action::WaitUntilIdle]);
    }
    steps.extend([Action::Barrier, Action::Compute(Span::from_secs(2)), Action::pull_last(table, &keys)]);
    cluster.programs(vec![steps; SIZE.workers as usize]);
    let mut random = Xoshiro256::new(seed ^ 0x7A11);
    cluster.crash_server(random.below(SIZE.servers.into()) as u32, Span(1_000_000_000));
    cluster
}

/// Each row is pushed to once, in small pushes that follow each other closely, so that replication
/// batches are under way together and some are lost. Then the head crashes: a row that a resend
/// left out is missing for good, because no later push sends it again.
fn a_server_crashes_after_rows_that_changed_once(seed: u64, consistency: Consistency) -> Cluster {
    let spec = rows().consistency(consistency);
    let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
    let table = cluster.table(spec);
    let keys: Vec<u64> = (0..40 * u64::from(SIZE.workers)).collect();
    let mut random = Xoshiro256::new(seed ^ 0x0_17CE);
    let mut programs = Vec::new();
    for own in keys.chunks(40) {
        let mut steps = vec![Action::MakeTable(table)];
        for key in own {
            steps.push(Action::push(table, &[*key], Write::Marks));
            if random.chance(0.4) {
                steps.push(Action::Compute(Span(random.below(4_000_000))));
            }
        }
        steps.extend([Action::WaitUntilIdle, Action::Barrier, Action::Compute(Span::from_secs(2))]);
        steps.push(Action::pull_last(table, &keys));
        programs.push(steps);
    }
    cluster.programs(programs);
    cluster.crash_server(random.below(SIZE.servers.into()) as u32, Span(1_500_000_000));
    cluster
}

#[test]
fn resends_leave_out_no_row_that_changed_once() {
    for_seeds("rows that changed once", |seed| {
        let mut cluster = a_server_crashes_after_rows_that_changed_once(seed, Consistency::Unbounded);
        cluster.run();
        cluster.check(no_acknowledged_push_lost_or_doubled());
        cluster.check(all_finished());
        cluster
    });
}

#[test]
fn pushes_acknowledged_before_the_tail_has_them_are_noticed() {
    let sabotage = Sabotage::AcknowledgeForTheTail;
    let violation = caught_by(no_acknowledged_push_lost_or_doubled, sabotage, |seed, broken| {
        a_server_crashes_between_pushes_and_reads(seed, broken.then_some(sabotage))
    });
    assert!(violation.what.contains("has lost push"), "{violation}");
}

#[test]
fn a_replica_that_forgets_applied_numbers_is_noticed() {
    let spec = rows().consistency(Consistency::slack(1));
    let sabotage = Sabotage::ForgetAppliedNumbers;
    let violation = caught_by(no_acknowledged_push_lost_or_doubled, sabotage, |seed, broken| {
        servers_come_and_go(seed, &spec, broken.then_some(sabotage))
    });
    assert!(violation.what.contains("more than once"), "{violation}");
}

#[test]
fn a_server_that_answers_when_its_lease_has_ended_is_noticed() {
    let spec = rows().consistency(Consistency::slack(1));
    caught_by(one_head_at_a_time, Sabotage::IgnoreLeases, |seed, broken| {
        a_server_is_cut_off(seed, &spec, broken.then_some(Sabotage::IgnoreLeases))
    });
}
