//! How far from the optimum: the objective at hand, and a bound below which no weights can bring
//! it.
//!
//! For any α_i ∈ [0, 1], with θ_i = α_i y_i and |Σ_i θ_i x_ij| ≤ λ for all j, Fenchel duality says
//! that no objective is less than −Σ α ln α + (1 − α) ln(1 − α). At the optimum α_i = σ(−y_i z_i)
//! attains it; elsewhere these, shrunk until the condition holds, give a bound that closes in as
//! the weights do.

use super::ExampleColumns;
use crate::logistic::{log_loss, sigmoid};
use slackwater::policy::NumberType;
use slackwater::{Error, Keys, Session, Table, TableSpec, UpdaterSpec};

/// An objective and what is known of the least one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// Σ loss + λ |w|₁ at the weights at hand.
    pub objective: f64,
    /// No weights have less.
    pub bound: f64,
    /// How many examples the sum is over.
    pub examples: f64,
}

impl Gap {
    /// The share of the objective that better weights could take away at most.
    #[must_use]
    pub fn relative(&self) -> f64 {
        (self.objective - self.bound) / self.objective
    }
}

/// Computes gaps, together with the other workers.
pub struct Certificate {
    weights: Table<f32>,
    /// The gradient of the loss by each weight.
    gradient: Table<f64>,
    /// What each worker has found: the steepest slope, the loss of its rows, its part of the bound.
    found: Table<f64>,
    /// What this worker's rows contributed to the gradient, of each column.
    own: Vec<f64>,
    l1: f64,
}

impl Certificate {
    pub fn new(session: &Session, weights: &Table<f32>, l1: f64) -> Result<Self, Error> {
        let workers = u64::from(session.size().workers);
        let number = session.unique_number();
        let gradient = TableSpec::sparse(&format!(".proximal gradient {number}"), 1).number(NumberType::F64);
        let gradient = session.table(gradient)?;
        let found = TableSpec::dense(&format!(".proximal gap {number}"), workers, 3).number(NumberType::F64);
        let found = found.updater(UpdaterSpec::Assign);
        Ok(Self { weights: weights.clone(), gradient, found: session.table(found)?, own: Vec::new(), l1 })
    }

    /// The gap at the weights under which `scores` are the rows' scores. Every worker calls it at
    /// once.
    pub fn check(
        &mut self,
        session: &Session,
        columns: &ExampleColumns,
        scores: &[f64],
        examples: f64,
    ) -> Result<Gap, Error> {
        let against: Vec<f64> = scores.iter().zip(&columns.labels).map(|(z, y)| sigmoid(-f64::from(*y) * z)).collect();
        let keys = self.gradient.keys(&columns.keys);
        let mut by_key: Vec<(u64, usize)> = columns.keys.iter().copied().zip(0..).collect();
        by_key.sort_unstable();
        let mut changes = Vec::with_capacity(by_key.len());
        self.own.resize(columns.keys.len(), 0.0);
        for key in keys.ids() {
            let (_, column) = by_key[by_key.partition_point(|(other, _)| *other < key)];
            let theta = |(row, value): (usize, f32)| against[row] * f64::from(columns.labels[row]) * f64::from(value);
            let slope: f64 = columns.column(column).map(theta).sum();
            // The table adds up: what this worker said the last time is taken back.
            changes.push(slope - self.own[column]);
            self.own[column] = slope;
        }
        self.gradient.push(&keys, changes)?.wait()?;
        session.barrier()?;
        session.clock()?;
        let slopes = self.gradient.pull(&keys)?.wait()?;
        let steepest = slopes.values().iter().fold(0.0, |steepest: f64, slope| steepest.max(slope.abs()));
        let loss: f64 = scores.iter().zip(&columns.labels).map(|(z, y)| log_loss(*z, *y)).sum();
        let all = self.share(session, [steepest, loss, 0.0])?;
        let steepest = all.iter().fold(0.0, |steepest: f64, found| steepest.max(found[0]));
        let shrink = if steepest > self.l1 { self.l1 / steepest } else { 1.0 };
        let entropy = |alpha: f64| {
            if alpha > 0.0 && alpha < 1.0 { -alpha * alpha.ln() - (1.0 - alpha) * (1.0 - alpha).ln() } else { 0.0 }
        };
        let part: f64 = against.iter().map(|alpha| entropy(shrink * alpha)).sum();
        let all = self.share(session, [steepest, loss, part])?;
        let rows = self.weights.scan(..)?.wait()?;
        let norm: f64 = rows.values().chunks_exact(2).map(|row| f64::from(row[0].abs())).sum();
        let objective = all.iter().map(|found| found[1]).sum::<f64>() + self.l1 * norm;
        session.barrier()?;
        Ok(Gap { objective, bound: all.iter().map(|found| found[2]).sum(), examples })
    }

    /// Tells the others what was found here, and returns what everybody found.
    fn share(&self, session: &Session, found: [f64; 3]) -> Result<Vec<[f64; 3]>, Error> {
        let own = u64::from(session.rank());
        self.found.push(&Keys::run(own..own + 1), found.to_vec())?.wait()?;
        session.barrier()?;
        session.clock()?;
        let rows = self.found.pull(&Keys::run(0..u64::from(session.size().workers)))?.wait()?;
        session.barrier()?;
        Ok(rows.values().chunks_exact(3).map(|row| [row[0], row[1], row[2]]).collect())
    }
}
