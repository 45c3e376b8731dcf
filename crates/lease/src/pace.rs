//! How much of the work each worker gets: in proportion to its measured speed, so that all end
//! their clocks together.
//!
//! Speed is examples over the time they took, both added up with the weight of older clocks falling
//! by half at each. What a worker takes longer for, at the same speed, changes nothing; where each
//! clock costs it a fixed time besides, shares move towards equal times in steps of one sign. A
//! share stays as it is while it fits nearly, so that noise moves it little; once it is the nearest
//! whole number to what a steady speed deserves, it stays for good.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use types::{Clock, Span};

/// What the weight of earlier clocks is multiplied by at each clock: after four clocks at a new
/// speed, nine tenths are of that.
const KEPT_EACH_CLOCK: f64 = 0.5;

/// A share stays while it is off by less than this part of it…
const TOLERANCE: f64 = 1.0 / 12.0;
/// … or by less than this much: between two whole numbers it does not go to and fro…
const TOLERANCE_UNITS: f64 = 0.75;
/// … unless another whole number was nearer, to the same side, for so many commits running: that is
/// no noise.
pub(super) const COMMITS_BEFORE_A_CHANGE: u8 = 4;

/// No worker's share is more than this many times that of a worker of average speed.
pub const MOST_OF_AVERAGE: u32 = 16;

/// What a worker did, and how long that took it: without the time in which it waited for others.
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
    /// Examples learnt from.
    pub examples: u64,
    /// Time spent on them.
    pub busy: Span,
}

/// One worker's speed and share.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pace {
    /// Weighed sums over past clocks.
    pub examples: f64,
    pub seconds: f64,
    /// The clock of the last work that was counted, if any was.
    pub clock: Option<Clock>,
    /// Minibatches a clock.
    pub share: u32,
    /// For how many commits running a larger share would have fitted better; below zero, a smaller
    /// one.
    pub lean: i8,
}

impl Pace {
    pub fn new(per_clock: u32) -> Self {
        Self { examples: 0.0, seconds: 0.0, clock: None, share: per_clock, lean: 0 }
    }

    /// Counts work that ended in `clock`. Ignores a report that says nothing about speed.
    pub fn observe(&mut self, clock: Clock, work: WorkReport) {
        if work.examples == 0 || work.busy == Span(0) {
            return;
        }
        let passed = self.clock.map_or(0, |last| clock.0.saturating_sub(last.0));
        // Far enough back, a clock's weight is nothing.
        let kept = KEPT_EACH_CLOCK.powi(passed.min(1000) as i32);
        self.examples = self.examples * kept + work.examples as f64;
        self.seconds = self.seconds * kept + work.busy.as_secs_f64();
        self.clock = self.clock.max(Some(clock));
    }

    /// Examples a second, once there is a measure.
    pub fn rate(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.examples / self.seconds)
    }

    /// Moves the share to what fits, where it does not fit already.
    pub fn fit(&mut self, wanted: f64, most: u32) {
        let nearest = (wanted.round() as u32).clamp(1, most);
        self.lean = match nearest.cmp(&self.share) {
            Ordering::Equal => 0,
            Ordering::Greater => self.lean.max(0) + 1,
            Ordering::Less => self.lean.min(0) - 1,
        };
        let now = f64::from(self.share);
        let off = (wanted - now).abs() >= (now * TOLERANCE).max(TOLERANCE_UNITS);
        if off || self.lean.unsigned_abs() >= COMMITS_BEFORE_A_CHANGE {
            (self.share, self.lean) = (nearest, 0);
        }
    }
}

/// The largest share there is, where a worker of average speed has `per_clock`.
pub(super) fn most(per_clock: u32) -> u32 {
    per_clock.saturating_mul(MOST_OF_AVERAGE)
}

/// What a worker's share is to be, before it is rounded and bounded: in proportion to its speed,
/// that of average speed being `per_clock`. One that is not measured yet counts as average.
pub(super) fn wanted(per_clock: u32, of: &Pace, all: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = all.fold((0.0, 0.0), |(sum, count), rate| (sum + rate, count + 1.0));
    of.rate().map_or(f64::from(per_clock), |rate| f64::from(per_clock) * rate * count / sum)
}
