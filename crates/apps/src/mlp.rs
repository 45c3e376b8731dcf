//! A multi-layer perceptron: classifies dense examples, such as images.
//!
//! Layer by layer, a neuron is the weighted sum of the layer before, plus a bias. Hidden neurons
//! are cut off below zero (ReLU). The last layer's neurons are the scores of the classes, and their
//! softmax is p. An example of class y has the loss −ln p_y.
//!
//! A layer is a dense table with a row for each neuron: the weights of its inputs, then its bias.
//! Communication overlaps with computation: the forward pass pulls a layer while it computes the
//! layer before. The backward pass pushes a layer as soon as it has its gradient, while it computes
//! the layers before.

use crate::model::{Model, ModelError, ModelTable};
use crate::predict::{Predict, table_of};
use crate::product::{View, multiply};
use crate::program::Task;
use crate::rounds::{Go, Learnt, Lesson, RoundsEnd, TrainError, make_rounds};
use crate::shrink::shrunk;
use crate::softmax::normalise;
use crate::train::{Data, Pace, Trained, Training, push, to_mean};
use data::{Loan, Minibatch};
use slackwater::data_leases::DataLease;
use slackwater::policy::Initial;
use slackwater::table::PullOptions;
use slackwater::{Keys, Rows, Session, Table, TableSpec, Ticket};

/// A multi-layer perceptron.
#[derive(Clone, Debug, PartialEq)]
pub struct Mlp {
    /// How many features an example has: keys are 0 … `inputs` − 1.
    pub inputs: usize,
    /// How many neurons each hidden layer has, first to last.
    pub hidden: Vec<usize>,
    /// How many classes there are; labels are 0 … `classes` − 1.
    pub classes: usize,
    /// The seed of the initial weights.
    pub seed: u64,
    /// λ₂ of the weights.
    pub l2: f64,
}

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layer {
    /// How many inputs each neuron has.
    inputs: usize,
    neurons: usize,
}

impl Layer {
    /// How many numbers a neuron has: its weights and its bias.
    fn width(self) -> usize {
        self.inputs + 1
    }

    fn weights(self, rows: &[f32]) -> View<'_> {
        View::rows(rows, self.neurons, self.inputs, self.width())
    }
}

impl Mlp {
    fn layers(&self) -> Vec<Layer> {
        let sizes: Vec<usize> = [&[self.inputs][..], &self.hidden, &[self.classes]].concat();
        sizes.windows(2).map(|pair| Layer { inputs: pair[0], neurons: pair[1] }).collect()
    }

    /// The names of its tables, in the cluster and in a model's file.
    pub fn tables(&self) -> impl Iterator<Item = String> {
        (1..=self.hidden.len() + 1).map(|layer| format!("layer {layer}"))
    }

    fn specs(&self, training: &Training) -> Vec<TableSpec> {
        let spec = |((layer, name), seed): ((Layer, String), u64)| {
            // He initialisation: a layer's outputs are about as large as its inputs (He et al.,
            // 2015).
            let initial = Initial::Normal { seed: self.seed ^ (seed << 32), scale: (2.0 / layer.inputs as f64).sqrt() };
            let spec = TableSpec::dense(&name, layer.neurons as u64, layer.width() as u32).initial(initial);
            let spec = spec.consistency(training.consistency).updater(training.updater(initial, self.l2));
            shrunk(spec, &training.codecs)
        };
        self.layers().into_iter().zip(self.tables()).zip(1..).map(spec).collect()
    }
}

/// A minibatch as a matrix, with a row for each example.
#[derive(Default)]
struct Matrix {
    numbers: Vec<f32>,
    /// A key of the minibatch beyond the columns, if there is one.
    beyond: Option<u64>,
}

impl Matrix {
    fn fill(&mut self, batch: &Minibatch, inputs: usize) {
        self.numbers.clear();
        self.numbers.resize(batch.rows() * inputs, 0.0);
        self.beyond = None;
        for (row, example) in self.numbers.chunks_exact_mut(inputs).zip(batch.iter()) {
            for (key, value) in example.keys.iter().zip(example.values) {
                match row.get_mut(*key as usize) {
                    // A key may come twice, if two names hash to it.
                    Some(number) => *number += value,
                    None => self.beyond = Some(*key),
                }
            }
        }
    }
}

/// Computes a layer's outputs: `out` gets a row for each example, with a number for each neuron.
fn forward(layer: Layer, weights: &[f32], input: &[f32], examples: usize, out: &mut Vec<f32>) {
    out.resize(examples * layer.neurons, 0.0);
    let input = View::rows(input, examples, layer.inputs, layer.inputs);
    multiply(input, layer.weights(weights).transposed(), out, layer.neurons);
    for row in out.chunks_exact_mut(layer.neurons) {
        let biases = weights.chunks_exact(layer.width()).map(|neuron| neuron[layer.inputs]);
        row.iter_mut().zip(biases).for_each(|(number, bias)| *number += bias);
    }
}

