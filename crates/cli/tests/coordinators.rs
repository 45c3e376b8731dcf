//! Runs of real processes with two coordinators and a real etcd. If one coordinator is lost, the
//! other leads, and no push counts twice.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../node/tests/registry/certificates.rs"]
mod certificates;
mod counting;
#[path = "../../node/tests/registry/etcd.rs"]
mod etcd;
mod process;

use counting::{Workers, server};
use etcd::Etcd;
use process::{Process, Signal, free_address, start};
use std::time::Duration;

const LEADS: &str = "this coordinator leads";

/// A run: processes of coordinators and servers, and workers that are threads of the test.
struct Run {
    coordinator_address: String,
    /// The options of the registry.
    registry: Vec<String>,
    coordinators: Vec<Process>,
    servers: Vec<Process>,
    workers: Option<Workers>,
}

impl Run {
    /// Starts a run of two coordinators, of which the first leads, two servers that each hold a
    /// replica of every shard, and two workers.
    fn begin(etcd: &Etcd) -> Self {
        Self::begin_with(vec![format!("--registry=etcd://{}/jobs/counting", etcd.endpoint())])
    }

    /// The same with these options of the registry.
    fn begin_with(registry: Vec<String>) -> Self {
        let coordinator_address = [free_address(), free_address()].join(",");
        let mut run =
            Self { coordinator_address, registry, coordinators: Vec::new(), servers: Vec::new(), workers: None };
        run.coordinate("coordinator 0").hear("that it leads", |said| said.contains(LEADS).then_some(()));
        run.coordinate("coordinator 1").hear("that it follows", |said| said.contains("follows").then_some(()));
        run.servers =
            (0..2).map(|place| server(&run.coordinator_address, "a server", &[&format!("--place={place}")])).collect();
        run.workers = Some(Workers::start(&run.coordinator_address, 2));
        run.go_on(50);
        run
    }

    fn coordinate(&mut self, name: &str) -> &mut Process {
        let listen = format!("--listen={}", self.coordinator_address);
        let registry: Vec<&str> = self.registry.iter().map(String::as_str).collect();
        let shape = [
            "--servers=2",
            "--workers=2",
            "--replicas=2",
            "--shards-per-server=2",
            "--failure-timeout=2",
            "--join-limit=100",
        ];
        self.coordinators.push(start(name, &[&["coordinator", &listen], &registry[..], &shape].concat()));
        self.coordinators.last_mut().unwrap()
    }

    /// Waits until every worker has had this many more pushes acknowledged. Returns how long that
    /// took.
    fn go_on(&self, pushes: u64) -> Duration {
        let said = || self.coordinators.iter().chain(&self.servers).map(Process::stderr).collect();
        self.workers.as_ref().unwrap().go_on(pushes, said)
    }

    fn acknowledged(&self) -> Vec<u64> {
        self.workers.as_ref().unwrap().acknowledged()
    }

    /// Ends the run. Checks that the total is that of the acknowledged pushes, that all processes
    /// left end without error, and that the registry keeps nothing of the run.
    fn end(mut self) {
        self.workers.take().unwrap().end(0);
        for process in self.servers.iter_mut().chain(&mut self.coordinators) {
            assert!(process.end(), "{} failed:\n{}", process.name, process.stderr());
        }
        // If the registry kept the run, it would refuse a coordinator of a run of another size.
        let listen = format!("--listen={}", self.coordinator_address);
        let registry: Vec<&str> = self.registry.iter().map(String::as_str).collect();
        let other = ["coordinator", &listen, "--servers=1", "--workers=1", "--join-limit=1"];
        start("a coordinator of the next run", &[&other, &registry[..]].concat())
            .fails_saying("1 server and 1 worker have yet to join");
    }
}

#[test]
fn a_run_goes_on_when_the_coordinator_that_leads_is_killed_and_so_is_the_next() {
    let Some(etcd) = Etcd::start() else { return };
    let mut run = Run::begin(&etcd);
    let mut first = run.coordinators.remove(0);
    first.kill();
    run.coordinators[0].hear("that it leads", |said| said.contains(LEADS).then_some(()));
    println!("from the loss of the leader to 50 more pushes: {:?}", run.go_on(50));
    // Started again, the first follows. When the second is killed, it leads.
    run.coordinate("coordinator 0, again").hear("that it follows", |said| said.contains("follows").then_some(()));
    let mut second = run.coordinators.remove(0);
    second.kill();
    run.coordinators[0].hear("that it leads", |said| said.contains(LEADS).then_some(()));
    run.go_on(50);
    // It has the state of the run: the run goes on without a server, and the other holds all
    // shards.
    let mut server = run.servers.remove(0);
    server.kill();
    run.coordinators[0]
        .hear("that a server is lost", |said| said.contains("other servers hold its shards").then_some(()));
    run.go_on(50);
    run.end();
}

