//! Which servers hold which slices: copies are made where some are missing, and a server that comes gets its share.
//!
//! Slices are the virtual nodes of consistent hashing: each server has a preference for each of them, by a hash of both. Whoever needs
//! slices takes those that it prefers from servers that have more than their share, so that nothing else moves.

use super::{Coordinator, Membership, News};
use std::collections::BTreeMap;
use types::{Chain, NodeId, PlanNumber, ShardId, TableId};

impl Coordinator {
    pub(super) fn copies(&self) -> usize {
        match self.membership {
            Membership::Fixed => 1,
            Membership::Open { copies, .. } => copies.max(1) as usize,
        }
    }

    /// Neighbouring slices on each server, and their copies on the servers after it.
    pub(super) fn first_chains(&self) -> Vec<Chain> {
        let servers = self.size.servers;
        let slices = match self.membership {
            Membership::Fixed => servers,
            Membership::Open { slices, .. } => servers * slices.max(1),
        };
        let copies = (self.copies() as u32).min(servers);
        let chain = |slice: u32| {
            let head = (u64::from(slice) * u64::from(servers) / u64::from(slices)) as u32;
            Chain { whole: (0..copies).map(|copy| (head + copy) % servers).collect(), filling: Vec::new() }
        };
        (0..slices).map(chain).collect()
    }

    fn server_indices(&self) -> Vec<u32> {
        let index = |node: NodeId| if let NodeId::Server(index) = node { Some(index) } else { None };
        let takes_part = |node: &NodeId| self.seats.get(node).is_some_and(|seat| seat.since.is_some());
        self.live_servers().filter(takes_part).filter_map(index).collect()
    }

    /// How many slices each server holds, or is to.
    fn loads(&self) -> BTreeMap<u32, usize> {
        let mut loads: BTreeMap<u32, usize> = self.server_indices().into_iter().map(|server| (server, 0)).collect();
        for server in self.chains.iter().flat_map(|chain| chain.whole.iter().chain(&chain.filling)) {
            if let Some(load) = loads.get_mut(server) {
                *load += 1;
            }
        }
        loads
    }

    /// Whether there is another whole copy of everything that a server holds.
    pub(super) fn has_copies(&self, server: u32) -> bool {
        self.chains.iter().all(|chain| chain.whole.iter().any(|member| *member != server))
    }

    /// A server is gone: its slices are their other copies'.
    pub(super) fn remove_server(&mut self, server: u32) {
        for chain in &mut self.chains {
            chain.whole.retain(|member| *member != server);
            chain.filling.retain(|member| *member != server);
        }
        self.untold.remove(&NodeId::Server(server));
        // Whatever plan was on its way names somebody who is not there to adopt it.
        self.adoption = None;
        self.changed = true;
        self.repair();
    }

    /// Says so when everything has as many copies as it should, and had not.
    fn note_copies(&mut self) {
        let copies = self.copies();
        let whole = self.chains.iter().all(|chain| chain.whole.len() >= copies && chain.filling.is_empty());
        if whole && !std::mem::replace(&mut self.is_whole, true) {
            let what = format!("has its copies: every slice is held by {copies} servers");
            self.news.push(News { node: NodeId::Coordinator, what });
        }
        self.is_whole = whole;
    }

    /// Fills new copies where there are fewer than there should be and servers that could hold them.
    pub(super) fn repair(&mut self) {
        self.note_copies();
        let copies = self.copies();
        let mut loads = self.loads();
        for slice in 0..self.chains.len() {
            let chain = &self.chains[slice];
            if chain.whole.len() + chain.filling.len() >= copies.min(loads.len()) {
                continue;
            }
            let free = loads.iter().filter(|(server, _)| !chain.holds(**server));
            let Some(server) = free.min_by_key(|(server, load)| (**load, preference(slice, **server))).map(|(s, _)| *s)
            else {
                continue;
            };
            *loads.entry(server).or_default() += 1;
            self.chains[slice].filling.push(server);
            self.changed = true;
        }
    }

    /// A server has come: it is filled with its share, of the slices that it prefers among those of servers that have more than theirs.
    pub(super) fn rebalance(&mut self) {
        let loads = self.loads();
        let total: usize = loads.values().sum();
        let share = total / loads.len().max(1);
        let mut loads = loads;
        for server in self.server_indices() {
            let mut slices: Vec<usize> = (0..self.chains.len()).collect();
            slices.sort_by_key(|slice| preference(*slice, server));
            for slice in slices {
                if loads[&server] >= share {
                    break;
                }
                let chain = &self.chains[slice];
                let from = chain.whole.iter().filter(|member| loads.get(member).is_some_and(|load| *load > share));
                let Some(from) = from.max_by_key(|member| loads[member]).copied() else { continue };
                if chain.holds(server) || !chain.filling.is_empty() {
                    continue;
                }
                *loads.entry(server).or_default() += 1;
                *loads.entry(from).or_default() -= 1;
                self.chains[slice].filling.push(server);
                self.changed = true;
            }
        }
    }

    /// A copy holds all of a table's slice. When it does of every table, it is part of the chain.
    pub(super) fn filled(&mut self, table: TableId, shard: ShardId, server: u32, plan: PlanNumber) {
        let slices = self.chains.len();
        let fills = self.chains.get(shard.0 as usize).is_some_and(|chain| chain.filling.contains(&server));
        if plan != self.plan.number || self.adoption.is_some() || !fills {
            return;
        }
        let filled = self.filled.entry((shard.0, server)).or_default();
        filled.insert(table);
        let tables = self.tables.values().map(|table| table.slices(slices));
        if !tables.filter(|(_, slices)| *slices > shard.0 as usize).all(|(table, _)| filled.contains(&table)) {
            return;
        }
        let loads = self.loads();
        let copies = self.copies();
        let chain = &mut self.chains[shard.0 as usize];
        chain.filling.retain(|member| *member != server);
        // Behind the tail, which it was filled from: whoever comes before has whatever those after it have.
        chain.whole.push(server);
        while chain.whole.len() > copies {
            let loaded = chain.whole.iter().filter(|member| **member != server).max_by_key(|member| loads.get(member));
            let Some(loaded) = loaded.copied() else { break };
            chain.whole.retain(|member| *member != loaded);
        }
        self.changed = true;
    }
}

/// How much a server wants a slice: the least first.
fn preference(slice: usize, server: u32) -> u64 {
    let mut bits = (slice as u64) << 32 | u64::from(server);
    bits = (bits ^ bits >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ bits >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits ^ bits >> 32
}
