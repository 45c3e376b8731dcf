//! Runs of real processes in which some are killed and others come: nothing acknowledged is lost, nothing counts twice, and the run goes on.

#![expect(clippy::unwrap_used, reason = "a test says so by falling over")]

mod process;

use process::{LIMIT, Process, start};
use slackwater::{Connect, Consistency, NumberType, Session, TableSpec};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Keys that every push adds one to.
const KEYS: u64 = 64;

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn server(meet: &str, name: &str, more: &[&str]) -> Process {
    let meet = format!("--meet={meet}");
    start(name, &[&["server", &meet, "--patience=2", "--join-limit=50"], more].concat())
}

/// What a worker has pushed and seen acknowledged.
#[derive(Default)]
struct Progress {
    acknowledged: AtomicU64,
    stop: AtomicBool,
}

/// A worker that pushes until it is told to stop, and then reads the total.
fn worker(meet: &str, progress: Arc<Progress>) -> JoinHandle<i64> {
    let connect =
        Connect { patience: Duration::from_secs(2), join_limit: Duration::from_secs(50), ..Connect::to(meet) };
    std::thread::spawn(move || {
        let session = Session::connect(&connect).unwrap();
        let spec = TableSpec::sparse("counts", 1).number(NumberType::I64).consistency(Consistency::slack(2));
        let table = session.table::<i64>(spec).unwrap();
        let ids: Vec<u64> = (0..KEYS).collect();
        let keys = table.keys(&ids);
        while !progress.stop.load(Ordering::Relaxed) {
            table.push(&keys, vec![1; KEYS as usize]).unwrap().wait().unwrap();
            progress.acknowledged.fetch_add(1, Ordering::Relaxed);
            session.clock().unwrap();
        }
        for _ in 0..3 {
            session.clock().unwrap();
        }
        session.barrier().unwrap();
        let total = table.pull(&keys).unwrap().wait().unwrap().values().iter().sum();
        session.close().unwrap();
        total
    })
}

/// Waits until every worker has seen so many more pushes acknowledged. Returns how long that took.
fn go_on(progress: &[Arc<Progress>], pushes: u64) -> Duration {
    let begin = Instant::now();
    let before: Vec<u64> = progress.iter().map(|one| one.acknowledged.load(Ordering::Relaxed)).collect();
    while progress.iter().zip(&before).any(|(one, before)| one.acknowledged.load(Ordering::Relaxed) < before + pushes) {
        assert!(begin.elapsed() < LIMIT, "nothing is acknowledged any more");
        std::thread::sleep(Duration::from_millis(1));
    }
    begin.elapsed()
}

/// Of a run that has lost server 1 and has a fourth in its place.
fn check_status(meet: &str) {
    let meet = format!("--meet={meet}");
    let mut json = start("status", &["status", &meet, "--json"]);
    assert!(json.end(), "{}", json.stderr());
    let status: serde_json::Value = serde_json::from_str(&json.stdout()).unwrap();
    let standing = |node: &str| {
        let members = status["members"].as_array().unwrap();
        members
            .iter()
            .find(|member| member["node"] == node)
            .map(|member| member["standing"].as_str().unwrap().to_owned())
    };
    let expected = [
        ("server 0", "present"),
        ("server 1", "lost"),
        ("server 2", "present"),
        ("server 3", "present"),
        ("worker 1", "present"),
    ];
    for (node, expected) in expected {
        assert_eq!(standing(node).as_deref(), Some(expected), "{node} in {status}");
    }
    let whole = status["chains"].as_array().unwrap().iter().all(|chain| chain["whole"].as_array().unwrap().len() == 2);
    assert!(whole && status["slices"] == 12 && status["tables"][0] == "counts", "{status}");
    let mut text = start("status", &["status", &meet]);
    assert!(text.end() && text.stdout().contains("lost: its process has ended"), "{}", text.stdout());
}

#[test]
fn nobody_answers_where_there_is_no_run() {
    start("status", &["status", "--limit=1", &format!("--meet={}", free_address())]).fails_saying("is it running?");
}

#[test]
fn servers_that_are_killed_take_nothing_with_them() {
    for way in ["--same-host=tcp", "--same-host=shared-memory"] {
        let meet = free_address();
        let shape = ["--coordinate", "--servers=3", "--workers=2", "--copies=2", "--slices=4", "--place=0", way];
        let mut first = server(&meet, "server 0", &shape);
        let mut second = server(&meet, "server 1", &["--place=1", way]);
        let mut third = server(&meet, "server 2", &["--place=2", way]);
        let progress: Vec<Arc<Progress>> = (0..2).map(|_| Arc::default()).collect();
        let workers: Vec<_> = progress.iter().map(|progress| worker(&meet, progress.clone())).collect();
        go_on(&progress, 50);
        second.child.kill().unwrap();
        let killed = go_on(&progress, 1);
        first.hear("that server 1 is lost", |said| said.contains("server 1").then_some(()));
        let mut fourth = server(&meet, "server 3", &[way]);
        fourth.hear("that it serves", |said| said.contains("serving").then_some(()));
        // Until what was lost has copies again.
        first.hear("that everything has its copies", |said| said.contains("has its copies").then_some(()));
        check_status(&meet);
        third.child.kill().unwrap();
        let killed_again = go_on(&progress, 1);
        println!("{way}: from a kill to the next acknowledged push: {killed:?}, {killed_again:?}");
        go_on(&progress, 50);
        progress.iter().for_each(|progress| progress.stop.store(true, Ordering::Relaxed));
        let totals: Vec<i64> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        let pushed: u64 = progress.iter().map(|progress| progress.acknowledged.load(Ordering::Relaxed)).sum();
        assert_eq!(totals, [(pushed * KEYS) as i64; 2]);
        assert!(first.end(), "{}", first.stderr());
        assert!(fourth.end(), "{}", fourth.stderr());
    }
}

