//! Runs of real processes with two coordinators and a real etcd: either may be lost, and the other goes on; nothing counts twice.

#![expect(clippy::unwrap_used, reason = "a test says so by falling over")]

#[path = "../../node/tests/registry/etcd.rs"]
mod etcd;
mod process;

use etcd::Etcd;
use process::{LIMIT, Process, start};
use rustix::process::{Pid, Signal, kill_process};
use slackwater::{Connect, Consistency, NumberType, Session, TableSpec};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Keys that every push adds one to.
const KEYS: u64 = 64;
const WORKERS: usize = 2;
const LEADS: &str = "this coordinator leads";

/// Two addresses that nobody listens at.
fn free_addresses() -> [String; 2] {
    let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    free.map(|listener| listener.local_addr().unwrap().to_string())
}

/// Everything of a run but its workers, which are threads of the test.
struct Run {
    meet: String,
    registry: String,
    coordinators: Vec<Process>,
    servers: Vec<Process>,
    progress: Vec<Arc<Progress>>,
    workers: Vec<JoinHandle<i64>>,
}

/// What a worker has pushed and seen acknowledged.
#[derive(Default)]
struct Progress {
    acknowledged: AtomicU64,
    stop: AtomicBool,
}

impl Run {
    /// Begins: two coordinators, of which the first leads, two servers with two copies, and two workers.
    fn begin(etcd: &Etcd) -> Self {
        let meet = free_addresses().join(",");
        let registry = format!("etcd://{}/jobs/counting", etcd.endpoint());
        let mut run = Self {
            meet,
            registry,
            coordinators: Vec::new(),
            servers: Vec::new(),
            progress: (0..WORKERS).map(|_| Arc::default()).collect(),
            workers: Vec::new(),
        };
        run.coordinate("coordinator 0").hear("that it leads", |said| said.contains(LEADS).then_some(()));
        run.coordinate("coordinator 1").hear("that it follows", |said| said.contains("follows").then_some(()));
        let meet = format!("--meet={}", run.meet);
        for place in 0..2 {
            let place = format!("--place={place}");
            let options = ["server", &meet, "--patience=2", "--join-limit=100", &place];
            run.servers.push(start("a server", &options));
        }
        run.workers = run.progress.iter().map(|progress| worker(&run.meet, progress.clone())).collect();
        run.go_on(50);
        run
    }

    fn coordinate(&mut self, name: &str) -> &mut Process {
        let (meet, registry) = (format!("--meet={}", self.meet), format!("--registry={}", self.registry));
        let shape = ["--servers=2", "--workers=2", "--copies=2", "--slices=2", "--patience=2", "--join-limit=100"];
        self.coordinators.push(start(name, &[&["coordinator", &meet, &registry], &shape[..]].concat()));
        self.coordinators.last_mut().unwrap()
    }

    /// Waits until every worker has seen so many more pushes acknowledged. Returns how long that took.
    fn go_on(&self, pushes: u64) -> Duration {
        let begin = Instant::now();
        let before = self.acknowledged();
        while self.acknowledged().iter().zip(&before).any(|(now, before)| *now < before + pushes) {
            let said: String = self.coordinators.iter().chain(&self.servers).map(Process::stderr).collect();
            assert!(begin.elapsed() < LIMIT, "nothing is acknowledged any more:\n{said}");
            std::thread::sleep(Duration::from_millis(5));
        }
        begin.elapsed()
    }

    fn acknowledged(&self) -> Vec<u64> {
        self.progress.iter().map(|progress| progress.acknowledged.load(Ordering::Relaxed)).collect()
    }

    /// Ends the run, and looks whether the total is what was acknowledged, and whether everybody who is left ends in peace.
    fn end(mut self) {
        self.progress.iter().for_each(|progress| progress.stop.store(true, Ordering::Relaxed));
        let totals: Vec<i64> = std::mem::take(&mut self.workers).into_iter().map(|it| it.join().unwrap()).collect();
        let pushed: u64 = self.acknowledged().iter().sum();
        assert_eq!(totals, [(pushed * KEYS) as i64; WORKERS]);
        for process in self.servers.iter_mut().chain(&mut self.coordinators) {
            assert!(process.end(), "{} failed:\n{}", process.name, process.stderr());
        }
    }
}

