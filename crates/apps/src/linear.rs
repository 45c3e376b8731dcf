//! Linear regression: predicts a number, with one weight for each feature and squared loss.
//!
//! With the score z = Σ w x, an example's loss is (z − y)²/2, and its derivative by w is (z − y) x.
//! Both are multiplied by the example's importance. Predictions are scores.

use crate::gather::Examples;
use crate::program::{Program, Task, Weights};
use slackwater::policy::Initial;

/// Linear regression.
pub struct Linear {
    /// λ₂ of the weights.
    pub l2: f64,
}

impl Program for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn task(&self) -> Task {
        Task::Regression
    }

    fn tables(&self) -> Vec<Weights> {
        vec![Weights { name: "weights", width: 1, initial: Initial::Zero, l2: self.l2 }]
    }

    fn learn(&self, examples: &Examples<'_>, weights: &[&[f32]], gradients: &mut [Vec<f32>]) -> f64 {
        let mut loss = 0.0;
        for example in examples.iter() {
            let importance = f64::from(example.importance);
            let error = example.score(weights[0]) - f64::from(example.label);
            loss += importance * error * error / 2.0;
            let slope = (importance * error) as f32;
            for (place, value) in example.terms() {
                gradients[0][place] += slope * value;
            }
        }
        loss
    }

    fn predict(&self, examples: &Examples<'_>, weights: &[&[f32]], predictions: &mut Vec<f32>) {
        predictions.extend(examples.iter().map(|example| example.score(weights[0]) as f32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::testing::gradients_are_slopes;

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        gradients_are_slopes(&Linear { l2: 0.0 }, &[(2.5, &[(3, 1.0), (9, -0.5)]), (-1.0, &[(9, 2.0)]), (0.3, &[])]);
    }
}
