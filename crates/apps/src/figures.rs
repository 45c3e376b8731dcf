//! Quality of predictions: log loss, accuracy, AUC, RMSE and R². Examples are added one at a time,
//! in constant memory; the AUC is by a histogram of the log-odds.

use crate::logistic::log_loss;
use crate::program::Task;

/// Probabilities are raised to at least this before their logarithm is taken. So a prediction that
/// is certain and wrong has a large loss, not an infinite one.
const LEAST_PROBABILITY: f64 = 1e-15;
/// Log-odds are ranked by their sign and leading bits: two that agree in 11 bits of the mantissa
/// count as equal.
const RANK_SHIFT: u32 = 12;
/// Magnitudes outside these two are ranked like the nearer one.
const LEAST_ODDS: f32 = 1.0 / 65_536.0;
const LARGEST_ODDS: f32 = 1024.0;
/// How many ranks each sign has.
const RANKS: usize = ((LARGEST_ODDS.to_bits() - LEAST_ODDS.to_bits()) >> RANK_SHIFT) as usize + 1;

/// The rank of an example's log-odds: higher for higher log-odds.
fn rank(log_odds: f32) -> usize {
    let magnitude = log_odds.abs().clamp(LEAST_ODDS, LARGEST_ODDS).to_bits();
    // NaN gets some rank; the loss shows that it is NaN.
    let rank = ((magnitude.saturating_sub(LEAST_ODDS.to_bits())) >> RANK_SHIFT) as usize;
    let rank = rank.min(RANKS - 1);
    if log_odds < 0.0 { RANKS - 1 - rank } else { RANKS + rank }
}

/// Sums that say how well predictions fit so far.
pub struct Fit {
    task: Task,
    examples: f64,
    /// Sum of the log losses, or of the squared errors.
    loss: f64,
    correct: f64,
    label: f64,
    label_squared: f64,
    /// For two classes: how many examples of each label have log-odds of each rank.
    ranks: Vec<[f64; 2]>,
}

/// How well predictions fit, as figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quality {
    /// For two classes.
    Binary {
        /// Mean −ln of the predicted probability of the true label.
        log_loss: f64,
        /// Share of examples whose likelier label is the true one.
        accuracy: f64,
        /// Chance that an example labelled 1 gets a higher probability than one labelled 0. NaN
        /// unless there are both labels.
        auc: f64,
    },
    /// For several classes.
    Classes {
        /// Mean −ln of the predicted probability of the true class.
        log_loss: f64,
        /// Share of examples whose likeliest class is the true one.
        accuracy: f64,
    },
    /// For numbers.
    Regression {
        /// Root of the mean squared error.
        rmse: f64,
        /// 1 − squared error / squared distance from the mean label.
        r2: f64,
    },
}

impl Quality {
    /// Each figure with its name, as reports show them.
    #[must_use]
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        match *self {
            Self::Binary { log_loss, accuracy, auc } => {
                vec![("log_loss", log_loss), ("accuracy", accuracy), ("auc", auc)]
            }
            Self::Classes { log_loss, accuracy } => vec![("log_loss", log_loss), ("accuracy", accuracy)],
            Self::Regression { rmse, r2 } => vec![("rmse", rmse), ("r2", r2)],
        }
    }
}

impl Fit {
    /// Sums of no predictions yet.
    #[must_use]
    pub fn new(task: Task) -> Self {
        let ranks = if task == Task::Binary { 2 * RANKS } else { 0 };
        let ranks = vec![[0.0; 2]; ranks];
        Self { task, examples: 0.0, loss: 0.0, correct: 0.0, label: 0.0, label_squared: 0.0, ranks }
    }

    /// Counts one example, which stands for `importance` ordinary ones.
    ///
    /// # Panics
    /// If `prediction` does not have as many numbers as the task's predictions.
    pub fn add(&mut self, label: f32, importance: f32, prediction: &[f32]) {
        assert_eq!(prediction.len(), self.task.outputs(), "a prediction of this task");
        let importance = f64::from(importance);
        self.examples += importance;
        match self.task {
            Task::Binary => {
                let one = label > 0.5;
                let log_odds = prediction[0];
                self.loss += importance * log_loss(f64::from(log_odds), label);
                self.correct += if (log_odds > 0.0) == one { importance } else { 0.0 };
                self.ranks[rank(log_odds)][usize::from(one)] += importance;
            }
            Task::Classes { .. } => {
                let class = label as usize;
                let of_label = prediction.get(class).copied().map_or(0.0, f64::from);
                self.loss -= importance * of_label.max(LEAST_PROBABILITY).ln();
                let likeliest = (0..prediction.len()).max_by(|a, b| prediction[*a].total_cmp(&prediction[*b]));
                self.correct += if likeliest == Some(class) { importance } else { 0.0 };
            }
            Task::Regression => {
                let label = f64::from(label);
                let error = f64::from(prediction[0]) - label;
                self.loss += importance * error * error;
                self.label += importance * label;
                self.label_squared += importance * label * label;
            }
        }
    }

