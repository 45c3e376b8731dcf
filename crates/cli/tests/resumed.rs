//! Trainings of real processes that lose everything in the middle and resume from a checkpoint,
//! with other numbers of servers and workers.
//!
//! Each row of the file has a feature of its own. Learning from the row moves its weight by one:
//! the label is so large, and the rate so small, that the error hardly changes. So the model
//! predicts for each row how often that row has counted.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use process::{Folder, LIMIT, Process, Signal, json, run, start};
use serde_json::Value;
use std::time::{Duration, Instant};

const ROWS: u64 = 10_000;
const EPOCHS: u64 = 30;
const MINIBATCH: u64 = 50;
/// The share of its error that a row corrects each time.
const STEP: f64 = 1e-5;

/// A training and its files: rows to learn from, a model, and checkpoints.
struct Training(Folder);

impl Training {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let rows = (0..ROWS).map(|row| format!("{} {}:1\n", 1.0 / STEP, 100_000 + row));
        folder.write("rows.libsvm", &rows.collect::<String>());
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path(name)
    }

    /// Launches a run of this size that writes checkpoints, with `more` arguments for `launch`.
    fn launch(&self, (servers, workers): (u32, u32), more: &[&str], epochs: u64) -> Process {
        let shape = [format!("--servers={servers}"), format!("--workers={workers}")];
        let place = [format!("--checkpoint={}", self.path("checkpoints")), "--checkpoint-every=0.1".to_owned()];
        let train =
            [format!("--data={}", self.path("rows.libsvm")), format!("--out={}", self.path("model.safetensors"))];
        let counts = [format!("--epochs={epochs}"), format!("--minibatch={MINIBATCH}")];
        let rate = format!("--rate={}", STEP * MINIBATCH as f64);
        let program = ["--", "train", "linear", "--updater=sgd", "--no-bias", "--slack=2", "--json", &rate];
        let words = ["launch", "--failure-timeout=2"].into_iter().chain(shape.iter().chain(&place).map(String::as_str));
        let words = words.chain(more.iter().copied()).chain(program);
        start("launch", &words.chain(train.iter().chain(&counts).map(String::as_str)).collect::<Vec<_>>())
    }

    /// How many data leases are done in the newest checkpoint, and how many there are.
    fn done(&self) -> Option<(u64, u64)> {
        let entries = std::fs::read_dir(self.path("checkpoints")).ok()?;
        let manifests = entries.filter_map(|entry| Some(entry.ok()?.path().join("manifest.json")));
        let newest = manifests.filter(|manifest| manifest.exists()).max()?;
        let manifest: Value = serde_json::from_str(&std::fs::read_to_string(newest).ok()?).ok()?;
        let set =
            manifest["leases"].as_array()?.iter().find(|set| set["name"].as_str().unwrap().starts_with("train"))?;
        let spans = set["done"].as_array()?.iter().map(|span| span[1].as_u64().unwrap() - span[0].as_u64().unwrap());
        Some((spans.sum(), set["ranges"].as_u64()? * set["epochs"].as_u64()?))
    }

    /// Kills all processes, `launch` first, once this share of the data leases is done in a
    /// checkpoint.
    fn lose_everything(&self, mut launch: Process, share: f64) -> (u64, u64) {
        let begin = Instant::now();
        while self.done().is_none_or(|(done, leases)| (done as f64) < share * leases as f64) {
            let ended = launch.ended();
            assert!(ended.is_none() && begin.elapsed() < LIMIT, "{ended:?}, {:?}\n{}", self.done(), launch.stderr());
            std::thread::sleep(Duration::from_millis(2));
        }
        launch.kill();
        let said = launch.stderr();
        let started = said.lines().filter(|line| line.contains("started "));
        for id in started.filter_map(|line| line.split("process=").nth(1)?.trim().parse().ok()) {
            // On Linux, they end with `launch`.
            launch::signal_process(id, Signal::KILL).ok();
        }
        self.done().unwrap()
    }

    /// How often each row has counted in the model.
    fn counts(&self) -> Vec<u64> {
        let predictions = self.path("predictions");
        let words =
            ["predict", "--model", &self.path("model.safetensors"), "--data", &self.path("rows.libsvm"), "--out"];
        run(&[&words[..], &[&predictions]].concat());
        let text = std::fs::read_to_string(predictions).unwrap();
        let counts: Vec<f64> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(counts.len() as u64, ROWS);
        assert_eq!(counts.iter().find(|count| (*count - count.round()).abs() > 0.1), None, "they are whole numbers");
        counts.iter().map(|count| count.round() as u64).collect()
    }

    /// How often each row has counted in the model. Checks that it is the same for all rows.
    fn counted(&self) -> u64 {
        let counts = self.counts();
        assert_eq!(counts.iter().find(|count| **count != counts[0]), None, "others count {}", counts[0]);
        counts[0]
    }
}

