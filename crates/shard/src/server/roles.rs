//! The shards of which a server is the head, and which of them wait. A new head answers only once
//! every server has adopted the plan: the head before it may not know yet that it is replaced.

use std::collections::BTreeSet;
use types::{ShardId, TableId};

type Name = (TableId, ShardId);

/// The shards of which this server is the head.
#[derive(Debug)]
pub(super) struct Roles {
    /// Whether every server is known to have adopted the plan.
    enacted: bool,
    /// Shards of which this server is the head.
    heads: BTreeSet<Name>,
    /// Those of `heads` that may not answer before the plan is enacted.
    waiting: BTreeSet<Name>,
}

impl Roles {
    /// No shards, under a plan that is enacted.
    pub fn new() -> Self {
        Self { enacted: true, heads: BTreeSet::new(), waiting: BTreeSet::new() }
    }

    /// Whether every server is known to have adopted the plan.
    pub fn is_enacted(&self) -> bool {
        self.enacted
    }

    /// Another plan begins, which is not enacted.
    pub fn begin_plan(&mut self) {
        self.enacted = false;
    }

    /// The plan is enacted. Returns the heads that waited for that.
    pub fn enact(&mut self) -> BTreeSet<Name> {
        self.enacted = true;
        std::mem::take(&mut self.waiting)
    }

    /// The plan says whether this server is the head of a shard. Returns whether the shard must not
    /// answer yet.
    pub fn set(&mut self, name: Name, is_head: bool) -> bool {
        if !is_head {
            self.heads.remove(&name);
            self.waiting.remove(&name);
            return false;
        }
        let waits = self.heads.insert(name) && !self.enacted;
        if waits {
            self.waiting.insert(name);
        }
        waits
    }

    /// Whether a shard waits for the plan to be enacted.
    pub fn waits(&self, name: Name) -> bool {
        self.waiting.contains(&name)
    }

    /// Forgets shards that are no longer here.
    pub fn retain(&mut self, is_here: impl Fn(&Name) -> bool) {
        self.heads.retain(&is_here);
        self.waiting.retain(&is_here);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_head_waits_until_the_plan_is_enacted_and_an_old_one_goes_on() {
        let old = (TableId(0), ShardId(0));
        let new = (TableId(0), ShardId(1));
        let mut roles = Roles::new();
        assert!(!roles.set(old, true), "the first plan is enacted");
        roles.begin_plan();
        assert_eq!((roles.set(old, true), roles.set(new, true)), (false, true));
        assert_eq!((roles.waits(old), roles.waits(new), roles.is_enacted()), (false, true, false));
        assert_eq!((roles.enact(), roles.is_enacted()), (BTreeSet::from([new]), true));
        assert!(!roles.waits(new));
    }

    #[test]
    fn former_head_does_not_wait_for_the_plan() {
        let name = (TableId(0), ShardId(0));
        let mut roles = Roles::new();
        roles.begin_plan();
        assert!(roles.set(name, true) && !roles.set(name, false) && !roles.waits(name));
        assert!(roles.set(name, true), "head once more, under a plan that is not enacted");
        roles.retain(|_| false);
        assert!(roles.enact().is_empty());
    }
}
