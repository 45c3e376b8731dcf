//! Plans: every server adopts a new plan, then the coordinator enacts it, then workers are told.
//!
//! No worker hears of a plan before all servers have adopted it. So no worker asks a server for a
//! shard that the server does not know it has. A new plan is made only when the one before is
//! adopted.

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

/// The adoption of a plan by the servers.
struct Adoption {
    /// The servers that have not adopted it yet.
    waiting: BTreeSet<NodeId>,
    /// The highest frontier of any shard so far: new workers begin at this clock.
    frontier: Clock,
    /// When servers were first asked.
    asked: Time,
    /// Whether servers were asked again: then an answer does not show how long it took.
    again: bool,
}

/// The newest plan, its adoption, and the nodes that have yet to hear that it is enacted.
#[derive(Default)]
pub(crate) struct Plans {
    /// The newest plan.
    plan: Plan,
    /// Whether another plan is due: a node has joined or left, or a shard moves.
    is_due: bool,
    /// The plan's adoption, until all servers have adopted it.
    adoption: Option<Adoption>,
    /// The nodes that have not confirmed the enactment.
    untold: BTreeSet<NodeId>,
    /// When the plan was last repeated.
    said_again: Time,
}

impl Plans {
    /// The newest plan, in force or being adopted.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Notes that a new plan is due.
    pub fn request(&mut self) {
        self.is_due = true;
    }

    /// Whether the next plan can be made now: one is due, and the one before is adopted.
    pub fn may_make(&self) -> bool {
        self.is_due && self.adoption.is_none()
    }

    /// Whether every server has adopted the plan.
    pub fn is_adopted(&self) -> bool {
        self.adoption.is_none()
    }

    /// Whether every server has adopted the plan, and no other is due.
    pub fn is_steady(&self) -> bool {
        self.adoption.is_none() && !self.is_due
    }

    /// Whether the plan is steady and every node knows of it.
    pub fn is_known_to_all(&self) -> bool {
        self.is_steady() && self.untold.is_empty()
    }

    /// The servers that have not adopted the plan.
    pub fn adopting(&self) -> Vec<NodeId> {
        self.adoption.iter().flat_map(|adoption| &adoption.waiting).copied().collect()
    }

    /// When servers were first asked to adopt the plan, and those that have not. None if all have.
    pub fn adoption(&self) -> Option<(Time, Vec<NodeId>)> {
        let adoption = self.adoption.as_ref()?;
        Some((adoption.asked, adoption.waiting.iter().copied().collect()))
    }

    /// Makes the first plan. It needs no adoption: nodes begin with it.
    pub fn begin(&mut self, chains: &[Chain], members: &Members) {
        self.plan = Plan { number: PlanNumber(1), chains: chains.to_vec(), workers: members.planned_workers() };
    }

    /// Makes the next plan, which every server must adopt.
    pub fn make(&mut self, now: Time, chains: &[Chain], members: &Members) {
        let number = PlanNumber(self.plan.number.0 + 1);
        self.plan = Plan { number, chains: chains.to_vec(), workers: members.planned_workers() };
        self.is_due = false;
        self.untold.clear();
        self.await_adoption(now, members);
    }

    /// Waits for every server to say that it has adopted the plan, even if it said so before.
    pub fn await_adoption(&mut self, asked: Time, members: &Members) {
        let waiting = members.live_servers().collect();
        self.adoption = Some(Adoption { waiting, frontier: Clock(0), asked, again: false });
    }

    /// Notes that a node has adopted the plan, or knows that it is enacted. Returns how long a
    /// server took to adopt it, where that was measured.
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

    /// Enacts the plan, once, when every server has adopted it. Returns the clock at which workers
    /// that are new in the plan begin.
    pub fn enact(&mut self) -> Option<Clock> {
        let adoption = self.adoption.take_if(|adoption| adoption.waiting.is_empty())?;
        Some(adoption.frontier)
    }

    /// Adds nodes that must be told that the plan is enacted.
    pub fn tell(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        self.untold.extend(nodes);
    }

    /// Forgets a worker that has left or a server that was released: it need not hear of the plan.
    pub fn forget(&mut self, node: NodeId) {
        self.untold.remove(&node);
    }

    /// Drops the adoption under way, if there is one, because a server is lost: that server can
    /// never adopt the plan. Another plan is due.
    pub fn replace_without(&mut self, server: NodeId) {
        self.untold.remove(&server);
        self.adoption = None;
        self.is_due = true;
    }

    /// Sends the plan to every server that has not adopted it and every node that has not confirmed
    /// its enactment.
    pub fn say(&self, members: &Members, out: &mut Outbox) {
        let waiting = self.adoption.iter().flat_map(|adoption| &adoption.waiting).map(|node| (*node, false));
        let addresses = members.addresses();
        for (node, enacted) in waiting.chain(self.untold.iter().map(|node| (*node, true))) {
            say(node, Control::Adopt { plan: self.plan.clone(), members: addresses.clone(), enacted }, out);
        }
    }

    /// Repeats the plan if this long has passed since the last time, and returns whether it did.
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

/// Which nodes have adopted the plan or know of it is not saved: all are told again.
impl Field for Plans {
    fn put(&self, out: &mut Vec<u8>) {
        self.plan.put(out);
        self.is_due.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let plan: Plan = Field::get(input)?;
        let is_due = Field::get(input)?;
        saved::check(&[
            (names_are_small(&plan.chains), "a plan with a server with an impossible name"),
            (plan.workers.len() <= MOST_NODES as usize, "a plan with too many workers"),
            (plan.number.0 < MOST_COUNT, "a number of plans that is too large"),
        ])?;
        Ok(Self { plan, is_due, ..Self::default() })
    }
}
