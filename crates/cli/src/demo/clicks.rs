//! A synthetic click log: sparse rows of features, with a label that says whether an advertisement
//! was clicked.
//!
//! Feature frequencies follow Zipf's law, like real ones: few features are in most rows, and most
//! in few rows. Labels are drawn from a true logistic model over the same features, without an
//! intercept. So a learner can reach the true model, and its loss is the floor. The same seed gives
//! the same rows on every machine.

use std::ops::Range;

use super::logistic::{evaluate, sigmoid};
use types::SplitMix64;

/// The least and the largest number of distinct features in a row.
const ROW_FEATURES: (u64, u64) = (15, 25);
/// The frequency of the feature of rank r is proportional to r to the minus this.
const ZIPF_EXPONENT: f64 = 1.1;
/// The share of rows that are clicks. The true weights are scaled to give it.
const CLICK_RATE: f64 = 0.3;
/// The expected loss of the true model. The true weights are scaled to give it.
const FLOOR_LOSS: f64 = 0.5;

/// Rows in compressed sparse row form: row `i` has `features[offsets[i]..offsets[i + 1]]`,
/// ascending.
pub(crate) struct Clicks {
    offsets: Vec<u32>,
    features: Vec<u32>,
    labels: Vec<bool>,
    true_weights: Vec<f32>,
}

impl Clicks {
    /// Draws a data set.
    ///
    /// # Panics
    /// If there are no rows, fewer than 100 features (distinct ones would be hard to draw), or more
    /// rows than fit.
    pub(crate) fn generate(seed: u64, rows: usize, features: usize) -> Self {
        assert!(rows > 0 && features >= 100, "a data set needs rows, and at least 100 features");
        assert!(u32::try_from(rows * ROW_FEATURES.1 as usize).is_ok(), "a data set has at most 171 million rows");
        let mut random = SplitMix64::new(seed);
        let (offsets, features_of_rows) = draw_rows(&mut random, rows, features);
        let mut clicks = Self { offsets, features: features_of_rows, labels: Vec::new(), true_weights: Vec::new() };
        clicks.true_weights = clicks.calibrated_weights(&mut random, features);
        clicks.labels = (0..rows).map(|row| random.unit() < sigmoid(clicks.score(row, &clicks.true_weights))).collect();
        clicks
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// How many features there are: the length of a dense array of weights.
    pub(crate) fn features(&self) -> usize {
        self.true_weights.len()
    }

    /// The features of a row, ascending, and whether it was clicked.
    pub(crate) fn row(&self, row: usize) -> (&[u32], bool) {
        (self.features_of(row), self.labels[row])
    }

    /// The share of rows in `range` that are clicks.
    pub(crate) fn click_rate(&self, range: Range<usize>) -> f64 {
        let length = range.len() as f64;
        self.labels[range].iter().filter(|label| **label).count() as f64 / length
    }

    /// The mean log-loss of the true model on `range`. A learner beats it only by chance.
    pub(crate) fn floor_loss(&self, range: Range<usize>) -> f64 {
        evaluate(self, range, &self.true_weights)
    }

    /// The mean log-loss on `range` of always predicting its click rate. A learner that has learnt
    /// something beats it.
    pub(crate) fn click_rate_loss(&self, range: Range<usize>) -> f64 {
        entropy(self.click_rate(range))
    }

    /// The logit of a row under dense weights.
    pub(crate) fn score(&self, row: usize, weights: &[f32]) -> f64 {
        self.features_of(row).iter().map(|feature| f64::from(weights[*feature as usize])).sum()
    }

    fn features_of(&self, row: usize) -> &[u32] {
        &self.features[self.offsets[row] as usize..self.offsets[row + 1] as usize]
    }

    /// Normally distributed weights, with the spread and mean that give `CLICK_RATE` and
    /// `FLOOR_LOSS` on a sample of the rows.
    ///
    /// Their mean stands in for an intercept, which a learner without one could not represent.
    fn calibrated_weights(&self, random: &mut SplitMix64, features: usize) -> Vec<f32> {
        let normal: Vec<f32> = (0..features).map(|_| random.normal() as f32).collect();
        let sample: Vec<(f64, f64)> = (0..self.rows().min(5_000))
            .map(|row| (self.score(row, &normal), self.features_of(row).len() as f64))
            .collect();
        let average = |value: &dyn Fn(f64) -> f64, spread: f64, mean: f64| {
            sample.iter().map(|(score, length)| value(sigmoid(spread * score + mean * length))).sum::<f64>()
                / sample.len() as f64
        };
        let mean_at = |spread| bisect(-4.0, 4.0, |mean| average(&|rate| rate, spread, mean) > CLICK_RATE);
        let spread = bisect(0.0, 4.0, |spread| average(&entropy, spread, mean_at(spread)) < FLOOR_LOSS);
        let mean = mean_at(spread);
        normal.iter().map(|weight| (spread * f64::from(*weight) + mean) as f32).collect()
    }
}

/// Offsets and features of rows whose features are distinct and Zipf-distributed.
fn draw_rows(random: &mut SplitMix64, rows: usize, features: usize) -> (Vec<u32>, Vec<u32>) {
    // Assign ranks at random, so that not all frequent features lie in the first server's range.
    let mut feature_of_rank: Vec<u32> = (0..features as u32).collect();
    random.shuffle(&mut feature_of_rank);
    let zipf = Zipf::new(features);

    let mut offsets = Vec::with_capacity(rows + 1);
    let mut drawn: Vec<u32> = Vec::with_capacity(rows * ROW_FEATURES.1 as usize);
    offsets.push(0);
    for _ in 0..rows {
        let start = drawn.len();
        let length = (ROW_FEATURES.0 + random.below(ROW_FEATURES.1 - ROW_FEATURES.0 + 1)) as usize;
        while drawn.len() - start < length {
            let feature = feature_of_rank[zipf.rank(random)];
            if !drawn[start..].contains(&feature) {
                drawn.push(feature);
            }
        }
        drawn[start..].sort_unstable();
        offsets.push(drawn.len() as u32);
    }
    (offsets, drawn)
}

/// Draws ranks from 0, with a frequency of rank r proportional to (r + 1) to the minus
/// `ZIPF_EXPONENT`.
struct Zipf {
    /// `below[r]` is the sum of the frequencies of ranks 0 to r. Integers, so that rounding errors
    /// of
    /// `powf` do not add up.
    below: Vec<u64>,
    /// For each equal slice of the total, the first rank that reaches into it: a draw starts its
    /// search there.
    guide: Vec<u32>,
}

impl Zipf {
    fn new(ranks: usize) -> Self {
        let mut total = 0;
        let below: Vec<u64> = (1..=ranks)
            .map(|rank| {
                total += ((rank as f64).powf(-ZIPF_EXPONENT) * (1u64 << 40) as f64) as u64;
                total
            })
            .collect();
        let slice = Self::slice(total, ranks);
        let guide = (0..=ranks as u64).map(|index| below.partition_point(|sum| *sum <= index * slice) as u32).collect();
        Self { below, guide }
    }

