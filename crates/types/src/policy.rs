//! Consistency rules as data: how fresh a read must be, and when pushes are applied.

use crate::Clock;
use std::fmt;

/// When a read is allowed.
///
/// ```
/// use types::Consistency;
///
/// let rules = [Consistency::LOCK_STEP, Consistency::Bounded { slack: 3, eager: true }, Consistency::Unbounded, Consistency::Delay { tau: 2 }];
/// assert_eq!(rules.map(|rule| rule.to_string()), ["slack 0", "slack 3, eager", "unbounded", "delay 2"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// A worker at clock c reads rows that hold every update of clocks ≤ c − slack − 1. They hold
    /// the worker's own pushes, too, unless the table combines by clock: then its pushes of a clock
    /// are in what it reads once that clock is applied.
    Bounded {
        /// How many clocks a reader may be ahead of the frontier.
        slack: u64,
        /// Whether shards send changed rows to their readers when the frontier moves.
        eager: bool,
    },
    /// A read returns the rows as the shard or cache has them.
    Unbounded,
    /// A worker issues its task i when its tasks before i − tau are acknowledged. Reads are as in
    /// `Unbounded`.
    Delay {
        /// How many earlier tasks may be unacknowledged when a task is issued. 0 is sequential.
        tau: u64,
    },
}

impl Consistency {
    /// Lock-step: every read holds every update of every earlier clock.
    pub const LOCK_STEP: Self = Self::Bounded { slack: 0, eager: false };

    /// A bound of `slack` clocks. Caches are refreshed when they are read.
    ///
    /// ```
    /// use types::Consistency;
    ///
    /// assert_eq!(Consistency::slack(3), Consistency::Bounded { slack: 3, eager: false });
    /// assert_eq!(Consistency::slack(0), Consistency::LOCK_STEP);
    /// ```
    #[must_use]
    pub const fn slack(slack: u64) -> Self {
        Self::Bounded { slack, eager: false }
    }

    /// Whether a worker at clock `reader` may read rows that hold every update of clocks below
    /// `frontier`.
    ///
    /// ```
    /// use types::{Clock, Consistency};
    ///
    /// let rule = Consistency::slack(2);
    /// assert!(rule.admits(Clock(5), Clock(3)));              // two clocks ahead
    /// assert!(!rule.admits(Clock(6), Clock(3)));             // three
    /// assert!(Consistency::Unbounded.admits(Clock(6), Clock(0)));
    /// ```
    #[inline]
    #[must_use]
    pub fn admits(self, reader: Clock, frontier: Clock) -> bool {
        match self {
            Self::Bounded { slack, .. } => reader.0 <= frontier.0.saturating_add(slack),
            Self::Unbounded | Self::Delay { .. } => true,
        }
    }

    /// The least frontier that admits a reader at clock `reader`.
    ///
    /// ```
    /// use types::{Clock, Consistency};
    ///
    /// assert_eq!(Consistency::slack(2).needed(Clock(5)), Clock(3));
    /// assert_eq!(Consistency::slack(9).needed(Clock(5)), Clock(0));
    /// assert_eq!(Consistency::Unbounded.needed(Clock(5)), Clock(0));
    /// ```
    #[must_use]
    pub fn needed(self, reader: Clock) -> Clock {
        match self {
            Self::Bounded { slack, .. } => Clock(reader.0.saturating_sub(slack)),
            Self::Unbounded | Self::Delay { .. } => Clock(0),
        }
    }

    /// Whether a reader at clock `reader` is told that clock `failed` failed. It is told of the
    /// last clock that its rows must hold, and of all later ones. Without a bound, the rule is that
    /// of slack 0.
    ///
    /// ```
    /// use types::{Clock, Consistency};
    ///
    /// let rule = Consistency::slack(2);
    /// assert!(rule.reports_failure(Clock(5), Clock(2)) && !rule.reports_failure(Clock(5), Clock(1)));
    /// ```
    #[must_use]
    pub fn reports_failure(self, reader: Clock, failed: Clock) -> bool {
        failed.next() >= self.or_lock_step().needed(reader)
    }

    /// This rule if it has a bound, else lock-step.
    ///
    /// ```
    /// use types::Consistency;
    ///
    /// assert_eq!(Consistency::slack(2).or_lock_step(), Consistency::slack(2));
    /// assert_eq!(Consistency::Unbounded.or_lock_step(), Consistency::LOCK_STEP);
    /// ```
    #[must_use]
    pub fn or_lock_step(self) -> Self {
        match self {
            Self::Bounded { .. } => self,
            Self::Unbounded | Self::Delay { .. } => Self::LOCK_STEP,
        }
    }

    /// How many clocks a reader may be ahead of the frontier; `None` without a bound.
    ///
    /// ```
    /// use types::Consistency;
    ///
    /// assert_eq!((Consistency::slack(2).bound(), Consistency::Unbounded.bound()), (Some(2), None));
    /// ```
    #[must_use]
    pub fn bound(self) -> Option<u64> {
        match self {
            Self::Bounded { slack, .. } => Some(slack),
            Self::Unbounded | Self::Delay { .. } => None,
        }
    }

