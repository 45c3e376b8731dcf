//! Logistic regression, for two classes: one weight for each feature and, if the training has a
//! constant term, one for that.
//!
//! Let y ∈ {0, 1}, z = Σ w x (the score) and p = σ(z) (the predicted probability of y = 1). An
//! example's loss is −y ln p − (1−y) ln(1−p). Its derivative by w is (p − y) x. Both are multiplied
//! by the example's importance. Predictions are scores.

use crate::gather::Examples;
use crate::program::{Program, Task, Weights};
use slackwater::policy::Initial;

/// σ(z) = 1 / (1 + e^−z).
#[must_use]
pub fn sigmoid(score: f64) -> f64 {
    1.0 / (1.0 + (-score).exp())
}

/// The loss of an example with this score: ln(1 + e^−z) where the label is 1, ln(1 + e^z)
/// otherwise; finite for any finite score.
#[must_use]
pub fn log_loss(score: f64, label: f32) -> f64 {
    let against = if label > 0.5 { -score } else { score };
    against.max(0.0) + (-against.abs()).exp().ln_1p()
}

/// Logistic regression.
pub struct Logistic {
    /// The strength λ₂ of the ℓ2 penalty λ₂ w²/2 on each weight.
    pub l2: f64,
}

impl Program for Logistic {
    fn name(&self) -> &'static str {
        "logistic"
    }

    fn task(&self) -> Task {
        Task::Binary
    }

    fn tables(&self) -> Vec<Weights> {
        vec![Weights { name: "weights", width: 1, initial: Initial::Zero, l2: self.l2 }]
    }

    fn learn(&self, examples: &Examples<'_>, weights: &[&[f32]], gradients: &mut [Vec<f32>]) -> f64 {
        let weights = weights[0];
        let gradients = &mut gradients[0];
        let mut loss = 0.0;
        for example in examples.iter() {
            let score = example.score(weights);
            let importance = f64::from(example.importance);
            loss += importance * log_loss(score, example.label);
            let slope = (importance * (sigmoid(score) - f64::from(example.label))) as f32;
            for (place, value) in example.places.iter().zip(example.values) {
                gradients[*place as usize] += slope * value;
            }
            if let Some(place) = example.bias {
                gradients[place as usize] += slope;
            }
        }
        loss
    }

    /// Appends the scores, which are log-odds ([`Task::Binary`]).
    fn predict(&self, examples: &Examples<'_>, weights: &[&[f32]], predictions: &mut Vec<f32>) {
        predictions.extend(examples.iter().map(|example| example.score(weights[0]) as f32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::testing::gradients_are_slopes;

    #[test]
    fn log_loss_is_minus_the_logarithm_of_the_probability_and_stays_finite() {
        for score in [-3.0, -0.5, 0.0, 0.5, 3.0] {
            assert!((log_loss(score, 1.0) + sigmoid(score).ln()).abs() < 1e-12);
            assert!((log_loss(score, 0.0) + (1.0 - sigmoid(score)).ln()).abs() < 1e-12);
        }
        assert_eq!((log_loss(-1e4, 1.0), log_loss(-1e4, 0.0)), (1e4, 0.0));
    }

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        gradients_are_slopes(
            &Logistic { l2: 0.0 },
            &[(1.0, &[(3, 1.0), (9, -0.5)]), (0.0, &[(9, 2.0)]), (1.0, &[]), (0.0, &[(3, 1.0), (3, 1.0)])],
        );
    }
}
