//! Checkpoints of real processes: the flags of the command line, and checkpoints that cannot be
//! written or read.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clocked;
mod process;

use clocked::{Worker, manifest, published};
use launch::Start;
use process::{Folder, PROGRAM, Process, free_address, skipped, start, start_as, succeeds, until};
use std::path::{Path, PathBuf};
use std::process::Command;

fn coordinating<'a>(coordinator_address: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let words = [
        "server",
        "--coordinator",
        coordinator_address,
        "--coordinate",
        "--servers=2",
        "--threads=2",
        "--workers=1",
        "--join-limit=50",
    ];
    words.iter().chain(more).copied().collect()
}

#[test]
fn flags_set_how_many_checkpoints_are_kept_and_their_job() {
    let folder = Folder::new("flags");
    let place = format!("--checkpoint={}", folder.0.display());
    let said = ["--checkpoint-every=0.05", "--keep=2", "--job=clicks", "--replicas=1", "--shards-per-server=3"];
    let coordinator_address = free_address();
    let mut server = start("server", &coordinating(&coordinator_address, &[&[&place[..]], &said[..]].concat()));
    let worker = Worker::start(&coordinator_address);
    // Names sort by their numbers.
    let is_fifth = |last: &PathBuf| name(last).as_str() >= "checkpoint-00000005";
    until("a fifth checkpoint", || published(&folder.0).last().is_some_and(is_fifth));
    worker.end();
    assert!(server.end(), "{}", server.stderr());
    let kept = published(&folder.0);
    assert_eq!(kept.len(), 2, "{kept:?}");
    let manifest = manifest(&kept[1]);
    assert_eq!((&manifest["job"], &manifest["shards"]), (&"clicks".into(), &6.into()), "{manifest}");

    let mut other = start("other", &coordinating(&coordinator_address, &[&place, "--resume", "--job=ratings"]));
    other.fails_saying("is of job 'clicks', not of 'ratings'");
    let mut nameless = start("nameless", &coordinating(&coordinator_address, &[&place]));
    nameless.fails_saying("clicks");
}

fn name(checkpoint: &Path) -> String {
    checkpoint.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn a_lone_coordinator_writes_a_last_checkpoint_and_resumes_from_it() {
    let folder = Folder::new("coordinator");
    let place = format!("--checkpoint={}", folder.0.display());
    let run = |more: &[&str]| {
        let coordinator_address = free_address();
        let words =
            ["coordinator", "--listen", &coordinator_address, "--servers=1", "--workers=1", "--join-limit=50", &place];
        let mut coordinator = start("coordinator", &[&words[..], more].concat());
        let mut server = start("server", &["server", "--coordinator", &coordinator_address, "--join-limit=50"]);
        let worker = Worker::start(&coordinator_address);
        worker.goes_on();
        let count = worker.end();
        assert!(server.end() && coordinator.end(), "{}\n{}", server.stderr(), coordinator.stderr());
        (count, coordinator.stderr())
    };
    // The interval is an hour, so the only checkpoint is that of the end.
    let (count, said) = run(&["--checkpoint-every=3600"]);
    let kept = published(&folder.0);
    assert_eq!(kept.len(), 1, "{said}");
    assert_eq!(manifest(&kept[0])["clock"], count, "it counts its clocks, and all of them are there");
    let (more, said) = run(&["--checkpoint-every=3600", "--resume"]);
    assert!(more > count && said.contains(&name(&kept[0])), "{more} after {count}\n{said}");
    assert_eq!(manifest(published(&folder.0).last().unwrap())["clock"], more);
}

#[test]
fn a_checkpoint_with_a_missing_shard_is_refused_and_the_one_before_resumes() {
    let folder = Folder::new("missing");
    let place = format!("--checkpoint={}", folder.0.display());
    let coordinator_address = free_address();
    let mut server = start("server", &coordinating(&coordinator_address, &[&place, "--checkpoint-every=0.05"]));
    let worker = Worker::start(&coordinator_address);
    until("a third checkpoint", || published(&folder.0).len() == 3);
    worker.end();
    assert!(server.end(), "{}", server.stderr());
    let kept = published(&folder.0);
    let before = &kept[1];
    let newest = &kept[2];
    let shard = manifest(newest)["tables"][0]["shards"][1]["file"]["name"].as_str().unwrap().to_owned();
    std::fs::remove_file(newest.join(&shard)).unwrap();

    let mut refused = start("refused", &coordinating(&coordinator_address, &[&place, "--resume"]));
    refused.fails_saying(&name(before));
    assert!(refused.stderr().contains(&shard) && refused.stderr().contains("counts"), "{}", refused.stderr());

    let coordinator_address = free_address();
    let from = format!("--resume={}", before.display());
    let mut resumed = start("resumed", &coordinating(&coordinator_address, &[&from]));
    let worker = Worker::start(&coordinator_address);
    worker.goes_on();
    let count = worker.end();
    assert!(resumed.end(), "{}", resumed.stderr());
    assert!(count > manifest(before)["clock"].as_i64().unwrap());
}

/// Starts the program on a small file system of its own, or returns `None` where that is not
/// allowed.
fn on_a_small_disk(folder: &Path, arguments: &[&str]) -> Option<Process> {
    let inside = |command: &mut Command, then: &str| {
        let script = format!("mount -t tmpfs -o size=4m tmpfs \"$0\" && {then}");
        command.args(["--mount", "sh", "-c", &script]).arg(folder);
    };
    let mut trial = Command::new("unshare");
    inside(&mut trial, "true");
    if !succeeds(&mut trial) {
        skipped("this machine does not allow mounting a small disk (unshare, mount)");
        return None;
    }
    let mut command = Command::new("unshare");
    inside(&mut command, "exec \"$@\"");
    command.arg(PROGRAM);
    Some(start_as(Start::command("server", command), arguments))
}

/// The path of a folder in the process's own file system.
fn seen_by(process: &Process, folder: &Path) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root{}", process.id(), folder.display()))
}

