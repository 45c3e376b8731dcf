//! A loss curve in a bounded number of points: when there are too many, each pair of neighbours is
//! merged.

/// The most points of a curve.
pub(crate) const POINTS: usize = 128;
/// How many numbers the row of a curve has.
pub(crate) const WIDTH: usize = 3 * POINTS;

/// The loss of a worker's minibatches over time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    points: Vec<Point>,
    /// How many minibatches a full point has.
    each: u64,
    /// How many minibatches the last point has.
    last: u64,
}

/// Some examples: their number, and the sums of their times and losses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Point {
    examples: f64,
    seconds: f64,
    loss: f64,
}

impl Point {
    fn and(self, other: Self) -> Self {
        Self {
            examples: self.examples + other.examples,
            seconds: self.seconds + other.seconds,
            loss: self.loss + other.loss,
        }
    }
}

impl Default for Curve {
    fn default() -> Self {
        Self { points: Vec::new(), each: 1, last: 1 }
    }
}

impl Curve {
    /// Adds a minibatch of `examples` examples, whose losses add up to `loss`.
    pub(crate) fn add(&mut self, seconds: f64, examples: f64, loss: f64) {
        let point = Point { examples, seconds: examples * seconds, loss };
        match self.points.last_mut() {
            Some(last) if self.last < self.each => {
                *last = last.and(point);
                self.last += 1;
            }
            _ => {
                if self.points.len() == POINTS {
                    self.points = halved(&self.points);
                    self.each *= 2;
                }
                self.points.push(point);
                self.last = 1;
            }
        }
    }

    /// The curve as a row of a table.
    pub(crate) fn to_row(&self) -> Vec<f64> {
        let mut row: Vec<f64> =
            self.points.iter().flat_map(|point| [point.examples, point.seconds, point.loss]).collect();
        row.resize(WIDTH, 0.0);
        row
    }

    /// Merges the curves of these rows: seconds and mean loss, in order of time.
    pub(crate) fn together<'a>(rows: impl Iterator<Item = &'a [f64]>) -> Vec<(f64, f64)> {
        let point = |three: &[f64]| Point { examples: three[0], seconds: three[1], loss: three[2] };
        let mut points: Vec<Point> = rows.flat_map(|row| row.chunks_exact(3).map(point)).collect();
        points.retain(|point| point.examples > 0.0);
        points.sort_by(|a, b| (a.seconds / a.examples).total_cmp(&(b.seconds / b.examples)));
        while points.len() > POINTS {
            points = halved(&points);
        }
        points.iter().map(|point| (point.seconds / point.examples, point.loss / point.examples)).collect()
    }
}

/// Merges each pair of neighbours into one point.
fn halved(points: &[Point]) -> Vec<Point> {
    points.chunks(2).map(|pair| pair.iter().fold(Point::default(), |sum, point| sum.and(*point))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_keeps_its_sums_and_its_order_however_long_it_is() {
        for count in [0u32, 1, 128, 129, 1000, 12_345] {
            let mut curves = [Curve::default(), Curve::default()];
            for minibatch in 0..count {
                // The second worker is half a second behind and loses one more.
                curves[0].add(f64::from(minibatch), 10.0, f64::from(minibatch));
                curves[1].add(f64::from(minibatch) + 0.5, 10.0, f64::from(minibatch) + 10.0);
            }
            let rows = curves.map(|curve| curve.to_row());
            let sum = |place: usize| rows.iter().flat_map(|row| row.iter().skip(place).step_by(3)).sum::<f64>();
            assert_eq!(sum(0), f64::from(20 * count));
            let points = Curve::together(rows.iter().map(Vec::as_slice));
            assert!(points.len() <= POINTS && (points.is_empty() == (count == 0)));
            assert!(points.is_sorted_by(|a, b| a.0 < b.0), "{points:?}");
            if count > 0 {
                let expected = (2.0 * f64::from(count) * f64::from(count - 1) / 2.0 + 10.0 * f64::from(count))
                    / f64::from(20 * count);
                assert!((sum(2) / sum(0) - expected).abs() < 1e-9);
            }
        }
    }
}
