//! The rules alone: which node is given up, when, and what only delays that.

use super::*;
use crate::members::tests::begun;
use crate::settings::Membership;
use types::{Chain, Plan, RunSize, WorkerId};
use wire::{Outbox, WaitingRead};

const TIMEOUT: Span = Span::from_secs(10);
const COORDINATOR: NodeId = NodeId::Coordinator;
const S0: NodeId = NodeId::Server(0);
const S1: NodeId = NodeId::Server(1);
const S2: NodeId = NodeId::Server(2);
const W0: NodeId = NodeId::Worker(0);
const W1: NodeId = NodeId::Worker(1);
const W2: NodeId = NodeId::Worker(2);

fn at(seconds: f64) -> Time {
    Time((seconds * 1e9) as u64)
}

/// A run of three servers, with two replicas of each shard, and three workers.
struct Run {
    settings: Settings,
    members: Members,
    barriers: Barriers,
    plans: Plans,
    placement: Placement,
    tables: Tables,
    liveness: Liveness,
}

impl Run {
    fn new() -> Self {
        let size = RunSize { servers: 3, workers: 3 };
        let members = begun(3, 3);
        let mut placement = Placement::default();
        placement.begin(3, 3, 2);
        let mut plans = Plans::default();
        plans.begin(placement.chains(), &members);
        let mut liveness = Liveness::new(TIMEOUT);
        members.everybody().into_iter().for_each(|node| liveness.begin(node, at(0.0)));
        let settings = Settings::new(size, Membership::Elastic { replicas: 2, shards_per_server: 1 });
        Self { settings, members, barriers: Barriers::default(), plans, placement, tables: Tables::default(), liveness }
    }

    /// A node is heard at this clock, and names the coordinator's answer of the same second.
    fn hear(&mut self, node: NodeId, clock: u64, seconds: f64) {
        let head = Head { clock: Clock(clock), ..Head::plain(node, COORDINATOR) };
        self.liveness.hear(&head, at(seconds));
        self.liveness.answered(node, seconds as u64, at(seconds));
        let source = self.members.source(node).unwrap_or_default();
        self.members.hear(&Head { source, ..head }, at(seconds));
    }

    /// All nodes but these are heard in each second from `from` to `to`, at clock 0.
    fn hear_all(&mut self, from: u64, to: u64, but: &[NodeId]) {
        for second in from..=to {
            for node in self.members.everybody().into_iter().filter(|node| !but.contains(node)) {
                self.hear(node, 0, second as f64);
            }
        }
    }

    fn report(&mut self, node: NodeId, report: &NodeReport, seconds: f64) {
        self.liveness.report(node, report, at(seconds));
    }

    fn judge(&mut self, seconds: f64) -> Vec<(NodeId, String, bool)> {
        let Self { settings, members, barriers, plans, placement, tables, liveness } = self;
        let [notice_after, ask_again] = [3_000, 500].map(Span::from_millis);
        let now = at(seconds);
        let view = LivenessView { now, settings, members, barriers, plans, placement, tables, notice_after, ask_again };
        let verdicts = liveness.judge(&view).into_iter();
        verdicts.map(|Verdict { node, reason, ends_run }| (node, reason, ends_run)).collect()
    }

    fn given_up(&mut self, seconds: f64) -> Vec<NodeId> {
        self.judge(seconds).into_iter().map(|(node, ..)| node).collect()
    }
}

fn silent(peers: &[(NodeId, u64)]) -> NodeReport {
    let silent_peers = peers.iter().map(|(peer, seconds)| (*peer, Span::from_secs(*seconds))).collect();
    NodeReport { silent_peers, ..NodeReport::default() }
}

#[test]
fn one_node_of_silent_links_goes_by_the_documented_rules() {
    let chain = |replicas: &[u32]| Chain { replicas: replicas.to_vec(), backfilling: Vec::new() };
    // (links that are down, chains, nodes that the run needs, the node that goes)
    type Case<'a> = (&'a [(NodeId, NodeId)], &'a [&'a [u32]], &'a [NodeId], Option<NodeId>);
    let cases: [Case<'_>; 12] = [
        (&[], &[&[0, 1]], &[], None),
        (&[(W0, S0)], &[&[0, 1]], &[], Some(W0)),
        (&[(S0, W0)], &[&[0, 1]], &[], Some(W0)),
        (&[(W0, S0)], &[&[0, 1]], &[W0], Some(S0)),
        (&[(W0, S0)], &[&[0, 1]], &[W0, S0], Some(W0)),
        (&[(S0, S1)], &[&[0, 1]], &[], Some(S1)),
        (&[(S0, S1)], &[&[1, 0]], &[], Some(S0)),
        (&[(S0, S1)], &[&[1, 0], &[0, 1]], &[], Some(S1)),
        // Most others complain of S0.
        (&[(W0, S0), (W1, S0), (W2, S0)], &[&[0, 1]], &[], Some(S0)),
        (&[(W0, S0), (W1, S0)], &[&[0, 1]], &[S0], Some(S0)),
        // W0 reaches no server, S1 does not reach S2 in addition.
        (&[(W0, S0), (W0, S1), (W0, S2), (S1, S2)], &[&[1, 2]], &[], Some(W0)),
        // Both directions are one link.
        (&[(S0, S1), (S1, S0), (S2, S1)], &[&[0, 1], &[2, 1]], &[], Some(S1)),
    ];
    for (down, chains, needed, expected) in cases {
        let plan = Plan { chains: chains.iter().map(|replicas| chain(replicas)).collect(), ..Plan::default() };
        let chosen = silent_links::choose(down, down, &plan, &|node| !needed.contains(&node)).map(|(node, _)| node);
        assert_eq!(chosen, expected, "{down:?} in {chains:?}, needed {needed:?}");
    }
}