/// A worker that pushes until it is told to stop, and then reads the total.
fn worker(meet: &str, progress: Arc<Progress>) -> JoinHandle<i64> {
    let (patience, join_limit) = (Duration::from_secs(2), Duration::from_secs(100));
    let connect = Connect { patience, join_limit, ..Connect::to(meet) };
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

#[test]
fn a_run_goes_on_when_the_coordinator_that_leads_is_killed_and_so_is_the_next() {
    let Some(etcd) = Etcd::start() else { return };
    let mut run = Run::begin(&etcd);
    let mut first = run.coordinators.remove(0);
    first.child.kill().unwrap();
    run.coordinators[0].hear("that it leads", |said| said.contains(LEADS).then_some(()));
    println!("from the loss of the leader to 50 more pushes: {:?}", run.go_on(50));
    // Started again, the first follows; and then it is its turn.
    run.coordinate("coordinator 0, again").hear("that it follows", |said| said.contains("follows").then_some(()));
    let mut second = run.coordinators.remove(0);
    second.child.kill().unwrap();
    run.coordinators[0].hear("that it leads", |said| said.contains(LEADS).then_some(()));
    run.go_on(50);
    // It knows what the others knew: one server is done without, and the other has everything.
    let mut server = run.servers.remove(0);
    server.child.kill().unwrap();
    run.coordinators[0].hear("that a server is lost", |said| said.contains("goes on without it").then_some(()));
    run.go_on(50);
    run.end();
}

#[test]
fn a_leader_that_was_stopped_follows_when_it_wakes() {
    let Some(etcd) = Etcd::start() else { return };
    let mut run = Run::begin(&etcd);
    let stopped = Pid::from_child(&run.coordinators[0].child);
    kill_process(stopped, Signal::STOP).unwrap();
    run.coordinators[1].hear("that it leads", |said| said.contains(LEADS).then_some(()));
    println!("from the election to 50 more pushes: {:?}", run.go_on(50));
    kill_process(stopped, Signal::CONT).unwrap();
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
    run.coordinators[0].hear("that it leads no more", |said| said.contains("for as long as it may").then_some(()));
    run.coordinators[0].hear("that the run waits", |said| said.contains("the run waits").then_some(()));
    run.servers[0].hear("that nobody leads", |said| said.contains("no coordinator answers").then_some(()));
    // Nobody may answer for what another could be given, so nothing is acknowledged: until etcd is back.
    let before = run.acknowledged();
    std::thread::sleep(Duration::from_millis(500));
    let leased = run.acknowledged();
    assert!(before.iter().zip(&leased).all(|(before, after)| after - before <= 1), "{before:?} {leased:?}");
    etcd.restart();
    println!("from the return of etcd to 50 more pushes: {:?}", run.go_on(50));
    // Held up and not killed, for less than anybody's patience: nobody notices.
    etcd.stop();
    run.go_on(5);
    etcd.go_on();
    run.go_on(50);
    run.end();
}

#[test]
fn coordinators_say_what_is_wrong_with_the_registry() {
    let [meet, nobody] = free_addresses();
    let coordinate = |registry: &str, more: &[&str]| {
        let (meet, registry) = (format!("--meet={meet}"), format!("--registry={registry}"));
        let shape = ["--servers=1", "--workers=1", "--join-limit=2"];
        start("a coordinator", &[&["coordinator", &meet, &registry], &shape[..], more].concat())
    };
    let mut silent = coordinate(&format!("etcd://{nobody}/job"), &[]);
    silent.hear("that etcd is silent", |said| said.contains("the run waits: etcd does not answer").then_some(()));
    silent.fails_saying("is it running, and are the addresses right?");
    coordinate("http://10.0.0.1/job", &[]).fails_saying("does not say where etcd is");
    let Some(etcd) = Etcd::start() else { return };
    let registry = format!("etcd://{}/job", etcd.endpoint());
    let mut first = coordinate(&registry, &["--job=one"]);
    first.fails_saying("1 servers and 1 workers have yet to join");
    coordinate(&registry, &["--job=two"]).fails_saying("belongs to job `one`");
    coordinate(&registry, &["--job=one", "--copies=2"]).fails_saying("led another kind of run");
    let both = format!("--meet={meet},{nobody}");
    let mut alone = start("a coordinator", &["coordinator", &both, "--servers=1", "--workers=1"]);
    alone.fails_saying("several coordinators need a registry");
}
