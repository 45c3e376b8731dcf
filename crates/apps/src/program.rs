//! [`Program`]: what a learning program of sparse examples consists of. It names its tables,
//! computes their gradients for a minibatch, and predicts with them.

use crate::gather::Examples;
use slackwater::policy::Initial;

/// What a program predicts, which decides how its quality is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The log-odds z of the label 1, whose probability is 1 / (1 + e^−z). Probabilities themselves
    /// would round very sure predictions to the same number.
    Binary,
    /// The probability of each class.
    Classes {
        /// How many classes there are.
        count: usize,
    },
    /// A number.
    Regression,
}

impl Task {
    /// How many numbers a prediction has.
    #[must_use]
    pub fn outputs(self) -> usize {
        match self {
            Self::Binary | Self::Regression => 1,
            Self::Classes { count } => count,
        }
    }
}

/// One of a program's tables: a row for each feature.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// Its name in the cluster and in a model's file.
    pub name: &'static str,
    /// How many numbers a feature has.
    pub width: u32,
    /// The initial numbers of a feature.
    pub initial: Initial,
    /// The strength of λ₂ w²/2 for each of its numbers.
    pub l2: f64,
}

/// A learning program. It does not talk to the cluster: it gets weights and computes gradients.
pub trait Program: Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// What it predicts.
    fn task(&self) -> Task;

    /// The tables it learns.
    fn tables(&self) -> Vec<Weights>;

    /// Adds the derivative of the examples' summed loss by each weight to `gradients`, and returns
    /// the loss. For each table, weights and gradients are rows in the order of the examples' keys.
    /// The gradients begin as zeros.
    fn learn(&self, examples: &Examples<'_>, weights: &[&[f32]], gradients: &mut [Vec<f32>]) -> f64;

    /// Appends each example's prediction.
    fn predict(&self, examples: &Examples<'_>, weights: &[&[f32]], predictions: &mut Vec<f32>);
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::gather::{Gather, GatheredKeys};
    use data::Minibatch;
    use slackwater::policy::Placement;

    /// Checks a program's gradients against differences of its loss, for some rows and seeded
    /// weights.
    pub fn gradients_are_slopes(program: &dyn Program, rows: &[(f32, &[(u64, f32)])]) {
        let mut batch = Minibatch::new();
        for (label, features) in rows {
            features.iter().for_each(|(key, value)| batch.push(*key, *value));
            batch.end_row(*label);
        }
        batch.set_importance(2.0);
        let mut gathered = GatheredKeys::default();
        Gather::new(Placement::Spread, true, None).gather(&batch, &mut gathered);
        let examples = gathered.examples(&batch);
        let mut seed = 1u64;
        let mut uniform = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        let sizes: Vec<usize> = program.tables().iter().map(|t| t.width as usize * examples.keys.len()).collect();
        let mut weights: Vec<Vec<f32>> = sizes.iter().map(|size| (0..*size).map(|_| uniform()).collect()).collect();
        let zeros = || sizes.iter().map(|size| vec![0.0; *size]).collect::<Vec<Vec<f32>>>();
        let loss_at = |weights: &[Vec<f32>], gradients: &mut [Vec<f32>]| {
            let views: Vec<&[f32]> = weights.iter().map(Vec::as_slice).collect();
            program.learn(&examples, &views, gradients)
        };
        let mut gradients = zeros();
        loss_at(&weights, &mut gradients);
        for table in 0..sizes.len() {
            for index in 0..sizes[table] {
                let weight = weights[table][index];
                let mut at = |moved: f32| {
                    weights[table][index] = moved;
                    loss_at(&weights, &mut zeros())
                };
                let slope = (at(weight + 0.01) - at(weight - 0.01)) / 0.02;
                weights[table][index] = weight;
                let found = f64::from(gradients[table][index]);
                assert!((slope - found).abs() < 2e-3 * (1.0 + slope.abs()), "table {table}: {slope} against {found}");
            }
        }
        let views: Vec<&[f32]> = weights.iter().map(Vec::as_slice).collect();
        let mut predictions = Vec::new();
        program.predict(&examples, &views, &mut predictions);
        assert_eq!(predictions.len(), rows.len() * program.task().outputs());
    }
}