/// Nodes notice one cause at different times: the first complaint must not decide alone.
#[test]
fn links_that_are_down_for_half_the_limit_count_where_one_is_down_for_longer() {
    // (for how long each node has not heard S0 when the first limit is over, the node that goes)
    let cases = [([21, 19, 15], vec![S0]), ([21, 9, 8], vec![W0]), ([20, 19, 19], vec![])];
    for (seconds, expected) in cases {
        let mut run = Run::new();
        run.hear_all(1, 21, &[]);
        for (worker, seconds) in [W0, W1, W2].into_iter().zip(seconds) {
            run.report(worker, &silent(&[(S0, seconds)]), 21.0);
        }
        assert_eq!(run.given_up(21.0), expected, "{seconds:?}");
    }
}

#[test]
fn a_silent_link_counts_only_while_both_nodes_reach_the_coordinator() {
    // (nodes that the coordinator does not hear from second 12 to 18, nodes given up at 21)
    for (stalled, given_up) in [(&[][..], vec![W0]), (&[S1][..], vec![]), (&[W0][..], vec![]), (&[S0][..], vec![W0])] {
        let mut run = Run::new();
        run.hear_all(1, 11, &[]);
        run.hear_all(12, 18, stalled);
        run.hear_all(19, 20, &[]);
        run.report(W0, &silent(&[(S1, 20)]), 20.0);
        assert_eq!(run.given_up(20.0), [], "not before the limit");
        run.hear_all(21, 21, &[]);
        assert_eq!(run.given_up(21.0), given_up, "{stalled:?}");
    }
    // A stalled node has its whole limit again.
    let mut run = Run::new();
    run.hear_all(1, 11, &[]);
    run.hear_all(12, 18, &[S1]);
    run.hear_all(19, 40, &[]);
    run.report(W0, &silent(&[(S1, 40)]), 40.0);
    assert_eq!((run.given_up(39.0), run.given_up(40.0)), (vec![], vec![W0]));
}

#[test]
fn a_report_without_a_silent_peer_ends_the_complaint() {
    let mut run = Run::new();
    run.hear_all(1, 21, &[]);
    run.report(W0, &silent(&[(S1, 21)]), 21.0);
    run.report(W0, &silent(&[]), 21.0);
    assert_eq!(run.given_up(21.0), []);
}

#[test]
fn a_node_that_hears_no_answer_is_given_up_and_one_that_hears_some_is_not() {
    let mut run = Run::new();
    for second in 1..=21 {
        run.hear_all(second, second, &[S1, W1]);
        for deaf in [S1, W1] {
            run.liveness.hear(&Head::plain(deaf, COORDINATOR), at(second as f64));
        }
        // It hears one answer in ten.
        run.liveness.answered(W1, second / 10, at(second as f64));
        assert_eq!(run.given_up(second as f64), if second == 21 { vec![S1] } else { vec![] }, "second {second}");
    }
}

#[test]
fn a_server_that_does_not_adopt_a_plan_is_given_up() {
    let mut run = Run::new();
    run.hear_all(1, 5, &[]);
    let chains = run.placement.chains().to_vec();
    run.plans.make(at(5.0), &chains, &run.members);
    let number = run.plans.plan().number;
    for server in [S0, S2] {
        run.plans.adopted(at(6.0), server, false, Clock(0));
    }
    run.hear_all(6, 26, &[]);
    assert_eq!(run.given_up(25.0), []);
    let verdicts = run.judge(26.0);
    assert!(
        matches!(&verdicts[..], [(S1, reason, false)] if reason.contains(&format!("did not adopt plan {} for 21.0 s", number.0))),
        "{verdicts:?}"
    );
    run.members.condemn(S1, "it does not adopt");
    assert_eq!(run.given_up(26.0), [], "once");
}

