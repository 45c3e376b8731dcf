//! Servers come and go: their copies take over, and nothing acknowledged is lost or counted twice.

mod open;

use open::{SHAPE, check};
use sim::*;
use types::{Combine, Consistency, Reduce, Span, TableSpec};

fn rows() -> TableSpec {
    open::rows(SHAPE.workers)
}

/// A server crashes and another one comes, both somewhere in the middle of the run.
fn servers_come_and_go(seed: u64, spec: &TableSpec) -> Cluster {
    servers_come_and_go_with(seed, spec, None).unwrap_or_else(|stuck| panic!("{stuck}"))
}

fn servers_come_and_go_with(seed: u64, spec: &TableSpec, sabotage: Option<Sabotage>) -> Result<Cluster, Stuck> {
    let mut cluster = open::cluster(seed, spec, sabotage);
    let mut random = Random::new(seed ^ 0x5E12_7E12);
    cluster.join_server(Span(random.below(60_000_000)));
    cluster.crash_server(random.below(SHAPE.servers.into()) as u32, Span(random.below(60_000_000)));
    cluster.try_run()?;
    Ok(cluster)
}

/// A server is cut off, from everybody or from the coordinator alone, for longer than anybody has patience, and comes back.
fn a_server_is_cut_off(seed: u64, spec: &TableSpec, sabotage: Option<Sabotage>) -> Result<Cluster, Stuck> {
    let mut cluster = open::cluster(seed, spec, sabotage);
    let mut random = Random::new(seed ^ 0x150_1A7E);
    let from = if random.chance(0.5) { Isolation::Everybody } else { Isolation::Coordinator };
    let server = random.below(SHAPE.servers.into()) as u32;
    cluster.isolate_server(server, from, Span(random.below(60_000_000)), Span::from_millis(1_500));
    cluster.try_run()?;
    Ok(cluster)
}

#[test]
fn nothing_acknowledged_is_lost_or_doubled_when_a_server_is_lost() {
    for slack in [0, 2] {
        let spec = rows().consistency(Consistency::slack(slack));
        for_seeds(&format!("servers, slack {slack}"), |seed| {
            let cluster = servers_come_and_go(seed, &spec);
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
        let cluster = servers_come_and_go(seed, &spec);
        check(&cluster, 1);
        cluster.check(reads_hold_exactly_the_clocks_below_the_reported_one());
        cluster
    });
}

#[test]
fn a_server_that_is_cut_off_answers_for_nothing_that_another_holds() {
    let spec = rows().consistency(Consistency::slack(1));
    for_seeds("servers cut off", |seed| {
        let cluster = a_server_is_cut_off(seed, &spec, None).unwrap_or_else(|stuck| panic!("{stuck}"));
        check(&cluster, 1);
        cluster
    });
}

/// What is found against a cluster whose servers are broken, if anything is.
fn found(seed: u64, sabotage: Sabotage) -> Option<String> {
    let spec = rows().consistency(Consistency::slack(1));
    let cluster = match sabotage {
        Sabotage::IgnoreLeases => a_server_is_cut_off(seed, &spec, Some(sabotage)),
        _ => servers_come_and_go_with(seed, &spec, Some(sabotage)),
    };
    let checkers = [no_acknowledged_push_lost_or_doubled(), staleness_at_most(1), one_head_at_a_time()];
    match cluster {
        Err(stuck) => Some(stuck.to_string()),
        Ok(cluster) => checkers.into_iter().find_map(|checker| cluster.violation(checker)).map(|v| v.to_string()),
    }
}

#[test]
fn broken_chains_are_noticed() {
    for sabotage in [Sabotage::AcknowledgeForTheTail, Sabotage::ForgetTheWindow, Sabotage::IgnoreLeases] {
        let found = some_seed(|seed| found(seed, sabotage));
        println!("{sabotage:?}: {}", found.unwrap_or_else(|| panic!("{sabotage:?} goes unnoticed")));
    }
}
