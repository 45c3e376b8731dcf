//! The frontier: F such that every update made by a live worker in its clocks below F has been applied.

use std::collections::BTreeMap;
use types::{Clock, WorkerId};

/// The clocks of all workers of the plan, as one shard has seen them. Moving one costs the logarithm of the number of
/// distinct clocks, whatever the number of workers.
#[derive(Debug)]
pub struct Frontier {
    /// `None` once a worker has left.
    clocks: Vec<Option<Clock>>,
    /// How many live workers are at each clock.
    counts: BTreeMap<Clock, u32>,
    /// Where each worker was that has left.
    left: Vec<Clock>,
    furthest: Clock,
    value: Clock,
}

impl Frontier {
    /// All of `workers` at clock 0.
    pub fn new(workers: usize) -> Self {
        let counts = if workers == 0 { BTreeMap::new() } else { BTreeMap::from([(Clock(0), workers as u32)]) };
        Self { clocks: vec![Some(Clock(0)); workers], counts, left: Vec::new(), furthest: Clock(0), value: Clock(0) }
    }

    /// F.
    pub fn value(&self) -> Clock {
        self.value
    }

    /// Where `worker` is, if it is live.
    pub fn clock(&self, worker: WorkerId) -> Option<Clock> {
        self.clocks.get(worker.0 as usize).copied().flatten()
    }

    /// How many workers have ended a clock that the frontier has passed: those that live, and those that left later.
    pub fn ended(&self, clock: Clock) -> usize {
        let live = self.clocks.len() - self.left.len();
        live + self.left.iter().filter(|left| **left > clock).count()
    }

    /// `worker` has ended clock `ended`. Returns whether the frontier moved.
    pub fn advance(&mut self, worker: WorkerId, ended: Clock) -> bool {
        let Some(Some(clock)) = self.clocks.get_mut(worker.0 as usize) else { return false };
        if ended < *clock {
            return false;
        }
        let from = std::mem::replace(clock, ended.next());
        self.uncount(from);
        *self.counts.entry(ended.next()).or_default() += 1;
        self.furthest = self.furthest.max(ended.next());
        self.settle()
    }

    /// The frontier no longer waits for `worker`. Returns whether it moved.
    pub fn leave(&mut self, worker: WorkerId) -> bool {
        let Some(slot) = self.clocks.get_mut(worker.0 as usize) else { return false };
        let Some(clock) = slot.take() else { return false };
        self.left.push(clock);
        self.uncount(clock);
        self.settle()
    }

    fn uncount(&mut self, clock: Clock) {
        if let Some(count) = self.counts.get_mut(&clock) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&clock);
            }
        }
    }

    fn settle(&mut self) -> bool {
        // With nobody left, everything that was finished by anybody is past.
        let lowest = self.counts.first_key_value().map_or(self.furthest, |(clock, _)| *clock);
        let moved = lowest > self.value;
        self.value = self.value.max(lowest);
        moved
    }

    /// The live workers that the frontier waits for, at most `most` of them.
    pub fn slowest(&self, most: usize) -> Vec<WorkerId> {
        let at_frontier = |(rank, clock): (usize, &Option<Clock>)| {
            clock.is_some_and(|clock| clock <= self.value).then_some(WorkerId(rank as u32))
        };
        self.clocks.iter().enumerate().filter_map(at_frontier).take(most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frontier_is_the_slowest_live_workers_clock_and_never_falls() {
        let mut frontier = Frontier::new(3);
        // (worker, clock it ended or None for leaving, frontier after)
        let cases = [
            (0, Some(0), 0),
            (1, Some(0), 0),
            (2, Some(0), 1),
            (0, Some(1), 1),
            (0, Some(1), 1), // said twice
            (2, Some(1), 1),
            (1, None, 2),
            (1, Some(5), 2), // gone
            (0, Some(2), 2),
            (2, None, 3),
            (0, None, 3),
        ];
        for (step, (worker, ended, expected)) in cases.into_iter().enumerate() {
            let before = frontier.value();
            let moved = match ended {
                Some(clock) => frontier.advance(WorkerId(worker), Clock(clock)),
                None => frontier.leave(WorkerId(worker)),
            };
            assert_eq!(frontier.value(), Clock(expected), "step {step}");
            assert_eq!(moved, frontier.value() > before, "step {step}");
        }
    }

    #[test]
    fn a_clock_counts_those_who_ended_it_wherever_they_are_now() {
        let mut frontier = Frontier::new(3);
        for (worker, clock) in [(0, 0), (0, 1), (1, 0)] {
            frontier.advance(WorkerId(worker), Clock(clock));
        }
        frontier.leave(WorkerId(2));
        assert_eq!((frontier.value(), frontier.ended(Clock(0))), (Clock(1), 2));
        frontier.leave(WorkerId(1));
        assert_eq!((frontier.value(), frontier.ended(Clock(0)), frontier.ended(Clock(1))), (Clock(2), 2, 1));
    }

    #[test]
    fn the_slowest_are_those_at_the_frontier() {
        let mut frontier = Frontier::new(3);
        frontier.advance(WorkerId(1), Clock(0));
        assert_eq!(frontier.slowest(8), [WorkerId(0), WorkerId(2)]);
        assert_eq!(frontier.slowest(1), [WorkerId(0)]);
    }
}
