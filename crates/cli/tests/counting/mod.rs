//! Shared by tests: workers that count. They are threads of the test that add one to every key with
//! each push, and count acknowledged pushes.

#![allow(dead_code, reason = "not every test needs all of it")]

use crate::process::{LIMIT, Process, start};
use slackwater::policy::NumberType;
use slackwater::security::Access;
use slackwater::{Connect, Consistency, Session, TableSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many keys every push adds one to.
pub const KEYS: u64 = 64;

/// A server process.
pub fn server(coordinator_address: &str, name: &str, more: &[&str]) -> Process {
    let coordinator_address = format!("--coordinator={coordinator_address}");
    start(name, &[&["server", &coordinator_address, "--join-limit=100"], more].concat())
}

/// The acknowledged pushes of a worker, and the flag that stops it.
#[derive(Default)]
pub struct Progress {
    pub acknowledged: AtomicU64,
    pub stop: AtomicBool,
}

/// A worker that pushes until it is told to stop, and then reads the total.
fn worker(coordinator_address: &str, progress: Arc<Progress>) -> JoinHandle<i64> {
    let failure_timeout = Duration::from_secs(2);
    let join_limit = Duration::from_secs(100);
    let connect = Connect { failure_timeout, join_limit, access: Access::Insecure, ..Connect::to(coordinator_address) };
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

/// Some workers of a run.
pub struct Workers {
    pub progress: Vec<Arc<Progress>>,
    threads: Vec<JoinHandle<i64>>,
}

impl Workers {
    /// Starts `count` workers.
    pub fn start(coordinator_address: &str, count: usize) -> Self {
        let mut workers = Self { progress: Vec::new(), threads: Vec::new() };
        (0..count).for_each(|_| workers.add(coordinator_address));
        workers
    }

    /// Starts one more.
    pub fn add(&mut self, coordinator_address: &str) {
        let progress: Arc<Progress> = Arc::default();
        self.threads.push(worker(coordinator_address, progress.clone()));
        self.progress.push(progress);
    }

    /// How many pushes each has seen acknowledged.
    pub fn acknowledged(&self) -> Vec<u64> {
        self.progress.iter().map(|progress| progress.acknowledged.load(Ordering::Relaxed)).collect()
    }

    /// Waits until every worker has had this many more pushes acknowledged. Returns how long that
    /// took. Panics with the output of `said` if it takes too long.
    pub fn go_on(&self, pushes: u64, said: impl Fn() -> String) -> Duration {
        let begin = Instant::now();
        let before = self.acknowledged();
        while self.acknowledged().iter().zip(&before).any(|(now, before)| *now < before + pushes) {
            assert!(begin.elapsed() < LIMIT, "nothing is acknowledged any more:\n{}", said());
            std::thread::sleep(Duration::from_millis(2));
        }
        begin.elapsed()
    }

    /// Stops the workers. Checks that each reads the total of all acknowledged pushes, and of
    /// `more` pushes of other workers.
    pub fn end(self, more: u64) {
        self.progress.iter().for_each(|progress| progress.stop.store(true, Ordering::Relaxed));
        let count = self.threads.len();
        let totals: Vec<i64> = self.threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let pushed: u64 = self.progress.iter().map(|progress| progress.acknowledged.load(Ordering::Relaxed)).sum();
        assert_eq!(totals, vec![((pushed + more) * KEYS) as i64; count]);
    }
}
