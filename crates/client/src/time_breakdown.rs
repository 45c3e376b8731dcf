//! [`TimeBreakdown`]: how a worker has spent its time, and which workers it waited for.

use std::collections::BTreeMap;
use std::time::Duration;
use types::WorkerId;

/// A worker's account of its time. The rest of the total was spent computing. If several threads
/// wait at the same time, each wait counts.
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
    /// Time of parked reads, by the worker whose clock released them.
    pub bound: BTreeMap<WorkerId, Duration>,
    /// Time of reads and acknowledgements under way, and of pushes and clocks that waited because
    /// too much was under way.
    pub network: Duration,
    /// Time at barriers, and waiting for leases.
    pub barrier: Duration,
    /// Time since the session was opened.
    pub total: Duration,
}

impl TimeBreakdown {
    /// Time of parked reads, over all workers that were waited for.
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

    /// Time that the program spent computing: the total without all waits.
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

    /// The worker that this one waited for longest, and for how long.
    ///
    /// ```
    /// use slackwater::cluster::WorkerId;
    /// use slackwater::monitor::TimeBreakdown;
    /// use std::time::Duration;
    ///
    /// let bound = [(WorkerId(1), Duration::from_secs(3)), (WorkerId(2), Duration::from_secs(1))].into();
    /// assert_eq!(TimeBreakdown { bound, ..TimeBreakdown::default() }.slowest(), Some((WorkerId(1), Duration::from_secs(3))));
    /// assert_eq!(TimeBreakdown::default().slowest(), None);         // it waited for no worker
    /// ```
    #[must_use]
    pub fn slowest(&self) -> Option<(WorkerId, Duration)> {
        self.bound.iter().map(|(worker, time)| (*worker, *time)).max_by_key(|(_, time)| *time)
    }
}