    /// Whether shards send changed rows to their readers without being asked.
    ///
    /// ```
    /// use types::Consistency;
    ///
    /// assert!(Consistency::Bounded { slack: 2, eager: true }.is_eager() && !Consistency::slack(2).is_eager());
    /// ```
    #[must_use]
    pub fn is_eager(self) -> bool {
        matches!(self, Self::Bounded { eager: true, .. })
    }
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bounded { slack, eager: false } => write!(f, "slack {slack}"),
            Self::Bounded { slack, eager: true } => write!(f, "slack {slack}, eager"),
            Self::Unbounded => write!(f, "unbounded"),
            Self::Delay { tau } => write!(f, "delay {tau}"),
        }
    }
}

/// When pushes to one row are applied.
///
/// ```
/// use types::{Combine, Reduce};
///
/// assert_eq!(Combine::default(), Combine::Each);
/// assert_ne!(Combine::Clock(Reduce::Sum), Combine::Clock(Reduce::Mean));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Combine {
    /// A shard applies every push by itself, in order of arrival.
    #[default]
    Each,
    /// A shard combines a clock's pushes and applies them once, when the frontier passes that
    /// clock. It holds at most [`HELD_CLOCKS`](crate::HELD_CLOCKS) clocks: pushes of a worker
    /// further ahead wait in that worker.
    Clock(Reduce),
}

impl Combine {
    /// Whether shards hold a clock's pushes until the frontier passes that clock.
    ///
    /// ```
    /// use types::{Combine, Reduce};
    ///
    /// assert!(Combine::Clock(Reduce::Sum).holds_clocks() && !Combine::Each.holds_clocks());
    /// ```
    #[inline]
    #[must_use]
    pub fn holds_clocks(self) -> bool {
        matches!(self, Self::Clock(_))
    }

    /// Whether shards apply the mean of a clock's pushes.
    ///
    /// ```
    /// use types::{Combine, Reduce};
    ///
    /// assert!(Combine::Clock(Reduce::Mean).takes_mean() && !Combine::Clock(Reduce::Sum).takes_mean());
    /// ```
    #[must_use]
    pub fn takes_mean(self) -> bool {
        self == Self::Clock(Reduce::Mean)
    }
}

/// How the pushes of a clock are combined.
///
/// ```
/// use types::{Combine, Reduce, TableSpec};
///
/// let gradients = TableSpec::dense("gradients", 10, 1).combine(Combine::Clock(Reduce::Mean));
/// assert!(gradients.check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum.
    Sum,
    /// Their sum divided by the number of workers that ended the clock, whether they pushed or not.
    /// A worker that left before the end of the clock does not count; one that left after it does.
    Mean,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consistency_admits_reads_case_by_case() {
        let slack = Consistency::slack;
        // (rule, reader's clock, frontier, may it read?)
        let cases = [
            (slack(0), 0, 0, true),
            (slack(0), 1, 0, false),
            (slack(0), 1, 1, true),
            (slack(3), 3, 0, true),
            (slack(3), 4, 0, false),
            (slack(3), 4, 1, true),
            (slack(u64::MAX), 9, 1, true),
            (Consistency::Bounded { slack: 3, eager: true }, 4, 0, false),
            (Consistency::Unbounded, 1_000, 0, true),
            (Consistency::Delay { tau: 0 }, 1_000, 0, true),
        ];
        for (rule, reader, frontier, expected) in cases {
            assert_eq!(rule.admits(Clock(reader), Clock(frontier)), expected, "{rule} {reader} {frontier}");
        }
    }

    /// Clocks and slacks at which rules are compared: small ones, and those next to the largest.
    fn numbers() -> impl Iterator<Item = u64> + Clone {
        (0..12).chain(u64::MAX - 3..=u64::MAX)
    }

    fn rules() -> impl Iterator<Item = Consistency> {
        let bounded = numbers().flat_map(|slack| [false, true].map(|eager| Consistency::Bounded { slack, eager }));
        bounded.chain([Consistency::Unbounded, Consistency::Delay { tau: 0 }, Consistency::Delay { tau: 3 }])
    }

    #[test]
    fn consistency_admits_a_reader_from_its_needed_frontier_on() {
        for rule in rules() {
            for reader in numbers().map(Clock) {
                let needed = rule.needed(reader);
                assert!(rule.admits(reader, needed), "{rule} {reader}: {needed} is enough");
                for frontier in numbers().map(Clock) {
                    assert_eq!(rule.admits(reader, frontier), frontier >= needed, "{rule} {reader} {frontier}");
                }
            }
        }
    }

    #[test]
    fn consistency_reports_failures_from_the_last_clock_that_rows_must_hold() {
        for rule in rules() {
            let slack = rule.bound().unwrap_or(0);
            for (reader, failed) in numbers().flat_map(|reader| numbers().map(move |failed| (reader, failed))) {
                let expected = u128::from(failed) + u128::from(slack) + 1 >= u128::from(reader);
                let reported = rule.reports_failure(Clock(reader), Clock(failed));
                assert_eq!(reported, expected, "{rule} reader {reader} failed {failed}");
            }
        }
    }
}
