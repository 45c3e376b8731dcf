//! The updater momentum: gradient descent with a velocity beside every weight.

use crate::number::{Real, store};
use crate::rows::copy_rows;
use crate::{Slots, UpdateStep, Updater};

/// v = μ v + g, w −= η v. A row is (w, v). A row that no batch names does not move, and its
/// velocity does not decay, until its next gradient.
pub(crate) struct Momentum {
    pub rate: f64,
    pub momentum: f64,
}

impl<T: Real> Updater<T> for Momentum {
    fn state(&self, width: usize) -> usize {
        width
    }

    fn update(&self, step: &UpdateStep, width: usize, row: &mut [T], gradient: &[T]) {
        let rate = step.rate.unwrap_or(self.rate);
        let (weights, velocities) = row.split_at_mut(width);
        for ((weight, velocity), gradient) in weights.iter_mut().zip(velocities).zip(gradient) {
            // v = μ v + g
            *velocity = store(self.momentum * velocity.to_f64() + gradient.to_f64());
            // w −= η v
            *weight = store(weight.to_f64() - rate * velocity.to_f64());
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

    #[test]
    fn momentum_matches_steps_computed_by_hand() {
        let spec = UpdaterSpec::Momentum { rate: 0.1, momentum: 0.9 };
        let step = UpdateStep { rate: None, examples: 1 };
        // v: 1, 1.9, 0.71, 0.639
        let expected = [0.9, 0.71, 0.639, 0.5751];
        assert_near(&trace(&spec, step, 1.0f64, &[1.0, 1.0, -1.0, 0.0]), &expected, 1e-15);
        assert_near(&trace(&spec, step, 1.0f32, &[1.0, 1.0, -1.0, 0.0]), &expected, 1e-6);
        let raised = UpdateStep { rate: Some(1.0), ..step };
        assert_near(&trace(&spec, raised, 1.0f64, &[1.0, 1.0]), &[0.0, -1.9], 1e-15);
    }
}
