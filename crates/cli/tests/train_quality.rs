//! How well `train` learns: compared with other programs, and up to the tolerance that is set.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;
mod training;

use process::{Folder, data_set, fails, run_json};
use serde_json::Value;
use training::made_up;

#[test]
fn a9a_is_learnt_as_well_as_by_other_programs() {
    let Some(folder) = data_set("a9a") else { return };
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let program = [
        "train",
        "logistic",
        "--format=libsvm",
        "--data",
        &file("a9a.gz"),
        "--test",
        &file("a9a.t.gz"),
        "--epochs=10",
        "--l2=3.07e-5",
        "--slack=1",
    ];
    for before in [&[][..], &["launch", "--servers=2", "--workers=2", "--"]] {
        let figures = run_json(&[before, &program[..]].concat());
        let test = |name: &str| figures["test"][name].as_f64().unwrap();
        assert!(test("accuracy") >= 0.849 && (test("log_loss") / 0.3241 - 1.0).abs() < 0.01, "{}", figures["test"]);
    }
}

#[test]
fn proximal_steps_stop_within_the_tolerance() {
    let folder = Folder::new("proximal");
    let data = folder.write("a.libsvm", &made_up(0..2_000));
    let train = |more: &[&str]| {
        let all = ["train", "logistic", "--data", &data, "--updater=proximal", "--l1=0.01", "--epochs=300"];
        run_json(&[&all[..], more].concat())
    };
    let near = train(&["--tolerance=0.00001", "--blocks=4"]);
    let far = train(&["--tolerance=0.9", "--blocks=4"]);
    let gap = |figures: &Value| figures["optimality_gap"].as_f64().unwrap();
    let rows = |figures: &Value| figures["rows"].as_u64().unwrap();
    assert!((0.0..=0.00001).contains(&gap(&near)), "{near}");
    assert!(rows(&far) < rows(&near) && gap(&far) <= 0.9, "{far}");
    // A block is a clock, and a clock sends a message to every shard.
    let many = train(&["--tolerance=0.9", "--blocks=40"]);
    let bytes_a_row = |figures: &Value| figures["bytes_sent_by_workers"].as_f64().unwrap() / rows(figures) as f64;
    assert!(bytes_a_row(&many) > 2.0 * bytes_a_row(&far), "{many}\n{far}");
    let refused = |program: &str, more: &str, words: &str| {
        fails(&["train", program, "--data", &data, "--updater=proximal", more], words);
    };
    refused("linear", "--l1=0.01", "proximal steps are for logistic");
    refused("logistic", "--l2=0.01", "proximal steps are for `l1` alone");
}

#[test]
fn standardised_features_of_any_scale_are_learnt() {
    let folder = Folder::new("standardise");
    let row = |row: u64| {
        let a = (row * 37 % 101) as f64;
        let b = (row * 53 % 97) as f64;
        format!("{},{},{}\n", 1e6 + 1e4 * a, 1e-4 * b, 3e5 * a - 2e5 * b)
    };
    let data = folder.write("a.csv", &("a,b,y\n".to_owned() + &(0..3_000).map(row).collect::<String>()));
    let all = ["train", "linear", "--data", &data, "--label=y", "--updater=adagrad", "--epochs=30"];
    let r2 = |more: &[&str]| run_json(&[&all[..], more].concat())["train"]["r2"].as_f64();
    assert!(r2(&["--standardise"]).unwrap() > 0.99);
    assert!(r2(&[]).is_none_or(|r2| r2 < 0.9), "the scales matter");
    fails(&[&all[..], &["--standardise", "--no-bias"]].concat(), "`standardise` is for");
}

#[test]
fn a_rate_that_falls_closes_in_on_the_best_weights() {
    let folder = Folder::new("decay");
    // A line with noise that differs between minibatches of ten rows.
    let row = |row: u64| format!("{} 1:{}\n", (row % 7) as f64 + (row * 37 % 11) as f64, (row % 7) as f64);
    let data = folder.write("a.libsvm", &(0..1_001).map(row).collect::<String>());
    let all = ["train", "linear", "--data", &data, "--epochs=20", "--minibatch=10", "--rate=0.05"];
    // The error of the best line is the noise, √10.
    let beyond_best =
        |more: &[&str]| run_json(&[&all[..], more].concat())["train"]["rmse"].as_f64().unwrap() - 10f64.sqrt();
    let level = beyond_best(&["--updater=sgd"]);
    let falling = beyond_best(&["--updater=sgd", "--decay=linear"]);
    assert!((0.0..level / 4.0).contains(&falling), "{level} and {falling}");
    fails(
        &[&all[..], &["--decay=linear"]].concat(),
        "`decay` is a setting of the updater adagrad, adam, sgd, and this is ftrl",
    );
    fails(
        &["train", "linear", "--data", &data, "--updater=sgd", "--decay=linear"],
        "`decay` lowers the rate from epoch to epoch",
    );
}
