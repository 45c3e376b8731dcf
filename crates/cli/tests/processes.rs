//! Runs of real processes over loopback TCP: they train, and all of them end when one is killed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use std::path::PathBuf;
use std::time::Duration;

use process::{ENDLESS, Process, Signal, free_address, is_alive, signal, start, until};
use serde_json::Value;

/// Settings of a demonstration that takes little time.
const SMALL: [&str; 8] = ["--rows", "600", "--features", "500", "--minibatch", "20", "--base-ms", "2"];

fn picture(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("slackwater-{}-{name}.svg", std::process::id()));
    std::fs::remove_file(&path).ok();
    path
}

/// Checks that the JSON figures of a demonstration are consistent.
fn check_figures(printed: &str, workers: usize, clocks: usize) {
    let figures: Value = serde_json::from_str(printed).unwrap_or_else(|error| panic!("{error} in\n{printed}"));
    assert_eq!(figures["workers"], workers);
    assert!(figures["gain_in_clocks_per_second"].as_f64().unwrap() > 0.0, "{printed}");
    assert!(figures["ideal_gain"].as_f64().unwrap() >= 1.0, "{printed}");
    let runs = figures["runs"].as_array().unwrap();
    assert_eq!(runs.iter().map(|run| run["slack"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 3]);
    for run in runs {
        let numbers = |name: &str| -> Vec<f64> {
            run[name].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
        };
        let slack = run["slack"].as_u64().unwrap() as usize;
        let reads = numbers("reads_by_staleness");
        assert_eq!(reads.iter().sum::<f64>(), (workers * clocks) as f64, "one read for each clock of each worker");
        assert!(reads[slack + 1..].iter().all(|count| *count == 0.0), "no read breaks its bound: {reads:?}");
        assert_eq!(run["seconds_waited_by_worker_for_worker"].as_array().unwrap().len(), workers);
        let curve = run["seconds_and_held_out_loss"].as_array().unwrap();
        let loss = |point: &Value| point[1].as_f64().unwrap();
        assert!(loss(&curve[curve.len() - 1]) < 2f64.ln(), "it has learnt something: {curve:?}");
        assert!(run["bytes_sent_by_workers"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn demo_trains_in_one_process_and_draws_a_picture() {
    let out = picture("demo");
    let arguments = [&["demo", "--clocks=9", "--workers=3", "--out"], &[out.to_str().unwrap()][..], &SMALL].concat();
    let mut demo = start("demo", &[&arguments[..], &["--json"]].concat());
    assert!(demo.end(), "{}", demo.stderr());
    check_figures(&demo.stdout(), 3, 9);
    assert!(std::fs::read_to_string(&out).unwrap().starts_with("<svg"));

    let mut demo = start("demo", &arguments);
    assert!(demo.end(), "{}", demo.stderr());
    for words in ["clocks per second", "waiting for other workers", "Ideal gain", "lock-step, seconds waited"] {
        assert!(demo.stdout().contains(words), "'{words}' is not in\n{}", demo.stdout());
    }
    std::fs::remove_file(&out).unwrap();
}

#[test]
fn launch_trains_in_processes_and_passes_on_the_result_as_it_is() {
    let out = picture("launch");
    let program = ["launch", "--servers=2", "--workers=3", "--", "demo", "--json", "--clocks=9", "--out"];
    let mut launch = start("launch", &[&program[..], &[out.to_str().unwrap()], &SMALL].concat());
    assert!(launch.end(), "{}", launch.stderr());
    check_figures(&launch.stdout(), 3, 9);
    assert!(launch.stderr().lines().any(|line| line.starts_with("worker 0 | lock-step: 9 of 9 clocks")));
    std::fs::remove_file(&out).unwrap();
}

/// A run started by hand, in the middle of training. `server 0` is the coordinator too, `server 1`
/// is two servers, and there are three workers.
fn run_by_hand(failure_timeout: &[&str]) -> Vec<Process> {
    let coordinator_address = free_address();
    let common = [&["--coordinator", &coordinator_address, "--join-limit", "60"], failure_timeout].concat();
    let coordinate = ["--coordinate", "--servers", "3", "--workers", "3"];
    let server = |name, place: &[&str]| start(name, &[&["server"], &common[..], place].concat());
    let worker = |name, place| start(name, &[&["worker"], &common[..], &["--place", place, "--"], &ENDLESS].concat());
    let mut processes = vec![
        worker("worker 0", "0"),
        server("server 1", &["--place", "1", "--threads", "2"]),
        server("server 0", &[&["--place", "0"], &coordinate[..]].concat()),
        worker("worker 1", "1"),
        worker("worker 2", "2"),
    ];
    for process in &mut processes {
        let name = process.name.clone();
        process.hear("that it has begun", |said| said.contains(&name).then_some(()));
    }
    // After this pause, all workers are in the middle of training.
    std::thread::sleep(Duration::from_millis(300));
    processes
}

#[test]
fn all_other_processes_name_a_killed_node_and_fail() {
    // (the process that is killed, what the others say, what they may say instead)
    let cases = [
        ("worker 1", "lost worker 1", "lost worker 1"),
        // A process of two servers: either may be missed first.
        ("server 1", "lost server 1", "lost server 2"),
        ("server 0", "lost coordinator", "lost server 0"),
    ];
    for (killed, words, or_words) in cases {
        let mut processes = run_by_hand(&["--failure-timeout", "2"]);
        let index = processes.iter().position(|process| process.name == killed).unwrap();
        let mut victim = processes.remove(index);
        victim.signal(Signal::KILL);
        for process in &mut processes {
            assert!(!process.end(), "{} should fail when {killed} is killed", process.name);
            let name = &process.name;
            let said = process.stderr();
            assert!(said.contains(words) || said.contains(or_words), "{name} should say '{words}', and said\n{said}");
        }
    }
}

#[test]
fn killed_worker_ends_a_static_run_long_before_the_failure_timeout() {
    let mut processes = run_by_hand(&["--failure-timeout", "600"]);
    let index = processes.iter().position(|process| process.name == "worker 1").unwrap();
    let mut victim = processes.remove(index);
    victim.signal(Signal::KILL);
    for process in &mut processes {
        assert!(!process.end(), "{} should fail", process.name);
        let said = process.stderr();
        assert!(said.contains("lost worker 1: its process has ended"), "{} said\n{said}", process.name);
    }
}

/// A launched run under way, and its processes by name.
fn launched() -> (Process, Vec<(String, u32)>) {
    let program = ["launch", "--failure-timeout=2", "--servers=2", "--workers=2", "--"];
    let mut launch = start("launch", &[&program[..], &ENDLESS].concat());
    let names = ["server 0", "server 1", "worker 0", "worker 1"];
    let processes = names.map(|name| (name.to_owned(), launch.started(name)));
    for worker in ["worker 0 |", "worker 1 |"] {
        launch.hear("that both work", |said| said.contains(worker).then_some(()));
    }
    (launch, processes.to_vec())
}

#[test]
fn launch_names_the_process_that_was_killed_and_leaves_none_behind() {
    for killed in ["worker 1", "server 1"] {
        let (mut launch, processes) = launched();
        let (_, victim) = processes.iter().find(|(name, _)| name == killed).unwrap();
        signal(*victim, Signal::KILL);
        launch.fails_saying(&format!("the run failed: {killed} (process {victim}) died: signal 9"));
        assert!(launch.stderr().contains(&format!("lost {killed}")), "{}", launch.stderr());
        assert!(!processes.iter().any(|(_, process)| is_alive(*process)), "{}", launch.stderr());
    }
}

#[test]
fn launch_takes_its_processes_with_it_when_it_is_told_to_stop() {
    for signal in [Signal::TERM, Signal::INT] {
        let (mut launch, processes) = launched();
        launch.signal(signal);
        launch.fails_saying("stopped by signal");
        assert!(!processes.iter().any(|(_, process)| is_alive(*process)), "{}", launch.stderr());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn launch_that_is_killed_takes_its_processes_with_it() {
    let (mut launch, processes) = launched();
    launch.kill();
    until("the end of all processes", || !processes.iter().any(|(_, process)| is_alive(*process)));
}

#[test]
fn workers_with_different_settings_fail_and_say_so() {
    let data = std::env::temp_dir().join(format!("slackwater-{}-different.libsvm", std::process::id()));
    std::fs::write(&data, "1 1:1\n0 2:1\n").unwrap();
    let coordinator_address = free_address();
    let data_name = data.to_str().unwrap();
    let server = ["server", "--coordinator", &coordinator_address, "--coordinate", "--servers", "1", "--workers", "2"];
    let worker = |program, place| {
        let words = [
            "worker",
            "--coordinator",
            &coordinator_address,
            "--place",
            place,
            "--",
            "train",
            program,
            "--data",
            data_name,
        ];
        start(&format!("worker {place}"), &words)
    };
    // One program learns a probability, the other a number. Their tables have the same spec.
    let run = [start("server", &server), worker("logistic", "0"), worker("linear", "1")];
    for mut process in run {
        process.fails_saying("worker 1 has other settings than worker 0");
    }
    std::fs::remove_file(&data).unwrap();
}

#[test]
fn a_process_that_waits_in_vain_names_what_it_waited_for() {
    let nobody = free_address();
    let worker = ["worker", "--coordinator", &nobody, "--join-limit", "1", "--", "demo"];
    let cases: [(&[&str], &str); 3] = [
        (&["server", "--coordinator", &nobody, "--join-limit", "1"], "no answer from the coordinator"),
        (&worker, "no answer from the coordinator"),
        (
            &["server", "--coordinator", &nobody, "--join-limit=1", "--coordinate", "--servers=1", "--workers=1"],
            "0 servers and 1 worker have yet to join",
        ),
    ];
    for (arguments, words) in cases {
        let mut process = start(arguments[0], arguments);
        process.fails_saying(words);
        assert!(process.stderr().contains(&nobody), "the address is named: {}", process.stderr());
    }
}

#[test]
fn wrong_command_lines_are_refused_with_a_reason() {
    // (the command line, words of the refusal)
    let cases = [
        ("", "Usage"),
        ("demo --slak 3", "'--slak'"),
        ("demo --slack 0", "0 is not in 1..=1000"),
        ("demo --workers 0", "0 is not in"),
        ("server", "--coordinator"),
        ("server --coordinator here:1 --coordinate", "--servers"),
        ("server --coordinator here:1 --workers 2", "--coordinate"),
        ("server --coordinator nowhere --join-limit 1", "write host:port"),
        ("server --coordinator 127.0.0.1:1 --threads 2 --coordinate --servers 1 --workers 1", "no room"),
        ("worker --coordinator here:1", "PROGRAM"),
        ("worker --coordinator here:1 -- dance", "'dance'"),
        ("launch -- demo --workers 3", "'--workers'"),
        ("launch --servers 0 -- demo", "0 is not in"),
    ];
    for (line, words) in cases {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let mut process = start(line, &arguments);
        process.fails_saying(words);
    }
}
