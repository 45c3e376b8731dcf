//! Predicts with a saved model, minibatch after minibatch, and measures how well it predicts. Needs
//! no cluster.

use crate::figures::{Fit, Quality};
use crate::gather::{BIAS, Gather, GatheredKeys};
use crate::model::{Model, ModelError, ModelTable};
use crate::program::{Program, Task, Weights};
use data::{DataError, DataReader, Minibatch};
use slackwater::policy::Placement;
use std::collections::HashMap;

/// Predictions with a model, minibatch after minibatch.
pub trait Predict {
    /// What it predicts.
    fn task(&self) -> Task;

    /// Appends the prediction of each example.
    fn predict(&mut self, batch: &Minibatch, predictions: &mut Vec<f32>);

    /// For how many features of the examples so far the model has weights.
    fn known_features(&self) -> u64;

    /// How well the model predicts the first rows of the data, at least `limit` if there are as
    /// many. None if there are no rows.
    fn evaluate(&mut self, reader: &DataReader, limit: u64) -> Result<Option<Quality>, DataError> {
        let task = self.task();
        let mut fit = Fit::new(task);
        let mut predictions = Vec::new();
        let mut rows = 0;
        for batch in reader.batches()? {
            let batch = batch?;
            predictions.clear();
            self.predict(&batch, &mut predictions);
            for (row, prediction) in batch.iter().zip(predictions.chunks_exact(task.outputs())) {
                fit.add(row.label.unwrap_or(f32::NAN), row.importance, prediction);
            }
            rows += batch.rows() as u64;
            if rows >= limit {
                break;
            }
        }
        Ok(fit.quality())
    }
}

/// The table of this name, if the model has it and it is `width` wide.
pub(crate) fn table_of<'a>(
    model: &'a Model,
    name: &str,
    program: &str,
    width: usize,
) -> Result<&'a ModelTable, ModelError> {
    let missing = || ModelError::NoTable { table: name.to_owned(), program: program.to_owned() };
    model.tables.get(name).filter(|table| table.width == width).ok_or_else(missing)
}

/// Predicts with a program of sparse examples.
pub struct Predictor<'a> {
    program: &'a dyn Program,
    tables: Vec<(&'a ModelTable, HashMap<u64, u32>)>,
    gather: Gather,
    gathered: GatheredKeys,
    weights: Vec<Vec<f32>>,
    known_features: u64,
}

impl<'a> Predictor<'a> {
    /// A predictor with a model that `program` has learnt. `bias` says whether it learnt a constant
    /// term.
    pub fn new(program: &'a dyn Program, model: &'a Model, bias: bool) -> Result<Self, ModelError> {
        let table = |its: &Weights| {
            let table = table_of(model, its.name, program.name(), its.width as usize)?;
            Ok::<_, ModelError>((table, table.index()))
        };
        let tables: Vec<_> = program.tables().iter().map(table).collect::<Result<_, _>>()?;
        let weights = vec![Vec::new(); tables.len()];
        let gather = Gather::new(Placement::Ordered, bias, None);
        Ok(Self { program, tables, gather, gathered: GatheredKeys::default(), weights, known_features: 0 })
    }
}

impl Predict for Predictor<'_> {
    fn task(&self) -> Task {
        self.program.task()
    }

    fn known_features(&self) -> u64 {
        self.known_features
    }

    fn predict(&mut self, batch: &Minibatch, predictions: &mut Vec<f32>) {
        self.gather.gather(batch, &mut self.gathered);
        let examples = self.gathered.examples(batch);
        for ((table, index), weights) in self.tables.iter().zip(&mut self.weights) {
            weights.clear();
            weights.resize(examples.keys.len() * table.width, 0.0);
            for (key, row) in examples.keys.ids().zip(weights.chunks_exact_mut(table.width)) {
                if let Some(place) = index.get(&key) {
                    self.known_features += u64::from(key != BIAS);
                    row.copy_from_slice(&table.values[*place as usize * table.width..][..table.width]);
                }
            }
        }
        let views: Vec<&[f32]> = self.weights.iter().map(Vec::as_slice).collect();
        self.program.predict(&examples, &views, predictions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logistic::Logistic;

    #[test]
    fn a_model_with_tables_of_another_width_is_refused() {
        let program = Logistic { l2: 0.0 };
        let model = |width: usize| {
            let table = ModelTable { keys: vec![1], width, values: vec![0.5; width] };
            Model { tables: [("weights".to_owned(), table)].into(), ..Model::default() }
        };
        assert!(Predictor::new(&program, &model(1), true).is_ok());
        for width in [0, 2] {
            assert!(Predictor::new(&program, &model(width), true).is_err());
        }
    }
}
