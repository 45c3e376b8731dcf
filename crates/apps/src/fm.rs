//! Factorisation machine, for two classes (Rendle 2010). Each feature has a few factors beside its
//! weight. Two features of an example interact by the dot product of their factors.
//!
//! The score is
//!
//!   z = Σ w x + Σ_f ((Σ v_f x)² − Σ v_f² x²) / 2
//!
//! and its derivative by v_f is x (Σ v_f x − v_f x). The constant term has no factors. The loss is
//! that of logistic regression, multiplied by the example's importance. Predictions are scores.

use crate::gather::{Example, Examples};
use crate::logistic::{log_loss, sigmoid};
use crate::program::{Program, Task, Weights};
use slackwater::policy::Initial;

/// The factorisation machine.
pub struct FactorisationMachine {
    /// How many factors a feature has.
    pub factors: usize,
    /// The seed of the factors' initial values.
    pub seed: u64,
    /// The standard deviation of the factors' initial values. From zero they would stay zero.
    pub spread: f64,
    /// λ₂ of the weights.
    pub l2: f64,
    /// λ₂ of the factors.
    pub factor_l2: f64,
}

impl FactorisationMachine {
    /// The score of an example. Fills `sums` with Σ v_f x for each factor.
    fn score(&self, example: &Example<'_>, weights: &[&[f32]], sums: &mut Vec<f32>) -> f64 {
        sums.clear();
        sums.resize(self.factors, 0.0);
        let mut squares = 0.0;
        for (place, value) in example.places.iter().zip(example.values) {
            let row = &weights[1][*place as usize * self.factors..][..self.factors];
            for (sum, factor) in sums.iter_mut().zip(row) {
                let term = factor * value;
                *sum += term;
                squares += f64::from(term) * f64::from(term);
            }
        }
        let products: f64 = sums.iter().map(|sum| f64::from(*sum) * f64::from(*sum)).sum();
        example.score(weights[0]) + (products - squares) / 2.0
    }
}

impl Program for FactorisationMachine {
    fn name(&self) -> &'static str {
        "fm"
    }

    fn task(&self) -> Task {
        Task::Binary
    }

    fn tables(&self) -> Vec<Weights> {
        let initial = Initial::Normal { seed: self.seed, scale: self.spread };
        vec![
            Weights { name: "weights", width: 1, initial: Initial::Zero, l2: self.l2 },
            Weights { name: "factors", width: self.factors as u32, initial, l2: self.factor_l2 },
        ]
    }

    fn learn(&self, examples: &Examples<'_>, weights: &[&[f32]], gradients: &mut [Vec<f32>]) -> f64 {
        let mut loss = 0.0;
        let mut sums = Vec::new();
        let [linear, factors] = gradients else { return f64::NAN };
        for example in examples.iter() {
            let score = self.score(&example, weights, &mut sums);
            let importance = f64::from(example.importance);
            loss += importance * log_loss(score, example.label);
            let slope = (importance * (sigmoid(score) - f64::from(example.label))) as f32;
            for (place, value) in example.terms() {
                linear[place] += slope * value;
            }
            for (place, value) in example.places.iter().zip(example.values) {
                let at = *place as usize * self.factors;
                let rows = weights[1][at..][..self.factors].iter().zip(&mut factors[at..][..self.factors]);
                for ((factor, gradient), sum) in rows.zip(&sums) {
                    *gradient += slope * value * (sum - factor * value);
                }
            }
        }
        loss
    }

    fn predict(&self, examples: &Examples<'_>, weights: &[&[f32]], predictions: &mut Vec<f32>) {
        let mut sums = Vec::new();
        predictions.extend(examples.iter().map(|example| self.score(&example, weights, &mut sums) as f32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::testing::gradients_are_slopes;

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let fm = FactorisationMachine { factors: 3, seed: 1, spread: 0.1, l2: 0.0, factor_l2: 0.0 };
        gradients_are_slopes(
            &fm,
            &[(1.0, &[(3, 1.0), (9, -0.5), (4, 2.0)]), (0.0, &[(9, 2.0), (4, 1.0)]), (1.0, &[]), (0.0, &[(3, 1.0)])],
        );
    }
}
