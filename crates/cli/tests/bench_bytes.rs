//! `bench bytes`, small, where its data is.

use std::path::PathBuf;
use std::process::Command;

fn data() -> PathBuf {
    let default = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    std::env::var_os("SLACKWATER_DATA").map_or_else(default, PathBuf::from)
}

#[test]
fn bench_bytes_says_what_was_sent_and_learnt_and_draws_it() {
    let data = data();
    if !data.join("imdb").is_dir() {
        println!("skipped: there is no imdb in {}; SLACKWATER_DATA names the folder of data sets", data.display());
        return;
    }
    let out = std::env::temp_dir().join(format!("slackwater-bench-bytes-{}", std::process::id()));
    std::fs::create_dir_all(&out).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_slackwater"))
        .args(["bench", "bytes", "--only", "l1", "--passes", "20", "--json", "--data"])
        .arg(&data)
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |name: &str| figures[name].as_f64().unwrap_or_else(|| panic!("no {name} in {figures}"));
    // Keys alone are two thirds of a plain push, and each number takes 12 bits of 32.
    assert!(number("l1_share_of_bytes") < 0.2, "{figures}");
    assert!(number("l1_shrunk_up_bytes") < number("l1_plain_up_bytes") / 4.0);
    assert!(number("l1_objective_off") < 1e-3);
    assert_eq!(figures["l1_share_of_bytes_target"], "ok");
    let picture = std::fs::read_to_string(out.join("bytes-l1.svg")).unwrap();
    assert!(picture.contains("both ways (MB)"));
    std::fs::remove_dir_all(&out).unwrap();
}

#[test]
fn bench_bytes_asks_for_its_data() {
    let output = Command::new(env!("CARGO_BIN_EXE_slackwater"))
        .args(["bench", "bytes"])
        .env_remove("SLACKWATER_DATA")
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("--data FOLDER"));
}
