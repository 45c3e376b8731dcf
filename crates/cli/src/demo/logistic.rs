//! Logistic regression on sparse rows: the loss, its gradient, and minibatches with the keys of the
//! weights that they need.
//!
//! With y ∈ {0, 1}, the score z = Σ w_f over the row's features and p = σ(z), a row's loss is
//! −y ln p − (1−y) ln(1−p), and its derivative by each w_f of the row is p − y.

use std::ops::Range;

use super::clicks::Clicks;

/// σ(z) = 1 / (1 + e^−z).
pub(crate) fn sigmoid(score: f64) -> f64 {
    1.0 / (1.0 + (-score).exp())
}

/// The loss of a row with this score and label: ln(1 + e^−z) for a click, ln(1 + e^z) otherwise;
/// finite for any finite score.
pub(crate) fn log_loss(score: f64, label: bool) -> f64 {
    let against = if label { -score } else { score };
    against.max(0.0) + (-against.abs()).exp().ln_1p()
}

/// The mean loss over a range of rows under dense weights.
pub(crate) fn evaluate(clicks: &Clicks, range: Range<usize>, weights: &[f32]) -> f64 {
    let length = range.len() as f64;
    range.map(|row| log_loss(clicks.score(row, weights), clicks.row(row).1)).sum::<f64>() / length
}

/// Some rows, and the distinct features among them.
#[derive(Debug, Default)]
pub(crate) struct Minibatch {
    keys: Vec<u64>,
    /// Row `i` has the features `keys[p]` for each p of `positions[offsets[i]..offsets[i + 1]]`.
    offsets: Vec<u32>,
    positions: Vec<u32>,
    labels: Vec<bool>,
}

/// For each feature of the data set, its index in the keys of the minibatch last built.
///
/// The memory is reused for the next minibatch. Stale entries are harmless: an entry counts only if
/// the key at its index is the feature.
pub(crate) struct Places(Vec<u32>);

impl Places {
    /// For data sets with this many features.
    pub(crate) fn new(features: usize) -> Self {
        Self(vec![0; features])
    }
}

impl Minibatch {
    /// Gathers rows of a data set.
    pub(crate) fn gather(clicks: &Clicks, rows: impl IntoIterator<Item = usize>, places: &mut Places) -> Self {
        let mut batch = Self { offsets: vec![0], ..Self::default() };
        for row in rows {
            let (features, label) = clicks.row(row);
            batch.labels.push(label);
            batch.positions.extend_from_slice(features);
            batch.offsets.push(batch.positions.len() as u32);
        }
        for feature in &batch.positions {
            let place = &mut places.0[*feature as usize];
            if batch.keys.get(*place as usize) != Some(&u64::from(*feature)) {
                *place = batch.keys.len() as u32;
                batch.keys.push(u64::from(*feature));
            }
        }
        batch.keys.sort_unstable();
        for (place, key) in batch.keys.iter().enumerate() {
            places.0[*key as usize] = place as u32;
        }
        for position in &mut batch.positions {
            *position = places.0[*position as usize];
        }
        batch
    }

    /// The distinct features: the keys to pull and to push. They ascend until
    /// [`arrange`](Self::arrange) reorders them.
    pub(crate) fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Reorders the keys: `order` holds the same keys in the new order. From then on, weights and
    /// gradients have this order.
    pub(crate) fn arrange(&mut self, order: impl Iterator<Item = u64>, places: &mut Places) {
        let arranged: Vec<u64> = order.collect();
        debug_assert_eq!(arranged.len(), self.keys.len(), "the same keys in another order");
        for (place, key) in arranged.iter().enumerate() {
            places.0[*key as usize] = place as u32;
        }
        for position in &mut self.positions {
            *position = places.0[self.keys[*position as usize] as usize];
        }
        self.keys = arranged;
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.labels.len()
    }

    /// The mean loss under `weights`, which are aligned with `keys`.
    pub(crate) fn loss(&self, weights: &[f32]) -> f64 {
        let scored = self.scored_rows(weights);
        scored.map(|(_, score, label)| log_loss(score, label)).sum::<f64>() / self.rows() as f64
    }

