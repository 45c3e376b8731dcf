//! Where slices are in the beginning, and what becomes of that when servers come, go, or hold more than they did.

use super::balance::ShardLayout;
use super::{Coordinator, Membership, MembershipEvent};
use types::{Chain, NodeId, PlanNumber, ShardId, TableId};

/// Below this many bytes a server, what is held unevenly is not worth moving.
const WORTH_MOVING: u64 = 1 << 20;

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
        let slices = self.slices();
        let copies = (self.copies() as u32).min(servers);
        let chain = |slice: u32| {
            let head = (u64::from(slice) * u64::from(servers) / u64::from(slices)) as u32;
            Chain { replicas: (0..copies).map(|copy| (head + copy) % servers).collect(), backfilling: Vec::new() }
        };
        (0..slices).map(chain).collect()
    }

    /// Servers that take part and are not about to leave, in order.
    pub(super) fn staying(&self) -> Vec<u32> {
        let stays = |(node, member): (&NodeId, &super::MemberRecord)| match node {
            NodeId::Server(index) if member.takes_part() && !member.leaving => Some(*index),
            _ => None,
        };
        self.members.iter().filter_map(stays).collect()
    }

    /// Has something done with where slices are, which says whether that changes anything.
    fn lay_out(&mut self, change: impl FnOnce(&mut ShardLayout<'_>) -> bool) {
        if self.is_over() {
            // Servers leave, each by itself, and nobody is to take their place.
            return;
        }
        let (servers, copies) = (self.staying(), self.copies());
        let mut layout = ShardLayout { chains: &mut self.chains, bytes: &self.bytes, servers: &servers, copies };
        self.changed |= change(&mut layout);
        self.touched |= self.changed;
    }

    /// Whether there is another whole copy of everything that a server holds.
    pub(super) fn has_copies(&self, server: u32) -> bool {
        self.chains.iter().all(|chain| chain.replicas.iter().any(|member| *member != server))
    }

    /// A server is gone: its slices are their other copies'.
    pub(super) fn remove_server(&mut self, server: u32) {
        for chain in &mut self.chains {
            chain.replicas.retain(|member| *member != server);
            chain.backfilling.retain(|member| *member != server);
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
        let whole = self.chains.iter().all(|chain| chain.replicas.len() >= copies && chain.backfilling.is_empty());
        if whole && !std::mem::replace(&mut self.is_whole, true) {
            let what = format!("has its copies: every slice is held by {copies} servers");
            self.news.push(MembershipEvent { node: NodeId::Coordinator, what });
        }
        self.is_whole = whole;
    }

    /// Fills new copies where there are fewer than there should be and servers that could hold them.
    pub(super) fn repair(&mut self) {
        self.note_copies();
        self.lay_out(|layout| layout.repair());
    }

    /// A server has come: it is filled with its share.
    pub(super) fn rebalance(&mut self) {
        self.lay_out(|layout| layout.share_out());
    }

    /// A server says how many bytes the slices have that it answers for. Where servers have come to hold far more than others, some of it
    /// is moved, in times in which nothing else is.
    pub(super) fn heard_bytes(&mut self, slices: &[(ShardId, u64)]) {
        self.bytes.resize(self.chains.len(), 0);
        for (slice, bytes) in slices {
            if let Some(known) = self.bytes.get_mut(slice.0 as usize) {
                *known = *bytes;
            }
        }
        let steady = self.adoption.is_none() && !self.changed && self.untold.is_empty() && self.is_settled();
        let (servers, copies) = (self.staying(), self.copies());
        let worth = self.bytes.iter().sum::<u64>() * copies as u64 >= WORTH_MOVING * servers.len() as u64;
        let in_time = self.now.since(self.leveled) >= self.levels_after();
        if !steady || !worth || !in_time || self.membership == Membership::Fixed {
            return;
        }
        self.lay_out(|layout| layout.is_uneven() && layout.share_out());
        self.leveled = if self.changed { self.now } else { self.leveled };
    }

    /// Whether nothing is being filled, and nobody is about to leave.
    fn is_settled(&self) -> bool {
        self.chains.iter().all(|chain| chain.backfilling.is_empty())
            && !self.members.values().any(|member| member.leaving && !member.gone)
    }

    /// A copy holds all of a table's slice. When it does of every table, it is part of the chain.
    pub(super) fn filled(&mut self, table: TableId, shard: ShardId, server: u32, plan: PlanNumber) {
        let slices = self.chains.len();
        let fills = self.chains.get(shard.0 as usize).is_some_and(|chain| chain.backfilling.contains(&server));
        if plan != self.plan.number || self.adoption.is_some() || !fills {
            return;
        }
        let filled = self.filled.entry((shard.0, server)).or_default();
        filled.insert(table);
        let tables = self.tables.values().filter(|table| table.problem.is_none()).map(|table| table.slices(slices));
        if !tables.filter(|(_, slices)| *slices > shard.0 as usize).all(|(table, _)| filled.contains(&table)) {
            return;
        }
        self.complete(shard.0 as usize, server);
    }

    fn complete(&mut self, slice: usize, server: u32) {
        self.lay_out(|layout| {
            layout.complete(slice, server);
            true
        });
    }

    /// Copies of slices that no table has are whole as they are. No table is made before the plan that says so is adopted.
    pub(super) fn fill_what_is_empty(&mut self) {
        let slices = self.chains.len();
        let first = self.tables.values().map(|table| table.slices(slices).1).max().unwrap_or(0);
        for slice in first..slices {
            for server in self.chains[slice].backfilling.clone() {
                self.complete(slice, server);
            }
        }
        self.changed = false;
    }
}
