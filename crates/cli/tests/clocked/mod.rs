//! Shared by tests: a worker that counts its clocks, and the checkpoints of its run.

#![allow(dead_code, reason = "not every test needs all of it")]

use super::process::until;
use slackwater::policy::{Combine, NumberType, Reduce};
use slackwater::security::Access;
use slackwater::{Connect, Consistency, Error, Keys, Session, TableSpec};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The published checkpoints in a folder, oldest first.
pub fn published(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.retain(|path| path.join("manifest.json").exists());
    found.sort();
    found
}

pub fn manifest(checkpoint: &Path) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(checkpoint.join("manifest.json")).unwrap()).unwrap()
}

/// A worker in this process that counts its clocks until it is told to stop.
pub struct Worker {
    clocks: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<i64, Error>>,
}

impl Worker {
    pub fn start(coordinator_address: &str) -> Self {
        let connect = Connect {
            join_limit: Duration::from_secs(50),
            access: Access::Insecure,
            ..Connect::to(coordinator_address)
        };
        let clocks = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let counted = clocks.clone();
        let stops = stop.clone();
        let thread = std::thread::spawn(move || {
            let session = Session::connect(&connect)?;
            let spec = TableSpec::dense("counts", 24, 1).number(NumberType::I64).combine(Combine::Clock(Reduce::Sum));
            let table = session.table::<i64>(spec.consistency(Consistency::slack(0)))?;
            while !stops.load(Ordering::Relaxed) {
                drop(table.push(&Keys::run(0..24), vec![1; 24])?);
                session.clock()?;
                counted.fetch_add(1, Ordering::Relaxed);
            }
            let count = table.pull(&Keys::run(0..1))?.wait()?.values()[0];
            session.close()?;
            Ok(count)
        });
        Self { clocks, stop, thread }
    }

    /// Waits until it has counted 20 more clocks: the run is not stuck.
    pub fn goes_on(&self) {
        let before = self.clocks.load(Ordering::Relaxed);
        until("another clock", || self.clocks.load(Ordering::Relaxed) > before + 20);
    }

    /// Stops it, and returns its final count.
    pub fn end(self) -> i64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap().unwrap()
    }
}
