//! Replay: a new machine that gets recorded inputs sends the same bytes, also if the inputs were
//! encoded and decoded between.

use shard::ServerInput;
use sim::*;
use types::{Codecs, Combine, Consistency, NodeId, NumberType, Reduce, TableSpec};
use wire::{Field, Reader};
use worker::{KeyListDictionary, WorkerInput};

const SIZE: RunSize = RunSize { servers: 2, workers: 3 };

/// Tables of odd seeds have codecs that draw random numbers, keep residuals and send deltas.
fn spec(seed: u64) -> TableSpec {
    let eager = Consistency::Bounded { slack: 1, eager: true };
    let spec = TableSpec::sparse("t", SIZE.workers).cached(20);
    if seed.is_multiple_of(2) {
        return spec.number(NumberType::F64).consistency(eager);
    }
    let codecs = Codecs::up(["keys", if seed % 4 == 1 { "fixed4" } else { "1bit" }, "lz4"]).down(["keys", "fixed3"]);
    spec.consistency(Consistency::slack(1)).combine(Combine::Clock(Reduce::Sum)).codecs(codecs)
}

fn recorded(seed: u64) -> Cluster {
    let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
    let spec = spec(seed);
    let table = cluster.table(spec.clone());
    let work = Workload { nan: 0.1, ..Workload::default() };
    let mut programs = work.programs(seed, SIZE, table, &spec);
    if seed.is_multiple_of(3) {
        // The whole list, then lists that are chosen from it, and a question about active rows.
        cluster.choose_from(&work.keys);
        let first = [Action::pull(table, &work.keys), Action::Ask { table, keys: work.keys[2..5].to_vec() }];
        programs.iter_mut().for_each(|steps| drop(steps.splice(1..1, first.clone())));
    }
    if seed.is_multiple_of(2) {
        // Rows that are set, and read with their updater's state.
        let keys = work.keys[..2].to_vec();
        let rows = vec![1.0; 2 * SIZE.workers as usize];
        let set = Action::Set { table, keys: keys.clone(), rows };
        let steps = [set, Action::PullRowState { table, keys, last: false }];
        programs.iter_mut().for_each(|program| drop(program.splice(1..1, steps.clone())));
    }
    cluster.programs(programs);
    cluster.record();
    cluster.run();
    cluster
}

/// The input after encoding and decoding, as from a file.
fn server_input(input: &ServerInput) -> ServerInput {
    let mut bytes = Vec::new();
    input.put(&mut bytes);
    let mut read = Reader(&bytes);
    let again = ServerInput::get(&mut read).expect("what was written");
    assert!(read.0.is_empty());
    again
}

fn worker_input(input: &WorkerInput, [written, read]: &mut [KeyListDictionary; 2]) -> WorkerInput {
    let mut bytes = Vec::new();
    input.put(written, &mut bytes);
    let mut reader = Reader(&bytes);
    let again = WorkerInput::get(&mut reader, read).expect("what was written");
    assert!(reader.0.is_empty());
    again
}

#[test]
fn a_replay_sends_the_recorded_frames() {
    for_seeds("replay of servers and workers", |seed| {
        let cluster = recorded(seed);
        let plan = &cluster.history().plan;
        for server in 0..SIZE.servers {
            let record = cluster.server_record(server);
            let said = replay_server(NodeId::Server(server), plan, record.iter().map(|(input, _)| server_input(input)));
            assert!(record.iter().map(|(_, said)| said).eq(&said), "seed {seed}: server {server} sent other frames");
            assert!(said.iter().flatten().count() > 0);
        }
        for worker in 0..SIZE.workers {
            let record = cluster.worker_record(worker);
            let mut lists = <[KeyListDictionary; 2]>::default();
            let inputs = record.iter().map(|(input, _)| worker_input(input, &mut lists));
            let said = replay_worker(worker, plan, cluster.worker_settings(), inputs);
            assert!(record.iter().map(|(_, said)| said).eq(&said), "seed {seed}: worker {worker} sent other frames");
        }
        cluster
    });
}

#[test]
fn a_seed_always_gives_the_same_history() {
    for seed in 0..10 {
        let [one, other] = [recorded(seed), recorded(seed)];
        // NaN is not equal to itself, so the histories are compared as they print.
        assert_eq!(format!("{:?}", one.history()), format!("{:?}", other.history()), "seed {seed}");
    }
    assert_ne!(format!("{:?}", recorded(1).history()), format!("{:?}", recorded(2).history()));
}
