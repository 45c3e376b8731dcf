//! Runs of real processes that lose everything and resume from a checkpoint: from an object store,
//! and with an etcd that remembers the run.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clocked;
#[path = "../../node/tests/registry/etcd.rs"]
mod etcd;
#[path = "../../store/tests/checkpoints/support/moto.rs"]
#[allow(dead_code, reason = "the tests of the store need the rest")]
mod moto;
mod process;
#[path = "../../store/tests/checkpoints/support/python.rs"]
mod python;

use clocked::{Worker, manifest, published};
use etcd::Etcd;
use launch::Start;
use process::{Folder, PROGRAM, Process, free_address, start, start_as, until};

fn skipped(what: &str, why: &str) {
    process::skipped(&format!("{what}: {why}"));
}

#[test]
fn a_run_resumes_from_an_object_store_with_another_number_of_servers() {
    let Some(address) = moto::address("a run with checkpoints in S3") else { return };
    let place = format!("--checkpoint=s3://{}/runs/counts", moto::bucket(address));
    let run = |servers: u32, more: &[&str]| {
        let coordinator_address = free_address();
        let servers = [format!("--servers={servers}"), format!("--threads={servers}")];
        let variables = moto::settings(&format!("http://{address}")).variables;
        let program = Start::program("server", PROGRAM);
        let program = variables.into_iter().fold(program, |program, (name, value)| program.env(name, value));
        let words =
            ["server", "--coordinator", &coordinator_address, "--coordinate", "--workers=1", "--join-limit=50", &place];
        let mut server = start_as(program, &[&words[..], &[&servers[0], &servers[1]], more].concat());
        let worker = Worker::start(&coordinator_address);
        worker.goes_on();
        let count = worker.end();
        assert!(server.end(), "{}", server.stderr());
        (count, server.stderr())
    };
    let (count, said) = run(2, &["--checkpoint-every=3600"]);
    assert!(said.contains("published checkpoint"), "the end brings one: {said}");
    let (more, said) = run(3, &["--checkpoint-every=3600", "--resume"]);
    assert!(more > count + 20, "{more} after {count}\n{said}");
}

#[test]
fn a_run_killed_whole_resumes_from_its_checkpoint_though_etcd_remembers_it() {
    let Some(etcd) = Etcd::start() else { return };
    let folder = Folder::new("remembered");
    let place = format!("--checkpoint={}", folder.0.display());
    let registry = format!("--registry=etcd://{}/jobs/counts", etcd.endpoint());
    let begin = |coordinator_address: &str, more: &[&str]| -> Vec<Process> {
        let words = [
            "coordinator",
            "--listen",
            coordinator_address,
            &registry,
            &place,
            "--checkpoint-every=0.1",
            "--servers=2",
            "--workers=1",
        ];
        let limits = ["--replicas=2", "--shards-per-server=2", "--failure-timeout=1", "--join-limit=50"];
        let coordinator = start("coordinator", &[&words[..], &limits, more].concat());
        let server = |_| {
            start("server", &["server", "--coordinator", coordinator_address, "--failure-timeout=1", "--join-limit=50"])
        };
        [coordinator].into_iter().chain((0..2).map(server)).collect()
    };
    let coordinator_address = free_address();
    let mut killed = begin(&coordinator_address, &[]);
    let worker = Worker::start(&coordinator_address);
    until("a second checkpoint", || published(&folder.0).len() > 1);
    killed.iter_mut().for_each(|process| process.kill());
    // The worker looks for another coordinator until its join limit, and then fails. Do not wait
    // for it.
    drop(worker);
    let clock = manifest(published(&folder.0).last().unwrap())["clock"].as_i64().unwrap();

    let coordinator_address = free_address();
    let mut resumed = begin(&coordinator_address, &["--resume"]);
    let worker = Worker::start(&coordinator_address);
    worker.goes_on();
    let count = worker.end();
    for process in &mut resumed {
        assert!(process.end(), "{}", process.stderr());
    }
    let said = resumed[0].stderr();
    assert!(
        count > clock + 20 && said.contains("it begins anew, from the checkpoint"),
        "{count} after {clock}\n{said}"
    );
}
