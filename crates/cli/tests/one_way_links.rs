//! Links that lose everything in one direction: the run notices the node behind such a link within
//! the bound that `status` shows, names and expels it, goes on, and has every acknowledged push.
//!
//! Each node has a host of its own, a network namespace of this machine. The tests need the right
//! to make network namespaces, and Linux's `ip`. Without them, the tests are skipped and say so.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

mod process;

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use launch::{Namespace, NamespaceError};
use process::{Folder, LIMIT, PROGRAM, Process, json, skipped, start_as, until};
use serde_json::Value;

const SERVERS: usize = 3;
const WORKERS: usize = 3;
const HOSTS: usize = SERVERS + WORKERS;
const COORDINATOR: &str = "--coordinator=10.78.0.1:7000";
/// Long enough that a busy machine does not count as a lost node.
const FAILURE_TIMEOUT: &str = "--failure-timeout=3";
/// Rows that each worker of `bench-peer chaos` adds one to with each push.
const ROWS: usize = 12;
/// More pushes than a worker can make while a silent worker is still a member: reads stop it at
/// four clocks ahead.
const FAR: u64 = 24;
/// No network card has this address, so frames that are sent to it are lost.
const NOBODY: &str = "02:00:00:00:00:01";

/// The address of a host.
fn address(host: usize) -> String {
    format!("10.78.0.{}", host + 2)
}

/// A bridge, where the coordinator runs, and hosts, each joined to it by a cable: servers first.
struct Network {
    /// Dropped before the hub, and their cables with them.
    hosts: Vec<Namespace>,
    hub: Namespace,
}

/// Which frames a link loses, as its host sees it.
#[derive(Clone, Copy, Debug)]
enum Lost {
    Sent,
    Received,
}

/// Whom the link no longer joins the host to.
#[derive(Clone, Copy, Debug)]
enum Peers {
    /// The coordinator and all other hosts.
    All,
    /// The servers if it is a worker's host, and the workers if it is a server's. The coordinator
    /// hears all nodes, and they hear it.
    OtherRole,
}

impl Network {
    fn make() -> Result<Self, NamespaceError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("slackwater-links-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let hub = Namespace::make(&format!("{unique}-hub"))?;
        hub.ip("link add bridge type bridge forward_delay 0")?;
        hub.add_address("bridge", "10.78.0.1/24")?;
        hub.set_up("bridge")?;
        let mut hosts = Vec::new();
        for number in 0..HOSTS {
            let host = Namespace::make(&format!("{unique}-{number}"))?;
            hub.connect(&format!("port{number}"), &host, "cable")?;
            hub.ip(&format!("link set port{number} master bridge up"))?;
            host.add_address("cable", &format!("{}/24", address(number)))?;
            host.set_up("cable")?;
            hosts.push(host);
        }
        Ok(Self { hosts, hub })
    }

    /// Loses frames from now on. The sender takes the wrong hardware address for that of the
    /// receiver: it gets no error, as with a broken fibre.
    fn lose(&self, host: usize, lost: Lost, peers: Peers) {
        let lose = |sender: &Namespace, interface: &str, receiver: &str| {
            sender.ip(&format!("neigh replace {receiver} lladdr {NOBODY} dev {interface} nud permanent")).unwrap();
        };
        let is_server = |host: usize| host < SERVERS;
        for peer in (0..HOSTS).filter(|peer| *peer != host) {
            match (peers, lost) {
                (Peers::OtherRole, _) if is_server(peer) == is_server(host) => {}
                (_, Lost::Sent) => lose(&self.hosts[host], "cable", &address(peer)),
                (_, Lost::Received) => lose(&self.hosts[peer], "cable", &address(host)),
            }
        }
        match (peers, lost) {
            (Peers::All, Lost::Sent) => lose(&self.hosts[host], "cable", "10.78.0.1"),
            (Peers::All, Lost::Received) => lose(&self.hub, "bridge", &address(host)),
            (Peers::OtherRole, _) => {}
        }
    }

