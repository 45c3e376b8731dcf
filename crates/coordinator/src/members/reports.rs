//! Reports of nodes about themselves, and the state of the run that follows from them: step times,
//! frontiers, slow workers.

use super::{MemberRecord, Members};
use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, Measured, NodeId, Span, TableId, Time, WorkerId};
use wire::{MemberState, MemberStatus, NodeReport};

/// A worker is slow if its clocks take it more than this many halves of the median worker's time.
const SLOW_HALVES: u64 = 3;
/// How many time-outs of a node's report are kept at most.
const TIMEOUTS: usize = 16;

impl Members {
    /// Keeps a node's report.
    pub fn report(&mut self, from: NodeId, mut report: NodeReport) {
        report.timeouts.truncate(TIMEOUTS);
        if let Some(member) = self.records.get_mut(&from).filter(|member| !member.gone) {
            member.report = report;
        }
    }

    /// How long each worker takes for a clock, where it has reported that.
    pub fn steps(&self) -> impl Iterator<Item = Measured> + '_ {
        self.live_workers().filter_map(|worker| self.step(worker))
    }

    fn step(&self, worker: WorkerId) -> Option<Measured> {
        self.records.get(&worker.into())?.report.step
    }

    fn present_records(&self) -> impl Iterator<Item = &MemberRecord> {
        self.records.values().filter(|member| member.takes_part())
    }

    /// The lowest frontier of each table.
    pub fn frontiers(&self) -> BTreeMap<TableId, Clock> {
        let mut frontiers: BTreeMap<TableId, Clock> = BTreeMap::new();
        for (table, clock) in self.present_records().flat_map(|member| &member.report.frontiers) {
            frontiers.entry(*table).and_modify(|lowest| *lowest = (*lowest).min(*clock)).or_insert(*clock);
        }
        frontiers
    }

    /// The workers that parked reads of some server wait for.
    pub fn waited_for(&self) -> Vec<WorkerId> {
        let is_live = |worker: &WorkerId| self.records.get(&(*worker).into()).is_some_and(MemberRecord::takes_part);
        let named = self.present_records().flat_map(|member| &member.report.waited_for).copied();
        named.filter(is_live).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The workers whose clocks take much longer than the median worker's.
    pub fn slow(&self) -> Vec<WorkerId> {
        let step = |worker: WorkerId| Some((self.step(worker)?.mean, worker));
        let mut steps: Vec<_> = self.live_workers().filter_map(step).collect();
        steps.sort_unstable();
        // Of two, the faster one is the median.
        let Some((middle, _)) = steps.get(steps.len().saturating_sub(1) / 2).copied() else { return Vec::new() };
        steps.into_iter().filter(|(mean, _)| mean.0 > middle.0 / 2 * SLOW_HALVES).map(|(_, worker)| worker).collect()
    }

    /// The status of every node that was ever in the run. `in_clock` says for how long a worker is
    /// in its clock.
    pub fn statuses(&self, now: Time, in_clock: impl Fn(NodeId) -> Option<Span>) -> Vec<MemberStatus> {
        let status = |(node, member): (&NodeId, &MemberRecord)| MemberStatus {
            node: *node,
            address: member.address.clone(),
            binding: member.binding.clone(),
            state: match (&member.expelled, member.gone, member.since) {
                (Some(reason), ..) => MemberState::Lost { reason: reason.clone() },
                (None, true, _) => MemberState::Left,
                (None, false, Some(_)) if member.leaving => MemberState::Leaving,
                (None, false, Some(_)) => MemberState::Present,
                (None, false, None) => MemberState::Joining,
            },
            silent: now.since(member.heard),
            clock: member.clock,
            in_clock: in_clock(*node).filter(|_| member.takes_part()),
            report: member.report.clone(),
        };
        self.records.iter().map(status).collect()
    }
}