fn report(launch: &mut Process) -> Value {
    assert!(launch.end(), "{}", launch.stderr());
    json(&launch.stdout())
}

#[test]
fn every_row_counts_once_over_resumed_runs_of_other_sizes() {
    let training = Training::new("shapes");
    let first = training.launch((2, 3), &["--replicas=2"], EPOCHS);
    let (after_first, leases) = training.lose_everything(first, 0.2);
    assert!(after_first < leases, "there is something left");
    let second = training.launch((3, 1), &["--replicas=2", "--resume"], EPOCHS);
    let (after_second, _) = training.lose_everything(second, 0.5);
    assert!(after_first < after_second && after_second < leases, "{after_first}, {after_second} of {leases}");

    let mut third = training.launch((2, 4), &["--replicas=2", "--resume"], EPOCHS);
    let report_of_third = report(&mut third);
    let rows = report_of_third["rows"].as_u64().unwrap();
    assert_eq!(report_of_third["rows_in_all"], ROWS * EPOCHS, "{report_of_third}");
    // Ranges have nearly the same number of rows.
    let left = (leases - after_second) as f64 / leases as f64 * (ROWS * EPOCHS) as f64;
    assert!(
        (0.9 * left..1.1 * left).contains(&(rows as f64)),
        "{rows} rows were learnt from, and about {left} were left"
    );
    assert!(
        third.stderr().contains("It learns only from the rows that were not learnt from before"),
        "{}",
        third.stderr()
    );
    assert_eq!(training.counted(), EPOCHS);

    // A run that has ended can be resumed for more epochs: its last checkpoint holds all of it.
    let mut fourth = training.launch((2, 1), &["--replicas=2", "--resume"], EPOCHS + 2);
    let report_of_fourth = report(&mut fourth);
    assert_eq!(
        (&report_of_fourth["rows"], &report_of_fourth["rows_in_all"]),
        (&(2 * ROWS).into(), &(ROWS * (EPOCHS + 2)).into())
    );
    assert_eq!(training.counted(), EPOCHS + 2);
}

#[test]
fn a_run_stopped_within_leases_resumes_with_their_rest() {
    let training = Training::new("stopped");
    let mut stopped = training.launch((2, 3), &["--replicas=2"], EPOCHS);
    stopped.hear("that it is under way", |said| said.contains("%: loss").then_some(()));
    stopped.signal(Signal::INT);
    let report_of_stopped = report(&mut stopped);
    let rows = report_of_stopped["rows"].as_u64().unwrap();
    assert!(report_of_stopped["stopped"] == true && rows < ROWS * EPOCHS, "{report_of_stopped}");
    assert_eq!(report_of_stopped["rows_in_all"], rows, "{report_of_stopped}");
    assert_eq!(training.counts().iter().sum::<u64>(), rows, "the weights have what is reported");
    let mut resumed = training.launch((3, 2), &["--replicas=2", "--resume"], EPOCHS);
    let report = report(&mut resumed);
    assert_eq!((&report["rows_in_all"], &report["stopped"]), (&(ROWS * EPOCHS).into(), &false.into()), "{report}");
    assert_eq!(training.counted(), EPOCHS);
}

#[test]
fn a_resumed_static_run_begins_its_epochs_again_and_says_so() {
    let training = Training::new("fixed");
    for (resume, counted) in [(&[][..], 2), (&["--resume"][..], 4)] {
        let mut launch = training.launch((1, 2), resume, 2);
        let report = report(&mut launch);
        assert_eq!((&report["rows"], &report["rows_in_all"]), (&(2 * ROWS).into(), &Value::Null), "{report}");
        assert_eq!(launch.stderr().contains("every epoch begins again"), !resume.is_empty(), "{}", launch.stderr());
        assert_eq!(training.counted(), counted);
    }
}