    /// Starts a process in a namespace.
    fn start(at: &Namespace, name: &str, arguments: &[&str]) -> Process {
        start_as(at.start(name, PROGRAM), arguments)
    }

    /// Runs the program beside the coordinator, and returns what it printed.
    fn ask(&self, arguments: &[&str]) -> String {
        let mut asks = Self::start(&self.hub, arguments[0], &[arguments, &[COORDINATOR, "--json"]].concat());
        assert!(asks.end(), "{}", asks.stderr());
        asks.stdout()
    }

    fn status(&self) -> Value {
        json(&self.ask(&["status"]))
    }
}

/// The pushes of a worker, from the file that it keeps.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sent: u64,
    acknowledged: u64,
    stopped: bool,
}

impl Counts {
    fn read(folder: &Path, worker: usize) -> Self {
        let bytes = std::fs::read(folder.join(format!("worker-{worker}"))).unwrap_or_default();
        let mut numbers = bytes.chunks_exact(8).map(|number| u64::from_le_bytes(number.try_into().unwrap()));
        let mut next = || numbers.next().unwrap_or_default();
        Self { sent: next(), acknowledged: next(), stopped: next() > 0 }
    }
}

/// An elastic run of the network whose workers push.
struct Run {
    network: Network,
    coordinator: Process,
    /// By host: servers and workers.
    nodes: Vec<Process>,
    folder: Folder,
}

impl Run {
    fn start(network: Network, name: &str) -> Self {
        let folder = Folder::new(name);
        let common = [COORDINATOR, FAILURE_TIMEOUT, "--join-limit=60"];
        let coordinate = ["--threads=0", "--coordinate", "--servers=3", "--workers=3", "--replicas=2"];
        let coordinator = [&["server"], &common[..], &coordinate].concat();
        let coordinator = Network::start(&network.hub, "coordinator", &coordinator);
        let nodes = (0..HOSTS).map(|host| {
            let at = &network.hosts[host];
            if host < SERVERS {
                let place = format!("--place={host}");
                return Network::start(at, &format!("server {host}"), &[&["server"], &common[..], &[&place]].concat());
            }
            let index = format!("--index={}", host - SERVERS);
            let counts = format!("--folder={}", folder.0.display());
            let arguments = ["bench-peer", "chaos", COORDINATOR, FAILURE_TIMEOUT, &index, &counts];
            Network::start(at, "a worker", &arguments)
        });
        let nodes = nodes.collect();
        let run = Self { network, coordinator, nodes, folder };
        run.go_on(None);
        run
    }

    fn counts(&self, worker: usize) -> Counts {
        Counts::read(&self.folder.0, worker)
    }

    /// Waits until the workers have had many more pushes acknowledged, all but that of `host`.
    fn go_on(&self, host: Option<usize>) {
        let workers: Vec<usize> = (0..WORKERS).filter(|worker| host != Some(SERVERS + worker)).collect();
        let before: Vec<u64> = workers.iter().map(|worker| self.counts(*worker).sent).collect();
        until("an acknowledgement", || {
            workers.iter().zip(&before).all(|(worker, before)| self.counts(*worker).acknowledged >= before + FAR)
        });
    }

