//! Standardisation: scales each feature, and the labels of a regression, to mean 0 and standard
//! deviation 1 over all workers' rows. The means and deviations are measured in a pass of its own.
//!
//! A feature that some rows lack is only divided by the root of its mean square over all rows.
//! Subtracting its mean would give it to every row. A constant feature stays as it is.
//! [`Scaling::unfold`] turns weights of standardised features into weights of the features
//! themselves, so that all models are of the same kind.

use crate::gather::BIAS;
use crate::model::ModelTable;
use crate::program::Task;
use crate::train::{Data, TrainError};
use data::DataReader;
use slackwater::policy::NumberType;
use slackwater::table::PushOptions;
use slackwater::{Consistency, Keys, Session, Table, TableSpec};
use std::collections::HashMap;

/// The scale of each feature, and of the labels of a regression.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    features: HashMap<u64, Scale>,
    label: Scale,
}

/// x becomes (x − mean) · factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// What is subtracted.
    pub mean: f32,
    /// What the difference is multiplied by.
    pub factor: f32,
}

impl Scale {
    /// The scale that changes nothing.
    pub const NONE: Self = Self { mean: 0.0, factor: 1.0 };

    /// x on this scale.
    #[must_use]
    pub fn apply(self, x: f32) -> f32 {
        (x - self.mean) * self.factor
    }
}

/// The key under which the labels' moments are summed.
const LABEL: u64 = u64::MAX - 1;

impl Scaling {
    /// Measures the data of all workers. Every worker calls it, with its own share or with the
    /// leased data.
    pub fn measure<'d>(session: &Session, task: Task, data: impl Into<Data<'d>>) -> Result<Self, TrainError> {
        let name = format!(".moments {}", session.unique_number());
        let table = session
            .table::<f64>(TableSpec::sparse(&name, 3).number(NumberType::F64).consistency(Consistency::Unbounded))?;
        match data.into() {
            Data::Share(reader) => {
                let (keys, moments) = moments(&table, &reader.once())?;
                table.push(&keys, moments)?.wait()?;
                session.barrier()?;
                session.clock()?;
                let scaling = Self::read(&table, task)?;
                session.barrier()?;
                Ok(scaling)
            }
            Data::Leased(leased) => {
                let leased = leased.once()?;
                let mut leases = leased.open(session, &name)?;
                while let Some(lease) = leases.next_lease()? {
                    let (keys, moments) = moments(&table, &leased.range(&lease)?)?;
                    drop(table.push_opts(
                        &keys,
                        moments,
                        PushOptions { lease: Some(&lease), ..PushOptions::default() },
                    )?);
                    leases.commit(lease)?;
                }
                // Every worker reads the same here, because all leases are committed.
                Ok(Self::read(&table, task)?)
            }
        }
    }

    fn read(table: &Table<f64>, task: Task) -> Result<Self, slackwater::Error> {
        let all = table.scan(..)?.wait()?;
        let mut moments: HashMap<u64, [f64; 3]> =
            all.ids().iter().zip(all.values().chunks_exact(3)).map(|(key, m)| (*key, [m[0], m[1], m[2]])).collect();
        let labels = moments.remove(&LABEL).unwrap_or_default();
        let rows = labels[0];
        let features = moments.into_iter().map(|(key, moments)| (key, scale(rows, moments))).collect();
        let label = if task == Task::Regression { scale(rows, labels) } else { Scale::NONE };
        Ok(Self { features, label })
    }

    /// The scale of a feature, or [`Scale::NONE`] if no row had it.
    #[must_use]
    pub fn of(&self, key: u64) -> Scale {
        self.features.get(&key).copied().unwrap_or(Scale::NONE)
    }

    /// The scale of labels.
    #[must_use]
    pub fn label(&self) -> Scale {
        self.label
    }

    /// Turns weights of standardised features into weights of the features themselves, which
    /// predict the same. Adds the constant term if the table has none.
    pub fn unfold(&self, table: &mut ModelTable) {
        let spread = 1.0 / f64::from(self.label.factor);
        let mut constant = vec![f64::from(self.label.mean); table.width];
        let rows = table.keys.iter().zip(table.values.chunks_exact_mut(table.width));
        for (key, row) in rows {
            let scale = if *key == BIAS { Scale::NONE } else { self.of(*key) };
            for (weight, constant) in row.iter_mut().zip(&mut constant) {
                let scaled = f64::from(*weight) * f64::from(scale.factor) * spread;
                *constant += if *key == BIAS { scaled } else { -scaled * f64::from(scale.mean) };
                *weight = scaled as f32;
            }
        }
        if table.keys.last() != Some(&BIAS) {
            table.keys.push(BIAS);
            table.values.resize(table.keys.len() * table.width, 0.0);
        }
        let last = table.values.len() - table.width;
        table.values[last..].iter_mut().zip(constant).for_each(|(weight, constant)| *weight = constant as f32);
    }
}

