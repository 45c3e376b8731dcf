//! Measured durations, from which time-outs are derived.

use crate::Span;

/// A smoothed mean and mean deviation, as in RFC 6298 for round-trip times.
///
/// ```
/// use types::{Measured, Span};
///
/// let mut trip = Measured::default();
/// let least = Span::from_millis(10);
/// let most = Span::from_secs(2);
/// assert_eq!(trip.limit(least, most), most, "nothing is known yet");
/// (0..50).for_each(|_| trip.observe(Span::from_millis(40)));
/// assert_eq!(trip.mean, Span::from_millis(40));
/// assert!(trip.limit(least, most) < Span::from_millis(41), "it never varies");
/// trip.observe(Span::from_millis(400));
/// assert!(trip.limit(least, most) > Span::from_millis(400), "it varied");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// The mean. A new measurement weighs an eighth.
    pub mean: Span,
    /// The mean deviation. A new measurement weighs a quarter.
    pub deviation: Span,
    /// The number of measurements.
    pub count: u64,
}

impl Measured {
    /// Adds a measurement.
    pub fn observe(&mut self, took: Span) {
        // Bounds the span, so that the sums below cannot overflow.
        let took = took.0.min(u64::MAX / 16);
        let mean = self.mean.0;
        let deviation = self.deviation.0;
        (self.mean, self.deviation) = match self.count {
            0 => (Span(took), Span(took / 2)),
            _ => (Span((mean * 7 + took) / 8), Span((deviation * 3 + mean.abs_diff(took)) / 4)),
        };
        self.count = self.count.saturating_add(1);
    }

    /// How long to wait before something counts as late: the mean plus four deviations, between
    /// `least` and `most`. Returns `most` before the first measurement.
    #[must_use]
    pub fn limit(&self, least: Span, most: Span) -> Span {
        if self.count == 0 {
            return most;
        }
        Span((self.mean.0 + 4 * self.deviation.0).max(least.0).min(most.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_follows_rfc_6298() {
        // As in RFC 6298, 2.2 and 2.3, with R = 100 and then R' = 180.
        let mut measured = Measured::default();
        measured.observe(Span(100));
        assert_eq!((measured.mean, measured.deviation), (Span(100), Span(50)));
        measured.observe(Span(180));
        assert_eq!((measured.mean, measured.deviation, measured.count), (Span(110), Span(57), 2));
        assert_eq!(measured.limit(Span(0), Span(1_000)), Span(338));
    }

    #[test]
    fn measured_limit_stays_within_its_bounds() {
        let mut measured = Measured::default();
        for took in [0, u64::MAX, 1, u64::MAX, u64::MAX] {
            measured.observe(Span(took));
            let limit = measured.limit(Span(5), Span(50));
            assert!(limit >= Span(5) && limit <= Span(50));
        }
    }
}
