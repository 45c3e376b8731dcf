//! How many new nodes may join in a second: a token bucket, so that a flood of requests does not
//! keep the coordinator from its other duties.

use types::limits::{JOINS_AT_ONCE, JOINS_PER_SECOND};
use types::{Span, Time};

/// Requests of new nodes that the coordinator still answers.
pub(crate) struct JoinBudget {
    left: u64,
    /// When `left` was last raised.
    raised: Time,
}

impl Default for JoinBudget {
    fn default() -> Self {
        Self { left: JOINS_AT_ONCE as u64, raised: Time(0) }
    }
}

impl JoinBudget {
    /// Whether another new node is answered now. One that is not asks again.
    pub fn take(&mut self, now: Time) -> bool {
        let each = Span::from_secs(1).0 / JOINS_PER_SECOND as u64;
        let earned = now.since(self.raised).0 / each;
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(JOINS_AT_ONCE as u64);
            self.raised = now;
        }
        let has_any = self.left > 0;
        self.left -= u64::from(has_any);
        has_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_budget_bounds_a_flood_and_refills() {
        let mut budget = JoinBudget::default();
        let taken = |budget: &mut JoinBudget, at: Time| (0..10_000).filter(|_| budget.take(at)).count();
        assert_eq!(taken(&mut budget, Time(0)), JOINS_AT_ONCE);
        let mut joined = 0;
        for milliseconds in 1..=1000 {
            joined += taken(&mut budget, Time(0) + Span::from_millis(milliseconds));
        }
        assert!((JOINS_PER_SECOND / 2..=JOINS_PER_SECOND).contains(&joined), "{joined} in a second");
        assert_eq!(taken(&mut budget, Time(0) + Span::from_secs(1000)), JOINS_AT_ONCE);
    }
}