#[test]
fn a_worker_that_is_lost_is_done_without_and_another_may_come() {
    let meet = free_address();
    let mut serves = server(&meet, "server 0", &["--coordinate", "--servers=1", "--workers=2", "--copies=1"]);
    let progress: Vec<Arc<Progress>> = (0..2).map(|_| Arc::default()).collect();
    let stays = worker(&meet, progress[0].clone());
    // Another process, which is killed: it does nothing, and holds everybody up while it is there.
    let idle = ["worker", &format!("--meet={meet}"), "--patience=2", "--", "demo", "--clocks=10000", "--out=/dev/null"];
    let mut lost = start("worker 1", &idle);
    lost.hear("that it works", |said| said.contains("working").then_some(()));
    lost.child.kill().unwrap();
    go_on(&progress[..1], 50);
    serves.hear("that a worker is lost", |said| said.contains("the run goes on without it").then_some(()));
    let comes = worker(&meet, progress[1].clone());
    go_on(&progress, 50);
    progress.iter().for_each(|progress| progress.stop.store(true, Ordering::Relaxed));
    let totals = [stays.join().unwrap(), comes.join().unwrap()];
    let pushed: u64 = progress.iter().map(|progress| progress.acknowledged.load(Ordering::Relaxed)).sum();
    assert_eq!(totals, [(pushed * KEYS) as i64; 2]);
    assert!(serves.end(), "{}", serves.stderr());
}

/// The process id that launch told of a child.
fn id_of(said: &str, name: &str) -> Option<u32> {
    let line = said.lines().find(|line| line.contains(&format!("started {name} process=")))?;
    line.rsplit("process=").next()?.trim().parse().ok()
}

#[test]
fn launch_starts_another_server_in_the_place_of_one_that_dies() {
    let out = std::env::temp_dir().join(format!("slackwater-{}-copies.svg", std::process::id()));
    let program = ["demo", "--rows=600", "--features=500", "--minibatch=20", "--base-ms=20", "--clocks=100", "--json"];
    let picture = format!("--out={}", out.display());
    let launch = ["launch", "--servers=3", "--workers=2", "--copies=2", "--patience=2", "--"];
    let mut launch = start("launch", &[&launch[..], &program, &[&picture]].concat());
    let server = launch.hear("which process is server 1", |said| id_of(said, "server 1"));
    launch.hear("that it works", |said| said.contains("working").then_some(()));
    assert!(std::process::Command::new("kill").args(["-9", &server.to_string()]).status().unwrap().success());
    launch.hear("that another takes its place", |said| {
        said.contains("started server in place of server 1").then_some(())
    });
    assert!(launch.end(), "{}", launch.stderr());
    assert!(launch.stdout().contains("gain_in_clocks_per_second"), "{}", launch.stdout());
    assert!(launch.stderr().contains("server 1 is lost") || launch.stderr().contains("is lost: its process has ended"));
    std::fs::remove_file(&out).unwrap();
}

#[test]
fn a_demonstration_that_loses_a_server_and_a_worker_does_not_care() {
    let out = std::env::temp_dir().join(format!("slackwater-{}-kill.svg", std::process::id()));
    let program = ["demo", "--kill", "--rows=600", "--features=500", "--minibatch=20", "--base-ms=20", "--clocks=100"];
    let picture = format!("--out={}", out.display());
    let mut demo = start("demo", &[&program[..], &["--json", &picture]].concat());
    assert!(demo.end(), "{}", demo.stderr());
    for words in ["server 1 (process", "worker 3 (process", "the run goes on without it"] {
        assert!(demo.stderr().contains(words), "'{words}' is not in\n{}", demo.stderr());
    }
    assert!(demo.stdout().contains("gain_in_clocks_per_second"), "{}", demo.stdout());
    std::fs::remove_file(&out).unwrap();
}

#[test]
fn a_program_that_goes_with_the_workers_it_began_with_turns_others_away_unharmed() {
    let meet = free_address();
    let mut serves = server(&meet, "server 0", &["--coordinate", "--servers=1", "--workers=1", "--copies=1"]);
    let progress: Vec<Arc<Progress>> = vec![Arc::default()];
    let stays = worker(&meet, progress[0].clone());
    go_on(&progress, 10);
    let late = ["worker", &format!("--meet={meet}"), "--patience=2", "--", "demo", "--out=/dev/null"];
    start("late", &late).fails_saying("was under way");
    go_on(&progress, 10);
    progress[0].stop.store(true, Ordering::Relaxed);
    let pushed = || progress[0].acknowledged.load(Ordering::Relaxed);
    assert_eq!(stays.join().unwrap(), (pushed() * KEYS) as i64);
    assert!(serves.end(), "{}", serves.stderr());
}
