//! The frontier of a shard: the least clock F of the live workers of the plan, so that every update
//! of theirs in clocks below F has been applied. It never falls.

use std::collections::BTreeMap;
use types::{Clock, WorkerId};
use wire::{Field, Reader, WireError};

/// One worker's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerProgress {
    /// The clock it is at.
    pub clock: Clock,
    /// The first clock it took part in.
    pub since: Clock,
}

/// The clocks of all workers of the plan, as one shard knows them. Advancing a worker costs the
/// logarithm of the number of distinct clocks, however many workers there are.
#[derive(Clone, Debug)]
pub(crate) struct Frontier {
    /// Live workers by rank; `None` for a rank without one.
    workers: Vec<Option<WorkerProgress>>,
    /// How many live workers are at each clock.
    counts: BTreeMap<Clock, u32>,
    /// Progress of workers that have left, until the frontier has passed it.
    left: Vec<WorkerProgress>,
    /// The highest clock that any worker has reached.
    furthest: Clock,
    /// The frontier, F.
    value: Clock,
}

impl Frontier {
    /// All present workers at clock 0. `present`: by rank.
    pub fn new(present: impl Iterator<Item = bool>) -> Self {
        let progress = WorkerProgress { clock: Clock(0), since: Clock(0) };
        let workers: Vec<_> = present.map(|present| present.then_some(progress)).collect();
        let live = workers.iter().flatten().count() as u32;
        let counts = if live == 0 { BTreeMap::new() } else { BTreeMap::from([(Clock(0), live)]) };
        Self { workers, counts, left: Vec::new(), furthest: Clock(0), value: Clock(0) }
    }

    /// All present workers at `clock`, the first that they take part in. `present`: by rank.
    pub fn starting(clock: Clock, present: impl Iterator<Item = bool>) -> Self {
        let mut frontier = Self::new(present);
        frontier.workers.iter_mut().flatten().for_each(|progress| *progress = WorkerProgress { clock, since: clock });
        let live = frontier.workers.iter().flatten().count() as u32;
        frontier.counts = if live == 0 { BTreeMap::new() } else { BTreeMap::from([(clock, live)]) };
        frontier.furthest = clock;
        frontier.value = clock;
        frontier
    }

    /// The frontier, F.
    pub fn value(&self) -> Clock {
        self.value
    }

    /// The clock that `worker` is at, if it is live.
    pub fn clock(&self, worker: WorkerId) -> Option<Clock> {
        self.workers.get(worker.0 as usize).copied().flatten().map(|progress| progress.clock)
    }

    /// How many workers have ended a clock that the frontier has passed: live workers, and workers
    /// that left after they ended it. A worker that joined after the clock does not count.
    pub fn ended(&self, clock: Clock) -> usize {
        let live = self.workers.iter().flatten().filter(|progress| progress.since <= clock);
        let left = self.left.iter().filter(|progress| progress.since <= clock && progress.clock > clock);
        live.count() + left.count()
    }

    /// `worker`, which took part from clock `since` on, has ended clock `ended`. Returns whether
    /// the frontier moved.
    pub fn advance(&mut self, worker: WorkerId, ended: Clock, since: Clock) -> bool {
        let Some(Some(progress)) = self.workers.get_mut(worker.0 as usize) else { return false };
        if ended < progress.clock {
            return false;
        }
        let from = std::mem::replace(&mut progress.clock, ended.next());
        progress.since = since;
        self.uncount(from);
        *self.counts.entry(ended.next()).or_default() += 1;
        self.furthest = self.furthest.max(ended.next());
        self.settle()
    }

    /// The frontier waits for the new incarnation of `worker` from now on, and no longer for the
    /// one before.
    pub fn enter(&mut self, worker: WorkerId) {
        let rank = worker.0 as usize;
        if self.workers.len() <= rank {
            self.workers.resize(rank + 1, None);
        }
        let progress = WorkerProgress { clock: self.value, since: self.value };
        if let Some(before) = self.workers[rank].replace(progress) {
            self.left.push(before);
            self.uncount(before.clock);
        }
        *self.counts.entry(progress.clock).or_default() += 1;
    }

    /// The frontier no longer waits for `worker`. Returns whether it moved.
    pub fn leave(&mut self, worker: WorkerId) -> bool {
        let Some(member) = self.workers.get_mut(worker.0 as usize) else { return false };
        let Some(progress) = member.take() else { return false };
        self.left.retain(|left| left.clock > self.value);
        self.left.push(progress);
        self.uncount(progress.clock);
        self.settle()
    }

