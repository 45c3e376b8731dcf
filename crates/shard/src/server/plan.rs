//! How a server adopts plans: it holds the shards that a plan gives it, in the role that it has in
//! each chain. It answers for a new shard only when every other server has adopted the plan, too.

use super::Server;
use crate::follow::replica::peers::ChainRole;
use crate::shard::{ShardContext, make};
use types::{Clock, NodeId, Placed, Plan, TableId, TableSpec};
use wire::{Control, Frame, Head, Message, Outbox};

impl Server {
    /// Every server goes by the plan: nobody else answers for the shards that are this server's.
    fn enact(&mut self, out: &mut Outbox) {
        let holds = self.holds_lease();
        for name in self.roles.enact() {
            self.touched.push(name);
            if let Some(shard) = self.shards.get_mut(&name) {
                shard.answer(holds, out);
            }
        }
    }

    /// Goes by another plan, unless it is an old one, and says how far its shards are.
    pub(super) fn adopt(&mut self, head: &Head, plan: Plan, enacted: bool, out: &mut Outbox) {
        let mut frontier = Clock(0);
        let is_new = plan.number > self.plan.number;
        if is_new {
            self.roles.begin_plan();
        }
        if plan.number == self.plan.number && enacted && !self.roles.is_enacted() {
            self.enact(out);
        }
        if plan.number >= self.plan.number {
            self.plan = plan;
            for (table, spec) in self.tables.clone() {
                // It was made once, so it can be.
                self.place(table, &spec, out).ok();
            }
            self.shards.retain(|(_, shard), _| {
                self.plan.chains.get(shard.0 as usize).is_some_and(|chain| ChainRole::of(chain, self.node).is_some())
            });
            self.roles.retain(|name| self.shards.contains_key(name));
            self.touched.extend(self.shards.keys().copied());
            for shard in self.shards.values_mut().filter(|shard| shard.is_head()) {
                frontier = frontier.max(shard.adopt(&self.plan, self.now, out));
            }
        }
        if is_new && enacted {
            self.enact(out);
        }
        let adopted = Control::Adopted { plan: self.plan.number, enacted: self.roles.is_enacted(), frontier };
        out.send(Frame { head: Head::plain(self.node, head.from), message: Message::Control(adopted) });
    }

    pub(super) fn add_table(&mut self, table: TableId, spec: &TableSpec, out: &mut Outbox) -> Result<(), String> {
        codec::check_spec(spec).map_err(|error| error.to_string())?;
        self.place(table, spec, out)?;
        self.tables.insert(table, spec.clone());
        Ok(())
    }

    /// Holds the shards of a table that the plan gives it, each in its role in the chain.
    fn place(&mut self, table: TableId, spec: &TableSpec, out: &mut Outbox) -> Result<(), String> {
        for (placed, chain) in self.plan.shards(spec.shape).into_iter().zip(&self.plan.chains) {
            let Some(role) = ChainRole::of(chain, self.node) else { continue };
            let NodeId::Server(index) = self.node else { continue };
            let name = (table, placed.shard);
            if !self.shards.contains_key(&name) {
                let (plan, registry, pool) = (&self.plan, &self.registry, &self.pool);
                let (list_bytes, stopwatch) = (self.list_bytes, self.stopwatch);
                let terms = ShardContext { plan, registry, pool, list_bytes, stopwatch };
                let shard = make(Placed { owner: self.node, ..placed }, table, spec, &terms);
                let mut shard = shard.map_err(|error| error.to_string())?;
                shard.answer(self.holds_lease(), out);
                if let Some((number, clock, last)) = self.checkpoint {
                    shard.checkpoint(number, clock, last);
                }
                self.shards.insert(name, shard);
            }
            if let Some(shard) = self.shards.get_mut(&name) {
                if self.roles.set(name, role.from.is_none()) {
                    shard.answer(false, out);
                }
                shard.take_part(self.plan.number, role, chain.replicas.contains(&index), self.now, out);
            }
        }
        Ok(())
    }
}