fn cut_off_below_zero(numbers: &mut [f32]) {
    numbers.iter_mut().for_each(|number| *number = number.max(0.0));
}

/// Turns scores into derivatives of the loss by the scores, and returns the examples' summed loss.
fn slopes_of_loss(scores: &mut [f32], classes: usize, batch: &Minibatch) -> f64 {
    let mut loss = 0.0;
    for (scores, example) in scores.chunks_exact_mut(classes).zip(batch.iter()) {
        // The reader has refused labels beyond the classes; the `min` only prevents a panic.
        let class = (example.label.unwrap_or(0.0) as usize).min(classes - 1);
        let score = f64::from(scores[class]);
        loss += f64::from(example.importance) * (normalise(scores) - score);
        scores[class] -= 1.0;
        scores.iter_mut().for_each(|slope| *slope *= example.importance);
    }
    loss
}

/// Computes the gradient of a layer's rows, from its inputs and the loss's derivatives by its
/// outputs (`slopes`).
fn gradient_of(layer: Layer, input: &[f32], slopes: &[f32], examples: usize, gradient: &mut Vec<f32>) {
    gradient.resize(layer.neurons * layer.width(), 0.0);
    let input = View::rows(input, examples, layer.inputs, layer.inputs);
    let by_neuron = View::rows(slopes, examples, layer.neurons, layer.neurons).transposed();
    multiply(by_neuron, input, gradient, layer.width());
    for (neuron, row) in gradient.chunks_exact_mut(layer.width()).enumerate() {
        row[layer.inputs] = slopes.iter().skip(neuron).step_by(layer.neurons).sum();
    }
}

/// Computes the loss's derivatives by a layer's inputs. They are zero where ReLU has cut the input
/// off.
fn backward(layer: Layer, weights: &[f32], input: &[f32], slopes: &[f32], examples: usize, out: &mut Vec<f32>) {
    out.resize(examples * layer.inputs, 0.0);
    let slopes = View::rows(slopes, examples, layer.neurons, layer.neurons);
    multiply(slopes, layer.weights(weights), out, layer.inputs);
    out.iter_mut().zip(input).filter(|(_, input)| **input <= 0.0).for_each(|(slope, _)| *slope = 0.0);
}

/// Runs one worker's part of the training, as [`train`](crate::train::train) does for programs of
/// sparse examples.
pub fn train<'d>(
    session: &Session,
    mlp: &Mlp,
    training: &Training,
    data: impl Into<Data<'d>>,
    watch: impl FnMut(Learnt) -> Go,
) -> Result<Trained, TrainError> {
    let data = data.into();
    let tables: Vec<Table<f32>> =
        mlp.specs(training).into_iter().map(|spec| session.table(spec)).collect::<Result<_, _>>()?;
    let inputs = mlp.inputs;
    let prepare = move |batch: &Minibatch, matrix: &mut Matrix| matrix.fill(batch, inputs);
    let mut learner = Learner::new(mlp, &tables);
    let mut pace = Pace::new(session, training.rule, &tables, data)?;
    let learn = |batch: &Loan<Matrix>, lease: Option<&DataLease>| {
        pace.reach(batch.epoch())?;
        learner.learn(batch, lease)
    };
    let RoundsEnd { stopped, progress, tally } =
        make_rounds(session, training.consistency, data, prepare, learn, watch)?;
    Ok(Trained { tables, stopped, progress, tally })
}

/// Learns from one minibatch after another.
struct Learner<'a> {
    mlp: &'a Mlp,
    layers: Vec<Layer>,
    tables: &'a [Table<f32>],
    keys: Vec<Keys>,
    /// How many rows the largest minibatch so far has.
    largest: usize,
    /// For each layer: its rows, its outputs and its gradient. Their memory is used again.
    weights: Vec<Vec<f32>>,
    outputs: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
}

impl<'a> Learner<'a> {
    fn new(mlp: &'a Mlp, tables: &'a [Table<f32>]) -> Self {
        let layers = mlp.layers();
        let none = || vec![Vec::new(); layers.len()];
        let keys = layers.iter().map(|layer| Keys::run(0..layer.neurons as u64)).collect();
        Self { mlp, tables, keys, largest: 0, weights: none(), outputs: none(), gradients: none(), layers }
    }

