//! Axes: they map values to pixels, and choose the round values to mark.

/// How values spread over an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    Logarithmic,
}

/// One axis: the values `low..=high` lie on the pixels `from..=to`, in either direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

/// Values that differ by more than this factor get a logarithmic axis: on a linear one, small
/// values would look like zero.
const LINEAR_RATIO: f64 = 30.0;

impl Axis {
    /// A linear axis from zero, for times.
    pub(super) fn from_zero(high: f64, from: f64, to: f64) -> Self {
        Self { scale: Scale::Linear, low: 0.0, high: if high > 0.0 { high } else { 1.0 }, from, to }
    }

    /// An axis for all of `values`, on the scale that fits them, with some space at both ends.
    pub(super) fn around(values: &[f64], from: f64, to: f64) -> Self {
        let low = values.iter().copied().reduce(f64::min).unwrap_or(0.0);
        let high = values.iter().copied().reduce(f64::max).unwrap_or(1.0);
        if low > 0.0 && high / low > LINEAR_RATIO {
            let space = (high / low).powf(0.04);
            return Self { scale: Scale::Logarithmic, low: low / space, high: high * space, from, to };
        }
        // A single value gets an axis around it, in proportion to its size.
        let space = if high > low { (high - low) * 0.04 } else { low.abs().max(1.0) * 0.1 };
        Self { scale: Scale::Linear, low: low - space, high: high + space, from, to }
    }

    /// The same axis with `pixels` more free space at its low end.
    pub(super) fn with_room_below(self, pixels: f64) -> Self {
        let room = pixels * (self.to - self.from).signum();
        let part = room / (self.to - self.from - room);
        let low = match self.scale {
            Scale::Linear => self.low - (self.high - self.low) * part,
            Scale::Logarithmic => self.low / (self.high / self.low).powf(part),
        };
        Self { low, ..self }
    }

    /// The same axis with its high end moved up to the next round value, of about `wanted` on it.
    pub(super) fn up_to_a_tick(self, wanted: usize) -> Self {
        match self.scale {
            Scale::Linear => {
                let step = linear_step(self.low, self.high, wanted);
                Self { high: (self.high / step).ceil() * step, ..self }
            }
            Scale::Logarithmic => self,
        }
    }

    /// Where a value lies.
    pub(super) fn pixel(&self, value: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Logarithmic => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        self.from + part * (self.to - self.from)
    }

    /// Up to about `wanted` round values on the axis, and how to write them.
    pub(super) fn ticks(&self, wanted: usize) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Linear => linear_ticks(self.low, self.high, wanted),
            Scale::Logarithmic => logarithmic_ticks(self.low, self.high),
        }
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that cuts `low..=high` into at most `wanted`
/// steps.
fn linear_step(low: f64, high: f64, wanted: usize) -> f64 {
    let rough = (high - low) / wanted as f64;
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|digit| digit * power).find(|step| *step >= rough).unwrap_or(10.0 * power)
}

fn linear_ticks(low: f64, high: f64, wanted: usize) -> Vec<(f64, String)> {
    let step = linear_step(low, high, wanted);
    let decimals = (-(step * 1.001).log10().floor()).max(0.0) as usize;
    let first = (low / step).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|multiple| multiple as f64 * step).map(|value| (value, format!("{value:.decimals$}"))).collect()
}

fn logarithmic_ticks(low: f64, high: f64) -> Vec<(f64, String)> {
    let first = low.log10().floor() as i32;
    let last = high.log10().ceil() as i32;
    // Over many powers of ten, ticks at 2 and 5 would crowd.
    let digits: &[f64] = if last - first > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    (first..=last)
        .flat_map(|power| digits.iter().map(move |digit| (digit * 10f64.powi(power), power)))
        .filter(|(value, _)| (low..=high).contains(value))
        .map(|(value, power)| (value, format!("{value:.*}", usize::try_from(-power).unwrap_or(0))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis, wanted: usize) -> Vec<String> {
        axis.ticks(wanted).into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_and_written_with_the_digits_they_need() {
        assert_eq!(labels(&Axis::from_zero(14.6, 0.0, 100.0), 8), ["0", "2", "4", "6", "8", "10", "12", "14"]);
        assert_eq!(labels(&Axis::from_zero(0.3, 0.0, 100.0), 4), ["0.0", "0.1", "0.2", "0.3"]);
        assert_eq!(labels(&Axis::around(&[0.5, 0.7], 0.0, 100.0), 5), ["0.50", "0.55", "0.60", "0.65", "0.70"]);
        assert_eq!(labels(&Axis::around(&[0.2, 20.0], 0.0, 100.0), 5), ["0.2", "0.5", "1", "2", "5", "10", "20"]);
    }

    #[test]
    fn values_that_differ_by_a_large_factor_get_a_logarithmic_axis() {
        assert_eq!(Axis::around(&[0.01, 1.0], 0.0, 1.0).scale, Scale::Logarithmic);
        assert_eq!(Axis::around(&[0.5, 1.0], 0.0, 1.0).scale, Scale::Linear);
        assert_eq!(Axis::around(&[0.0, 1.0], 0.0, 1.0).scale, Scale::Linear);
    }

    #[test]
    fn with_room_below_keeps_the_low_end_free_of_values() {
        for values in [[0.5, 0.7], [0.01, 1.0]] {
            let axis = Axis::around(&values, 400.0, 100.0).with_room_below(60.0);
            assert!(axis.pixel(values[0]) <= 340.0 && axis.pixel(values[1]) >= 100.0);
        }
    }

    #[test]
    fn axis_exists_for_one_value_and_for_none() {
        for values in [&[][..], &[0.0], &[5.0], &[-3.0, -3.0]] {
            let axis = Axis::around(values, 0.0, 100.0);
            assert!(axis.pixel(values.first().copied().unwrap_or_default()).is_finite());
            assert!(!axis.ticks(5).is_empty());
        }
    }
}
