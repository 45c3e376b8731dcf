//! Links that are down between two nodes which both reach the coordinator: a node reports each peer
//! from which an answer is due and that it has not heard. Which node goes is decided by the list at
//! [`choose`].

use std::collections::{BTreeMap, BTreeSet};
use types::{NodeId, Plan, Span, Time};

/// The silent peers of every node, since when.
#[derive(Default)]
pub(super) struct SilentLinks {
    /// By the node that reports, and its peer.
    silent: BTreeMap<(NodeId, NodeId), Time>,
}

impl SilentLinks {
    /// A node reports all of its silent peers, and for how long it has not heard each.
    pub fn report(&mut self, node: NodeId, peers: &[(NodeId, Span)], now: Time) {
        self.silent.retain(|(reporter, _), _| *reporter != node);
        let since = |span: Span| Time(now.0.saturating_sub(span.0));
        self.silent.extend(peers.iter().map(|(peer, span)| ((node, *peer), since(*span))));
    }

    /// Forgets a node that has left, and what others report of it.
    pub fn forget(&mut self, node: NodeId) {
        self.silent.retain(|(one, other), _| *one != node && *other != node);
    }

    /// The node that reports, its silent peer, and since when.
    pub fn silent(&self) -> impl Iterator<Item = (NodeId, NodeId, Time)> + '_ {
        self.silent.iter().map(|((one, other), since)| (*one, *other, *since))
    }
}

/// The node to give up because of links that are down, and the peers that it does not reach. It is
/// a node of a link that is down for longer than the limit (`over`). `down` has these links and
/// those that are down for at least half as long: nodes notice one cause at different times. The
/// rules, in order:
///
/// 1. The node with the most links that are down goes.
/// 2. A node that the run can do without goes before one that it needs.
/// 3. A worker goes before a server.
/// 4. Of two servers, the later one of their chain goes: every replica holds what its successors
///    hold.
/// 5. The node with the highest number goes.
pub(super) fn choose(
    over: &[(NodeId, NodeId)],
    down: &[(NodeId, NodeId)],
    plan: &Plan,
    can_spare: &dyn Fn(NodeId) -> bool,
) -> Option<(NodeId, Vec<NodeId>)> {
    let mut peers: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
    for (one, other) in down {
        peers.entry(*one).or_default().insert(*other);
        peers.entry(*other).or_default().insert(*one);
    }
    let rank = |node: NodeId| {
        let down = peers.get(&node).map_or(0, BTreeSet::len);
        let behind = peers.get(&node).into_iter().flatten().filter(|peer| follows(plan, node, **peer)).count();
        (down, can_spare(node), matches!(node, NodeId::Worker(_)), behind, node)
    };
    let node = over.iter().flat_map(|(one, other)| [*one, *other]).max_by_key(|node| rank(*node))?;
    Some((node, peers.get(&node).into_iter().flatten().copied().collect()))
}

/// Whether a server comes after another in some chain of the plan, and never before it.
fn follows(plan: &Plan, server: NodeId, other: NodeId) -> bool {
    let (NodeId::Server(server), NodeId::Server(other)) = (server, other) else { return false };
    let places = plan.chains.iter().filter_map(|chain| {
        let place = |index: u32| chain.replicas.iter().chain(&chain.backfilling).position(|member| *member == index);
        Some((place(server)?, place(other)?))
    });
    let mut orders = places.map(|(mine, its)| mine > its);
    orders.next().is_some_and(|is_later| is_later && orders.all(|is_later| is_later))
}