    fn pull(&mut self, layer: usize) -> Result<Ticket<Rows<f32>>, slackwater::Error> {
        let mut target = std::mem::take(&mut self.weights[layer]);
        target.resize(self.layers[layer].neurons * self.layers[layer].width(), 0.0);
        self.tables[layer]
            .pull_opts(&self.keys[layer], PullOptions { into: Some(target.into()), ..PullOptions::default() })
    }

    fn learn(&mut self, batch: &Loan<Matrix>, lease: Option<&DataLease>) -> Result<Lesson, TrainError> {
        let matrix = batch.prepared();
        let inputs = self.mlp.inputs;
        if let Some(key) = matrix.beyond {
            return Err(TrainError::Unfit { key, inputs });
        }
        let examples = batch.rows();
        self.largest = examples.max(self.largest);
        let mut lesson = Lesson::default();
        let mut pulled = Some(self.pull(0)?);
        for layer in 0..self.layers.len() {
            let next = (layer + 1 < self.layers.len()).then(|| self.pull(layer + 1)).transpose()?;
            let Some(pull) = std::mem::replace(&mut pulled, next) else { break };
            let rows = pull.wait()?;
            lesson.staleness = lesson.staleness.max(rows.staleness());
            lesson.parked += u64::from(rows.waited_for().is_some());
            self.weights[layer] = rows.into_values();
            let (before, here) = self.outputs.split_at_mut(layer);
            let input = before.last().unwrap_or(&matrix.numbers);
            forward(self.layers[layer], &self.weights[layer], input, examples, &mut here[0]);
            if layer + 1 < self.layers.len() {
                cut_off_below_zero(&mut here[0]);
            }
        }
        let mut slopes = self.outputs.pop().unwrap_or_default();
        lesson.loss = slopes_of_loss(&mut slopes, self.mlp.classes, batch);
        let mut before = Vec::new();
        for layer in (0..self.layers.len()).rev() {
            let input = self.outputs.get(layer.wrapping_sub(1)).unwrap_or(&matrix.numbers);
            gradient_of(self.layers[layer], input, &slopes, examples, &mut self.gradients[layer]);
            let gradient = &mut self.gradients[layer];
            to_mean(gradient, &self.weights[layer], self.mlp.l2, examples, self.largest);
            push(&self.tables[layer], &self.keys[layer], gradient, examples as u64, lease)?;
            if layer > 0 {
                backward(self.layers[layer], &self.weights[layer], input, &slopes, examples, &mut before);
                std::mem::swap(&mut slopes, &mut before);
            }
        }
        self.outputs.push(before);
        Ok(lesson)
    }
}

/// Predicts with a perceptron.
pub struct MlpPredictor {
    mlp: Mlp,
    layers: Vec<(Layer, Vec<f32>)>,
    matrix: Matrix,
    known_features: u64,
}

impl MlpPredictor {
    /// A predictor with a model that was learnt by this perceptron.
    pub fn new(mlp: &Mlp, model: &Model) -> Result<Self, ModelError> {
        let rows_of = |(layer, name): (Layer, String)| {
            let table = table_of(model, &name, "mlp", layer.width())?;
            let fits = table.keys.last().is_none_or(|key| *key < layer.neurons as u64);
            let missing = || ModelError::NoTable { table: name.clone(), program: "mlp".to_owned() };
            fits.then(|| (layer, whole(layer, table))).ok_or_else(missing)
        };
        let layers = mlp.layers().into_iter().zip(mlp.tables()).map(rows_of).collect::<Result<_, _>>()?;
        Ok(Self { mlp: mlp.clone(), layers, matrix: Matrix::default(), known_features: 0 })
    }
}

/// All rows of a layer. A model's file leaves out rows that are zero.
fn whole(layer: Layer, table: &ModelTable) -> Vec<f32> {
    let mut rows = vec![0.0; layer.neurons * layer.width()];
    for (key, row) in table.keys.iter().zip(table.values.chunks_exact(table.width)) {
        rows[*key as usize * layer.width()..][..layer.width()].copy_from_slice(row);
    }
    rows
}

impl Predict for MlpPredictor {
    fn task(&self) -> Task {
        Task::Classes { count: self.mlp.classes }
    }

    fn known_features(&self) -> u64 {
        self.known_features
    }