/// Worker 0 is at a barrier in clock 0, and worker 1 reads in clock 3.
fn barrier_against_read(needs: u64, blocked: Option<Span>) -> Run {
    let mut run = Run::new();
    run.hear_all(1, 5, &[]);
    run.barriers.reach(at(5.0), W0, 1, &run.members, &mut Outbox::new());
    let read = WaitingRead { table: types::TableId(7), reader: WorkerId(1), clock: Clock(3), needs: Clock(needs) };
    run.report(S0, &NodeReport { waiting_reads: vec![read], ..NodeReport::default() }, 5.0);
    run.report(W1, &NodeReport { blocked, ..NodeReport::default() }, 5.0);
    run
}

#[test]
fn a_barrier_and_a_read_that_wait_for_each_other_end_the_run() {
    let blocked = Some(Span::from_secs(1));
    // (the frontier that the read needs, for how long its program waits, whether the reader comes
    // to the barrier at last; whether the run ends)
    let cases =
        [(2, blocked, false, true), (0, blocked, false, false), (2, None, false, false), (2, blocked, true, false)];
    for (needs, blocked, comes, ends) in cases {
        let mut run = barrier_against_read(needs, blocked);
        run.hear_all(6, 14, &[]);
        assert_eq!(run.given_up(5.0), []);
        assert_eq!(run.given_up(14.0), [], "not before the failure timeout");
        if comes {
            run.barriers.reach(at(14.0), W1, 1, &run.members, &mut Outbox::new());
        }
        run.hear_all(15, 16, &[]);
        let verdicts = run.judge(16.0);
        assert_eq!(verdicts.iter().any(|(node, _, ends_run)| *node == W0 && *ends_run), ends, "{verdicts:?}");
        for words in ["worker 0 waits at a barrier in clock 0 for worker 1", "in clock 3", "ended clock 1"] {
            assert!(!ends || verdicts[0].1.contains(words), "{verdicts:?} lacks {words:?}");
        }
    }
}

#[test]
fn a_first_clock_counts_only_while_another_worker_is_ahead() {
    let limit = LivenessLimits { first_clock: Some(Span::from_secs(30)), ..LivenessLimits::of(TIMEOUT) };
    // (the clock of worker 0, whether the program of worker 1 waits; the workers given up at 40 s)
    let cases = [(0, false, vec![]), (3, false, vec![W1, W2]), (3, true, vec![W2])];
    for (clock, waits, given_up) in cases {
        let mut run = Run::new();
        run.liveness.set_limits(limit);
        for second in 1..=40 {
            run.hear_all(second, second, &[W0]);
            run.hear(W0, clock, second as f64);
            if waits {
                run.report(
                    W1,
                    &NodeReport { blocked: Some(Span::from_secs(1)), ..NodeReport::default() },
                    second as f64,
                );
            }
        }
        assert_eq!(run.given_up(40.0), given_up, "clock {clock}, waits: {waits}");
    }
}

#[test]
fn a_long_clock_is_reported_each_time_it_has_doubled_and_given_up_only_with_a_limit() {
    for (limit, last) in [(None, 200), (Some(Span::from_secs(60)), 60)] {
        let mut run = Run::new();
        run.liveness.set_limits(LivenessLimits { clock: limit, first_clock: None, ..LivenessLimits::of(TIMEOUT) });
        let mut reported = Vec::new();
        for second in 1..=200 {
            run.hear_all(second, second, &[W0, W1, W2]);
            run.hear(W0, 1, second as f64);
            run.hear(W1, second, second as f64);
            run.hear(W2, second, second as f64);
            if !run.given_up(second as f64).is_empty() {
                assert_eq!(run.given_up(second as f64), [W0]);
                assert_eq!(second, last + 2, "it began its clock at second 1");
                break;
            }
            let Run { settings, members, barriers, plans, placement, tables, liveness } = &mut run;
            let [now, span] = [second, 3].map(|seconds| Time(seconds * 1_000_000_000));
            let view = LivenessView {
                now,
                settings,
                members,
                barriers,
                plans,
                placement,
                tables,
                notice_after: Span(span.0),
                ask_again: Span(span.0),
            };
            reported.extend(liveness.long_clocks(&view).into_iter().map(|(node, clock, _)| (node, clock.0, second)));
        }
        let expected = [(W0, 1, 31), (W0, 1, 61), (W0, 1, 121)];
        assert_eq!(reported, expected[..if limit.is_some() { 2 } else { 3 }]);
    }
}

#[test]
fn time_in_which_the_coordinator_did_not_run_counts_against_no_node() {
    let mut run = barrier_against_read(2, Some(Span::from_secs(1)));
    run.report(W0, &silent(&[(S1, 5)]), 5.0);
    assert_eq!(run.given_up(5.0), []);
    run.liveness.forgive(at(100.0));
    for node in run.members.everybody() {
        run.hear(node, 0, 100.0);
    }
    assert_eq!(run.given_up(100.0), []);
    assert_eq!(run.liveness.in_clock(W2, at(100.0)), Some(Span::from_secs(99)));
}
