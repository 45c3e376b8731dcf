//! Golden-curve tests: each program's loss on the same generated rows, minibatch after minibatch,
//! is what it was when the curve was recorded.
//!
//! One worker and one seed give the same model bit for bit. The curves are compared to five digits,
//! because machines may differ in the last bits of a logarithm. After a change that is meant to
//! change a curve, copy the new one, which the failing test prints.

#[expect(dead_code, reason = "other tests use the rest of it")]
mod common;

use apps::fm::FactorisationMachine;
use apps::linear::Linear;
use apps::logistic::Logistic;
use apps::program::Program;
use apps::proximal::Proximal;
use apps::softmax::Softmax;
use apps::train::{Go, Rate, Rule, Training, train};
use common::{Scratch, lib_svm, on_workers, open};
use data::{DataReader, Labels};
use slackwater::Consistency;
use std::fmt::Write;

/// A random number generator: SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// Rows of five features among fifty, whose label follows from two of them.
fn rows(scratch: &Scratch, labels: Labels) -> DataReader {
    let mut random = Random(7);
    let mut text = String::new();
    for _ in 0..600 {
        let keys: Vec<u64> = (0..5).map(|field| field * 10 + random.below(10)).collect();
        let score = keys[0] % 3 + keys[1] % 2 + random.below(2);
        let label = if labels == Labels::Binary { u64::from(score > 1) } else { score };
        let features: String = keys.iter().fold(String::new(), |mut features, key| {
            write!(features, " {key}:{}", 1 + key % 3).expect("a string grows");
            features
        });
        writeln!(text, "{label}{features}").expect("a string grows");
    }
    let path = scratch.path("rows.libsvm");
    std::fs::write(&path, text).expect("a file can be written");
    let mut settings = lib_svm(labels);
    settings.minibatch_rows = 100;
    settings.epochs = 2;
    open(&path, settings)
}

/// The mean loss of each minibatch.
fn curve(name: &str, labels: Labels, program: &dyn Program, rule: Rule) -> Vec<f64> {
    let scratch = Scratch::new(&format!("golden-{name}"));
    let training = Training::new(rule, Consistency::slack(3));
    let curves = on_workers(&rows(&scratch, labels), 1, |session, share| {
        let mut losses = Vec::new();
        let trained = train(session, program, &training, None, share, |learnt| {
            losses.push(learnt.loss / learnt.examples as f64);
            Go::On
        });
        trained.map(|_| losses).expect("it trains")
    });
    curves.into_iter().next().expect("there is a worker")
}

/// A case's name, labels, program and rule, and its golden curve.
type Case<'a> = (&'a str, Labels, &'a dyn Program, Rule, &'a [f64]);

/// Whether a curve equals the golden one; prints both if not.
fn is_golden(name: &str, found: &[f64], golden: &[f64]) -> bool {
    let printed: Vec<String> = found.iter().map(|loss| format!("{loss:.8}")).collect();
    let same = |(found, golden): (&f64, &f64)| (found - golden).abs() <= 1e-5 * golden.abs();
    let is_golden = found.len() == golden.len() && found.iter().zip(golden).all(same);
    if !is_golden {
        println!("{name} is [{}], was {golden:?}", printed.join(", "));
    }
    is_golden
}

#[test]
fn every_program_follows_its_golden_curve() {
    let logistic = Logistic { l2: 0.01 };
    let softmax = Softmax { classes: 5, l2: 0.01 };
    let machine = FactorisationMachine { factors: 4, seed: 1, spread: 0.1, l2: 0.01, factor_l2: 0.01 };
    let classes = Labels::Classes { first: 0, count: 5 };
    let ftrl = Rule::Ftrl { rate: 0.1, beta: 1.0 };
    let adagrad = Rule::Adagrad { rate: Rate::Constant(0.1) };
    let adam = Rule::Adam { rate: Rate::Constant(0.05) };
    let sgd = Rule::Sgd { rate: Rate::Constant(0.05) };
    let programs: [Case<'_>; 7] = [
        (
            "logistic by ftrl",
            Labels::Binary,
            &logistic,
            ftrl,
            &[
                std::f64::consts::LN_2,
                0.65829320,
                0.55657138,
                0.57694868,
                0.51125621,
                0.52534395,
                0.49694499,
                0.53767703,
                0.44320274,
                0.48001988,
                0.42605445,
                0.45232441,
            ],
        ),
        (
            "logistic by adagrad",
            Labels::Binary,
            &logistic,
            adagrad,
            &[
                std::f64::consts::LN_2,
                0.66158035,
                0.55527493,
                0.56777248,
                0.49962900,
                0.51284055,
                0.48553961,
                0.52584810,
                0.42781373,
                0.46455338,
                0.40846253,
                0.43648225,
            ],
        ),
        (
            "logistic by adam",
            Labels::Binary,
            &logistic,
            adam,
            &[
                std::f64::consts::LN_2,
                0.65819253,
                0.56959917,
                0.61123914,
                0.54038197,
                0.55385247,
                0.48166297,
                0.53938201,
                0.40525840,
                0.44580819,
                0.40028744,
                0.40487505,
            ],
        ),
        (
            "logistic by sgd",
            Labels::Binary,
            &logistic,
            sgd,
            &[
                std::f64::consts::LN_2,
                0.68704293,
                0.67758538,
                0.67340101,
                0.66068125,
                0.66026577,
                0.64655611,
                0.65495744,
                0.63231340,
                0.64272957,
                0.62254277,
                0.63083300,
            ],
        ),
        (
            "linear by adagrad",
            Labels::Real,
            &Linear { l2: 0.01 },
            adagrad,
            &[
                2.44000000, 0.93290002, 0.49100182, 0.45880474, 0.44315862, 0.31965127, 0.29378279, 0.34963221,
                0.24251695, 0.26256190, 0.26178064, 0.20494507,
            ],
        ),
        (
            "softmax by adagrad",
            classes,
            &softmax,
            adagrad,
            &[
                1.60943791, 1.57756442, 1.35765364, 1.38683561, 1.33419291, 1.23093451, 1.06637761, 1.22565177,
                1.07162245, 1.16556436, 1.15647419, 1.07500759,
            ],
        ),
        (
            "fm by adagrad",
            Labels::Binary,
            &machine,
            adagrad,
            &[
                0.69737183, 0.76682678, 0.56983450, 0.54185646, 0.42809149, 0.45115454, 0.36211523, 0.43134480,
                0.32244013, 0.34972123, 0.27208657, 0.32266036,
            ],
        ),
    ];
    let mut failed = Vec::new();
    for (name, labels, program, rule, golden) in programs {
        if !is_golden(name, &curve(name, labels, program, rule), golden) {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn proximal_steps_follow_their_golden_curve() {
    let scratch = Scratch::new("golden-proximal");
    let proximal = Proximal {
        l1: 0.01,
        blocks: 4,
        consistency: Consistency::slack(1),
        passes: 40,
        tolerance: 0.0,
        codecs: slackwater::policy::Codecs::default(),
    };
    let curves = on_workers(&rows(&scratch, Labels::Binary).once(), 1, |session, share| {
        let mut objectives = Vec::new();
        let solved = apps::proximal::train(session, &proximal, share, |state| {
            objectives.extend(state.map(|state| state.gap.objective));
            Go::On
        });
        solved.map(|_| objectives).expect("it trains")
    });
    assert!(is_golden("proximal", &curves[0], &[256.10050569, 255.31384527, 254.75496506, 254.23127801]));
}
