//! Softmax regression (multinomial logistic regression), for many classes: each feature has a
//! weight for each class.
//!
//! Let z_c = Σ w_c x (the scores) and p = softmax(z). An example of class y has the loss −ln p_y,
//! and its derivative by w_c is (p_c − [c = y]) x. Both are multiplied by the example's importance.
//! Predictions are the probabilities p.

use crate::gather::{Example, Examples};
use crate::program::{Program, Task, Weights};
use slackwater::policy::Initial;

/// Softmax regression.
pub struct Softmax {
    /// How many classes there are; labels are 0 … `classes` − 1.
    pub classes: usize,
    /// λ₂ of the weights.
    pub l2: f64,
}

impl Softmax {
    /// Fills `scores` with the scores of an example, one for each class.
    fn score(&self, example: &Example<'_>, weights: &[f32], scores: &mut Vec<f32>) {
        scores.clear();
        scores.resize(self.classes, 0.0);
        for (place, value) in example.terms() {
            let row = &weights[place * self.classes..][..self.classes];
            scores.iter_mut().zip(row).for_each(|(score, weight)| *score += weight * value);
        }
    }
}

/// Turns scores into probabilities, and returns ln Σ e^z. Subtracts the largest score first, so
/// that nothing overflows.
pub(crate) fn normalise(scores: &mut [f32]) -> f64 {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - largest).exp();
        sum += f64::from(*score);
    }
    scores.iter_mut().for_each(|score| *score = (f64::from(*score) / sum) as f32);
    f64::from(largest) + sum.ln()
}

impl Program for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn task(&self) -> Task {
        Task::Classes { count: self.classes }
    }

    fn tables(&self) -> Vec<Weights> {
        vec![Weights { name: "weights", width: self.classes as u32, initial: Initial::Zero, l2: self.l2 }]
    }

    fn learn(&self, examples: &Examples<'_>, weights: &[&[f32]], gradients: &mut [Vec<f32>]) -> f64 {
        let mut loss = 0.0;
        let mut slopes = Vec::new();
        for example in examples.iter() {
            self.score(&example, weights[0], &mut slopes);
            // The reader has refused labels beyond the classes; the `min` only prevents a panic.
            let class = (example.label as usize).min(self.classes - 1);
            let score = f64::from(slopes[class]);
            loss += f64::from(example.importance) * (normalise(&mut slopes) - score);
            slopes[class] -= 1.0;
            slopes.iter_mut().for_each(|slope| *slope *= example.importance);
            for (place, value) in example.terms() {
                let row = &mut gradients[0][place * self.classes..][..self.classes];
                row.iter_mut().zip(&slopes).for_each(|(gradient, slope)| *gradient += slope * value);
            }
        }
        loss
    }

    fn predict(&self, examples: &Examples<'_>, weights: &[&[f32]], predictions: &mut Vec<f32>) {
        let mut scores = Vec::new();
        for example in examples.iter() {
            self.score(&example, weights[0], &mut scores);
            normalise(&mut scores);
            predictions.extend_from_slice(&scores);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::testing::gradients_are_slopes;

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let softmax = Softmax { classes: 3, l2: 0.0 };
        gradients_are_slopes(&softmax, &[(2.0, &[(3, 1.0), (9, -0.5)]), (0.0, &[(9, 2.0)]), (1.0, &[])]);
    }

    #[test]
    fn normalise_gives_probabilities_for_very_large_scores() {
        let mut scores = [1e4, 1e4 - 1.0, -1e4];
        let log_sum = normalise(&mut scores);
        assert!((log_sum - (1e4 + (1.0 + (-1f64).exp()).ln())).abs() < 1e-3);
        assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-6 && scores[2] == 0.0);
    }
}
