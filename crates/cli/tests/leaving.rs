//! Draining real processes, by SIGTERM or SIGUSR1: they hand over what they hold and end without
//! error, and the run goes on.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counting;
mod process;

use counting::{Workers, server};
use process::{ENDLESS, Process, Signal, free_address, signal, start};
use std::time::{Duration, Instant};

/// The limit for draining. Clouds give a notice of 30 seconds; draining usually takes one second.
const WELL_INSIDE: Duration = Duration::from_secs(20);
const OPEN: [&str; 6] =
    ["--coordinate", "--threads=0", "--servers=3", "--workers=2", "--replicas=2", "--shards-per-server=4"];

#[test]
fn draining_servers_hand_over_their_shards() {
    let coordinator_address = free_address();
    let mut coordinator = server(&coordinator_address, "coordinator", &OPEN);
    let mut servers: Vec<Process> = (0..3)
        .map(|place| server(&coordinator_address, &format!("server {place}"), &[&format!("--place={place}")]))
        .collect();
    let workers = Workers::start(&coordinator_address, 2);
    workers.go_on(20, || coordinator.stderr());
    // Another server joins before the second one leaves, so two servers always stay for two
    // replicas.
    for signal in [Signal::TERM, Signal::USR1] {
        let mut leaves = servers.remove(0);
        let told = Instant::now();
        leaves.signal(signal);
        assert!(leaves.end(), "{}", leaves.stderr());
        assert!(told.elapsed() < WELL_INSIDE, "{}", leaves.stderr());
        assert!(leaves.stderr().contains("hands over what it holds"), "{}", leaves.stderr());
        workers.go_on(20, || coordinator.stderr());
        // It asks for a place that was taken before, as a restart by the same command does. It gets
        // another place.
        let mut comes = server(&coordinator_address, "another server", &["--place=0"]);
        comes.hear("that it serves", |said| said.contains("serving").then_some(()));
        servers.push(comes);
    }
    assert_eq!(coordinator.stderr().matches("has left: other servers hold its shards").count(), 2);
    assert!(!coordinator.stderr().contains("is lost"), "{}", coordinator.stderr());
    workers.end(0);
    servers.iter_mut().for_each(|server| assert!(server.end(), "{}", server.stderr()));
    assert!(coordinator.end(), "{}", coordinator.stderr());
}

#[test]
fn a_draining_server_waits_until_another_can_take_over() {
    let coordinator_address = free_address();
    let shape = ["--coordinate", "--threads=0", "--servers=2", "--workers=1", "--replicas=2", "--failure-timeout=1"];
    let mut coordinator = server(&coordinator_address, "coordinator", &shape);
    let mut servers: Vec<Process> =
        (0..2).map(|_| server(&coordinator_address, "a server", &["--failure-timeout=1"])).collect();
    let workers = Workers::start(&coordinator_address, 1);
    workers.go_on(20, || coordinator.stderr());
    let mut first = servers.remove(0);
    first.signal(Signal::TERM);
    first.hear("that it waits", |said| said.contains("fewer than 2 replicas without it").then_some(()));
    assert!(first.end(), "{}", first.stderr());
    let mut last = servers.remove(0);
    last.signal(Signal::TERM);
    last.hear("that it stays", |said| said.contains("no other server is there").then_some(()));
    workers.go_on(20, || coordinator.stderr());
    let mut comes = server(&coordinator_address, "another server", &["--failure-timeout=1"]);
    assert!(last.end(), "{}", last.stderr());
    workers.go_on(20, || coordinator.stderr());
    workers.end(0);
    assert!(comes.end(), "{}", comes.stderr());
    assert!(coordinator.end(), "{}", coordinator.stderr());
}

#[test]
fn a_draining_worker_is_not_waited_for() {
    let coordinator_address = free_address();
    let mut serves =
        server(&coordinator_address, "server 0", &["--coordinate", "--servers=1", "--workers=2", "--replicas=1"]);
    let workers = Workers::start(&coordinator_address, 1);
    let mut leaves = start(
        "worker 1",
        &[&["worker", &format!("--coordinator={coordinator_address}"), "--failure-timeout=2", "--"], &ENDLESS[..]]
            .concat(),
    );
    leaves.hear("that it works", |said| said.contains("working").then_some(()));
    leaves.signal(Signal::TERM);
    assert!(leaves.end(), "{}", leaves.stderr());
    workers.go_on(20, || serves.stderr());
    workers.end(0);
    assert!(serves.end() && !serves.stderr().contains("is lost"), "{}", serves.stderr());
}

#[test]
fn a_node_that_cannot_be_replaced_ends_the_run_when_told_to_leave() {
    for (fixed, told) in [(true, "server 1"), (true, "worker 0"), (false, "coordinator")] {
        let coordinator_address = free_address();
        let shape = ["--coordinate", "--threads=0", "--servers=1", "--workers=1"];
        let shape = if fixed { shape.to_vec() } else { [&shape[..], &["--replicas=1"]].concat() };
        let mut processes =
            vec![server(&coordinator_address, "coordinator", &shape), server(&coordinator_address, "server 1", &[])];
        processes.push(start(
            "worker 0",
            &[&["worker", &format!("--coordinator={coordinator_address}"), "--"], &ENDLESS[..]].concat(),
        ));
        processes[2].hear("that it works", |said| said.contains("working").then_some(()));
        processes.iter_mut().find(|process| process.name == told).unwrap().signal(Signal::TERM);
        for process in &mut processes {
            process.fails_saying("told to leave");
        }
        if fixed {
            let says = processes.iter().filter(|process| process.stderr().contains("--replicas")).count();
            assert_eq!(says, 3, "all processes name the flag that would help");
        }
    }
}

#[test]
fn a_node_told_to_leave_before_the_run_began_ends() {
    let coordinator_address = free_address();
    let mut coordinator = server(&coordinator_address, "coordinator", &OPEN);
    let mut early = server(&coordinator_address, "server 0", &[]);
    let mut worker =
        start("worker 0", &[&["worker", &format!("--coordinator={coordinator_address}"), "--"], &ENDLESS[..]].concat());
    // Processes install their signal handlers first, so half a second is enough.
    std::thread::sleep(std::time::Duration::from_millis(500));
    for process in [&mut worker, &mut early, &mut coordinator] {
        process.signal(Signal::TERM);
        assert!(process.end(), "{}: {}", process.name, process.stderr());
        assert!(process.stderr().contains("before the run had begun"), "{}", process.stderr());
    }
}

#[test]
fn launch_does_not_replace_draining_nodes_and_passes_the_order_on() {
    let launch = ["launch", "--servers=3", "--workers=2", "--replicas=2", "--failure-timeout=2", "--"];
    let mut launch = start("launch", &[&launch[..], &ENDLESS[..]].concat());
    let server = launch.started("server 1");
    launch.hear("that it works", |said| said.contains("working").then_some(()));
    signal(server, Signal::TERM);
    launch.hear("that it has left", |said| said.contains("has left: other servers hold its shards").then_some(()));
    launch.signal(Signal::USR1);
    assert!(launch.end(), "{}", launch.stderr());
    let said = launch.stderr();
    assert!(said.contains("the servers end with the run") && !said.contains("in place of"), "{said}");
}
