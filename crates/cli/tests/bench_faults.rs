//! One fault of each kind that `bench chaos` seldom reaches in a few seconds. This test is alone in
//! its file, because it starves every other test of the processors.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use process::{bench, skipped};

/// Checks that each fault has happened and that no push was lost or doubled.
fn chaos(large_mib: u32, kinds: &[&str]) {
    // A run with a large table begins with a kill while the table is made.
    let faults = kinds.len() + usize::from(large_mib > 0);
    let arguments = [
        "chaos".to_owned(),
        "--data=nowhere".to_owned(),
        format!("--faults={faults}"),
        format!("--large-mib={large_mib}"),
        format!("--only={}", kinds.join(",")),
    ];
    let (figures, said) = bench(&arguments.each_ref().map(String::as_str));
    if said.contains("no link breaks") && kinds.iter().all(|kind| kind.ends_with("_drop")) {
        skipped("this machine makes no network namespaces");
        assert_eq!(figures["one_way_links"].as_f64(), Some(0.0), "{figures}");
        return;
    }
    for kind in kinds {
        assert_eq!(figures[format!("{kind}s")].as_f64(), Some(1.0), "{kind} in {figures}");
    }
    if large_mib > 0 {
        assert!(figures["checkpoints_published"].as_f64() > Some(0.0), "{figures}");
        assert!(figures["large_pushes_acknowledged"].as_f64() > Some(0.0), "{figures}");
    }
    let numbers = ["rows_of_pushes_lost", "rows_of_pushes_doubled"].map(|name| figures[name].as_f64());
    assert_eq!(numbers, [Some(0.0); 2], "{figures}");
}

#[test]
fn bench_chaos_injects_each_kind_and_loses_nothing() {
    chaos(32, &["coordinator_stall", "starvation", "checkpoint_kill"]);
    chaos(0, &["server_to_coordinator_drop", "coordinator_to_worker_drop", "server_to_server_drop"]);
}
