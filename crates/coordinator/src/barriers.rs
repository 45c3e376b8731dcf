//! Barriers: which live worker has reached which barrier, and which barriers are passed.
//!
//! A barrier is passed when every live worker has reached it or a later one.

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one message among others")]
mod tests;

use crate::members::Members;
use crate::saved::{self, MOST_COUNT};
use crate::say::say;
use std::collections::BTreeMap;
use types::{NodeId, Span, Time, WorkerId};
use wire::{Control, Field, Outbox, Reader, WireError};

/// At most this many missing workers are named in a notice to a waiting worker.
pub(crate) const NAMED: usize = 8;

/// Which worker has reached which barrier.
#[derive(Default)]
pub(crate) struct Barriers {
    /// Each waiting worker: the barrier that it has reached, and when it was last told whom it
    /// waits for.
    reached: BTreeMap<WorkerId, (u64, Time)>,
    /// The last barrier that was passed.
    passed: u64,
}

impl Barriers {
    /// The last barrier that was passed.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Notes that a worker is at the barrier with this number. Answers at once if it is passed.
    pub fn reach(&mut self, now: Time, from: NodeId, number: u64, members: &Members, out: &mut Outbox) {
        let NodeId::Worker(rank) = from else { return };
        if number <= self.passed {
            return say(from, Control::BarrierPassed { number }, out);
        }
        if !members.is_there(from) {
            return;
        }
        let entry = self.reached.entry(WorkerId(rank)).or_insert((number, now));
        entry.0 = entry.0.max(number);
        self.pass(members, out);
    }

    /// Forgets a worker that has left: no barrier waits for it.
    pub fn forget(&mut self, worker: WorkerId, members: &Members, out: &mut Outbox) {
        self.reached.remove(&worker);
        self.pass(members, out);
    }

    fn pass(&mut self, members: &Members, out: &mut Outbox) {
        // Every entry is at the next barrier or a later one, so counting entries is enough.
        if self.reached.is_empty() || self.reached.len() < members.present() {
            return;
        }
        self.passed += 1;
        let number = self.passed;
        members.live_workers().for_each(|worker| say(worker.into(), Control::BarrierPassed { number }, out));
        self.reached.retain(|_, (reached, _)| *reached > number);
    }

    /// Workers that others wait for at a barrier.
    pub fn awaited<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = WorkerId> + 'a {
        let another_waits = !self.reached.is_empty();
        members.live_workers().filter(move |worker| another_waits && !self.reached.contains_key(worker))
    }

    /// Names a few missing workers to each worker that has waited this long since its last notice.
    pub fn notice(&mut self, now: Time, after: Span, members: &Members, out: &mut Outbox) {
        let on: Vec<WorkerId> = self.awaited(members).take(NAMED).collect();
        for (worker, (number, noticed)) in &mut self.reached {
            if now.since(*noticed) >= after {
                *noticed = now;
                say((*worker).into(), Control::BarrierWaiting { number: *number, on: on.clone() }, out);
            }
        }
    }

    /// Counts each waiting worker's time to its next notice from `now`, for a new leader.
    pub fn take_over(&mut self, now: Time) {
        self.reached.values_mut().for_each(|(_, noticed)| *noticed = now);
    }

    /// Whether a worker waits at a barrier.
    pub fn is_there(&self, worker: WorkerId) -> bool {
        self.reached.contains_key(&worker)
    }

    /// Whether any worker waits at a barrier.
    pub fn is_anybody_there(&self) -> bool {
        !self.reached.is_empty()
    }

    /// Whether every worker that has reached a barrier is in the run.
    pub fn all_are_there(&self, members: &Members) -> bool {
        self.reached.keys().all(|worker| members.is_there((*worker).into()))
    }
}

impl Field for Barriers {
    fn put(&self, out: &mut Vec<u8>) {
        let reached = self.reached.iter().map(|(worker, (number, _))| (*worker, *number));
        reached.collect::<Vec<(WorkerId, u64)>>().put(out);
        self.passed.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let reached: Vec<(WorkerId, u64)> = Field::get(input)?;
        let reached = reached.into_iter().map(|(worker, number)| (worker, (number, Time(0)))).collect();
        let passed = u64::get(input)?;
        saved::check(&[(passed < MOST_COUNT, "a barrier number that is too large")])?;
        Ok(Self { reached, passed })
    }
}
