//! Planned faults: a seed counts only if every planned fault happened. A fault does not happen if
//! the run is over by then, or if it meets no node or frame.

mod elastic;

use elastic::SIZE;
use sim::*;
use types::{Consistency, NodeId, Span};

/// A time within every run.
const SOON: Span = Span::from_millis(20);
/// A time after the end of every run.
const LATE: Span = Span::from_secs(100);
/// How long a fault lasts.
const LENGTH: Span = Span::from_millis(300);

/// Whether a seed with this planned fault counts.
fn happens(seed: u64, plan: impl Fn(&mut Cluster)) -> bool {
    let mut cluster = elastic::cluster(seed, &elastic::rows(SIZE.workers).consistency(Consistency::slack(1)), None);
    plan(&mut cluster);
    cluster.run();
    cluster.all_happened()
}

#[test]
fn a_planned_fault_happens_within_a_run_and_not_after_it() {
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
        // Several seeds, because a coordinator that would crash at its next decision may have none
        // left to make.
        assert!((0..5).any(|seed| happens(seed, |cluster| plan(cluster, SOON))), "{name} within a run: not counted");
        assert!(!(0..5).any(|seed| happens(seed, |cluster| plan(cluster, LATE))), "{name} after a run: counted");
    }
}

#[test]
fn no_node_crashes_in_a_moment_that_never_begins() {
    for moment in [Moment::Checkpoint, Moment::Migration, Moment::Failover, Moment::Commit] {
        for node in [None, Some(NodeId::Coordinator), Some(NodeId::Server(0))] {
            assert!(!happens(0, |cluster| cluster.crash_amid(moment, node)), "{moment:?} {node:?}");
        }
    }
}

#[test]
fn a_fault_that_meets_no_node_or_frame_has_not_happened() {
    let one = NodeId::Worker(0);
    let other = NodeId::Worker(1);
    for fault in [LinkFault::Cut, LinkFault::Slow(SOON)] {
        assert!(
            !happens(0, |cluster| cluster.fault_link(one, other, fault, SOON, LENGTH)),
            "workers send each other no frames"
        );
    }
    let lost = |cluster: &mut Cluster| cluster.crash_worker(0, SOON);
    assert!(happens(0, lost));
    let looked_at = |cluster: &mut Cluster| {
        lost(cluster);
        cluster.set_clock_back(one, Span::from_millis(40), SOON);
    };
    assert!(!happens(0, looked_at), "a crashed worker's clock counts for no node");
}

/// The second crash is due while no coordinator leads: the next coordinator crashes.
#[test]
fn two_coordinators_crash_although_none_leads_between() {
    let lost = (0..20).filter(|seed| {
        happens(*seed, |cluster| {
            cluster.crash_server(0, SOON);
            cluster.crash_coordinator(SOON, LENGTH);
            cluster.crash_coordinator(Span::from_millis(60), SOON);
        })
    });
    assert!(lost.count() > 15);
}
