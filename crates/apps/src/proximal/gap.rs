//! Duality gap: how far, at most, the objective is above the optimum, by a lower bound on the
//! objective of any weights. All workers compute it together, through tables.
//!
//! Fenchel duality: let α_i ∈ [0, 1] and θ_i = α_i y_i, with |Σ_i θ_i x_ij| ≤ λ for all j. Then no
//! objective is less than −Σ α ln α + (1 − α) ln(1 − α). At the optimum, α_i = σ(−y_i z_i) attains
//! this bound. At other weights these α_i, shrunk until the condition holds, give a bound that
//! approaches the optimum as the weights do.

use super::ExampleColumns;
use crate::logistic::{log_loss, sigmoid};
use slackwater::policy::NumberType;
use slackwater::{Error, Keys, Session, Table, TableSpec, UpdaterSpec};

/// An objective, and a lower bound on the least objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// Σ loss + λ |w|₁ at the current weights.
    pub objective: f64,
    /// No weights have a smaller objective.
    pub bound: f64,
    /// How many examples the sum is over.
    pub examples: f64,
}

impl Gap {
    /// The share of the objective by which better weights can lower it, at most.
    #[must_use]
    pub fn relative(&self) -> f64 {
        (self.objective - self.bound) / self.objective
    }
}

/// Computes gaps, together with all other workers.
pub struct Certificate {
    weights: Table<f32>,
    /// The gradient of the loss by each weight.
    gradient: Table<f64>,
    /// What each worker has computed: the steepest slope, the loss of its rows, and its part of the
    /// bound.
    found: Table<f64>,
    /// This worker's contribution to the gradient, by column, as last pushed.
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

    /// The gap at the current weights, under which this worker's rows have `scores`. All workers
    /// call it together.
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
            // The table adds up pushes, so this subtracts what the worker pushed last time.
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

    /// Shares what this worker has computed, and returns what all workers have computed.
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
