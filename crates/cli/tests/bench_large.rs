//! A small run of `bench large`: a shard of 1 GiB is made, checkpointed, restored and backfilled,
//! and no node is given up at a failure timeout of one second.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use process::bench;

#[test]
fn bench_large_gives_no_node_up() {
    let arguments = ["large", "--gigabytes=1", "--failure-timeout=1s", "--seconds=1"];
    let (figures, _) = bench(&arguments);
    for phase in ["make", "checkpoint", "restore", "backfill"] {
        for figure in ["s", "longest_pause_s", "pushes_per_s", "rate_over_undisturbed"] {
            let name = format!("{phase}_{figure}");
            assert!(figures[&name].as_f64().is_some_and(|value| value > 0.0), "{name} in {figures}");
        }
    }
}