    /// The figures so far; none without examples.
    #[must_use]
    pub fn quality(&self) -> Option<Quality> {
        if self.examples <= 0.0 {
            return None;
        }
        let mean = self.loss / self.examples;
        let accuracy = self.correct / self.examples;
        Some(match self.task {
            Task::Binary => Quality::Binary { log_loss: mean, accuracy, auc: self.auc() },
            Task::Classes { .. } => Quality::Classes { log_loss: mean, accuracy },
            Task::Regression => {
                let spread = self.label_squared - self.label * self.label / self.examples;
                Quality::Regression { rmse: mean.sqrt(), r2: 1.0 - self.loss / spread }
            }
        })
    }

    /// The share of pairs of unlike labels that are ranked correctly. Pairs of equal rank count
    /// half.
    fn auc(&self) -> f64 {
        let mut zeros = 0.0;
        let mut ones = 0.0;
        let mut right = 0.0;
        for [zero, one] in &self.ranks {
            right += one * (zeros + zero / 2.0);
            zeros += zero;
            ones += one;
        }
        right / (zeros * ones)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_two_classes_match_their_definitions() {
        let mut fit = Fit::new(Task::Binary);
        assert_eq!(fit.quality(), None);
        for (label, probability) in [(1.0, 0.9), (0.0, 0.6), (1.0, 0.6), (0.0, 0.1)] {
            let odds: f64 = probability / (1.0 - probability);
            fit.add(label, 1.0, &[odds.ln() as f32]);
        }
        let Some(Quality::Binary { log_loss, accuracy, auc }) = fit.quality() else { panic!("of two classes") };
        let expected = -(0.9f64.ln() + 0.4f64.ln() + 0.6f64.ln() + 0.9f64.ln()) / 4.0;
        assert!((log_loss - expected).abs() < 1e-6);
        assert_eq!(accuracy, 0.75);
        // Of the four pairs three are ranked correctly, and one has equal ranks.
        assert_eq!(auc, 3.5 / 4.0);
    }

    #[test]
    fn a_sure_mistake_has_a_large_finite_loss() {
        let mut fit = Fit::new(Task::Binary);
        fit.add(1.0, 1.0, &[-1e4]);
        let Some(Quality::Binary { log_loss, auc, .. }) = fit.quality() else { panic!("of two classes") };
        assert!(log_loss == 1e4 && auc.is_nan());
        // Higher log-odds rank higher, even for very sure predictions.
        for (low, high) in [(9.0, 10.0), (-0.1, 0.1), (-30.0, -29.0), (1e-4, 2e-4), (f32::MIN, f32::MAX)] {
            assert!(rank(low) < rank(high), "{low} and {high}");
        }
        assert!(rank(f32::NAN) < 2 * RANKS && rank(f32::MAX) < 2 * RANKS);
    }

    #[test]
    fn figures_of_classes_and_numbers_match_their_definitions() {
        let mut fit = Fit::new(Task::Classes { count: 3 });
        fit.add(2.0, 3.0, &[0.2, 0.2, 0.6]);
        fit.add(0.0, 1.0, &[0.25, 0.5, 0.25]);
        let Some(Quality::Classes { log_loss, accuracy }) = fit.quality() else { panic!("of classes") };
        assert!((log_loss + (3.0 * 0.6f64.ln() + 0.25f64.ln()) / 4.0).abs() < 1e-6);
        assert_eq!(accuracy, 0.75);
        let mut fit = Fit::new(Task::Regression);
        for (label, prediction) in [(1.0, 2.0), (3.0, 3.0), (5.0, 4.0)] {
            fit.add(label, 1.0, &[prediction]);
        }
        let Some(Quality::Regression { rmse, r2 }) = fit.quality() else { panic!("of numbers") };
        assert!((rmse - (2.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert!((r2 - 0.75).abs() < 1e-12);
    }
}
