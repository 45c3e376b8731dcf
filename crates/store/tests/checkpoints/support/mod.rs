//! Shared by the tests: checkpoints to write, temporary folders, a real S3 server, and a proxy that
//! injects faults.

pub mod moto;
pub mod namespace;
pub mod proxy;
pub mod python;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use store::{CheckpointName, CheckpointShard, Manifest, Positions, RowNumbers, Store, StoreError, TableEntry, Writing};

pub const JOB: &str = "job-1";

/// Reports a skipped test on the standard error. It bypasses the test runner, which hides the
/// output of passing tests.
pub fn skipped(what: &str, why: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {what}: {why}").ok();
}

/// A temporary folder. Dropping it removes it.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("slackwater-store-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn store(&self) -> Store {
        Store::open(self.0.to_str().unwrap()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Every file under a folder, by its path from there.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// A shard of `rows` rows, whose numbers come from `seed`.
pub fn shard(table: &str, index: u32, rows: u64, seed: u64) -> CheckpointShard<'static> {
    let numbers = |count: u64| (0..count).map(move |at| (at ^ seed) as f32 * 0.25);
    CheckpointShard {
        table: table.to_owned().into(),
        index,
        positions: Positions::List((0..rows).map(|at| at * 3 + seed).collect()),
        stride: 2,
        rows: RowNumbers::F32(numbers(2 * rows).collect()),
        metadata: seed.to_le_bytes().to_vec().into(),
    }
}

/// Writes the shards of a table, and returns its entry for the manifest.
pub fn table(name: &str, shards: &[CheckpointShard], writing: &Writing) -> Result<TableEntry, StoreError> {
    let number = shards[0].rows.number();
    let stride = shards[0].stride as u64;
    let shards = shards.iter().map(|shard| writing.shard(shard)).collect::<Result<_, _>>()?;
    Ok(TableEntry { name: name.to_owned(), spec: serde_json::json!({ "rate": 0.1 }), number, stride, shards })
}

pub fn manifest(clock: u64, tables: Vec<TableEntry>) -> Manifest {
    let shards = tables.first().map_or(0, |table| table.shards.len() as u32);
    let leases = serde_json::json!({ "done": [[0, 7]] });
    Manifest { job: JOB.to_owned(), clock, shards, tables, leases, residuals: Vec::new() }
}

/// The shards that [`publish`] writes at a clock.
pub fn shards(clock: u64) -> Vec<CheckpointShard<'static>> {
    (0..2).map(|at| shard("weights", at, 5 + u64::from(at), clock)).collect()
}

/// Writes a small checkpoint of one table and two shards.
pub fn publish(store: &Store, clock: u64) -> Result<CheckpointName, StoreError> {
    let writing = store.begin(JOB)?;
    let tables = vec![table("weights", &shards(clock), &writing)?];
    writing.publish(&manifest(clock, tables))?;
    Ok(writing.name())
}

/// Reads the checkpoint that [`publish`] wrote at a clock, and compares all of it.
pub fn assert_holds(opened: &store::Opened, clock: u64) {
    opened.verify().unwrap();
    assert_eq!(opened.manifest().clock, clock);
    for shard in shards(clock) {
        assert_eq!(opened.shard("weights", shard.index).unwrap(), shard);
    }
}
