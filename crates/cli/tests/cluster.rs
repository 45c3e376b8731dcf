//! Runs of real processes, of which some are killed and others join: no acknowledged push is lost
//! or counts twice, and the run goes on.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counting;
mod process;

use counting::{Workers, server};
use process::{Signal, free_address, signal, start};

/// Checks the status of a run that has lost server 1 and has a fourth server in its place.
fn check_status(coordinator_address: &str) {
    let coordinator_address = format!("--coordinator={coordinator_address}");
    let mut json = start("status", &["status", &coordinator_address, "--json"]);
    assert!(json.end(), "{}", json.stderr());
    let status: serde_json::Value = serde_json::from_str(&json.stdout()).unwrap();
    let state = |node: &str| {
        let members = status["members"].as_array().unwrap();
        members.iter().find(|member| member["node"] == node).map(|member| member["state"].as_str().unwrap().to_owned())
    };
    let expected = [
        ("server 0", "present"),
        ("server 1", "lost"),
        ("server 2", "present"),
        ("server 3", "present"),
        ("worker 1", "present"),
    ];
    for (node, expected) in expected {
        assert_eq!(state(node).as_deref(), Some(expected), "{node} in {status}");
    }
    let whole =
        status["chains"].as_array().unwrap().iter().all(|chain| chain["replicas"].as_array().unwrap().len() == 2);
    assert!(whole && status["shards"] == 12 && status["tables"][0]["name"] == "counts", "{status}");
    let mut text = start("status", &["status", &coordinator_address]);
    assert!(text.end() && text.stdout().contains("its process has ended"), "{}", text.stdout());
}

#[test]
fn status_fails_where_there_is_no_run() {
    start("status", &["status", "--limit=1", &format!("--coordinator={}", free_address())])
        .fails_saying("is it running?");
}

#[test]
fn a_run_survives_killed_servers() {
    for way in ["--same-host=tcp", "--same-host=shared-memory"] {
        let coordinator_address = free_address();
        let shape =
            ["--coordinate", "--servers=3", "--workers=2", "--replicas=2", "--shards-per-server=4", "--place=0", way];
        let mut first = server(&coordinator_address, "server 0", &shape);
        let mut second = server(&coordinator_address, "server 1", &["--place=1", way]);
        let mut third = server(&coordinator_address, "server 2", &["--place=2", way]);
        let workers = Workers::start(&coordinator_address, 2);
        workers.go_on(50, || first.stderr());
        second.kill();
        let killed = workers.go_on(1, || first.stderr());
        first.hear("that server 1 is lost", |said| said.contains("server 1").then_some(()));
        let mut fourth = server(&coordinator_address, "server 3", &[way]);
        fourth.hear("that it serves", |said| said.contains("serving").then_some(()));
        // Wait until every shard has its replicas again.
        first.hear("that everything has its replicas", |said| said.contains("has its replicas").then_some(()));
        check_status(&coordinator_address);
        third.kill();
        let killed_again = workers.go_on(1, || first.stderr());
        println!("{way}: from a kill to the next acknowledged push: {killed:?}, {killed_again:?}");
        workers.go_on(50, || first.stderr());
        workers.end(0);
        assert!(first.end(), "{}", first.stderr());
        assert!(fourth.end(), "{}", fourth.stderr());
    }
}

#[test]
fn a_run_goes_on_without_a_lost_worker_and_takes_another() {
    let coordinator_address = free_address();
    let mut serves =
        server(&coordinator_address, "server 0", &["--coordinate", "--servers=1", "--workers=2", "--replicas=1"]);
    let mut workers = Workers::start(&coordinator_address, 1);
    // A process that does nothing, so the others wait for it until it is killed.
    let idle = [
        "worker",
        &format!("--coordinator={coordinator_address}"),
        "--failure-timeout=2",
        "--",
        "demo",
        "--clocks=10000",
        "--out=/dev/null",
    ];
    let mut lost = start("worker 1", &idle);
    lost.hear("that it works", |said| said.contains("working").then_some(()));
    lost.kill();
    workers.go_on(50, || serves.stderr());
    serves.hear("that a worker is lost", |said| said.contains("1 worker is left").then_some(()));
    workers.add(&coordinator_address);
    workers.go_on(50, || serves.stderr());
    workers.end(0);
    assert!(serves.end(), "{}", serves.stderr());
}

#[test]
fn launch_starts_another_server_in_the_place_of_one_that_dies() {
    let out = std::env::temp_dir().join(format!("slackwater-{}-replicas.svg", std::process::id()));
    let program = ["demo", "--rows=600", "--features=500", "--minibatch=20", "--base-ms=20", "--clocks=100", "--json"];
    let picture = format!("--out={}", out.display());
    let launch = ["launch", "--servers=3", "--workers=2", "--replicas=2", "--failure-timeout=2", "--"];
    let mut launch = start("launch", &[&launch[..], &program, &[&picture]].concat());
    let server = launch.started("server 1");
    launch.hear("that it works", |said| said.contains("working").then_some(()));
    signal(server, Signal::KILL);
    launch.hear("that another takes its place", |said| {
        said.contains("started server in place of server 1").then_some(())
    });
    assert!(launch.end(), "{}", launch.stderr());
    assert!(launch.stdout().contains("gain_in_clocks_per_second"), "{}", launch.stdout());
    assert!(launch.stderr().contains("server 1 is lost") || launch.stderr().contains("is lost: its process has ended"));
    std::fs::remove_file(&out).unwrap();
}

#[test]
fn demo_survives_the_loss_of_a_server_and_a_worker() {
    let out = std::env::temp_dir().join(format!("slackwater-{}-kill.svg", std::process::id()));
    let program = ["demo", "--kill", "--rows=600", "--features=500", "--minibatch=20", "--base-ms=20", "--clocks=100"];
    let picture = format!("--out={}", out.display());
    let mut demo = start("demo", &[&program[..], &["--json", &picture]].concat());
    assert!(demo.end(), "{}", demo.stderr());
    for words in ["server 1 (process", "worker 3 (process", "other servers hold its shards"] {
        assert!(demo.stderr().contains(words), "'{words}' is not in\n{}", demo.stderr());
    }
    assert!(demo.stdout().contains("gain_in_clocks_per_second"), "{}", demo.stdout());
    std::fs::remove_file(&out).unwrap();
}

#[test]
fn demo_turns_a_late_worker_away_and_the_run_goes_on() {
    let coordinator_address = free_address();
    let mut serves =
        server(&coordinator_address, "server 0", &["--coordinate", "--servers=1", "--workers=1", "--replicas=1"]);
    let workers = Workers::start(&coordinator_address, 1);
    workers.go_on(10, || serves.stderr());
    let late = [
        "worker",
        &format!("--coordinator={coordinator_address}"),
        "--failure-timeout=2",
        "--",
        "demo",
        "--out=/dev/null",
    ];
    start("late", &late).fails_saying("the run has begun");
    workers.go_on(10, || serves.stderr());
    workers.end(0);
    assert!(serves.end(), "{}", serves.stderr());
}
