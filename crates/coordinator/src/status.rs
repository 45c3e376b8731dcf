//! How the run stands, for whoever asks: what the coordinator knows, and what nodes say of
//! themselves.

use super::{Coordinator, MemberRecord, Membership};
use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, NodeId, TableId, Time, WorkerId};
use wire::{MemberState, MemberStatus, NodeReport, Status};

/// A worker whose clocks take it this many halves of what they take a worker in the middle is slow.
const SLOW_HALVES: u64 = 3;
/// Time-outs that are kept of a node's report.
const TIMEOUTS: usize = 16;

impl Coordinator {
    /// A node says how it does.
    pub(super) fn reported(&mut self, from: NodeId, mut report: NodeReport) {
        report.timeouts.truncate(TIMEOUTS);
        if matches!(from, NodeId::Server(_)) && self.begun {
            self.heard_bytes(&report.shards);
        }
        if let Some(member) = self.members.get_mut(&from).filter(|member| !member.gone) {
            member.report = report;
        }
    }

    /// The lowest frontier of each table.
    fn frontiers(&self) -> BTreeMap<TableId, Clock> {
        let mut frontiers: BTreeMap<TableId, Clock> = BTreeMap::new();
        let present = self.members.values().filter(|member| member.takes_part());
        for (table, clock) in present.flat_map(|member| &member.report.frontiers) {
            frontiers.entry(*table).and_modify(|lowest| *lowest = (*lowest).min(*clock)).or_insert(*clock);
        }
        frontiers
    }

    /// Workers whose clocks take them much longer than most.
    fn slow(&self) -> Vec<WorkerId> {
        let step = |worker: WorkerId| Some((self.members.get(&worker.into())?.report.step?.mean, worker));
        let mut steps: Vec<_> = self.live_workers().filter_map(step).collect();
        steps.sort_unstable();
        // Of two, the faster one is in the middle.
        let Some((middle, _)) = steps.get(steps.len().saturating_sub(1) / 2).copied() else { return Vec::new() };
        steps.into_iter().filter(|(mean, _)| mean.0 > middle.0 / 2 * SLOW_HALVES).map(|(_, worker)| worker).collect()
    }

    /// How the run stands now.
    pub(super) fn status(&self, now: Time) -> Status {
        let member = |(node, member): (&NodeId, &MemberRecord)| MemberStatus {
            node: *node,
            address: member.address.clone(),
            state: match (&member.expelled, member.gone, member.since) {
                (Some(reason), ..) => MemberState::Lost { reason: reason.clone() },
                (None, true, _) => MemberState::Left,
                (None, false, Some(_)) if member.leaving => MemberState::Leaving,
                (None, false, Some(_)) => MemberState::Present,
                (None, false, None) => MemberState::Joining,
            },
            silent: now.since(member.heard),
            clock: member.clock,
            report: member.report.clone(),
        };
        let awaited = self.live_workers().filter(|worker| !self.barriers.contains_key(worker));
        let awaited: Vec<WorkerId> = if self.barriers.is_empty() { Vec::new() } else { awaited.collect() };
        let present = self.members.values().filter(|member| member.takes_part());
        let waited_for: BTreeSet<WorkerId> = present
            .flat_map(|member| &member.report.waited_for)
            .filter(|worker| self.is_live(**worker))
            .copied()
            .collect();
        let frontiers = self.frontiers();
        let tables = self.tables.iter().map(|(name, table)| (name.clone(), frontiers.get(&table.id()).copied()));
        Status {
            plan: self.plan.clone(),
            adopting: self.adopting(),
            members: self.members.iter().map(member).collect(),
            awaited,
            tables: tables.collect(),
            waited_for: waited_for.into_iter().collect(),
            slow: self.slow(),
            failure_timeout: self.failure_timeout,
            lease: (self.membership != Membership::Static).then_some(types::serving_lease(self.failure_timeout)),
            replicas: self.replicas() as u32,
            timeouts: self.timeouts(),
        }
    }

    fn is_live(&self, worker: WorkerId) -> bool {
        self.members.get(&worker.into()).is_some_and(MemberRecord::takes_part)
    }
}
