//! Faults that operators meet, with real processes: the messages say what is wrong, where, and what
//! to do.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counting;
#[path = "../../node/tests/registry/etcd.rs"]
mod etcd;
mod process;

use counting::{Workers, server};
use etcd::Etcd;
use process::{ENDLESS, LIMIT, Process, free_address, start};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const ALONE: [&str; 4] = ["--coordinate", "--servers=1", "--workers=1", "--same-host=tcp"];

fn worker(coordinator_address: &str, more: &[&str]) -> Process {
    let options = ["worker", &format!("--coordinator={coordinator_address}"), "--same-host=tcp", "--join-limit=100"];
    start("a worker", &[&options[..], more, &["--"], &ENDLESS[..]].concat())
}

/// Listens at an address, reads the first bytes of each caller, and passes them to `answer`.
fn stranger(coordinator_address: &str, answer: impl Fn(TcpStream, Vec<u8>) + Send + 'static) {
    let listener = TcpListener::bind(coordinator_address).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut caller, _)) = listener.accept() {
            let mut words = vec![0; 4096];
            let Ok(length) = caller.read(&mut words) else { continue };
            words.truncate(length);
            answer(caller, words);
        }
    });
}

/// The first bytes of a member, changed to another version of the protocol. The version follows the
/// four magic bytes that every release sends.
fn of_another_version(mut words: Vec<u8>) -> Vec<u8> {
    words[4] = words[4].wrapping_add(7);
    words
}

/// The first bytes of a member of this release.
fn first_words() -> Vec<u8> {
    let coordinator_address = free_address();
    let (said, heard) = std::sync::mpsc::channel();
    stranger(&coordinator_address, move |_, words| drop(said.send(words)));
    let _member = server(&coordinator_address, "a server", &["--same-host=tcp"]);
    heard.recv_timeout(LIMIT).unwrap()
}

#[test]
fn a_coordinator_of_another_version_is_named_and_not_waited_for() {
    let coordinator_address = free_address();
    stranger(&coordinator_address, |mut caller, words| {
        caller.write_all(&of_another_version(words)).ok();
        std::thread::sleep(Duration::from_millis(200));
    });
    for mut member in
        [server(&coordinator_address, "a server", &["--same-host=tcp"]), worker(&coordinator_address, &[])]
    {
        let begin = Instant::now();
        member.fails_saying("run the same release everywhere");
        assert!(begin.elapsed() < LIMIT && member.stderr().contains(&coordinator_address), "{}", member.stderr());
    }
}

#[test]
fn a_member_of_another_version_is_logged_and_told_this_version() {
    let coordinator_address = free_address();
    let mut coordinator = server(&coordinator_address, "coordinator", &ALONE);
    let words = first_words();
    let begin = Instant::now();
    let mut member = loop {
        match TcpStream::connect(&coordinator_address) {
            Ok(member) => break member,
            Err(error) => assert!(begin.elapsed() < LIMIT, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    member.write_all(&of_another_version(words.clone())).unwrap();
    coordinator.hear("what is wrong", |said| said.contains("run the same release everywhere").then_some(()));
    let mut answer = [0; 6];
    member.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..], words[..6], "any release can read which version this is");
    // The coordinator still serves other members.
    let workers = Workers::start(&coordinator_address, 1);
    workers.go_on(5, || coordinator.stderr());
    workers.end(0);
    assert!(coordinator.end(), "{}", coordinator.stderr());
}

#[test]
fn something_else_that_listens_at_the_address_is_named() {
    let coordinator_address = free_address();
    stranger(&coordinator_address, |mut caller, _| {
        drop(caller.write_all(&b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(20)))
    });
    let mut member = server(&coordinator_address, "a server", &["--same-host=tcp"]);
    member.fails_saying("does not speak Slackwater; is this the right port?");
    assert!(member.stderr().contains(&coordinator_address), "{}", member.stderr());
}

#[test]
fn a_member_names_a_coordinators_address_that_does_not_answer() {
    let coordinator_address = free_address();
    let limit = format!("--coordinator={coordinator_address}");
    for command in [&["server", &limit, "--join-limit=1"][..], &["worker", &limit, "--join-limit=1", "--", "demo"]] {
        let mut member = start(command[0], command);
        member.fails_saying("no answer from the coordinator; is the address right and is it running?");
        assert!(member.stderr().contains(&coordinator_address), "{}", member.stderr());
    }
}

#[test]
fn a_member_of_another_job_is_turned_away_and_the_run_goes_on() {
    let coordinator_address = free_address();
    let mut coordinator = server(&coordinator_address, "coordinator", &[&ALONE[..], &["--job=clicks"]].concat());
    for mut stray in
        [server(&coordinator_address, "a server", &["--job=ratings"]), worker(&coordinator_address, &["--job=ratings"])]
    {
        stray.fails_saying("this run is of job 'clicks', and the node was started for job 'ratings'");
        assert!(stray.stderr().contains(&coordinator_address), "{}", stray.stderr());
    }
    let workers = Workers::start(&coordinator_address, 1);
    workers.go_on(5, || coordinator.stderr());
    workers.end(0);
    assert!(coordinator.end(), "{}", coordinator.stderr());
}

#[test]
fn a_coordinator_gives_up_an_etcd_that_never_answers() {
    let coordinator_address = free_address();
    let nobody = free_address();
    let listen = format!("--listen={coordinator_address}");
    let registry = format!("--registry=etcd://{nobody}/job");
    let shape = ["--servers=1", "--workers=1", "--join-limit=2"];
    let mut coordinator = start("a coordinator", &[&["coordinator", &listen, &registry], &shape[..]].concat());
    coordinator.hear("that etcd is silent", |said| said.contains("the run waits: etcd does not answer").then_some(()));
    coordinator.fails_saying("is it running, and are the addresses right?");
    assert!(coordinator.stderr().contains(&nobody), "{}", coordinator.stderr());
}

#[test]
fn a_lone_coordinator_waits_for_an_etcd_lost_during_the_run() {
    let Some(mut etcd) = Etcd::start() else { return };
    let coordinator_address = free_address();
    let registry = format!("--registry=etcd://{}/jobs/alone", etcd.endpoint());
    let shape = ["--servers=1", "--workers=1", "--replicas=1", "--join-limit=100"];
    let mut coordinator = start(
        "a coordinator",
        &[&["coordinator", &format!("--listen={coordinator_address}"), &registry], &shape[..]].concat(),
    );
    coordinator.hear("that it leads", |said| said.contains("this coordinator leads").then_some(()));
    let mut serves = server(&coordinator_address, "a server", &[]);
    let workers = Workers::start(&coordinator_address, 1);
    workers.go_on(20, || coordinator.stderr());
    etcd.kill();
    coordinator.hear("that etcd is silent", |said| said.contains("etcd does not answer").then_some(()));
    etcd.restart();
    coordinator.hear("that etcd is back", |said| said.contains("the registry answers again").then_some(()));
    workers.go_on(20, || coordinator.stderr());
    workers.end(0);
    assert!(serves.end(), "{}", serves.stderr());
    assert!(coordinator.end(), "{}", coordinator.stderr());
}
