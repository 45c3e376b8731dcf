//! The updater adagrad: each weight's steps shrink as the squares of its gradients add up (Duchi et
//! al. 2011).

use crate::number::{Real, ratio, store};
use crate::rows::copy_rows;
use crate::{Slots, UpdateStep, Updater};

/// n += g², w −= η g / (√n + ε). A row is (w, n).
pub(crate) struct Adagrad {
    pub rate: f64,
    pub epsilon: f64,
}

impl<T: Real> Updater<T> for Adagrad {
    fn state(&self, width: usize) -> usize {
        width
    }

    fn update(&self, step: &UpdateStep, width: usize, row: &mut [T], gradient: &[T]) {
        let rate = step.rate.unwrap_or(self.rate);
        let (weights, squares) = row.split_at_mut(width);
        for ((weight, squares), gradient) in weights.iter_mut().zip(squares).zip(gradient) {
            let g = gradient.to_f64();
            // n += g²
            *squares = store(squares.to_f64() + g * g);
            // w −= η g / (√n + ε)
            *weight = store(weight.to_f64() - rate * ratio(g, squares.to_f64().sqrt() + self.epsilon));
        }
    }

    fn read_rows(&self, _: &UpdateStep, width: usize, slab: &[T], slots: Slots<'_>, out: &mut [T]) {
        copy_rows(width, 2 * width, slab, slots, out);
    }
}

#[cfg(test)]
mod tests {
    use crate::UpdateStep;
    use crate::testing::{assert_near, trace};
    use types::UpdaterSpec;

    const STEP: UpdateStep = UpdateStep { rate: None, examples: 1 };

    #[test]
    fn adagrad_matches_steps_computed_by_hand() {
        // (ε, w after each of the gradients 3, 4, 0 and −12, where √n is 3, 5, 5 and 13)
        let cases = [
            (0.0, [0.5, 0.1, 0.1, 0.1 + 6.0 / 13.0]),
            (1.0, [0.625, 0.625 - 1.0 / 3.0, 0.625 - 1.0 / 3.0, 0.625 - 1.0 / 3.0 + 6.0 / 14.0]),
        ];
        for (epsilon, expected) in cases {
            let spec = UpdaterSpec::Adagrad { rate: 0.5, epsilon };
            assert_near(&trace(&spec, STEP, 1.0f64, &[3.0, 4.0, 0.0, -12.0]), &expected, 1e-15);
            assert_near(&trace(&spec, STEP, 1.0f32, &[3.0, 4.0, 0.0, -12.0]), &expected, 1e-6);
        }
        let raised = UpdateStep { rate: Some(1.0), ..STEP };
        let spec = UpdaterSpec::Adagrad { rate: 0.5, epsilon: 0.0 };
        assert_near(&trace(&spec, raised, 1.0f64, &[3.0, 4.0]), &[0.0, -0.8], 1e-15);
    }

    #[test]
    fn a_zero_gradient_leaves_weights_unchanged_even_without_an_epsilon() {
        let spec = UpdaterSpec::Adagrad { rate: 0.5, epsilon: 0.0 };
        assert_eq!(trace(&spec, STEP, 1.0f32, &[0.0, 0.0]), [1.0, 1.0]);
    }
}
