//! Shares of work in proportion to measured speed, so that all workers end their clocks together.
//!
//! - Speed is examples divided by the time they took. Both sums are exponentially weighted: the
//!   weight of older clocks halves at each clock.
//! - A larger share at the same speed changes nothing. If each clock also costs a fixed time,
//!   shares move towards equal times without overshooting.
//! - Hysteresis: a share stays while it nearly fits, so noise moves it little. At a steady speed it
//!   settles at the nearest whole number.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use types::{Clock, Span};

/// The factor on the weight of earlier clocks at each clock. After four clocks at a new speed, it
/// makes up nine tenths of the sum.
const KEPT_EACH_CLOCK: f64 = 0.5;

/// A share stays while it is off by less than this fraction of itself…
const TOLERANCE: f64 = 1.0 / 12.0;
/// … or by less than this many minibatches, so that it does not alternate between two numbers…
const TOLERANCE_UNITS: f64 = 0.75;
/// … unless another whole number on the same side fitted better in this many consecutive commits.
pub(super) const COMMITS_BEFORE_A_CHANGE: u8 = 4;

/// The largest share, as a multiple of the share of a worker of average speed.
pub const MOST_OF_AVERAGE: u32 = 16;

/// What a worker did, and the time it took, without the time it waited for others.
///
/// ```
/// use lease::WorkReport;
/// use types::Span;
///
/// let work = WorkReport { examples: 1000, busy: Span::from_millis(20) };
/// assert_eq!(work.busy.as_secs_f64(), 0.02);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkReport {
    /// The number of examples.
    pub examples: u64,
    /// Time spent on them.
    pub busy: Span,
}

/// One worker's speed and share.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pace {
    /// The weighted sum of examples over past clocks.
    pub examples: f64,
    /// The weighted sum of busy seconds over past clocks.
    pub seconds: f64,
    /// The clock of the last work that was counted.
    pub clock: Option<Clock>,
    /// Minibatches a clock.
    pub share: u32,
    /// In how many consecutive commits a larger share would have fitted better. Negative for a
    /// smaller share.
    pub trend: i8,
}

impl Pace {
    pub fn new(per_clock: u32) -> Self {
        Self { examples: 0.0, seconds: 0.0, clock: None, share: per_clock, trend: 0 }
    }

    /// Counts work that ended in `clock`. Ignores a report that says nothing about speed.
    pub fn observe(&mut self, clock: Clock, work: WorkReport) {
        if work.examples == 0 || work.busy == Span(0) {
            return;
        }
        let passed = self.clock.map_or(0, |last| clock.0.saturating_sub(last.0));
        // After this many clocks, the weight is zero.
        let kept = KEPT_EACH_CLOCK.powi(passed.min(1000) as i32);
        self.examples = self.examples * kept + work.examples as f64;
        self.seconds = self.seconds * kept + work.busy.as_secs_f64();
        self.clock = self.clock.max(Some(clock));
    }

    /// Examples a second; `None` before the first measurement.
    pub fn rate(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.examples / self.seconds)
    }

    /// Changes the share to the nearest whole number to `wanted`, unless it nearly fits already.
    pub fn fit(&mut self, wanted: f64, most: u32) {
        let nearest = (wanted.round() as u32).clamp(1, most);
        self.trend = match nearest.cmp(&self.share) {
            Ordering::Equal => 0,
            Ordering::Greater => self.trend.max(0) + 1,
            Ordering::Less => self.trend.min(0) - 1,
        };
        let now = f64::from(self.share);
        let off = (wanted - now).abs() >= (now * TOLERANCE).max(TOLERANCE_UNITS);
        if off || self.trend.unsigned_abs() >= COMMITS_BEFORE_A_CHANGE {
            self.share = nearest;
            self.trend = 0;
        }
    }
}

/// The largest share, if a worker of average speed has `per_clock`.
pub(super) fn most(per_clock: u32) -> u32 {
    per_clock.saturating_mul(MOST_OF_AVERAGE)
}

/// A worker's share before rounding and bounding: in proportion to its speed, with `per_clock` for
/// average speed. A worker without a measurement gets the average.
pub(super) fn wanted(per_clock: u32, of: &Pace, all: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = all.fold((0.0, 0.0), |(sum, count), rate| (sum + rate, count + 1.0));
    of.rate().map_or(f64::from(per_clock), |rate| f64::from(per_clock) * rate * count / sum)
}
