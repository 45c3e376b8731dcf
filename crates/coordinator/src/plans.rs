//! Plans: every server adopts a plan first, then it is enacted, and then workers are told.
//!
//! Until all servers go by a plan, no worker hears of it: so none asks a server for what that does
//! not know. A new plan is made only when the one before is adopted.

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one message among others")]
mod tests;

use crate::members::Members;
use crate::placement::names_are_small;
use crate::saved::{self, MOST_COUNT, MOST_NODES};
use crate::say::say;
use std::collections::BTreeSet;
use types::{Chain, Clock, NodeId, Plan, PlanNumber, Span, Time};
use wire::{Control, Field, Outbox, Reader, WireError};

/// A plan on its way to the servers.
struct Adoption {
    /// Servers that do not go by it yet.
    waiting: BTreeSet<NodeId>,
    /// The highest frontier of any shard: where those begin who are new.
    frontier: Clock,
    asked: Time,
    /// Whether it was said again: then an answer does not tell how long it took.
    again: bool,
}

/// The plan in force or on its way, and who has yet to hear of it.
#[derive(Default)]
pub(crate) struct Plans {
    /// The last that was made.
    plan: Plan,
    /// Whether a node has come or gone, or a shard is to move, since the plan was made.
    is_due: bool,
    /// Until all servers go by the plan.
    adoption: Option<Adoption>,
    /// Nodes that have not said that they know of the enactment.
    untold: BTreeSet<NodeId>,
    /// When the plan was last said again.
    said_again: Time,
}

impl Plans {
    /// The plan in force.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// A new plan is due.
    pub fn request(&mut self) {
        self.is_due = true;
    }

    /// Whether the next plan is to be made now: one is due, and the one before is adopted.
    pub fn may_make(&self) -> bool {
        self.is_due && self.adoption.is_none()
    }

    /// Whether every server goes by the plan.
    pub fn is_adopted(&self) -> bool {
        self.adoption.is_none()
    }

    /// Whether every server goes by the plan, and no other is due.
    pub fn is_steady(&self) -> bool {
        self.adoption.is_none() && !self.is_due
    }

    /// Whether the plan is steady and every node knows of it.
    pub fn is_known_to_all(&self) -> bool {
        self.is_steady() && self.untold.is_empty()
    }

    /// Servers that have not adopted the plan.
    pub fn adopting(&self) -> Vec<NodeId> {
        self.adoption.iter().flat_map(|adoption| &adoption.waiting).copied().collect()
    }

    /// The first plan. It needs no adoption: nodes begin with it.
    pub fn begin(&mut self, chains: &[Chain], members: &Members) {
        self.plan = Plan { number: PlanNumber(1), chains: chains.to_vec(), workers: members.planned_workers() };
    }

    /// The next plan, which every server is to adopt.
    pub fn make(&mut self, now: Time, chains: &[Chain], members: &Members) {
        let number = PlanNumber(self.plan.number.0 + 1);
        self.plan = Plan { number, chains: chains.to_vec(), workers: members.planned_workers() };
        self.is_due = false;
        self.untold.clear();
        self.await_adoption(now, members);
    }

    /// Every server is to say that it goes by the plan, whether it did before or not.
    pub fn await_adoption(&mut self, asked: Time, members: &Members) {
        let waiting = members.live_servers().collect();
        self.adoption = Some(Adoption { waiting, frontier: Clock(0), asked, again: false });
    }

    /// A node goes by the plan, or knows of its enactment. Returns how long a server took to adopt
    /// it, where that was measured.
    pub fn adopted(&mut self, now: Time, from: NodeId, enacted: bool, frontier: Clock) -> Option<Span> {
        if enacted {
            self.untold.remove(&from);
        }
        let adoption = self.adoption.as_mut()?;
        if !adoption.waiting.remove(&from) {
            return None;
        }
        adoption.frontier = adoption.frontier.max(frontier);
        (!adoption.again).then(|| now.since(adoption.asked))
    }

    /// Enacts the plan, once, when every server goes by it. Returns the clock where those begin who
    /// are new in the plan.
    pub fn enact(&mut self) -> Option<Clock> {
        let adoption = self.adoption.take_if(|adoption| adoption.waiting.is_empty())?;
        Some(adoption.frontier)
    }

    /// Nodes are to be told that the plan is enacted.
    pub fn tell(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        self.untold.extend(nodes);
    }

    /// A worker has left, or a server was released: it need not hear of the plan.
    pub fn forget(&mut self, node: NodeId) {
        self.untold.remove(&node);
    }

    /// A server is gone: the plan on its way, if there is one, names a server that can never adopt
    /// it, so another is due.
    pub fn replace_without(&mut self, server: NodeId) {
        self.untold.remove(&server);
        self.adoption = None;
        self.is_due = true;
    }

    /// Says the plan to every node that has not adopted it, or does not know of its enactment.
    pub fn say(&self, members: &Members, out: &mut Outbox) {
        let waiting = self.adoption.iter().flat_map(|adoption| &adoption.waiting).map(|node| (*node, false));
        let addresses = members.addresses();
        for (node, enacted) in waiting.chain(self.untold.iter().map(|node| (*node, true))) {
            say(node, Control::Adopt { plan: self.plan.clone(), members: addresses.clone(), enacted }, out);
        }
    }

    /// Says the plan again after this long, and returns whether it did.
    pub fn say_again(&mut self, now: Time, after: Span, members: &Members, out: &mut Outbox) -> bool {
        if now.since(self.said_again) < after {
            return false;
        }
        self.said_again = now;
        self.adoption.iter_mut().for_each(|adoption| adoption.again = true);
        self.say(members, out);
        true
    }
}

/// Who has adopted the plan and who was told of it is left out: all are told again.
impl Field for Plans {
    fn put(&self, out: &mut Vec<u8>) {
        self.plan.put(out);
        self.is_due.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let plan: Plan = Field::get(input)?;
        let is_due = Field::get(input)?;
        saved::check(&[
            (names_are_small(&plan.chains), "a plan with a server without a name"),
            (plan.workers.len() <= MOST_NODES as usize, "a plan with too many workers"),
            (plan.number.0 < MOST_COUNT, "a count of plans without end"),
        ])?;
        Ok(Self { plan, is_due, ..Self::default() })
    }
}
