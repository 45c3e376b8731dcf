//! Logical clocks, which order training, and times, which order a machine's inputs.

use std::fmt;

/// A worker's count of finished units of work, or a frontier: the number of clocks that every live
/// worker has finished.
///
/// ```
/// use types::Clock;
///
/// assert!(Clock(3) < Clock(4) && Clock::default() == Clock(0));
/// assert_eq!(Clock(3).to_string(), "clock 3");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Clock(pub u64);

impl Clock {
    /// The clock after this one. The largest clock is followed by itself, because clocks also come
    /// from the network.
    ///
    /// ```
    /// use types::Clock;
    ///
    /// assert_eq!(Clock(3).next(), Clock(4));
    /// assert_eq!(Clock(u64::MAX).next(), Clock(u64::MAX));
    /// ```
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "clock {}", self.0)
    }
}

/// Nanoseconds since a shell started. Machines read no clock: they get the time as an argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// A duration in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

impl Span {
    /// A span of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// A span of whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds * 1_000_000_000)
    }

    /// The span in seconds, for people.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl std::ops::Add<Span> for Time {
    type Output = Time;
    fn add(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl Time {
    /// The span from `earlier` to this time; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}
