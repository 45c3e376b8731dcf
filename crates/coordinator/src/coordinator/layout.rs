//! Which server holds which shard: moves shards, and makes each new plan, has every server adopt
//! it, and enacts it.

use super::Coordinator;
use crate::placement::{Holders, Placement};
use types::{Clock, NodeId, PlanNumber};
use wire::{NodeReport, Outbox};

impl Coordinator {
    /// Changes the placement by `change`, which returns whether it did: then a new plan is due.
    pub(super) fn lay_out(&mut self, change: impl FnOnce(&mut Placement, &Holders) -> bool) {
        if self.members.is_over() {
            // Servers leave one by one, and none takes over shards of another.
            return;
        }
        let holders = Holders { staying: self.members.staying(), replicas: self.settings.replicas() };
        if change(&mut self.placement, &holders) {
            self.plans.request();
            self.touched = true;
        }
    }

    /// Adds replicas where a shard has too few. Notes an event when every shard has all of them
    /// again.
    pub(super) fn repair(&mut self) {
        let replicas = self.settings.replicas();
        if self.placement.is_whole_again(replicas) {
            self.unrepaired.clear();
            self.note(NodeId::Coordinator, &format!("has its replicas: every shard is held by {replicas} servers"));
        }
        self.lay_out(Placement::repair);
    }

    /// Takes a node's report. A server's report says how many bytes its shards have: shards may
    /// move by that while no other change of the plan is under way.
    pub(super) fn report(&mut self, from: NodeId, report: NodeReport) {
        if matches!(from, NodeId::Server(_)) && self.has_begun() {
            self.placement.hear_bytes(&report.shards);
            let is_quiet = self.plans.is_known_to_all() && self.members.leaving().next().is_none();
            if is_quiet && self.settings.is_elastic() {
                let now = self.now;
                let after = self.timeouts.levels_after();
                self.lay_out(|placement, holders| placement.level(now, after, holders));
            }
        }
        self.liveness.report(from, &report, self.now);
        self.members.report(from, report);
    }

    /// Makes the next plan, if one is due and the one before is adopted. Changes that come
    /// meanwhile are collected in one plan.
    pub(super) fn replan(&mut self, out: &mut Outbox) {
        if !self.has_begun() || !self.plans.may_make() {
            return;
        }
        self.touched = true;
        // Shards from this one on are in no table yet. No table is made before the plan is adopted,
        // so they stay empty until then and need no backfill.
        let first_empty = self.tables.most_shards(self.placement.chains().len());
        self.lay_out(|placement, holders| {
            placement.complete_empty(first_empty, holders);
            false
        });
        self.placement.forget_backfills();
        self.plans.make(self.now, self.placement.chains(), &self.members);
        self.plans.say(&self.members, out);
        self.enact(out);
    }

    /// Notes that a node has adopted a plan, or knows that the plan is enacted.
    pub(super) fn adopted(
        &mut self,
        from: NodeId,
        (number, enacted): (PlanNumber, bool),
        frontier: Clock,
        out: &mut Outbox,
    ) {
        if number != self.plan().number {
            return;
        }
        if let Some(took) = self.plans.adopted(self.now, from, enacted, frontier) {
            self.timeouts.observe_answer(took);
        }
        self.checkpoints.hear_frontier(frontier);
        self.enact(out);
    }

    /// Enacts the plan if every server has adopted it: tells every node, and lets workers that are
    /// new in it begin.
    fn enact(&mut self, out: &mut Outbox) {
        let Some(first) = self.plans.enact() else { return };
        self.plans.tell(self.members.live_servers());
        for (worker, source) in self.plan().live_workers().collect::<Vec<_>>() {
            let node = NodeId::from(worker);
            if !self.members.is_incarnation(node, source) {
                continue;
            }
            match self.members.first_clock(node) {
                Some(_) => self.plans.tell([node]),
                None => self.let_begin(node, first, out),
            }
        }
        self.plans.say(&self.members, out);
        for (from, spec) in self.tables.take_deferred() {
            self.make_table(from, spec, out);
        }
        self.repair();
        self.replan(out);
    }
}
