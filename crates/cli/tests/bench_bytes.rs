//! A small run of `bench bytes`, where its data sets are installed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use process::{Folder, bench, data_set};
use std::process::Command;

#[test]
fn bench_bytes_prints_and_draws_its_figures() {
    let Some(reviews) = data_set("imdb") else { return };
    let out = Folder::new("bytes");
    let data = reviews.parent().unwrap().to_str().unwrap();
    let folder = out.path("");
    let (figures, _) = bench(&["bytes", "--only", "l1", "--passes", "20", "--data", data, "--out", &folder]);
    let number = |name: &str| figures[name].as_f64().unwrap_or_else(|| panic!("no {name} in {figures}"));
    // In a plain push, two thirds of the bytes are keys. Shrunk, a number takes 12 bits of 32.
    assert!(number("l1_share_of_bytes") < 0.2, "{figures}");
    assert!(number("l1_shrunk_up_bytes") < number("l1_plain_up_bytes") / 4.0);
    assert!(number("l1_objective_off") < 1e-3);
    assert_eq!(figures["l1_share_of_bytes_target"], "ok");
    let picture = std::fs::read_to_string(out.path("bytes-l1.svg")).unwrap();
    assert!(picture.contains("both ways (MB)"));
}

#[test]
fn bench_bytes_asks_for_its_data() {
    let mut command = Command::new(process::PROGRAM);
    command.env_remove("SLACKWATER_DATA").env_remove("CARGO_MANIFEST_DIR");
    process::start_as(launch::Start::command("bench bytes", command), &["bench", "bytes"])
        .fails_saying("--data FOLDER");
}
