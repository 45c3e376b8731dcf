//! A seed counts when everything that was planned for it has happened: not when that came too late,
//! or to nobody.

mod elastic;

use elastic::SIZE;
use sim::*;
use types::{Consistency, NodeId, Span};

/// A run takes longer than the one, and ends before the other.
const SOON: Span = Span::from_millis(20);
const LATE: Span = Span::from_secs(100);
const LENGTH: Span = Span::from_millis(300);

/// Whether a seed counts for which this was planned.
fn happens(seed: u64, plan: impl Fn(&mut Cluster)) -> bool {
    let mut cluster = elastic::cluster(seed, &elastic::rows(SIZE.workers).consistency(Consistency::slack(1)), None);
    plan(&mut cluster);
    cluster.run();
    cluster.all_happened()
}

#[test]
fn what_comes_in_the_middle_of_a_run_happens_and_what_would_come_after_it_does_not() {
    const SLOW: LinkFault = LinkFault::Slow(Span::from_millis(5));
    const SERVER: NodeId = NodeId::Server(0);
    const WORKER: NodeId = NodeId::Worker(0);
    type Plan = fn(&mut Cluster, Span);
    let plans: [(&str, Plan); 12] = [
        ("a worker crashes", |cluster, at| cluster.crash_worker(0, at)),
        ("a server crashes", |cluster, at| cluster.crash_server(0, at)),
        ("a server joins", |cluster, at| {
            cluster.join_server(at);
        }),
        ("a server leaves", |cluster, at| cluster.drain_server(0, at)),
        ("a worker leaves", |cluster, at| cluster.drain_worker(0, at)),
        ("the coordinator crashes", |cluster, at| cluster.crash_coordinator(at, SOON)),
        ("a server is cut off", |cluster, at| cluster.isolate_server(0, Isolation::Coordinator, at, LENGTH)),
        ("a worker is cut off", |cluster, at| cluster.isolate_worker(0, at, LENGTH)),
        ("a worker is cut off from everybody", |cluster, at| cluster.partition_worker(0, at, LENGTH)),
        ("a link is cut", |cluster, at| cluster.fault_link(WORKER, SERVER, LinkFault::Cut, at, LENGTH)),
        ("a link is slow", |cluster, at| cluster.fault_link(SERVER, WORKER, SLOW, at, LENGTH)),
        ("a clock is set back", |cluster, at| cluster.set_clock_back(WORKER, at, SOON)),
    ];
    for (name, plan) in plans {
        // A coordinator that is to go with its next decision may have none left to make.
        assert!((0..5).any(|seed| happens(seed, |cluster| plan(cluster, SOON))), "{name}, and nobody notices");
        assert!(!(0..5).any(|seed| happens(seed, |cluster| plan(cluster, LATE))), "{name} when the run is over");
    }
}

#[test]
fn nobody_is_lost_in_the_middle_of_what_never_begins() {
    for moment in [Moment::Checkpoint, Moment::Migration, Moment::Failover, Moment::Commit] {
        for node in [None, Some(NodeId::Coordinator), Some(NodeId::Server(0))] {
            assert!(!happens(0, |cluster| cluster.crash_amid(moment, node)), "{moment:?} {node:?}");
        }
    }
}

#[test]
fn what_happens_to_nobody_has_not_happened() {
    let (one, other) = (NodeId::Worker(0), NodeId::Worker(1));
    for fault in [LinkFault::Cut, LinkFault::Slow(SOON)] {
        assert!(!happens(0, |cluster| cluster.fault_link(one, other, fault, SOON, LENGTH)), "workers never meet");
    }
    let lost = |cluster: &mut Cluster| cluster.crash_worker(0, SOON);
    assert!(happens(0, lost));
    let looked_at = |cluster: &mut Cluster| {
        lost(cluster);
        cluster.set_clock_back(one, Span::from_millis(40), SOON);
    };
    assert!(!happens(0, looked_at), "nobody goes by the clock of a worker that is lost");
}

/// The second is to go while nobody leads: the one who leads next goes.
#[test]
fn two_coordinators_are_lost_though_the_first_is_still_away() {
    let lost = (0..20).filter(|seed| {
        happens(*seed, |cluster| {
            cluster.crash_server(0, SOON);
            cluster.crash_coordinator(SOON, LENGTH);
            cluster.crash_coordinator(Span::from_millis(60), SOON);
        })
    });
    assert!(lost.count() > 15);
}