/// Checks a run whose disk fails for a while. The run goes on, logs it, keeps the checkpoints
/// there, and writes checkpoints again when it can.
fn outlives(folder: &str, words: &[&str], spoil: impl Fn(&Process, &Path), mend: impl Fn(&Process, &Path)) {
    let folder = Folder::new(folder);
    let place = format!("--checkpoint={}", folder.0.display());
    let coordinator_address = free_address();
    let Some(mut server) =
        on_a_small_disk(&folder.0, &coordinating(&coordinator_address, &[&place, "--checkpoint-every=0.05"]))
    else {
        return;
    };
    let worker = Worker::start(&coordinator_address);
    let inside = seen_by(&server, &folder.0);
    until("a checkpoint", || published(&inside).len() == 3);
    spoil(&server, &inside);
    server.hear("NO CHECKPOINT", |said| said.contains("NO CHECKPOINT").then_some(()));
    let said = server.stderr();
    assert!(words.iter().all(|words| said.contains(words)), "{words:?} is not in\n{said}");
    let there = published(&inside);
    worker.goes_on();
    assert!(there.len() >= 3 && published(&inside) == there, "what was there stays, and nothing comes");
    assert!(there.iter().all(|checkpoint| manifest(checkpoint)["job"] == "slackwater"));
    mend(&server, &inside);
    until("a checkpoint after that", || published(&inside).last() > there.last());
    worker.end();
    assert!(server.end(), "{}", server.stderr());
}

#[test]
fn a_run_whose_last_checkpoint_fails_says_so_and_fails() {
    let folder = Folder::new("last");
    let place = format!("--checkpoint={}", folder.0.display());
    let coordinator_address = free_address();
    let every = "--checkpoint-every=3600";
    let Some(mut server) = on_a_small_disk(&folder.0, &coordinating(&coordinator_address, &[&place, every])) else {
        return;
    };
    let worker = Worker::start(&coordinator_address);
    worker.goes_on();
    let inside = seen_by(&server, &folder.0);
    assert!(std::fs::write(inside.join("rest"), vec![1; 8 << 20]).is_err());
    worker.end();
    server.fails_saying("the last checkpoint could not be made");
    assert!(server.stderr().contains("the disk is full"), "{}", server.stderr());
}

#[test]
fn a_run_outlives_a_full_disk() {
    let fill = |_: &Process, inside: &Path| assert!(std::fs::write(inside.join("rest"), vec![1; 8 << 20]).is_err());
    let free = |_: &Process, inside: &Path| std::fs::remove_file(inside.join("rest")).unwrap();
    outlives("full", &["the disk is full", "It is tried again while the run lasts"], fill, free);
}

#[test]
fn a_run_outlives_a_disk_that_becomes_read_only() {
    let remount = |process: &Process, folder: &Path, how: &str| {
        let pid = process.id().to_string();
        let folder = folder.to_string_lossy().split_once("/root").map(|(_, path)| path.to_owned()).unwrap();
        let mount = ["-t", &pid, "-m", "mount", "-o", how, &folder];
        // Remounting fails while a file is open for writing, so try again.
        let done = || succeeds(Command::new("nsenter").args(mount));
        until("another way to mount", done);
    };
    let spoil = |process: &Process, inside: &Path| remount(process, inside, "remount,ro");
    let mend = |process: &Process, inside: &Path| remount(process, inside, "remount,rw");
    outlives("read-only", &["read-only", "It is tried again while the run lasts"], spoil, mend);
}
