//! Where a worker's time went, and for whom it waited.

use std::collections::BTreeMap;
use std::time::Duration;
use types::WorkerId;

/// A worker's account of its time. What is in none of the entries was spent computing. Threads that
/// wait at the same time each count.
///
/// ```
/// use slackwater::cluster::WorkerId;
/// use slackwater::monitor::TimeBreakdown;
/// use std::time::Duration;
///
/// let seconds = Duration::from_secs;
/// let bound = [(WorkerId(1), seconds(3)), (WorkerId(2), seconds(1))].into();
/// let times = TimeBreakdown { bound, network: seconds(1), barrier: seconds(1), total: seconds(10) };
/// assert_eq!(times.waited_for_others(), seconds(4));
/// assert_eq!(times.compute(), seconds(4));
/// assert_eq!(times.slowest(), Some((WorkerId(1), seconds(3))));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeBreakdown {
    /// Reads that were held back by the bound, by the worker whose clock let them go.
    pub bound: BTreeMap<WorkerId, Duration>,
    /// Reads and acknowledgements that were only under way, and pushes and clocks that had to wait
    /// until fewer were.
    pub network: Duration,
    /// MemberState at barriers, and waiting for leases.
    pub barrier: Duration,
    /// From the opening of the session.
    pub total: Duration,
}

impl TimeBreakdown {
    /// Time that the bound cost, for whomever.
    ///
    /// ```
    /// use slackwater::cluster::WorkerId;
    /// use slackwater::monitor::TimeBreakdown;
    /// use std::time::Duration;
    ///
    /// let bound = [(WorkerId(1), Duration::from_secs(3)), (WorkerId(2), Duration::from_secs(1))].into();
    /// assert_eq!(TimeBreakdown { bound, ..TimeBreakdown::default() }.waited_for_others(), Duration::from_secs(4));
    /// ```
    #[must_use]
    pub fn waited_for_others(&self) -> Duration {
        self.bound.values().sum()
    }

    /// Time left for the program itself.
    ///
    /// ```
    /// use slackwater::monitor::TimeBreakdown;
    /// use std::time::Duration;
    ///
    /// let times = TimeBreakdown { total: Duration::from_secs(10), network: Duration::from_secs(4), ..TimeBreakdown::default() };
    /// assert_eq!(times.compute(), Duration::from_secs(6));
    /// ```
    #[must_use]
    pub fn compute(&self) -> Duration {
        self.total.saturating_sub(self.waited_for_others() + self.network + self.barrier)
    }

    /// The worker that was waited for longest.
    ///
    /// ```
    /// use slackwater::cluster::WorkerId;
    /// use slackwater::monitor::TimeBreakdown;
    /// use std::time::Duration;
    ///
    /// let bound = [(WorkerId(1), Duration::from_secs(3)), (WorkerId(2), Duration::from_secs(1))].into();
    /// assert_eq!(TimeBreakdown { bound, ..TimeBreakdown::default() }.slowest(), Some((WorkerId(1), Duration::from_secs(3))));
    /// assert_eq!(TimeBreakdown::default().slowest(), None);         // it waited for nobody
    /// ```
    #[must_use]
    pub fn slowest(&self) -> Option<(WorkerId, Duration)> {
        self.bound.iter().map(|(worker, time)| (*worker, *time)).max_by_key(|(_, time)| *time)
    }
}
