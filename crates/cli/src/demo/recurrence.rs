//! The ideal gain of slack: computes how long a cluster would take if computing took all the time.
//!
//! It evaluates the recurrence of bounded staleness on the demonstration's schedule of stragglers,
//! without network, servers or scheduling noise. The measured gain over the ideal gain shows the
//! share that Slackwater reaches.

use std::time::Duration;

use types::SplitMix64;

/// The schedule of stragglers: in each clock one worker, drawn at random, takes `factor` times as
/// long as the others.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    workers: usize,
    base: Duration,
    factor: u32,
    slowed: Vec<usize>,
}

impl Schedule {
    /// Draws a schedule.
    pub(crate) fn random(seed: u64, workers: usize, clocks: usize, base: Duration, factor: u32) -> Self {
        let mut random = SplitMix64::new(seed);
        let slowed = (0..clocks).map(|_| random.below(workers as u64) as usize).collect();
        Self { workers, base, factor, slowed }
    }

    /// How many clocks the schedule covers.
    pub(crate) fn clocks(&self) -> usize {
        self.slowed.len()
    }

    /// The worker that is slow in a clock.
    pub(crate) fn slowed(&self, clock: usize) -> usize {
        self.slowed[clock]
    }

    /// How long a worker computes in a clock.
    pub(crate) fn duration(&self, worker: usize, clock: usize) -> Duration {
        if self.slowed(clock) == worker { self.base * self.factor } else { self.base }
    }

    /// How long all workers together compute.
    pub(crate) fn work(&self) -> Duration {
        // Each clock has one slow worker and the others.
        (self.base * (self.workers as u32 - 1 + self.factor)) * self.clocks() as u32
    }

    /// When the last worker finishes the last clock, under Bounded(slack):
    ///
    /// start_i(c) = max(finish_i(c−1), max_j finish_j(c−s−1)), and finish_i(c) = start_i(c) +
    /// duration_i(c).
    pub(crate) fn total(&self, slack: usize) -> Duration {
        let mut finish = vec![Duration::ZERO; self.workers];
        // all_finished[c] = max_j finish_j(c)
        let mut all_finished: Vec<Duration> = Vec::with_capacity(self.clocks());
        for clock in 0..self.clocks() {
            let bound = clock.checked_sub(slack).and_then(|clock| clock.checked_sub(1));
            let admitted = bound.map_or(Duration::ZERO, |bound| all_finished[bound]);
            for (worker, finish) in finish.iter_mut().enumerate() {
                *finish = admitted.max(*finish) + self.duration(worker, clock);
            }
            all_finished.push(finish.iter().copied().max().unwrap_or_default());
        }
        all_finished.last().copied().unwrap_or_default()
    }

    /// How many times sooner the schedule ends with this slack than in lock-step.
    pub(crate) fn ideal_gain(&self, slack: usize) -> f64 {
        self.total(0).as_secs_f64() / self.total(slack).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Duration = Duration::from_millis(10);

    #[test]
    fn lock_step_waits_for_the_slow_worker_in_every_clock() {
        assert_eq!(Schedule::random(1, 4, 400, BASE, 3).total(0), BASE * 3 * 400);
    }

    #[test]
    fn a_slack_that_never_binds_leaves_each_worker_its_own_sum() {
        let schedule = Schedule::random(2, 4, 400, BASE, 3);
        let own = |worker| (0..400).map(|clock| schedule.duration(worker, clock)).sum::<Duration>();
        let slowest = (0..4).map(own).max().unwrap();
        assert_eq!(schedule.total(400), slowest);
        assert_eq!(schedule.total(usize::MAX), slowest);
    }

    #[test]
    fn all_work_is_the_sum_over_workers_and_clocks() {
        let schedule = Schedule::random(3, 5, 30, BASE, 4);
        let durations = (0..30).flat_map(|clock| (0..5).map(move |worker| (worker, clock)));
        let sum: Duration = durations.map(|(worker, clock)| schedule.duration(worker, clock)).sum();
        assert_eq!(schedule.work(), sum);
    }

    #[test]
    fn more_slack_never_takes_longer() {
        for seed in 0..20 {
            let schedule = Schedule::random(seed, 8, 100, BASE, 5);
            let totals: Vec<Duration> = (0..100).map(|slack| schedule.total(slack)).collect();
            assert!(totals.windows(2).all(|pair| pair[0] >= pair[1]), "seed {seed}: {totals:?}");
        }
    }

    #[test]
    fn four_workers_with_slack_three_gain_a_factor_of_about_one_point_eight() {
        for seed in 0..20 {
            let gain = Schedule::random(seed, 4, 400, BASE, 3).ideal_gain(3);
            assert!((1.6..2.0).contains(&gain), "seed {seed}: {gain}");
        }
    }

    #[test]
    fn total_matches_a_schedule_computed_by_hand() {
        // Worker 0 is slow in clocks 0 and 1 (3 + 3 + 1), worker 1 in clock 2 (1 + 1 + 3); slack 1.
        // Clock 2 of worker 1 starts when clock 0 of all is done, at 3, and ends at 6; worker 0
        // ends at 7.
        let schedule = Schedule { workers: 2, base: BASE, factor: 3, slowed: vec![0, 0, 1] };
        assert_eq!(schedule.total(1), BASE * 7);
        assert_eq!(schedule.total(0), BASE * 9);
    }
}