    fn predict(&mut self, batch: &Minibatch, predictions: &mut Vec<f32>) {
        self.matrix.fill(batch, self.mlp.inputs);
        self.known_features += batch.keys().iter().filter(|key| **key < self.mlp.inputs as u64).count() as u64;
        let mut input = std::mem::take(&mut self.matrix.numbers);
        let mut output = Vec::new();
        for (number, (layer, weights)) in self.layers.iter().enumerate() {
            forward(*layer, weights, &input, batch.rows(), &mut output);
            if number + 1 < self.layers.len() {
                cut_off_below_zero(&mut output);
            }
            std::mem::swap(&mut input, &mut output);
        }
        input.chunks_exact_mut(self.mlp.classes).for_each(|scores| {
            normalise(scores);
        });
        predictions.extend_from_slice(&input);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> (Mlp, Vec<Vec<f32>>, Minibatch) {
        let mlp = Mlp { inputs: 3, hidden: vec![4, 2], classes: 3, seed: 1, l2: 0.0 };
        let mut seed = 1u64;
        let mut uniform = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 40) as f32 / (1u64 << 24) as f32 - 0.4
        };
        let weights =
            mlp.layers().iter().map(|layer| (0..layer.neurons * layer.width()).map(|_| uniform()).collect()).collect();
        let mut batch = Minibatch::new();
        for (label, row) in [(0.0, [1.0, 0.0, 0.5]), (2.0, [0.0, 2.0, 0.0]), (1.0, [0.3, 0.3, 1.0])] {
            row.iter().enumerate().for_each(|(key, value)| batch.push(key as u64, *value));
            batch.end_row(label);
        }
        batch.set_importance(2.0);
        (mlp, weights, batch)
    }

    /// The loss, and the gradient of each layer.
    fn loss_and_gradients(mlp: &Mlp, weights: &[Vec<f32>], batch: &Minibatch) -> (f64, Vec<Vec<f32>>) {
        let mut matrix = Matrix::default();
        matrix.fill(batch, mlp.inputs);
        let mut outputs = vec![matrix.numbers];
        for (layer, weights) in mlp.layers().into_iter().zip(weights) {
            let mut out = Vec::new();
            forward(layer, weights, &outputs[outputs.len() - 1], batch.rows(), &mut out);
            if outputs.len() <= mlp.hidden.len() {
                cut_off_below_zero(&mut out);
            }
            outputs.push(out);
        }
        let mut slopes = outputs.pop().unwrap_or_default();
        let loss = slopes_of_loss(&mut slopes, mlp.classes, batch);
        let mut gradients = Vec::new();
        for (layer, weights) in mlp.layers().into_iter().zip(weights).rev() {
            let input = outputs.pop().unwrap_or_default();
            let mut gradient = Vec::new();
            let mut before = Vec::new();
            gradient_of(layer, &input, &slopes, batch.rows(), &mut gradient);
            backward(layer, weights, &input, &slopes, batch.rows(), &mut before);
            slopes = before;
            gradients = [vec![gradient], gradients].concat();
        }
        (loss, gradients)
    }

    #[test]
    fn gradients_are_slopes_of_the_loss() {
        let (mlp, mut weights, batch) = network();
        let (_, gradients) = loss_and_gradients(&mlp, &weights, &batch);
        for layer in 0..weights.len() {
            for index in 0..weights[layer].len() {
                let weight = weights[layer][index];
                let mut at = |moved: f32| {
                    weights[layer][index] = moved;
                    loss_and_gradients(&mlp, &weights, &batch).0
                };
                let slope = (at(weight + 0.002) - at(weight - 0.002)) / 0.004;
                weights[layer][index] = weight;
                let found = f64::from(gradients[layer][index]);
                assert!((slope - found).abs() < 5e-3 * (1.0 + slope.abs()), "layer {layer}, {index}: {slope}, {found}");
            }
        }
        assert!(gradients[0].iter().any(|slope| slope.abs() > 0.01), "not all are cut off");
    }

    #[test]
    fn predictions_are_probabilities_and_missing_rows_count_as_zeros() {
        let (mlp, mut weights, batch) = network();
        weights[0][4..8].fill(0.0);
        let tables = mlp.tables().zip(mlp.layers()).zip(&weights).map(|((name, layer), rows)| {
            let kept = rows.chunks_exact(layer.width()).zip(0..).filter(|(row, _)| row.iter().any(|w| *w != 0.0));
            let (values, keys): (Vec<&[f32]>, Vec<u64>) = kept.unzip();
            (name, ModelTable { keys, width: layer.width(), values: values.concat() })
        });
        let model = Model { tables: tables.collect(), ..Model::default() };
        let mut predictions = Vec::new();
        MlpPredictor::new(&mlp, &model).unwrap().predict(&batch, &mut predictions);
        assert_eq!(predictions.len(), 9);
        let likelihood: f64 =
            [(0, 1.0), (5, 1.0), (7, 2.0)].iter().map(|(at, times)| -times * f64::from(predictions[*at]).ln()).sum();
        let (loss, _) = loss_and_gradients(&mlp, &weights, &batch);
        assert!((likelihood - loss).abs() < 1e-5 * loss, "{likelihood} and {loss}");
        let other = Mlp { hidden: vec![5, 2], ..mlp };
        assert!(MlpPredictor::new(&other, &model).is_err());
    }
}
