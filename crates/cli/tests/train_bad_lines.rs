//! Malformed lines in training data: how many are skipped, and the error for the first one beyond
//! that.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;
mod training;

use process::{Folder, fails, run_json, start};
use training::made_up;

#[test]
fn malformed_lines_are_skipped_and_counted_up_to_a_number() {
    let folder = Folder::new("bad");
    let mut text = made_up(0..300);
    text.insert_str(0, "nonsense\n");
    text.push_str("1 2:3 x\n");
    let data = folder.write("a.libsvm", &text);
    let trained = run_json(&["train", "logistic", "--data", &data, "--skip-bad=2", "--epochs=2"]);
    assert_eq!((&trained["rows"], &trained["bad_rows"]), (&600.into(), &4.into()));
    fails(
        &["train", "logistic", "--data", &data, "--skip-bad=1"],
        "a.libsvm:302:7: expected `index:value`, found `x` (after 1 skipped malformed lines",
    );
    // With several workers, the one that finds the line reports it, and no model is written.
    let out = folder.path("model");
    fails(
        &["train", "logistic", "--data", &data, "--skip-bad=1", "--workers=3", "--slack=1", "--out", &out],
        "a.libsvm:302:7",
    );
    let launched = [
        "launch",
        "--servers=1",
        "--workers=2",
        "--",
        "train",
        "logistic",
        "--skip-bad=1",
        "--out",
        &out,
        "--data",
        &data,
    ];
    let mut launch = start("launch", &launched);
    launch.fails_saying("a.libsvm:302:7: expected `index:value`");
    assert!(!std::path::Path::new(&out).exists(), "{}", launch.stderr());
}

#[test]
fn malformed_lines_of_all_workers_count_together() {
    let folder = Folder::new("bad-parts");
    // Enough text for each of two workers to read several blocks, each with a malformed line.
    let block = made_up(0..1000) + "1 2:3 x\n";
    let data = folder.write("a.libsvm", &block.repeat(8));
    let out = folder.path("model");
    let train = ["train", "logistic", "--data", &data, "--workers=2", "--out", &out];
    fails(
        &[&train[..], &["--skip-bad=7"]].concat(),
        "malformed lines were skipped in 1 epochs, and --skip-bad allows 7",
    );
    assert!(!std::path::Path::new(&out).exists());
    let trained = run_json(&[&train[..], &["--skip-bad=8", "--epochs=2"]].concat());
    assert_eq!(trained["bad_rows"], 16);
    let solved = run_json(&[&train[..], &["--skip-bad=8", "--updater=proximal", "--l1=0.01", "--epochs=20"]].concat());
    assert_eq!(solved["bad_rows"], 8);
    let predicted = run_json(&["predict", "--model", &out, "--data", &data]);
    assert_eq!((&predicted["rows"], &predicted["bad_rows"]), (&8000.into(), &8.into()));
}
