//! A run that ends says which node failed first: every survivor's error, and the last line of
//! `launch`. No test waits for a failure timeout.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use process::{ENDLESS, Folder, Process, Signal, fails, free_address, is_alive, signal, start};

/// A failure timeout that no test waits for.
const LONG: &str = "--failure-timeout=600";

/// Starts a run by hand, and returns its processes in the middle of training. `server 0` is the
/// coordinator, too, unless `replicas` are given: then the process `coordinator` is.
fn run_by_hand(replicas: Option<&str>) -> Vec<Process> {
    let address = format!("--coordinator={}", free_address());
    let common = [&*address, "--join-limit=60", LONG];
    let coordinate =
        [&["--coordinate", "--servers=2", "--workers=2"][..], &replicas.into_iter().collect::<Vec<_>>()].concat();
    let server = |name: &str, more: &[&str]| start(name, &[&["server"], &common[..], more].concat());
    let worker = |name, place| start(name, &[&["worker"], &common[..], &[place, "--"], &ENDLESS].concat());
    let mut processes = vec![server("server 1", &["--place=1"])];
    if replicas.is_some() {
        processes.push(server("server 0", &["--place=0"]));
        processes.push(server("coordinator", &[&["--threads=0"], &coordinate[..]].concat()));
    } else {
        processes.push(server("server 0", &[&["--place=0"], &coordinate[..]].concat()));
    }
    let workers = [worker("worker 0", "--place=0"), worker("worker 1", "--place=1")];
    for mut worker in workers {
        worker.says("working");
        processes.push(worker);
    }
    processes
}

/// Kills the process of that name, and checks that all others fail with these words.
fn all_others_say(mut processes: Vec<Process>, killed: &str, words: &str) {
    let index = processes.iter().position(|process| process.name == killed).unwrap();
    processes.remove(index).kill();
    processes.iter_mut().for_each(|process| process.fails_saying(words));
}

#[test]
fn the_end_of_any_process_of_a_static_run_is_noticed_at_once() {
    for (killed, node) in [("server 0", "coordinator"), ("server 1", "server 1"), ("worker 1", "worker 1")] {
        all_others_say(run_by_hand(None), killed, &format!("lost {node}: its process has ended"));
    }
}

#[test]
fn the_end_of_the_only_coordinator_of_an_elastic_run_is_noticed_at_once() {
    let words = "lost coordinator: its process has ended";
    all_others_say(run_by_hand(Some("--replicas=2")), "coordinator", words);
}

/// A launched run in the middle of training, and the process ids of these processes.
fn launched<const COUNT: usize>(more: &[&str], names: [&str; COUNT]) -> (Process, [u32; COUNT]) {
    let program = [&["launch", LONG, "--servers=2", "--workers=2"], more, &["--"], &ENDLESS[..]].concat();
    let mut launch = start("launch", &program);
    let ids = names.map(|name| launch.started(name));
    for worker in [r#"working node="worker 0""#, r#"working node="worker 1""#] {
        launch.says(worker);
    }
    (launch, ids)
}

/// The error that a launched process printed.
fn error_of<'a>(name: &str, said: &'a str) -> &'a str {
    let begin = format!("{name} | error: ");
    said.lines().find(|line| line.starts_with(&begin)).unwrap_or_default()
}

/// Waits until `launch` has failed. Returns its last line.
fn last_line(launch: &mut Process) -> String {
    assert!(!launch.end(), "{}", launch.stderr());
    launch.stderr().lines().last().unwrap_or_default().to_owned()
}

#[test]
fn launch_names_the_coordinator_if_that_was_killed() {
    for (more, name, role) in [(&[][..], "server 0", ", also the coordinator,"), (&["--replicas=2"], "coordinator", "")]
    {
        let (mut launch, [coordinator]) = launched(more, [name]);
        signal(coordinator, Signal::KILL);
        let expected = format!("error: the run failed: {name} (process {coordinator}){role} died: signal 9");
        assert_eq!(last_line(&mut launch), expected, "{}", launch.stderr());
        let said = launch.stderr();
        for name in ["worker 0", "worker 1", "server 1"] {
            assert!(error_of(name, &said).contains("lost coordinator: its process has ended"), "{name} in\n{said}");
        }
    }
}

/// Two servers hold everything twice, and both are killed. The second is stopped before that, so
/// that no other server can be backfilled in between.
#[test]
fn launch_names_the_first_of_two_servers_whose_losses_end_the_run() {
    let (mut launch, [first, second, worker]) = launched(&["--replicas=2"], ["server 1", "server 0", "worker 0"]);
    signal(second, Signal::STOP);
    signal(first, Signal::KILL);
    launch.says("is lost: its process has ended; other servers hold its shards");
    signal(second, Signal::KILL);
    let last = last_line(&mut launch);
    let said = launch.stderr();
    let died = format!("error: the run failed: server 1 (process {first}) died: signal 9; the coordinator says: ");
    let words =
        "lost server 1: its process has ended; before others held its shards, server 0 was lost, too: its process";
    assert!(last.starts_with(&died) && last.contains(words), "{said}");
    assert!(error_of("worker 0", &said).contains(words), "{said}");
    assert!(!said.contains("goes on") && said.contains("cannot go on"), "{said}");
    assert!(!is_alive(worker));
}

/// The others have ended by the time that the first that failed has ended.
#[test]
fn launch_names_the_worker_that_failed_by_itself() {
    let folder = Folder::new("first-cause");
    let rows: String = (0..4_000).map(|row| format!("{} {}:1\n", row % 2, row % 7 + 1)).collect();
    let data = folder.write("rows.libsvm", &rows.replace("\n1 1:1\n0 2:1\n", "\n1 1:1\n0 nonsense\n"));
    for more in [&[][..], &["--replicas=2"]] {
        let program = ["--", "train", "logistic", "--epochs=100", "--data", &data];
        let mut launch =
            start("launch", &[&["launch", LONG, "--servers=2", "--workers=3"], more, &program[..]].concat());
        let last = last_line(&mut launch);
        let said = launch.stderr();
        assert!(last.starts_with("error: the run failed: worker ") && last.contains("nonsense"), "{said}");
        let name = last.trim_start_matches("error: the run failed: ").split(" (process").next().unwrap().to_owned();
        let others: Vec<&str> =
            said.lines().filter(|line| line.contains(" | error: ") && line.contains("lost ")).collect();
        let words = format!("lost {name}: it could not go on: ");
        assert!(others.iter().all(|line| line.contains(&words)), "{words}: {others:?}");
    }
}

/// Every clock takes longer than the clock timeout, so the run ends in the first one.
#[test]
fn launch_names_a_worker_that_is_in_one_clock_for_longer_than_the_clock_timeout() {
    let program = ["demo", "--rows=600", "--features=500", "--base-ms=4000", "--clocks=10", "--out=/dev/null"];
    let launch = ["launch", LONG, "--servers=1", "--workers=2", "--clock-timeout=1", "--"];
    let mut launch = start("launch", &[&launch[..], &program].concat());
    assert!(!launch.end(), "{}", launch.stderr());
    let said = launch.stderr();
    let words = ["error: the run failed: ", "lost worker ", "it was in clock 0 for ", "--clock-timeout is too short"];
    assert!(words.iter().all(|words| said.contains(words)), "{said}");
}

#[test]
fn clock_timeout_is_refused_by_a_server_that_does_not_coordinate() {
    let coordinator = format!("--coordinator={}", free_address());
    fails(&["server", &coordinator, "--clock-timeout=1"], "--clock-timeout belongs to the coordinator");
}