    /// One live worker less is at `clock`.
    fn uncount(&mut self, clock: Clock) {
        if let Some(count) = self.counts.get_mut(&clock) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&clock);
            }
        }
    }

    /// Raises the frontier to the lowest clock of a live worker. Returns whether it moved.
    fn settle(&mut self) -> bool {
        // Without live workers, the frontier passes every clock that any worker has ended.
        let lowest = self.counts.first_key_value().map_or(self.furthest, |(clock, _)| *clock);
        let moved = lowest > self.value;
        self.value = self.value.max(lowest);
        moved
    }

    /// The live workers that the frontier waits for, at most `most` of them.
    pub fn slowest(&self, most: usize) -> Vec<WorkerId> {
        let at_frontier = |(rank, progress): (usize, &Option<WorkerProgress>)| {
            progress.is_some_and(|progress| progress.clock <= self.value).then_some(WorkerId(rank as u32))
        };
        self.workers.iter().enumerate().filter_map(at_frontier).take(most).collect()
    }
}

impl Field for Frontier {
    fn put(&self, out: &mut Vec<u8>) {
        let pair = |progress: &WorkerProgress| (progress.clock, progress.since);
        self.workers.iter().map(|progress| progress.as_ref().map(pair)).collect::<Vec<_>>().put(out);
        self.left.iter().map(pair).collect::<Vec<_>>().put(out);
        (self.furthest, self.value).put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let progress = |(clock, since)| WorkerProgress { clock, since };
        let workers: Vec<Option<(Clock, Clock)>> = Field::get(input)?;
        let workers: Vec<_> = workers.into_iter().map(|worker| worker.map(progress)).collect();
        let left: Vec<(Clock, Clock)> = Field::get(input)?;
        let (furthest, value) = Field::get(input)?;
        let mut counts = BTreeMap::new();
        for progress in workers.iter().flatten() {
            *counts.entry(progress.clock).or_default() += 1;
        }
        Ok(Self { workers, counts, left: left.into_iter().map(progress).collect(), furthest, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frontier_is_the_slowest_live_workers_clock_and_never_falls() {
        let mut frontier = Frontier::new([true; 3].into_iter());
        // (worker, clock it ended or None for leaving, frontier after)
        let cases = [
            (0, Some(0), 0),
            (1, Some(0), 0),
            (2, Some(0), 1),
            (0, Some(1), 1),
            (0, Some(1), 1), // ended twice
            (2, Some(1), 1),
            (1, None, 2),
            (1, Some(5), 2), // from a worker that has left
            (0, Some(2), 2),
            (2, None, 3),
            (0, None, 3),
        ];
        for (step, (worker, ended, expected)) in cases.into_iter().enumerate() {
            let before = frontier.value();
            let moved = match ended {
                Some(clock) => frontier.advance(WorkerId(worker), Clock(clock), Clock(0)),
                None => frontier.leave(WorkerId(worker)),
            };
            assert_eq!(frontier.value(), Clock(expected), "step {step}");
            assert_eq!(moved, frontier.value() > before, "step {step}");
        }
    }

    #[test]
    fn frontier_counts_workers_that_ended_a_clock_even_if_they_left_later() {
        let mut frontier = Frontier::new([true; 3].into_iter());
        for (worker, clock) in [(0, 0), (0, 1), (1, 0)] {
            frontier.advance(WorkerId(worker), Clock(clock), Clock(0));
        }
        frontier.leave(WorkerId(2));
        assert_eq!((frontier.value(), frontier.ended(Clock(0))), (Clock(1), 2));
        frontier.leave(WorkerId(1));
        assert_eq!((frontier.value(), frontier.ended(Clock(0)), frontier.ended(Clock(1))), (Clock(2), 2, 1));
    }

    #[test]
    fn frontier_waits_for_a_worker_that_joins_and_counts_it_from_its_first_clock() {
        let mut frontier = Frontier::new([true, false].into_iter());
        assert!(frontier.advance(WorkerId(0), Clock(2), Clock(0)));
        assert_eq!(frontier.value(), Clock(3));
        frontier.enter(WorkerId(1));
        assert!(!frontier.advance(WorkerId(0), Clock(4), Clock(0)), "the new one is waited for");
        // The worker joined at clock 4, where the frontier was on another shard.
        assert!(frontier.advance(WorkerId(1), Clock(3), Clock(4)));
        assert_eq!((frontier.value(), frontier.ended(Clock(3)), frontier.ended(Clock(4))), (Clock(4), 1, 2));
        // A third worker takes the rank of the first.
        frontier.leave(WorkerId(0));
        frontier.enter(WorkerId(0));
        frontier.advance(WorkerId(1), Clock(9), Clock(4));
        assert_eq!((frontier.value(), frontier.slowest(8)), (Clock(4), vec![WorkerId(0)]));
    }

    #[test]
    fn slowest_workers_are_those_at_the_frontier() {
        let mut frontier = Frontier::new([true; 3].into_iter());
        frontier.advance(WorkerId(1), Clock(0), Clock(0));
        assert_eq!(frontier.slowest(8), [WorkerId(0), WorkerId(2)]);
        assert_eq!(frontier.slowest(1), [WorkerId(0)]);
    }
}
