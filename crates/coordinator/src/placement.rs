//! Where shards are in the beginning, and what becomes of that when servers come, go, or hold more
//! than they did.

use super::balance::ShardLayout;
use super::{Coordinator, Membership, MembershipEvent};
use types::{Chain, NodeId, PlanNumber, ShardId, TableId};

/// Below this many bytes a server, what is held unevenly is not worth moving.
const WORTH_MOVING: u64 = 1 << 20;

impl Coordinator {
    pub(super) fn replicas(&self) -> usize {
        match self.membership {
            Membership::Static => 1,
            Membership::Elastic { replicas, .. } => replicas.max(1) as usize,
        }
    }

    /// Neighbouring shards on each server, and their replicas on the servers after it.
    pub(super) fn first_chains(&self) -> Vec<Chain> {
        let servers = self.size.servers;
        let shards = self.shards();
        let replicas = (self.replicas() as u32).min(servers);
        let chain = |shard: u32| {
            let head = (u64::from(shard) * u64::from(servers) / u64::from(shards)) as u32;
            Chain {
                replicas: (0..replicas).map(|replica| (head + replica) % servers).collect(),
                backfilling: Vec::new(),
            }
        };
        (0..shards).map(chain).collect()
    }

    /// Servers that take part and are not about to leave, in order.
    pub(super) fn staying(&self) -> Vec<u32> {
        let stays = |(node, member): (&NodeId, &super::MemberRecord)| match node {
            NodeId::Server(index) if member.takes_part() && !member.leaving => Some(*index),
            NodeId::Server(_) | NodeId::Worker(_) | NodeId::Coordinator => None,
        };
        self.members.iter().filter_map(stays).collect()
    }

    /// Has something done with where shards are, which says whether that changes anything.
    fn lay_out(&mut self, change: impl FnOnce(&mut ShardLayout<'_>) -> bool) {
        if self.is_over() {
            // Servers leave, each by itself, and nobody is to take their place.
            return;
        }
        let (servers, replicas) = (self.staying(), self.replicas());
        let mut layout = ShardLayout { chains: &mut self.chains, bytes: &self.bytes, servers: &servers, replicas };
        self.changed |= change(&mut layout);
        self.touched |= self.changed;
    }

    /// Whether every shard that a server holds has a complete replica on another server.
    pub(super) fn has_replicas(&self, server: u32) -> bool {
        self.chains.iter().all(|chain| chain.replicas.iter().any(|member| *member != server))
    }

    /// A server is gone: the other replicas of its shards take over.
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

    /// Reports it when every shard has all of its replicas again.
    fn note_replicas(&mut self) {
        let replicas = self.replicas();
        let whole = self.chains.iter().all(|chain| chain.replicas.len() >= replicas && chain.backfilling.is_empty());
        if whole && !std::mem::replace(&mut self.is_whole, true) {
            let what = format!("has its replicas: every shard is held by {replicas} servers");
            self.events.push(MembershipEvent { node: NodeId::Coordinator, what });
        }
        self.is_whole = whole;
    }

    /// Places new replicas where a shard has too few and there are servers that can hold them.
    pub(super) fn repair(&mut self) {
        self.note_replicas();
        self.lay_out(|layout| layout.repair());
    }

    /// A server has joined: it gets its share of replicas.
    pub(super) fn rebalance(&mut self) {
        self.lay_out(|layout| layout.share_out());
    }

    /// A server reports the bytes of the shards that it answers for. Where some servers hold far
    /// more than others, shards are moved, but only while nothing else moves.
    pub(super) fn heard_bytes(&mut self, shards: &[(ShardId, u64)]) {
        self.bytes.resize(self.chains.len(), 0);
        for (shard, bytes) in shards {
            if let Some(known) = self.bytes.get_mut(shard.0 as usize) {
                *known = *bytes;
            }
        }
        let steady = self.adoption.is_none() && !self.changed && self.untold.is_empty() && self.is_settled();
        let (servers, replicas) = (self.staying(), self.replicas());
        let worth = self.bytes.iter().sum::<u64>() * replicas as u64 >= WORTH_MOVING * servers.len() as u64;
        let in_time = self.now.since(self.leveled) >= self.levels_after();
        if !steady || !worth || !in_time || self.membership == Membership::Static {
            return;
        }
        self.lay_out(|layout| layout.is_uneven() && layout.share_out());
        self.leveled = if self.changed { self.now } else { self.leveled };
    }

    /// Whether no replica is being backfilled, and no node is about to leave.
    fn is_settled(&self) -> bool {
        self.chains.iter().all(|chain| chain.backfilling.is_empty())
            && !self.members.values().any(|member| member.leaving && !member.gone)
    }

    /// A replica is backfilled with one table's shard. Once it is for every table, it joins the
    /// chain.
    pub(super) fn backfilled(&mut self, table: TableId, shard: ShardId, server: u32, plan: PlanNumber) {
        let shards = self.chains.len();
        let fills = self.chains.get(shard.0 as usize).is_some_and(|chain| chain.backfilling.contains(&server));
        if plan != self.plan.number || self.adoption.is_some() || !fills {
            return;
        }
        let backfilled = self.backfilled.entry((shard.0, server)).or_default();
        backfilled.insert(table);
        let tables = self.tables.values().filter(|table| table.problem.is_none()).map(|table| table.shards(shards));
        if !tables.filter(|(_, shards)| *shards > shard.0 as usize).all(|(table, _)| backfilled.contains(&table)) {
            return;
        }
        self.complete(shard.0 as usize, server);
    }

    fn complete(&mut self, shard: usize, server: u32) {
        self.lay_out(|layout| {
            layout.complete(shard, server);
            true
        });
    }

    /// Replicas of shards that no table has need no backfill. No table is made before the plan that
    /// says so is adopted.
    pub(super) fn fill_what_is_empty(&mut self) {
        let shards = self.chains.len();
        let first = self.tables.values().map(|table| table.shards(shards).1).max().unwrap_or(0);
        for shard in first..shards {
            for server in self.chains[shard].backfilling.clone() {
                self.complete(shard, server);
            }
        }
        self.changed = false;
    }
}