    /// The positions, score and label of each row.
    fn scored_rows<'a>(&'a self, weights: &'a [f32]) -> impl Iterator<Item = (&'a [u32], f64, bool)> {
        self.offsets.windows(2).zip(&self.labels).map(|(bounds, label)| {
            let row = &self.positions[bounds[0] as usize..bounds[1] as usize];
            (row, row.iter().map(|position| f64::from(weights[*position as usize])).sum(), *label)
        })
    }

    /// Fills `gradient` with the derivative of the mean loss by each key's weight, and returns the
    /// summed loss. `weights` and `gradient` are aligned with `keys`.
    ///
    /// # Panics
    /// If there are not as many weights as keys.
    pub(crate) fn gradient(&self, weights: &[f32], gradient: &mut Vec<f32>) -> f64 {
        assert_eq!(weights.len(), self.keys.len(), "one weight for each key");
        gradient.clear();
        gradient.resize(self.keys.len(), 0.0);
        let share = 1.0 / self.rows() as f64;
        let mut loss = 0.0;
        for (row, score, label) in self.scored_rows(weights) {
            loss += log_loss(score, label);
            let slope = ((sigmoid(score) - f64::from(u8::from(label))) * share) as f32;
            for position in row {
                gradient[*position as usize] += slope;
            }
        }
        loss
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::SplitMix64;

    #[test]
    fn log_loss_is_minus_the_logarithm_of_the_probability_and_stays_finite() {
        for score in [-3.0, -0.5, 0.0, 0.5, 3.0] {
            assert!((log_loss(score, true) + sigmoid(score).ln()).abs() < 1e-12);
            assert!((log_loss(score, false) + (1.0 - sigmoid(score)).ln()).abs() < 1e-12);
        }
        assert_eq!(log_loss(-1e4, true), 1e4);
        assert_eq!(log_loss(-1e4, false), 0.0);
    }

    #[test]
    fn keys_are_the_distinct_features_ascending() {
        let clicks = Clicks::generate(5, 300, 400);
        let mut places = Places::new(clicks.features());
        for rows in [0..100, 50..51, 100..300, 0..0] {
            let batch = Minibatch::gather(&clicks, rows.clone(), &mut places);
            let mut expected: Vec<u64> =
                rows.flat_map(|row| clicks.row(row).0.iter().map(|feature| u64::from(*feature))).collect();
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(batch.keys(), expected);
        }
    }

    #[test]
    fn keys_in_another_order_give_the_same_loss_and_gradient() {
        let clicks = Clicks::generate(7, 60, 300);
        let mut places = Places::new(clicks.features());
        let mut batch = Minibatch::gather(&clicks, 0..60, &mut places);
        let weight = |key: &u64| (*key as f32 - 150.0) / 500.0;
        let read = |batch: &Minibatch| {
            let weights = batch.keys().iter().map(weight).collect::<Vec<_>>();
            let mut gradient = Vec::new();
            let loss = batch.gradient(&weights, &mut gradient);
            assert!((loss / 60.0 - batch.loss(&weights)).abs() < 1e-12);
            let mut of_keys: Vec<(u64, f32)> = batch.keys().iter().copied().zip(gradient).collect();
            of_keys.sort_by_key(|(key, _)| *key);
            (loss, of_keys)
        };
        let ascending = read(&batch);
        let mut order = batch.keys().to_vec();
        SplitMix64::new(7).shuffle(&mut order);
        batch.arrange(order.iter().copied(), &mut places);
        assert_eq!(batch.keys(), order);
        assert_eq!(read(&batch), ascending);
    }

    #[test]
    fn the_gradient_is_the_slope_of_the_mean_loss() {
        let clicks = Clicks::generate(6, 40, 200);
        let batch = Minibatch::gather(&clicks, 0..40, &mut Places::new(clicks.features()));
        let mut random = SplitMix64::new(6);
        let mut weights: Vec<f32> = batch.keys().iter().map(|_| random.normal() as f32 * 0.2).collect();
        let mut gradient = Vec::new();
        let mut ignored = Vec::new();
        batch.gradient(&weights, &mut gradient);
        for index in 0..weights.len() {
            let weight = weights[index];
            let mut mean_loss_at = |moved: f32| {
                weights[index] = moved;
                batch.gradient(&weights, &mut ignored) / 40.0
            };
            let slope = (mean_loss_at(weight + 0.01) - mean_loss_at(weight - 0.01)) / 0.02;
            weights[index] = weight;
            assert!((slope - f64::from(gradient[index])).abs() < 1e-4, "{slope} against {}", gradient[index]);
        }
    }

    #[test]
    fn gradient_descent_comes_near_the_floor_on_held_out_rows() {
        let clicks = Clicks::generate(9, 24_000, 500);
        let train = 20_000;
        let held_out = 20_000..24_000;
        let mut places = Places::new(clicks.features());
        let mut weights = vec![0f32; clicks.features()];
        let mut gradient = Vec::new();
        for start in (0..train).step_by(100).cycle().take(3 * train / 100) {
            let batch = Minibatch::gather(&clicks, start..start + 100, &mut places);
            let pulled: Vec<f32> = batch.keys().iter().map(|key| weights[*key as usize]).collect();
            batch.gradient(&pulled, &mut gradient);
            for (key, slope) in batch.keys().iter().zip(&gradient) {
                weights[*key as usize] -= 0.5 * slope;
            }
        }
        let loss = evaluate(&clicks, held_out.clone(), &weights);
        let floor = clicks.floor_loss(held_out.clone());
        let untaught = clicks.click_rate_loss(held_out);
        assert!(loss < floor + 0.3 * (untaught - floor), "loss {loss}, floor {floor}, untaught {untaught}");
    }
}
