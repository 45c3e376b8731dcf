//! `bench raw` with its two real processes.

use std::process::Command;

#[test]
fn bench_raw_ends_by_itself_and_every_figure_is_a_positive_number() {
    let output = Command::new(env!("CARGO_BIN_EXE_slackwater"))
        .args(["bench", "raw", "--rounds", "1", "--round-trips", "10", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(figures.len(), 9);
    for (name, figure) in figures {
        assert!(figure.as_f64().is_some_and(|number| number > 0.0), "{name}: {figure}");
    }
}