/// The count, sum and sum of squares of each feature and, under [`LABEL`], of the labels, whose
/// count is the number of rows.
fn moments(table: &Table<f64>, reader: &DataReader) -> Result<(Keys, Vec<f64>), TrainError> {
    let mut own: HashMap<u64, [f64; 3]> = HashMap::from([(LABEL, [0.0; 3])]);
    let mut add = |key: u64, x: f32| {
        let moments = own.entry(key).or_default();
        let x = f64::from(x);
        moments.iter_mut().zip([1.0, x, x * x]).for_each(|(moment, more)| *moment += more);
    };
    for batch in reader.batches()? {
        for row in batch?.iter() {
            row.keys.iter().zip(row.values).for_each(|(key, value)| add(*key, *value));
            add(LABEL, row.label.unwrap_or(0.0));
        }
    }
    let ids: Vec<u64> = own.keys().copied().collect();
    let keys = table.keys(&ids);
    let moments = keys.ids().flat_map(|key| own[&key]).collect();
    Ok((keys, moments))
}

/// The scale of a feature, from its moments over `rows` rows.
fn scale(rows: f64, [count, sum, squares]: [f64; 3]) -> Scale {
    let mean = if count == rows { sum / rows } else { 0.0 };
    let deviation = (squares / rows - mean * mean).max(0.0).sqrt();
    // A constant feature has nothing to teach, and its deviation of zero cannot be a divisor.
    if deviation <= 1e-6 * mean.abs() || deviation == 0.0 {
        return Scale::NONE;
    }
    Scale { mean: mean as f32, factor: (1.0 / deviation) as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_centres_dense_features_and_keeps_zeros_of_sparse_ones() {
        assert_eq!(scale(4.0, [4.0, 20.0, 104.0]), Scale { mean: 5.0, factor: 1.0 });
        assert_eq!(scale(4.0, [2.0, 4.0, 16.0]), Scale { mean: 0.0, factor: 0.5 });
        assert_eq!(scale(4.0, [4.0, 8.0, 16.0]), Scale::NONE, "a constant");
    }

    #[test]
    fn unfolded_weights_predict_the_same() {
        let features = HashMap::from([(1, Scale { mean: 5.0, factor: 0.5 }), (2, Scale { mean: 0.0, factor: 4.0 })]);
        let scaling = Scaling { features, label: Scale { mean: 100.0, factor: 0.1 } };
        let folded = ModelTable { keys: vec![1, 2, BIAS], width: 1, values: vec![3.0, -1.0, 0.5] };
        let mut unfolded = folded.clone();
        scaling.unfold(&mut unfolded);
        for (x1, x2) in [(5.0, 0.0), (7.0, 2.0), (-1.0, 0.25)] {
            let scaled = 3.0 * scaling.of(1).apply(x1) - scaling.of(2).apply(x2) + 0.5;
            let plain = unfolded.values[0] * x1 + unfolded.values[1] * x2 + unfolded.values[2];
            assert!((plain - (scaled / 0.1 + 100.0)).abs() < 1e-3, "{plain}");
        }
    }
}
