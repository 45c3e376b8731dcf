//! Right answers on real data, in lock-step, with slack and asynchronously, with one worker and with four.

use apps::figures::Quality;
use apps::logistic::{Logistic, log_loss};
use apps::model::{Model, ModelTable, Predictor};
use apps::program::Program;
use apps::train::{Go, Rule, Training, train};
use data::{Format, Labels, Reader, Settings};
use slackwater::{Consistency, Session, Shape};
use std::path::PathBuf;

fn folder(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("SLACKWATER_DATA")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"), PathBuf::from);
    let folder = root.join(name);
    let there = folder.is_dir();
    if !there {
        println!("skipped: there is no {}; SLACKWATER_DATA names the folder of data sets", folder.display());
    }
    there.then_some(folder)
}

fn reader(folder: &std::path::Path, file: &str, epochs: u32, minibatch_rows: usize, shuffle: bool) -> Reader {
    let settings = Settings {
        epochs,
        minibatch_rows,
        shuffle: shuffle.then_some(data::Shuffle { minibatches: 64 }),
        ..Settings::new(Format::LibSvm, Labels::Binary)
    };
    Reader::open(&[folder.join(file).to_str().expect("a path in UTF-8")], settings).expect("the data set is there")
}

/// Trains in one process and returns what was learnt.
fn learn(program: &dyn Program, training: &Training, reader: &Reader, workers: u32) -> Model {
    let sessions = Session::embedded(Shape { servers: 2, workers }).expect("a cluster in this process");
    let mut models: Vec<Option<Model>> = std::thread::scope(|scope| {
        let running: Vec<_> = sessions
            .into_iter()
            .map(|session| {
                scope.spawn(move || {
                    let share = reader.for_worker(session.rank(), workers).expect("a share of the data");
                    let tables =
                        train(&session, program, training, &share, |_| Go::On).expect("training succeeds").tables;
                    let mut model = None;
                    if session.rank() == 0 {
                        let pull = |(table, shape): (&slackwater::Table<f32>, apps::program::Weights)| {
                            (shape.name.to_owned(), ModelTable::pull(table).expect("the weights can be read"))
                        };
                        let tables = tables.iter().zip(program.tables()).map(pull).collect();
                        model = Some(Model { tables, ..Model::default() });
                    }
                    session.barrier().expect("everybody is there");
                    session.close().expect("a session ends");
                    model
                })
            })
            .collect();
        running.into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
    });
    models.swap_remove(0).expect("the first worker has it")
}

const MODES: [Consistency; 3] = [Consistency::LOCK_STEP, Consistency::slack(3), Consistency::Unbounded];

/// ‖w‖₁ + C Σ loss, and how many weights are not zero.
fn l1_objective(model: &Model, reader: &Reader, c: f64) -> (f64, usize) {
    let table = &model.tables["weights"];
    let index = table.index();
    let mut objective: f64 = table.values.iter().map(|w| f64::from(w.abs())).sum();
    for batch in reader.batches().expect("the data set is there") {
        for row in batch.expect("the data set is sound").iter() {
            let weight = |key: &u64| index.get(key).map_or(0.0, |place| f64::from(table.values[*place as usize]));
            let score: f64 = row.keys.iter().zip(row.values).map(|(key, value)| weight(key) * f64::from(*value)).sum();
            objective += c * log_loss(score, row.label.unwrap_or(0.0));
        }
    }
    (objective, table.keys.len())
}

fn env(name: &str, default: f64) -> f64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn a9a_with_l2_reaches_the_batch_solution() {
    let Some(folder) = folder("a9a") else { return };
    let train_rows = reader(&folder, "a9a.gz", env("EPOCHS", 10.0) as u32, env("MB", 500.0) as usize, true);
    let test_rows = reader(&folder, "a9a.t.gz", 1, 1000, false);
    let program = Logistic { l2: 1.0 / 32_561.0 };
    for workers in [1, 4] {
        for consistency in MODES {
            let training =
                Training { rule: Rule::Ftrl { rate: env("RATE", 0.1), beta: 1.0 }, l1: 0.0, consistency, bias: true };
            let start = std::time::Instant::now();
            let model = learn(&program, &training, &train_rows, workers);
            let quality = Predictor::new(&program, &model, true).expect("it fits").evaluate(&test_rows, u64::MAX);
            let Ok(Some(Quality::Binary { log_loss, accuracy, auc })) = quality else { panic!("{quality:?}") };
            println!(
                "a9a l2, {workers} workers, {consistency:?}: accuracy {accuracy:.4}, log-loss {log_loss:.4}, AUC {auc:.4} {:?}",
                start.elapsed()
            );
            assert!(accuracy >= 0.849, "{accuracy}");
            assert!((log_loss / 0.3241 - 1.0).abs() < 0.01, "{log_loss}");
        }
    }
}

#[test]
fn l1_by_ftrl_reaches_the_exact_optimum() {
    for (name, file, rows, exact, non_zeros, epochs, rate) in [
        ("a9a", "a9a.gz", 32_561.0, 1082.62, 52.0, 20.0, 0.1),
        ("imdb", "imdb.train.libsvm.zst", 25_000.0, 821.44, 1127.0, 30.0, 0.1),
    ] {
        if std::env::var("ONLY").is_ok_and(|only| only != name) {
            continue;
        }
        let Some(folder) = folder(name) else { return };
        let train_rows = reader(&folder, file, env("EPOCHS", epochs) as u32, env("MB", 500.0) as usize, true);
        let once = reader(&folder, file, 1, 1000, false);
        let c = 0.1;
        for workers in [1, 4] {
            for consistency in MODES {
                let rule = Rule::Ftrl { rate: env("RATE", rate), beta: env("BETA", 1.0) };
                let training = Training { rule, l1: 1.0 / (c * rows), consistency, bias: false };
                let start = std::time::Instant::now();
                let model = learn(&Logistic { l2: 0.0 }, &training, &train_rows, workers);
                let (objective, found) = l1_objective(&model, &once, c);
                println!(
                    "{name} l1, {workers} workers, {consistency:?}: objective {objective:.2} ({:+.2}%), {found} non-zeros {:?}",
                    (objective / exact - 1.0) * 100.0,
                    start.elapsed()
                );
                assert!((objective / exact - 1.0).abs() < 0.01, "{objective}");
                assert!((found as f64 / non_zeros - 1.0).abs() < 0.15, "{found}");
            }
        }
    }
}
