//! A run by hand on two hosts: the processes find each other by every usual form of address, and
//! name a process that is cut off. Each host is a network namespace of this machine, with its own
//! addresses and its own host names.
//!
//! The tests need the right to make network namespaces, and Linux's `ip`. Without them, the tests
//! are skipped and say so.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

mod process;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use launch::{Namespace, NamespaceError};
use process::{ENDLESS, PROGRAM, Process, skipped, start_as};

const DEMO: [&str; 9] = [
    "demo",
    "--json",
    "--rows=600",
    "--features=500",
    "--minibatch=20",
    "--base-ms=2",
    "--clocks=5",
    "--slack=3",
    "--out=/dev/null",
];

/// Two hosts with a network link between them: `head`, at 10.0.0.1 and fd00::1, and `other`, at
/// 10.0.0.2 and fd00::2.
struct Hosts([Namespace; 2]);

/// The folder from which `ip netns exec` takes a namespace's files under /etc.
fn files_of(name: &str) -> PathBuf {
    PathBuf::from("/etc/netns").join(name)
}

impl Hosts {
    /// Makes both hosts.
    fn make() -> Result<Self, NamespaceError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let [head, other] = ["head", "other"].map(|host| format!("slackwater-{host}-{unique}"));
        let hosts = Self(Namespace::make_pair([&head, &other])?);
        for (host, known) in hosts.0.iter().zip(["127.0.1.1 head", "10.0.0.1 head\n10.0.0.2 other"]) {
            // On its own host, a host name is a loopback address, as on Debian.
            let files = files_of(host.name());
            std::fs::create_dir_all(&files).unwrap();
            std::fs::write(files.join("hosts"), format!("127.0.0.1 localhost\n{known}\n")).unwrap();
        }
        for (host, index) in hosts.0.iter().zip(1..) {
            host.add_address("cable", &format!("fd00::{index}/64"))?;
        }
        // A host finds its own address by its default route if the coordinator's address does not
        // tell it.
        hosts.0[0].ip("route add default via 10.0.0.2")?;
        Ok(hosts)
    }

    /// Makes both hosts, or reports a skipped test where that is not allowed.
    fn if_allowed() -> Option<Self> {
        match Self::make() {
            Ok(hosts) => Some(hosts),
            Err(reason) => {
                skipped(&format!("this machine makes no network namespaces ({reason})"));
                None
            }
        }
    }

    fn start(&self, host: usize, name: &str, arguments: &[&str]) -> Process {
        start_as(self.0[host].start(name, PROGRAM), arguments)
    }

    /// The coordinator and a server on `head`, whose coordinator listens at `here`.
    fn serve(&self, here: &str, more: &[&str]) -> Process {
        let arguments =
            ["server", "--coordinator", here, "--coordinate", "--servers=1", "--workers=1", "--join-limit=20"];
        self.start(0, "server 0", &[&arguments, more].concat())
    }

    /// A worker on `other`, which finds the coordinator at `there`.
    fn work(&self, there: &str, program: &[&str]) -> Process {
        self.start(1, "worker 0", &[&["worker", "--coordinator", there, "--join-limit=20", "--"], program].concat())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.0 {
            std::fs::remove_dir_all(files_of(host.name())).ok();
        }
        // This fails, as it should, if other namespaces still have files there.
        std::fs::remove_dir("/etc/netns").ok();
    }
}

#[test]
fn processes_of_two_hosts_join_by_any_usual_address() {
    let Some(hosts) = Hosts::if_allowed() else { return };
    // (the coordinator as head is told, and as other is; more for head)
    let cases: [(&str, &str, &[&str]); 6] = [
        ("10.0.0.1:7000", "10.0.0.1:7000", &[]),
        ("head:7001", "head:7001", &[]),
        ("0.0.0.0:7002", "head:7002", &[]),
        ("[::]:7003", "[fd00::1]:7003", &["--advertise", "fd00::1"]),
        ("[fd00::1]:7004", "[fd00::1]:7004", &[]),
        ("head:7005", "10.0.0.1:7005", &["--listen", "0.0.0.0:7100", "--advertise", "head"]),
    ];
    for (here, there, more) in cases {
        let mut server = hosts.serve(here, more);
        let mut worker = hosts.work(there, &DEMO);
        let trained = worker.end();
        assert!(trained, "met at {here} and {there}\n{}\n{}", worker.stderr(), server.stderr());
        assert!(server.end(), "{}", server.stderr());
        assert!(worker.stdout().contains("gain_in_clocks_per_second"), "{}", worker.stdout());
        assert!(!server.stderr().contains("which only this host can"), "nothing to warn of\n{}", server.stderr());
    }
}

#[test]
fn a_process_that_others_cannot_reach_warns_with_advice() {
    let Some(hosts) = Hosts::if_allowed() else { return };
    let mut server = hosts.serve("10.0.0.1:7000", &["--listen", "127.0.0.1:0"]);
    server.hear("that others cannot call it", |said| {
        (said.contains("127.0.0.1:") && said.contains("which only this host can") && said.contains("--advertise HOST"))
            .then_some(())
    });
    // The worker finds the coordinator and not the server, and names it.
    let mut worker = hosts.work("10.0.0.1:7000", &DEMO);
    worker.fails_saying("lost server 0");
    server.fails_saying("lost worker 0");
}

#[test]
fn when_the_cable_is_pulled_each_side_names_the_other() {
    let Some(hosts) = Hosts::if_allowed() else { return };
    let mut server = hosts.serve("10.0.0.1:7000", &["--failure-timeout=2"]);
    let mut worker = hosts.work("10.0.0.1:7000", &ENDLESS);
    worker.hear("that it works", |said| said.contains("worker 0").then_some(()));
    hosts.0[1].set_down("cable").unwrap();
    worker.fails_saying("lost ");
    server.fails_saying("lost worker 0");
    let said = worker.stderr();
    assert!(said.contains("lost coordinator") || said.contains("lost server 0"), "{said}");
}