#[test]
fn another_coordinator_takes_over_with_an_etcd_that_asks_for_a_certificate_and_a_login() {
    let authority = certificates::TestAuthority::new();
    let server = authority.sign("server", &["127.0.0.1"]);
    let own = authority.sign("own", &["coordinator"]);
    let files = etcd::ServerFiles { ca: &authority.file(), certificate: &server.certificate, key: &server.key };
    let Some(etcd) = Etcd::start_secured(&files, &["--auth-token-ttl=1"]) else { return };
    etcd.ask_for_login();
    let user = authority.folder().join("user");
    std::fs::write(&user, "slackwater:pass:word\n").unwrap();
    let file = |option: &str, path: &std::path::Path| format!("--etcd-{option}={}", path.display());
    let mut run = Run::begin_with(vec![
        format!("--registry=etcds://{}/jobs/counting", etcd.tls_endpoint()),
        file("cacert", &authority.file()),
        file("cert", &own.certificate),
        file("key", &own.key),
        file("user-file", &user),
    ]);
    let mut first = run.coordinators.remove(0);
    first.kill();
    run.coordinators[0].hear("that it leads", |said| said.contains(LEADS).then_some(()));
    run.go_on(50);
    run.end();
}

#[test]
fn a_leader_that_is_told_to_leave_lets_another_lead_at_once() {
    let Some(etcd) = Etcd::start() else { return };
    let mut run = Run::begin(&etcd);
    let mut first = run.coordinators.remove(0);
    first.signal(Signal::TERM);
    assert!(first.end() && first.stderr().contains("was told to leave"), "{}", first.stderr());
    run.coordinators[0].hear("that it leads", |said| said.contains(LEADS).then_some(()));
    println!("from the order to 50 more pushes: {:?}", run.go_on(50));
    // It has the state of the run: a server drains, and the other holds all shards.
    let mut server = run.servers.remove(0);
    server.signal(Signal::USR1);
    assert!(server.end(), "{}", server.stderr());
    run.go_on(50);
    run.end();
}

#[test]
fn a_leader_that_was_stopped_follows_when_it_wakes() {
    let Some(etcd) = Etcd::start() else { return };
    let mut run = Run::begin(&etcd);
    run.coordinators[0].signal(Signal::STOP);
    run.coordinators[1].hear("that it leads", |said| said.contains(LEADS).then_some(()));
    println!("from the election to 50 more pushes: {:?}", run.go_on(50));
    run.coordinators[0].signal(Signal::CONT);
    run.coordinators[0].hear("that it follows", |said| said.contains("this coordinator follows").then_some(()));
    run.go_on(50);
    run.end();
}

#[test]
fn a_run_waits_for_etcd_says_so_and_loses_nothing() {
    let Some(mut etcd) = Etcd::start() else { return };
    let mut run = Run::begin(&etcd);
    etcd.kill();
    run.coordinators[0].hear("that etcd is silent", |said| said.contains("etcd does not answer").then_some(()));
    run.coordinators[0].hear("that it leads no more", |said| said.contains("leader lease has ended").then_some(()));
    run.coordinators[0].hear("that the run waits", |said| said.contains("the run waits").then_some(()));
    run.servers[0].hear("that nobody leads", |said| said.contains("no coordinator answers").then_some(()));
    // Without a leader, serving leases run out, so no push is acknowledged until etcd is back.
    let before = run.acknowledged();
    std::thread::sleep(Duration::from_millis(500));
    let leased = run.acknowledged();
    assert!(before.iter().zip(&leased).all(|(before, after)| after - before <= 1), "{before:?} {leased:?}");
    etcd.restart();
    println!("from the return of etcd to 50 more pushes: {:?}", run.go_on(50));
    // A stop of etcd for less than the failure timeout does not disturb the run.
    etcd.stop();
    run.go_on(5);
    etcd.go_on();
    run.go_on(50);
    run.end();
}

#[test]
fn coordinators_say_what_is_wrong_with_the_registry() {
    let coordinator_address = free_address();
    let nobody = free_address();
    let coordinate = |registry: &str, more: &[&str]| {
        let listen = format!("--listen={coordinator_address}");
        let registry = format!("--registry={registry}");
        let shape = ["--servers=1", "--workers=1", "--join-limit=2"];
        start("a coordinator", &[&["coordinator", &listen, &registry], &shape[..], more].concat())
    };
    let mut silent = coordinate(&format!("etcd://{nobody}/job"), &[]);
    silent.hear("that etcd is silent", |said| said.contains("the run waits: etcd does not answer").then_some(()));
    silent.fails_saying("is it running, and are the addresses right?");
    coordinate("http://10.0.0.1/job", &[]).fails_saying("does not say where etcd is");
    let Some(etcd) = Etcd::start() else { return };
    let registry = format!("etcd://{}/job", etcd.endpoint());
    let mut first = coordinate(&registry, &["--job=one"]);
    first.fails_saying("1 server and 1 worker have yet to join");
    coordinate(&registry, &["--job=two"]).fails_saying("belongs to job `one`");
    coordinate(&registry, &["--job=one", "--replicas=2"]).fails_saying("led another kind of run");
    let both = format!("--listen={coordinator_address},{nobody}");
    let mut alone = start("a coordinator", &["coordinator", &both, "--servers=1", "--workers=1"]);
    alone.fails_saying("several coordinators need a registry");
}
