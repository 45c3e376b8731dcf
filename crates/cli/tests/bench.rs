//! Small runs of the other benchmarks: they end, and print every figure by its name.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use launch::Namespace;
use process::{Signal, bench, data_set, is_alive, skipped, start, until};
use serde_json::Value;
use std::process::Command;

/// Runs a benchmark in one round, and checks that these figures are there and positive. Figures of
/// programs that may not be installed are not checked.
fn prints(arguments: &[&str], names: &[&str]) {
    let (figures, _) = bench(&[arguments, &["--rounds", "1"]].concat());
    for name in names {
        let is_positive = figures[*name].as_f64().is_some_and(|number| number > 0.0);
        assert!(is_positive, "{name} is not among {figures:?}");
    }
}

#[test]
fn bench_wire_prints_its_figures() {
    let names = [
        "raw_tcp_gbs",
        "dense_push_over_raw",
        "dense_pull_over_raw",
        "sparse_w16_push_over_raw",
        "sparse_push_mkeys",
        "sparse_pull_mkeys",
        "sparse_new_push_mkeys",
        "sparse_new_pull_mkeys",
        "sparse_create_mkeys",
        "rtt_over_raw_blocking",
        "rtt_over_raw_spinning",
        "bytes_per_sparse_row_mean",
        "bytes_per_sparse_row_worst",
    ];
    // All but `large`, which is `sparse` with ten times the rows, and `shm`.
    prints(&["wire", "--only", "dense,sparse,rtt,memory"], &names);
}

#[test]
fn bench_wire_prints_its_figures_of_shared_memory() {
    prints(&["wire", "--only", "shm"], &["shm_push_over_memcpy", "shm_pull_over_memcpy", "shm_rtt_over_raw"]);
}

#[test]
fn bench_embedded_prints_its_figures() {
    let names = [
        "memcpy_gbs",
        "embedded_dense_push_over_memcpy",
        "embedded_dense_pull_over_memcpy",
        "embedded_sparse_w16_push_over_memcpy",
        "embedded_sparse_push_mkeys",
        "embedded_sparse_pull_mkeys",
        "embedded_sparse_new_push_mkeys",
        "embedded_sparse_new_pull_mkeys",
        "embedded_sparse_create_mkeys",
        "embedded_round_trip_us",
        "hot_row_updates_4_threads_m_per_s",
    ];
    // All but `large`, which is `sparse` with ten times the rows.
    prints(&["embedded", "--only", "dense,sparse,rtt,logs"], &names);
}

#[test]
fn bench_scale_prints_its_figures() {
    let names = [
        "rows_10000_repeated_list_ns_per_key",
        "rows_10000000_new_list_ns_per_key",
        "connections_1_pushes_per_s",
        "connections_64_p99_us",
        "shards_1_small_clock_us",
        "shards_16_dense_push_16_mib_gbs",
        "parts_of_256_bytes_gbs",
        "parts_of_1048576_bytes_gbs",
    ];
    prints(&["scale", "--idle", "10", "--only", "rows,connections,shards,parts"], &names);
}

#[test]
fn bench_logistic_prints_its_figures() {
    let names = [
        "libsvm_parse_gbs",
        "plain_rows_per_s",
        "one_worker_over_plain",
        "two_workers_over_plain",
        "two_processes_over_plain",
    ];
    prints(&["logistic", "--clicks", "0", "--python", "no-such-python"], &names);
}

/// A short run of `bench chaos` with a small table in place of the large one. Checks that there
/// were faults, and that no push was lost or doubled.
fn chaos(arguments: &[&str]) -> Value {
    let (figures, said) = bench(&[&["chaos", "--large-mib=32"], arguments].concat());
    let kinds = ["making_kills", "server_kills", "worker_kills", "coordinator_stalls", "server_cuts", "worker_cuts"];
    let counts = kinds.map(|kind| figures[kind].as_f64());
    assert!(counts.into_iter().flatten().sum::<f64>() >= 1.0, "{figures:?}");
    let says_why = said.contains("no process is cut off");
    assert_eq!(counts[4..].iter().all(Option::is_none), says_why, "{figures:?}");
    assert!(figures["pushes_acknowledged"].as_f64() > Some(0.0), "{figures:?}");
    let numbers = ["rows_of_pushes_lost", "rows_of_pushes_doubled"].map(|name| figures[name].as_f64());
    assert_eq!(numbers, [Some(0.0); 2]);
    figures
}

#[test]
fn bench_chaos_counts_what_is_leased_once() {
    chaos(&["--seconds=4", "--leases", "--data=nowhere"]);
}

#[test]
fn bench_chaos_loses_nothing_in_a_few_seconds() {
    let Some(folder) = data_set("a9a") else {
        chaos(&["--seconds=6", "--data=nowhere"]);
        return;
    };
    let data = folder.parent().expect("it lies among others");
    let figures = chaos(&["--seconds=6", "--data", data.to_str().expect("a path in UTF-8")]);
    let number = |name: &str| figures[name].as_f64().unwrap_or(f64::NAN);
    assert_eq!(number("training_rows_missing"), 0.0);
    assert!((number("training_log_loss") - number("training_log_loss_without_faults")).abs() < 0.002, "{figures:?}");
    assert!(number("training_goodput_under_faults_over_without") > 0.0, "{figures:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn bench_chaos_that_is_told_to_end_leaves_no_network_and_no_process() {
    let mut chaos = start("chaos", &["bench", "chaos", "--seconds=300", "--data=nowhere"]);
    let name = format!("slackwater-chaos-{}", chaos.id());
    // Without the right to make namespaces there is nothing to check.
    if Namespace::make(&format!("{name}-trial")).is_err() {
        skipped("this machine makes no network namespaces");
        return;
    }
    // The benchmark itself, the coordinator, and a process on a host.
    let inside = |namespace: &str| Namespace::existing(&format!("{name}-{namespace}")).processes();
    until("a run", || inside("hub").len() >= 2 && !inside("9").is_empty());
    let there = [inside("hub"), inside("9")].concat();
    chaos.signal(Signal::TERM);
    assert!(!chaos.end());
    let left = Command::new("ip").args(["netns", "list"]).output().expect("they can be listed");
    assert!(!String::from_utf8_lossy(&left.stdout).contains(&name), "a namespace is left");
    until("the end of all processes", || !there.iter().any(|id| is_alive(*id)));
}

#[test]
fn bench_cluster_prints_its_figures() {
    let names = [
        "goodput_2_replicas_over_1_one_worker",
        "chain_bytes_over_pushed_one_worker",
        "goodput_2_replicas_over_1_four_workers",
        "chain_bytes_over_pushed_four_workers",
    ];
    prints(&["cluster", "--only", "replicas", "--megabytes", "1", "--millis", "500"], &names);
    let names = ["checkpoints_made", "checkpoint_megabytes", "goodput_with_checkpoints_over_without"];
    let sizes = ["--checkpoint-megabytes", "4", "--checkpoint-every", "0.5"];
    prints(&[&["cluster", "--only", "checkpoints"], &sizes[..]].concat(), &names);
    let names = ["join_s", "join_moved_over_fair_share", "failover_s", "replicas_again_s"];
    let names: Vec<String> =
        [100, 100_000].iter().flat_map(|rows| names.iter().map(move |name| format!("{rows}_rows_{name}"))).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    prints(&["cluster", "--only", "rows", "--table-rows", "1000"], &names);
}
