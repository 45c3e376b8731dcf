//! Who stands at the barrier, and whom those wait for.

use super::Coordinator;
use types::{NodeId, Time, WorkerId};
use wire::{Control, Outbox};

/// Workers named in a notice: each that waits is told of these few, not of all that are missing.
pub(super) const NAMED: usize = 8;

impl Coordinator {
    pub(super) fn barrier(&mut self, now: Time, from: NodeId, number: u64, out: &mut Outbox) {
        let NodeId::Worker(rank) = from else { return };
        if number <= self.passed {
            return Self::say(from, Control::BarrierPassed { number }, out);
        }
        if self.members.get(&from).is_none_or(|member| member.gone) {
            return;
        }
        let entry = self.barriers.entry(WorkerId(rank)).or_insert((number, now));
        entry.0 = entry.0.max(number);
        self.pass_barrier(out);
    }

    pub(super) fn pass_barrier(&mut self, out: &mut Outbox) {
        // Whoever stands here stands at the next one, or further: counting is enough.
        if self.barriers.is_empty() || self.barriers.len() < self.live() {
            return;
        }
        let next = self.passed + 1;
        self.passed = next;
        let waiting: Vec<WorkerId> = self.live_workers().collect();
        for worker in waiting {
            Self::say(worker.into(), Control::BarrierPassed { number: next }, out);
        }
        self.barriers.retain(|_, (number, _)| *number > next);
    }

    pub(super) fn notice_barrier(&mut self, now: Time, out: &mut Outbox) {
        if self.barriers.is_empty() {
            return;
        }
        let (after, _) = self.notice_after();
        let missing: Vec<WorkerId> =
            self.live_workers().filter(|worker| !self.barriers.contains_key(worker)).take(NAMED).collect();
        for (worker, (number, noticed)) in &mut self.barriers {
            if now.since(*noticed) >= after {
                *noticed = now;
                Self::say((*worker).into(), Control::BarrierWaiting { number: *number, on: missing.clone() }, out);
            }
        }
    }
}
