//! How a server adopts a plan: it holds the shards that the plan gives it, each in the server's
//! role in the chain. As the new head of a shard, it answers once every server has adopted the
//! plan.

use super::Server;
use crate::follow::replica::peers::ChainRole;
use crate::shard::{ShardContext, make};
use types::{Clock, NodeId, Placed, Plan, ShardId, TableId, TableSpec};
use wire::{Control, Frame, Head, Message, Outbox};

impl Server {
    /// Every server has adopted the plan, so no other one answers for this server's shards: shards
    /// that waited for that start to answer.
    fn enact(&mut self, out: &mut Outbox) {
        let holds = self.holds_lease();
        for name in self.roles.enact() {
            self.touched.push(name);
            if let Some(shard) = self.shards.get_mut(&name) {
                shard.answer(holds, out);
            }
        }
    }

    /// Adopts a plan, unless it is older than the present one. Tells the coordinator the plan it
    /// has and the highest frontier of its shards.
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
                // Placing cannot fail: the table was made with this spec before.
                self.place(table, &spec, out).ok();
            }
            let chains = self.plan.chains.clone();
            let node = self.node;
            let has_role =
                |shard: ShardId| chains.get(shard.0 as usize).is_some_and(|chain| ChainRole::of(chain, node).is_some());
            self.drop_shards(|(_, shard)| !has_role(shard));
            self.answer_added(out);
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

    /// Makes a table with this spec, or returns why it cannot.
    pub(super) fn add_table(&mut self, table: TableId, spec: &TableSpec, out: &mut Outbox) -> Result<(), String> {
        codec::check_spec(spec).map_err(|error| error.to_string())?;
        self.place(table, spec, out)?;
        self.tables.insert(table, spec.clone());
        Ok(())
    }

    /// Makes the shards of a table that the plan gives this server, and sets the role of each in
    /// its chain.
    fn place(&mut self, table: TableId, spec: &TableSpec, out: &mut Outbox) -> Result<(), String> {
        for (placed, chain) in self.plan.shards(spec.shape).into_iter().zip(&self.plan.chains) {
            let Some(role) = ChainRole::of(chain, self.node) else { continue };
            let NodeId::Server(index) = self.node else { continue };
            let name = (table, placed.shard);
            if !self.shards.contains_key(&name) {
                let context = ShardContext {
                    plan: &self.plan,
                    registry: &self.registry,
                    pool: &self.pool,
                    list_bytes: self.list_bytes,
                    stopwatch: self.stopwatch,
                    piece_bytes: self.work.piece_bytes(),
                };
                let shard = make(Placed { owner: self.node, ..placed }, table, spec, &context);
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
                self.work.note(name, shard.has_work());
            }
        }
        Ok(())
    }
}
