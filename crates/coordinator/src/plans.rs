//! Plans: made when somebody comes or goes, adopted by every server first, and then told to the
//! workers.

use super::{Coordinator, MemberRecord, Membership};
use std::collections::BTreeSet;
use types::{Clock, NodeId, Plan, PlanNumber, Source, Time, serving_lease};
use wire::{Control, Member, Outbox};

/// A plan on its way to the servers. Workers hear of it when all of them go by it, so that none is
/// asked for what it does not know.
pub(super) struct Adoption {
    pub waiting: BTreeSet<NodeId>,
    /// The highest frontier of any shard: where those begin who are new.
    pub frontier: Clock,
    /// When it was said, and whether it was said again since: then an answer does not tell how long
    /// it took.
    pub asked: Time,
    pub again: bool,
}

impl Adoption {
    pub fn new(waiting: BTreeSet<NodeId>, asked: Time) -> Self {
        Self { waiting, frontier: Clock(0), asked, again: false }
    }
}

impl Coordinator {
    /// The plan in force.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(super) fn members(&self) -> Vec<Member> {
        let present = self.members.iter().filter(|(_, member)| !member.gone);
        present.map(|(node, member)| Member { node: *node, address: member.address.clone() }).collect()
    }

    /// Workers that count, by rank.
    pub(super) fn seated_workers(&self) -> Vec<Option<Source>> {
        let mut workers = Vec::new();
        for (node, member) in &self.members {
            let NodeId::Worker(rank) = node else { continue };
            if workers.len() <= *rank as usize {
                workers.resize(*rank as usize + 1, None);
            }
            workers[*rank as usize] =
                (!member.gone && (member.ready || member.since.is_some())).then_some(member.source);
        }
        workers
    }

    /// Makes the next plan, if somebody came or went and the one before is adopted: those who
    /// change together are one plan.
    pub(super) fn replan(&mut self, out: &mut Outbox) {
        if !self.begun || !self.changed || self.adoption.is_some() {
            return;
        }
        (self.changed, self.touched) = (false, true);
        self.fill_what_is_empty();
        self.plan.number = PlanNumber(self.plan.number.0 + 1);
        self.plan.workers = self.seated_workers();
        self.plan.chains = self.chains.clone();
        self.backfilled.clear();
        let waiting: BTreeSet<NodeId> = self.live_servers().collect();
        self.untold.clear();
        self.adoption = Some(Adoption::new(waiting, self.now));
        self.say_plan(out);
        self.adopt_if_all(out);
    }

    /// Says the plan to whoever has not adopted it.
    pub(super) fn say_plan(&self, out: &mut Outbox) {
        let members = self.members();
        let waiting = self.adoption.iter().flat_map(|adoption| &adoption.waiting).map(|node| (*node, false));
        for (node, enacted) in waiting.chain(self.untold.iter().map(|node| (*node, true))) {
            let (plan, members) = (self.plan.clone(), members.clone());
            Self::say(node, Control::Adopt { plan, members, enacted }, out);
        }
    }

    pub(super) fn adopted(
        &mut self,
        from: NodeId,
        number: PlanNumber,
        enacted: bool,
        frontier: Clock,
        out: &mut Outbox,
    ) {
        if number != self.plan.number {
            return;
        }
        if enacted {
            self.untold.remove(&from);
        }
        if let Some(adoption) = &mut self.adoption
            && adoption.waiting.remove(&from)
        {
            adoption.frontier = adoption.frontier.max(frontier);
            if !adoption.again {
                self.answers.observe(self.now.since(adoption.asked));
            }
        }
        self.heard_frontier(frontier);
        self.adopt_if_all(out);
    }

    fn adopt_if_all(&mut self, out: &mut Outbox) {
        let Some(adoption) = self.adoption.take_if(|adoption| adoption.waiting.is_empty()) else { return };
        self.untold.extend(self.live_servers().collect::<Vec<_>>());
        for (worker, source) in self.plan.live_workers().collect::<Vec<_>>() {
            let node = NodeId::from(worker);
            let Some(member) = self.members.get_mut(&node).filter(|member| member.source == source && !member.gone)
            else {
                continue;
            };
            match member.since {
                Some(_) => {
                    self.untold.insert(node);
                }
                None => {
                    member.since = Some(adoption.frontier);
                    self.present += 1;
                    self.begin(node, out);
                    self.tell_tables(node, out);
                }
            }
        }
        self.say_plan(out);
        self.make_deferred(out);
        self.repair();
        self.replan(out);
    }

    /// Servers that have not adopted the plan.
    pub(super) fn adopting(&self) -> Vec<NodeId> {
        self.adoption.iter().flat_map(|adoption| &adoption.waiting).copied().collect()
    }

    /// The first plan, when everybody is there.
    pub(super) fn begin_run(&mut self, out: &mut Outbox) {
        self.begun = true;
        self.present = self.size.workers as usize;
        self.chains = self.first_chains();
        self.plan = Plan { number: PlanNumber(1), chains: self.chains.clone(), workers: self.seated_workers() };
        let first = self.first_clock();
        self.members.values_mut().for_each(|member| member.since = Some(first));
        self.members.keys().for_each(|node| self.begin(*node, out));
    }

    pub(super) fn begin(&self, to: NodeId, out: &mut Outbox) {
        let Some(clock) = self.members.get(&to).and_then(|member: &MemberRecord| member.since) else { return };
        let (plan, members, barriers) = (self.plan.clone(), self.members(), self.passed);
        let serving_lease = (self.membership != Membership::Static).then_some(serving_lease(self.failure_timeout));
        Self::say(to, Control::Begin { plan, members, clock, barriers, serving_lease }, out);
    }
}
