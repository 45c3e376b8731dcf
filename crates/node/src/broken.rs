//! Nodes whose connections to the coordinator broke, and which of them have ended.
//!
//! A broken connection is not a lost node: a node that lives calls again after
//! [`CALL_AGAIN`](crate::contact::CALL_AGAIN), and repeats that until it is heard. A process has
//! ended if its host refuses to be called and it was not heard for the time that it had to call
//! again. Calls to an ended process that fail do not prolong that time.

use crate::contact::CALL_AGAIN;
use crate::probe::Probes;
use coordinator::Membership;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use types::NodeId;

/// How often a node of a static run can call again before its host is believed: nobody calls
/// workers there, so their hosts may refuse to be called. An elastic run believes at once, because
/// a failover waits for it.
const CALLS: u32 = 10;

/// The nodes that were not heard since a connection to them broke.
pub(crate) struct BrokenConnections {
    probes: Probes,
    /// When the first connection to each broke, or the first call failed, since it was last heard.
    since: BTreeMap<NodeId, Instant>,
    /// Nodes whose hosts refuse to be called.
    refused: BTreeSet<NodeId>,
    /// How long a node has to call again.
    may_call_again: Duration,
}

impl BrokenConnections {
    /// No broken connections yet.
    pub fn new(membership: Membership, failure_timeout: Duration) -> Self {
        let may_call_again = match membership {
            Membership::Static => CALL_AGAIN * CALLS,
            Membership::Elastic { .. } => Duration::ZERO,
        };
        let probes = Probes::within(failure_timeout);
        Self { probes, since: BTreeMap::new(), refused: BTreeSet::new(), may_call_again }
    }

    /// Takes in that a connection to `node` broke, or that a call to it failed. Asks its host
    /// whether the process that listened at `address` has ended.
    pub fn broke(&mut self, now: Instant, node: NodeId, address: Option<&str>) {
        self.since.entry(node).or_insert(now);
        let address = address.filter(|_| !self.refused.contains(&node) && !self.probes.asks_for(node));
        if let Some(address) = address {
            self.probes.ask(node, address);
        }
    }

    /// Takes in that `node` was heard: it lives, though its host may refuse to be called.
    pub fn heard(&mut self, node: NodeId) {
        if self.since.remove(&node).is_some() {
            self.refused.remove(&node);
        }
    }

    /// Whether `node` was not heard since a connection to it broke.
    pub fn contains(&self, node: NodeId) -> bool {
        self.since.contains_key(&node)
    }

    /// Takes the nodes whose processes have ended.
    pub fn take_ended(&mut self, now: Instant) -> Vec<NodeId> {
        let refused = self.probes.take_ended();
        // A node that was heard meanwhile lives.
        self.refused.extend(refused.into_iter().filter(|node| self.since.contains_key(node)));
        let may_call_again = self.may_call_again;
        let has_ended = |node: &NodeId| {
            self.since.get(node).is_some_and(|since| now.saturating_duration_since(*since) >= may_call_again)
        };
        let ended: Vec<NodeId> = self.refused.iter().copied().filter(has_ended).collect();
        self.refused.retain(|node| !ended.contains(node));
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const WORKER: NodeId = NodeId::Worker(1);
    const LIMIT: Duration = Duration::from_secs(30);

    fn of_static_run() -> BrokenConnections {
        BrokenConnections::new(Membership::Static, LIMIT)
    }

    /// An address that refuses to be called.
    fn nowhere() -> String {
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").to_string()
    }

    /// Waits until all hosts that were asked have answered.
    fn wait_for_answers(broken: &mut BrokenConnections, start: Instant) {
        let begin = Instant::now();
        while broken.probes.asks_for(WORKER) {
            assert!(begin.elapsed() < LIMIT, "the host answers");
            assert!(broken.take_ended(start).is_empty());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The coordinator called it in vain while tables were made: the run ended after 2 s.
    #[test]
    fn calls_that_fail_do_not_prolong_the_wait_for_an_ended_process() {
        let mut broken = of_static_run();
        let address = nowhere();
        let start = Instant::now();
        broken.broke(start, WORKER, Some(&address));
        wait_for_answers(&mut broken, start);
        let at = |calls: u32| start + CALL_AGAIN * calls;
        for calls in 1..CALLS {
            broken.broke(at(calls), WORKER, Some(&address));
            assert_eq!(broken.take_ended(at(calls)), [], "after {calls} calls");
        }
        assert_eq!(broken.take_ended(at(CALLS)), [WORKER]);
        assert_eq!(broken.take_ended(at(2 * CALLS)), [], "it is named once");
        assert!(broken.contains(WORKER));
    }

    #[test]
    fn node_that_calls_again_in_time_lives_though_its_host_refuses() {
        let mut broken = of_static_run();
        let address = nowhere();
        let start = Instant::now();
        let at = |calls: u32| start + CALL_AGAIN * calls;
        for round in 0..3 {
            let broke = round * CALLS;
            broken.broke(at(broke), WORKER, Some(&address));
            wait_for_answers(&mut broken, at(broke));
            assert_eq!(broken.take_ended(at(broke + CALLS - 1)), []);
            broken.heard(WORKER);
            assert!(!broken.contains(WORKER));
            assert_eq!(broken.take_ended(at(broke + CALLS)), []);
        }
    }

    #[test]
    fn elastic_run_believes_a_host_at_once() {
        let mut broken = BrokenConnections::new(Membership::Elastic { replicas: 1, shards_per_server: 1 }, LIMIT);
        let start = Instant::now();
        broken.broke(start, WORKER, Some(&nowhere()));
        while !broken.take_ended(start).contains(&WORKER) {
            assert!(start.elapsed() < LIMIT, "the host answers");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn node_whose_host_accepts_calls_lives() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let mut broken = of_static_run();
        let start = Instant::now();
        broken.broke(start, WORKER, Some(&address));
        wait_for_answers(&mut broken, start);
        assert_eq!(broken.take_ended(start + LIMIT), []);
        drop(listener);
        // The next failed call asks again.
        broken.broke(start, WORKER, Some(&address));
        wait_for_answers(&mut broken, start);
        assert_eq!(broken.take_ended(start + LIMIT), [WORKER]);
    }
}
