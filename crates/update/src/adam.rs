//! The updater adam: each step is the running mean of the gradients over the root of their running
//! mean square (Kingma and Ba 2015).

use crate::number::{Real, ratio, store};
use crate::rows::copy_rows;
use crate::{Slots, UpdateStep, Updater};

/// m = β₁ m + (1 − β₁) g, v = β₂ v + (1 − β₂) g², w −= η m̂ / (√v̂ + ε). A row is (w, m, v, k).
///
/// k counts the updates of this row. Rows of a sparse table start at different times, and a count
/// for the whole table would leave late rows uncorrected. A row that no batch names keeps its
/// means. An f32 count stops at 2²⁴, long after the corrections have become 1.
pub(crate) struct Adam {
    pub rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
}

impl<T: Real> Updater<T> for Adam {
    fn state(&self, width: usize) -> usize {
        2 * width + 1
    }

    fn update(&self, step: &UpdateStep, width: usize, row: &mut [T], gradient: &[T]) {
        let rate = step.rate.unwrap_or(self.rate);
        let (weights, state) = row.split_at_mut(width);
        let (means, state) = state.split_at_mut(width);
        let (squares, count) = state.split_at_mut(width);
        count[0] = T::from_f64(count[0].to_f64() + 1.0);
        let updates = count[0].to_f64() as u64;
        // m̂ = m / (1 − β₁ᵏ), v̂ = v / (1 − β₂ᵏ). With r = √(1 − β₂ᵏ), m̂ / (√v̂ + ε) is
        // r / (1 − β₁ᵏ) · m / (√v + ε r): one division a weight, and v̂ cannot overflow.
        let root = (1.0 - power(self.beta2, updates)).sqrt();
        let rate = rate * ratio(root, 1.0 - power(self.beta1, updates));
        let epsilon = self.epsilon * root;
        let state = means.iter_mut().zip(squares);
        for ((weight, (mean, square)), gradient) in weights.iter_mut().zip(state).zip(gradient) {
            let g = gradient.to_f64();
            // m = β₁ m + (1 − β₁) g
            *mean = store(self.beta1 * mean.to_f64() + (1.0 - self.beta1) * g);
            // v = β₂ v + (1 − β₂) g²
            *square = store(self.beta2 * square.to_f64() + (1.0 - self.beta2) * g * g);
            // w −= η m̂ / (√v̂ + ε)
            *weight = store(weight.to_f64() - rate * ratio(mean.to_f64(), square.to_f64().sqrt() + epsilon));
        }
    }

    fn read_rows(&self, _: &UpdateStep, width: usize, slab: &[T], slots: Slots<'_>, out: &mut [T]) {
        copy_rows(width, 3 * width + 1, slab, slots, out);
    }
}

/// base^exponent by repeated squaring. The last bits of the standard library's `powi` depend on the
/// platform, and replicas must agree on every bit.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_near, trace};
    use types::UpdaterSpec;

    const STEP: UpdateStep = UpdateStep { rate: None, examples: 1 };
    const SPEC: UpdaterSpec = UpdaterSpec::Adam { rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };

    /// The weights after each gradient, by the paper's Algorithm 1 as printed.
    fn reference(mut w: f64, gradients: &[f64]) -> Vec<f64> {
        let mut m = 0.0;
        let mut v = 0.0;
        let step = |(k, g): (usize, &f64)| {
            m = 0.9 * m + 0.1 * g;
            v = 0.999 * v + 0.001 * g * g;
            let corrected_m = m / (1.0 - 0.9f64.powi(k as i32 + 1));
            let corrected_v: f64 = v / (1.0 - 0.999f64.powi(k as i32 + 1));
            w -= 0.1 * corrected_m / (corrected_v.sqrt() + 1e-8);
            w
        };
        gradients.iter().enumerate().map(step).collect()
    }

    #[test]
    fn adam_follows_the_algorithm_as_printed() {
        let gradients = [2.0, -1.0, 0.5, 0.0, 100.0, 1e-3, -3.0];
        let expected = reference(1.0, &gradients);
        assert_near(&trace(&SPEC, STEP, 1.0f64, &gradients), &expected, 1e-12);
        assert_near(&trace(&SPEC, STEP, 1.0f32, &gradients.map(|g| g as f32)), &expected, 1e-5);
    }

    #[test]
    fn the_first_step_moves_by_the_rate_for_a_gradient_of_any_size() {
        for gradient in [1e-3, 1.0, 1e6, -1e6] {
            let moved = trace(&SPEC, STEP, 0.0f64, &[gradient])[0];
            assert_near(&[moved], &[-0.1 * gradient.signum()], 1e-5);
        }
        let raised = UpdateStep { rate: Some(0.3), ..STEP };
        assert_near(&trace(&SPEC, raised, 0.0f64, &[5.0]), &[-0.3], 1e-5);
    }

    #[test]
    fn a_row_counts_its_own_updates_in_its_last_number() {
        let adam = Adam { rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
        let mut row = [0.0f32; 2 + 5];
        for count in 1..=3 {
            adam.update(&STEP, 2, &mut row, &[1.0, -1.0]);
            assert_eq!(row[6], count as f32);
        }
    }

    #[test]
    fn power_matches_the_standard_library() {
        for (base, exponent) in [(0.9, 0), (0.9, 1), (0.999, 7), (0.5, 10), (0.999, 1000)] {
            assert_near(&[power(base, exponent)], &[base.powi(exponent as i32)], 1e-12);
        }
        assert_eq!(power(0.999, 1 << 24), 0.0);
    }
}
