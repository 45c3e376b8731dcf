//! How fresh a read must be, and how contributions are combined: the consistency rules as data.

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
    /// A worker at clock c reads rows that hold every update of clocks ≤ c − slack − 1, and its own
    /// pushes.
    Bounded {
        /// How many clocks a reader may be ahead of the frontier.
        slack: u64,
        /// Whether shards send changed rows to their readers when the frontier moves.
        eager: bool,
    },
    /// Whatever is there.
    Unbounded,
    /// Task i of a worker is issued when its tasks before i − tau are acknowledged; reads are as
    /// `Unbounded`.
    Delay {
        /// How many tasks may be unacknowledged before the one to be issued. 0 is sequential.
        tau: u64,
    },
}

impl Consistency {
    /// Lock-step: every read holds every update of every earlier clock.
    pub const LOCK_STEP: Self = Self::Bounded { slack: 0, eager: false };

    /// A bound of `slack` clocks, refreshed on demand.
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

    /// May a worker at clock `reader` read rows that reflect every update of clocks below
    /// `frontier`?
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

    /// How many clocks a reader may be ahead, where there is a bound.
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

    /// Whether shards send changed rows to their readers by themselves.
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

/// How contributions to one row meet.
///
/// ```
/// use types::{Combine, Reduce};
///
/// assert_eq!(Combine::default(), Combine::Each);
/// assert_ne!(Combine::Clock(Reduce::Sum), Combine::Clock(Reduce::Mean));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Combine {
    /// Every push is applied by itself, in arrival order.
    #[default]
    Each,
    /// A clock's contributions are combined, then applied once, when the frontier passes that
    /// clock. Shards hold a bounded number of clocks apart: pushes of a worker that is further
    /// ahead wait until the slowest have come nearer.
    Clock(Reduce),
}

/// What a clock's contributions become.
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
    /// Their sum divided by the workers that ended the clock, however many contributed. One that
    /// left before its end does not count; one that left after it does.
    Mean,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_read_rule_by_cases() {
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
}