    fn slice(total: u64, slices: usize) -> u64 {
        total / slices as u64 + 1
    }

    fn rank(&self, random: &mut SplitMix64) -> usize {
        let total = self.below[self.below.len() - 1];
        let draw = random.below(total);
        let mut rank = self.guide[(draw / Self::slice(total, self.below.len())) as usize] as usize;
        while self.below[rank] <= draw {
            rank += 1;
        }
        rank
    }
}

/// The expected log-loss of predicting `rate` for an event of that rate.
fn entropy(rate: f64) -> f64 {
    [rate, 1.0 - rate].iter().filter(|part| **part > 0.0).map(|part| -part * part.ln()).sum()
}

/// Bisects for the point between `low` and `high` from which on `reached` holds.
fn bisect(mut low: f64, mut high: f64, reached: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..24 {
        let middle = (low + high) / 2.0;
        if reached(middle) { high = middle } else { low = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_rows_and_another_seed_others() {
        let [one, again, other] = [7, 7, 8].map(|seed| Clicks::generate(seed, 500, 1000));
        assert!((0..500).all(|row| one.row(row) == again.row(row)));
        assert!((0..500).any(|row| one.row(row) != other.row(row)));
    }

    #[test]
    fn the_rows_of_a_seed_never_change() {
        let clicks = Clicks::generate(1, 500, 1000);
        let sum: u64 = clicks.features.iter().map(|feature| u64::from(*feature)).sum();
        let ones = clicks.labels.iter().filter(|label| **label).count();
        assert_eq!((clicks.features.len(), sum, ones), (9_967, 4_966_461, 174));
    }

    #[test]
    fn rows_hold_distinct_ascending_features() {
        let clicks = Clicks::generate(3, 2000, 500);
        for (features, _) in (0..clicks.rows()).map(|row| clicks.row(row)) {
            assert!((15..=25).contains(&features.len()));
            assert!(features.windows(2).all(|pair| pair[0] < pair[1]) && features[features.len() - 1] < 500);
        }
    }

    #[test]
    fn click_rate_and_floor_are_what_they_were_set_to() {
        for seed in 0..4 {
            let clicks = Clicks::generate(seed, 20_000, 20_000);
            let rate = clicks.click_rate(0..20_000);
            let floor = clicks.floor_loss(0..20_000);
            assert!((rate - CLICK_RATE).abs() < 0.02, "seed {seed}: click rate {rate}");
            assert!((floor - FLOOR_LOSS).abs() < 0.02, "seed {seed}: floor {floor}");
            assert!(clicks.click_rate_loss(0..20_000) > floor + 0.05);
        }
    }

    #[test]
    fn ranks_are_drawn_as_often_as_zipf_says() {
        let zipf = Zipf::new(1000);
        let mut random = SplitMix64::new(4);
        let mut counts = vec![0u32; 1000];
        for _ in 0..200_000 {
            counts[zipf.rank(&mut random)] += 1;
        }
        let total: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-ZIPF_EXPONENT)).sum();
        for rank in [0usize, 1, 9, 99] {
            let expected = 200_000.0 * (rank as f64 + 1.0).powf(-ZIPF_EXPONENT) / total;
            let seen = f64::from(counts[rank]);
            assert!((seen - expected).abs() < 5.0 * expected.sqrt(), "rank {rank}: {seen} of {expected}");
        }
    }
}
