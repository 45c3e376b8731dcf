//! The failed clocks that shards have reported, so that reads from the cache report them, too.
//!
//! Shards skip the update of a failed clock for all workers alike, because they refused a part of
//! it.

use std::collections::VecDeque;
use types::{Clock, Consistency};
use wire::FailedClock;

/// How many failed clocks a worker remembers for each table; it forgets the oldest first.
const FAILED_CLOCKS: usize = 64;

/// The last failed clocks of a table.
pub(crate) struct FailedClocks {
    consistency: Consistency,
    clocks: VecDeque<FailedClock>,
}

impl FailedClocks {
    /// No failed clocks yet.
    pub fn new(consistency: Consistency) -> Self {
        Self { consistency, clocks: VecDeque::new() }
    }

    /// Remembers the failed clocks that a shard reports. Several shards may report the same clock;
    /// it is kept once.
    pub fn note(&mut self, failed: &[FailedClock]) {
        for failed in failed {
            if self.clocks.iter().all(|known| known.clock != failed.clock) {
                self.clocks.push_back(failed.clone());
            }
        }
        let beyond = self.clocks.len().saturating_sub(FAILED_CLOCKS);
        self.clocks.drain(..beyond);
    }

    /// The failed clocks that a reader at this clock is told of.
    pub fn in_view(&self, reader: Clock) -> Vec<FailedClock> {
        let in_view = |failed: &&FailedClock| self.consistency.reports_failure(reader, failed.clock);
        self.clocks.iter().filter(in_view).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::WorkerId;
    use wire::Refusal;

    fn failed(clock: u64) -> FailedClock {
        FailedClock { clock: Clock(clock), worker: WorkerId(1), refusal: Refusal::PastClock }
    }

    fn in_view(clocks: &FailedClocks, reader: u64) -> Vec<u64> {
        clocks.in_view(Clock(reader)).iter().map(|failed| failed.clock.0).collect()
    }

    #[test]
    fn failed_clocks_are_reported_as_far_back_as_the_slack() {
        // (consistency, the reader's clock, the failed clocks that it sees)
        for (consistency, reader, expected) in [
            (Consistency::slack(0), 3, vec![2, 3, 5]),
            (Consistency::slack(0), 4, vec![3, 5]),
            (Consistency::slack(2), 5, vec![2, 3, 5]),
            (Consistency::slack(2), 6, vec![3, 5]),
            (Consistency::Unbounded, 6, vec![5]),
        ] {
            let mut clocks = FailedClocks::new(consistency);
            clocks.note(&[failed(2), failed(3), failed(5), failed(3)]);
            assert_eq!(in_view(&clocks, reader), expected, "{consistency} at {reader}");
        }
    }

    #[test]
    fn failed_clocks_forget_the_oldest_past_their_bound() {
        let mut clocks = FailedClocks::new(Consistency::slack(0));
        (0..100).for_each(|clock| clocks.note(&[failed(clock)]));
        assert_eq!(in_view(&clocks, 0), (36..100).collect::<Vec<u64>>());
    }
}
