//! The identity of a worker: its rank, its incarnation, the newest plan it adopted, and whose
//! messages it accepts.

use types::{Clock, NodeId, Plan, Source, WorkerId};
use wire::{Head, Leader};

/// The identity of a worker, and its view of the cluster.
pub(crate) struct Identity {
    id: WorkerId,
    source: Source,
    plan: Plan,
    leader: Leader,
}

impl Identity {
    /// Worker `id` of the plan, in the incarnation `source`.
    pub fn new(id: WorkerId, source: Source, plan: Plan) -> Self {
        Self { id, source, plan, leader: Leader::default() }
    }

    /// The worker's rank.
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// The worker's incarnation.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The newest plan that the worker adopted.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The head of a frame to the coordinator, from this worker at `clock`.
    pub fn head(&self, clock: Clock) -> Head {
        let mut head = Head::plain(NodeId::from(self.id), NodeId::Coordinator);
        head.plan = self.plan.number;
        head.source = self.source;
        head.clock = clock;
        head
    }

    /// Whether the worker accepts a frame. It ignores answers of shards to another incarnation of
    /// itself, and coordinators that were replaced.
    pub fn heeds(&mut self, head: &Head) -> bool {
        let is_own = head.source == self.source || !matches!(head.from, NodeId::Server(_));
        is_own && self.leader.heeds(head)
    }

    /// Adopts a plan if it is newer. Returns whether it is.
    pub fn adopt(&mut self, plan: Plan) -> bool {
        let is_new = plan.number > self.plan.number;
        if is_new {
            self.plan = plan;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::PlanNumber;

    fn identity() -> Identity {
        Identity::new(WorkerId(3), Source(7), Plan::first(2, vec![Source(1)]))
    }

    #[test]
    fn identity_accepts_answers_to_its_own_incarnation_only() {
        // (the sender, the incarnation that it answers, whether the worker accepts it)
        for (from, source, heeds) in
            [(NodeId::Server(0), 7, true), (NodeId::Server(0), 6, false), (NodeId::Coordinator, 0, true)]
        {
            let head = Head { source: Source(source), ..Head::plain(from, NodeId::Worker(3)) };
            assert_eq!(identity().heeds(&head), heeds, "{from} to {source}");
        }
    }

    #[test]
    fn identity_adopts_newer_plans_only_and_names_them_in_its_frames() {
        let mut identity = identity();
        let first = identity.plan().number.0;
        for (number, adopts) in [(first, false), (first + 2, true), (first + 1, false)] {
            let plan = Plan { number: PlanNumber(number), ..identity.plan().clone() };
            assert_eq!(identity.adopt(plan), adopts, "plan {number}");
        }
        let head = identity.head(Clock(4));
        assert_eq!((head.plan, head.source, head.clock), (PlanNumber(first + 2), Source(7), Clock(4)));
        assert_eq!((head.from, head.to), (NodeId::Worker(3), NodeId::Coordinator));
    }
}
