//! A process is killed while it writes: its published checkpoints are whole, and its unfinished one
//! can be removed.

use crate::support::{Folder, JOB, files, manifest, shard, table};
use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::process::{Command, Stdio};
use std::time::Duration;
use store::{CheckpointShard, Store};

const TEST: &str = "killed::a_process_that_is_killed_leaves_whole_checkpoints";
const FOLDER: &str = "SLACKWATER_TEST_FOLDER";
const ROUNDS: u64 = 10;

/// The first shard is large, so the process is often killed while it writes one of its parts.
fn written(clock: u64) -> [CheckpointShard<'static>; 2] {
    [shard("weights", 0, 1_200_000, clock), shard("weights", 1, 3, clock)]
}

/// Publishes one checkpoint after the other, and prints each clock, until the process is killed.
fn write_for_ever(folder: &str) {
    let store = Store::open(folder).unwrap();
    store.remove_unfinished().unwrap();
    let last = store.newest(None).map_or(0, |newest| newest.manifest().clock);
    for clock in last + 1.. {
        let writing = store.begin(JOB).unwrap();
        let tables = vec![table("weights", &written(clock), &writing).unwrap()];
        writing.publish(&manifest(clock, tables)).unwrap();
        store.prune(NonZeroUsize::new(2).unwrap()).unwrap();
        println!("\npublished {clock}");
    }
}

#[test]
fn a_process_that_is_killed_leaves_whole_checkpoints() {
    if let Ok(folder) = std::env::var(FOLDER) {
        return write_for_ever(&folder);
    }
    let folder = Folder::new();
    let store = folder.store();
    let mut interrupted = 0;
    let mut said_last = 0;
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([TEST, "--exact", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = lines.filter_map(|line| line.unwrap().strip_prefix("published ")?.parse::<u64>().ok());
        said_last = said.next().unwrap().max(said_last);
        std::thread::sleep(Duration::from_millis(7 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        said_last = said.last().unwrap_or(said_last);

        // The newest is the last that it printed, or one more that it had no time to print.
        let newest = store.newest(Some(JOB)).unwrap();
        newest.verify().unwrap();
        let clock = newest.manifest().clock;
        assert!(clock == said_last || clock == said_last + 1, "{clock} is there, {said_last} was said");
        for shard in written(clock) {
            assert!(newest.shard("weights", shard.index).unwrap() == shard);
        }
        interrupted += usize::from(!newest.unfinished().is_empty());
    }
    assert!(interrupted > 0, "it was never killed in the middle");
    store.remove_unfinished().unwrap();
    store.prune(NonZeroUsize::MIN).unwrap();
    // The files of one checkpoint: all files of the others are gone.
    assert_eq!(files(folder.path()).len(), 3, "{:?}", files(folder.path()));
}