    /// Loses frames of a host. Checks that the run names and expels its node within the bound that
    /// it shows, and nobody else, goes on, and has every acknowledged push.
    fn expels_the_node_of(mut self, host: usize, lost: Lost, peers: Peers) {
        let case = format!("host {host}, {lost:?}, {peers:?}");
        let shown = self.network.status();
        let members = shown["members"].as_array().unwrap().iter();
        let at = |member: &&Value| member["address"].as_str().unwrap().starts_with(&format!("{}:", address(host)));
        let node = members.clone().find(at).unwrap()["node"].as_str().unwrap().to_owned();
        let bound = shown["timeouts"].as_array().unwrap().iter();
        let bound = bound.filter(|timeout| timeout["what"].as_str().unwrap().contains("do not reach each other"));
        let bound_s = bound.map(|timeout| timeout["seconds"].as_f64().unwrap()).next().unwrap();

        self.network.lose(host, lost, peers);
        let begin = Instant::now();
        let reason = loop {
            let shown = self.network.status();
            let members = shown["members"].as_array().unwrap();
            let lost: Vec<&Value> = members.iter().filter(|member| member["state"] == "lost").collect();
            if let [member] = lost[..] {
                assert_eq!(member["node"], *node, "{case}: {shown}");
                break member["reason"].as_str().unwrap().to_owned();
            }
            assert_eq!(lost, Vec::<&Value>::new(), "{case}");
            assert!(begin.elapsed() < LIMIT, "{case}: {shown}");
        };
        let seconds = begin.elapsed().as_secs_f64();
        println!("{case}: after {seconds:.1} s, with {bound_s} s shown: {reason}");
        // A busy machine delays it: this tells noticed from not noticed.
        assert!(seconds < 10.0 * bound_s, "{case}: {bound_s} s are shown");
        let words = match peers {
            Peers::All => "hear",
            Peers::OtherRole => "have not reached each other",
        };
        assert!(reason.contains(words), "{case}: {reason}");
        let said = self.coordinator.stderr();
        let named = |line: &str| line.contains("is lost: ") && line.ends_with(&format!("node={node}"));
        assert!(said.lines().any(named), "{case}: {said}");
        self.go_on(Some(host));
        self.has_every_push(host, &case);
    }

    /// Stops the workers, and compares the rows with the workers' counts. The worker of `host`, if
    /// it is one's, was expelled in the middle of a push.
    fn has_every_push(&mut self, host: usize, case: &str) {
        self.folder.write("stop", "");
        let living = |worker: &usize| SERVERS + worker != host;
        until("the end of pushing", || (0..WORKERS).filter(living).all(|worker| self.counts(worker).stopped));
        let count = format!("--count={}", WORKERS * ROWS);
        let printed = self.network.ask(&["tail", "counts", "--rows", &count]);
        let mut found: Vec<u64> = printed.lines().filter_map(|line| json(line)["values"][0].as_u64()).collect();
        found.sort_unstable();
        let mut least = Vec::new();
        let mut most = Vec::new();
        for worker in 0..WORKERS {
            let Counts { sent, acknowledged, .. } = self.counts(worker);
            least.extend([acknowledged; ROWS]);
            most.extend([if living(&worker) { acknowledged } else { sent }; ROWS]);
        }
        least.sort_unstable();
        most.sort_unstable();
        assert_eq!(found.len(), least.len(), "{case}: {found:?}");
        for ((found, least), most) in found.iter().zip(least).zip(most) {
            assert!((least..=most).contains(found), "{case}: {found} of {least} to {most} pushes");
        }
        self.folder.write("leave", "");
        let nodes = self.nodes.iter_mut().enumerate().filter(|(at, _)| *at != host).map(|(_, node)| node);
        for node in nodes.chain([&mut self.coordinator]) {
            assert!(node.end(), "{case}: {}", node.stderr());
        }
    }
}

/// Tries every kind of one-way link for a host, one after another.
fn expels_the_node_behind_a_one_way_link(host: usize) {
    for peers in [Peers::All, Peers::OtherRole] {
        for lost in [Lost::Sent, Lost::Received] {
            match Network::make() {
                Ok(network) => {
                    Run::start(network, &format!("{host}-{peers:?}-{lost:?}")).expels_the_node_of(host, lost, peers);
                }
                Err(reason) => return skipped(&format!("this machine makes no network namespaces ({reason})")),
            }
        }
    }
}

#[test]
fn a_server_behind_a_one_way_link_is_expelled_and_the_run_goes_on() {
    expels_the_node_behind_a_one_way_link(1);
}

#[test]
fn a_worker_behind_a_one_way_link_is_expelled_and_the_run_goes_on() {
    expels_the_node_behind_a_one_way_link(SERVERS + 1);
}
