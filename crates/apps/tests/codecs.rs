//! How much accuracy codecs cost on real images: little with error feedback (the residual), much
//! without it.
//!
//! `SLACKWATER_DATA` names the folder of the images. If it is missing, the test prints that it is
//! skipped, and passes.

#[expect(dead_code, reason = "other tests use the rest of it")]
mod common;

use apps::figures::Quality;
use apps::mlp::{Mlp, MlpPredictor};
use apps::model::{Model, ModelTable};
use apps::predict::Predict;
use apps::train::{Go, Rate, Rule, Training};
use common::{folder, on_workers, open};
use data::{DataReader, Format, Labels, ReaderSettings, Shuffle};
use slackwater::Consistency;
use slackwater::policy::Codecs;

/// Test accuracy in percent, after two workers have learnt from `train` in lock-step by plain
/// gradient descent.
fn accuracy(train: &DataReader, test: &DataReader, codecs: Codecs, seed: u64) -> f64 {
    let mlp = Mlp { inputs: 784, hidden: vec![64, 32], classes: 10, seed, l2: 0.0 };
    let rule = Rule::Sgd { rate: Rate::Constant(0.1) };
    let training = Training { rule, l1: 0.0, consistency: Consistency::LOCK_STEP, bias: true, codecs };
    let models = on_workers(train, 2, |session, share| {
        let trained = apps::mlp::train(session, &mlp, &training, share, |_| Go::On).expect("it trains");
        let pull = |table| ModelTable::pull(table).expect("the weights can be read");
        Model { tables: mlp.tables().zip(trained.tables.iter().map(pull)).collect(), ..Model::default() }
    });
    let mut predictor = MlpPredictor::new(&mlp, &models[0]).expect("a model of this perceptron");
    let found = predictor.evaluate(test, 10_000).expect("the data set is sound").expect("it has rows");
    let Quality::Classes { accuracy, .. } = found else { panic!("of classes") };
    100.0 * accuracy
}

/// The data to train on, and the data to test with. Both files have images of the same kind, so
/// this trains on the small one and tests with ten thousand images of the large one.
fn fashion(epochs: u32) -> Option<(DataReader, DataReader)> {
    let folder = folder("fashion-mnist")?;
    let settings = ReaderSettings::new(Format::Idx, Labels::Classes { first: 0, count: 10 });
    let shuffled =
        ReaderSettings { epochs, minibatch_rows: 50, shuffle: Some(Shuffle { minibatches: 64 }), ..settings.clone() };
    let part = |name: &str| folder.join(format!("{name}-images-idx3-ubyte.gz"));
    Some((open(&part("t10k"), shuffled), open(&part("train"), settings)))
}

#[test]
fn one_bit_keeps_accuracy_with_its_residual_and_loses_it_without() {
    let Some((train, test)) = fashion(8) else { return };
    let mean = |names: &[&str]| {
        let seeds = [1, 2];
        let sum: f64 =
            seeds.iter().map(|seed| accuracy(&train, &test, Codecs::both(names.iter().copied()), *seed)).sum();
        sum / seeds.len() as f64
    };
    let plain = mean(&[]);
    let with = mean(&["1bit"]);
    let without = mean(&["1bit", "noresidual"]);
    println!("f32 {plain:.2} %, 1bit both ways {with:.2} %, without its residual {without:.2} %");
    assert!(with > plain - 1.0, "{with} against {plain}");
    assert!(without < plain - 2.0, "{without} against {plain}");
}
