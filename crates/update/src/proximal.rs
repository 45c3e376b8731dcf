//! The updater proximal, a proximal gradient step for ℓ1: a gradient step scaled by curvature, then
//! a pull towards zero (Li et al., OSDI'14, algorithm 3).

use crate::number::{Real, store};
use crate::{UpdateStep, Updater};

/// The first half of a row is weights; the second half stays as it is. It is there because
/// a push has as many numbers as a row: gradients g of the whole loss, then as many curvatures u.
/// Each weight becomes
///
///   argmin_v g (v − w) + u (v − w)² / (2 η) + λ₁ |v|
///
/// which is w − η g / u, pulled towards zero by η λ₁ / u. A weight without curvature has no data
/// and stays as it is.
pub(crate) struct Proximal {
    /// η
    pub rate: f64,
    pub l1: f64,
}

impl<T: Real> Updater<T> for Proximal {
    fn state(&self, _: usize) -> usize {
        0
    }

    fn update(&self, step: &UpdateStep, width: usize, row: &mut [T], gradient: &[T]) {
        let rate = step.rate.unwrap_or(self.rate);
        let weights = &mut row[..width / 2];
        let (gradients, curvatures) = gradient.split_at(width / 2);
        for ((weight, g), u) in weights.iter_mut().zip(gradients).zip(curvatures) {
            let w = weight.to_f64();
            let g = g.to_f64();
            let u = u.to_f64();
            if u > 0.0 {
                // A tiny curvature must not make an infinite step.
                let finite = |x: f64| x.clamp(f64::MIN, f64::MAX);
                let moved = finite(w - rate * g / u);
                let pull = finite(rate * self.l1 / u);
                *weight = store(moved - moved.clamp(-pull, pull));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: UpdateStep = UpdateStep { rate: None, examples: 0 };

    fn step(row: [f64; 2], g: f64, u: f64) -> [f64; 2] {
        let mut row = row;
        Proximal { rate: 1.0, l1: 1.0 }.update(&STEP, 2, &mut row, &[g, u]);
        row
    }

    #[test]
    fn a_step_minimises_the_model_of_the_loss() {
        for (w, g, u) in [(0.0, -3.0, 2.0), (1.0, 0.5, 1.0), (-2.0, 0.3, 4.0), (0.7, 3.0, 2.0)] {
            let [moved, rest] = step([w, 0.0], g, u);
            let model = |v: f64| g * (v - w) + u * (v - w).powi(2) / 2.0 + v.abs();
            for near in [moved - 1e-3, moved + 1e-3] {
                assert!(model(moved) <= model(near), "{moved} from {w}, {g}, {u}");
            }
            assert_eq!(rest, 0.0);
        }
    }

    #[test]
    fn a_weight_within_the_penalty_becomes_zero_and_one_without_data_stays() {
        assert_eq!(step([0.0, 0.0], 0.99, 0.1), [0.0, 0.0]);
        assert_eq!(step([0.5, 0.0], 0.0, 1.0), [0.0, 0.0]);
        assert_eq!(step([0.5, 0.0], 0.0, 0.0), [0.5, 0.0]);
    }

    #[test]
    fn huge_gradients_and_tiny_curvatures_leave_weights_finite() {
        for g in [0.0, 1e-300, f64::MAX, f64::MIN] {
            for u in [5e-324, 1e-300, 1.0, f64::MAX] {
                for w in [0.0, f64::MAX, f64::MIN] {
                    let [moved, _] = step([w, 0.0], g, u);
                    assert!(moved.is_finite(), "{moved} from {w}, {g}, {u}");
                }
            }
        }
    }

    #[test]
    fn a_step_leaves_the_second_half_of_a_wide_row() {
        let mut row = [1.0f32, 5.0, 0.0, 0.0];
        Proximal { rate: 0.5, l1: 2.0 }.update(&STEP, 4, &mut row, &[2.0, 0.0, 1.0, 4.0]);
        // 1 − 0.5·2/1 = 0 stays 0; 5 − 0 is pulled by 0.5·2/4.
        assert_eq!(row, [0.0, 4.75, 0.0, 0.0]);
    }
}
