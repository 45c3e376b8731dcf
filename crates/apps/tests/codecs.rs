//! What codecs cost in accuracy, on real images: with error feedback little, without it much.
//!
//! The images are of the folder that `SLACKWATER_DATA` names. Where it is not there, the tests say
//! so and pass.

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

/// Test accuracy in percent after learning from the smaller of the two files, by plain steps in
/// lock-step, two workers.
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

/// Both files are images of the same kind: the small one is learnt from here, and ten thousand of
/// the large one test it.
fn fashion(epochs: u32) -> Option<(DataReader, DataReader)> {
    let folder = folder("fashion-mnist")?;
    let settings = ReaderSettings::new(Format::Idx, Labels::Classes { first: 0, count: 10 });
    let shuffled =
        ReaderSettings { epochs, minibatch_rows: 50, shuffle: Some(Shuffle { minibatches: 64 }), ..settings.clone() };
    let part = |name: &str| folder.join(format!("{name}-images-idx3-ubyte.gz"));
    Some((open(&part("t10k"), shuffled), open(&part("train"), settings)))
}

#[test]
fn one_bit_learns_as_much_with_its_residual_and_much_less_without() {
    let Some((train, test)) = fashion(8) else { return };
    let mean = |names: &[&str]| {
        let seeds = [1, 2];
        let sum: f64 =
            seeds.iter().map(|seed| accuracy(&train, &test, Codecs::both(names.iter().copied()), *seed)).sum();
        sum / seeds.len() as f64
    };
    let (plain, with, without) = (mean(&[]), mean(&["1bit"]), mean(&["1bit", "noresidual"]));
    println!("f32 {plain:.2} %, 1bit both ways {with:.2} %, without its residual {without:.2} %");
    assert!(with > plain - 1.0, "{with} against {plain}");
    assert!(without < plain - 2.0, "{without} against {plain}");
}
