//! Deletes among pushes to the same rows: every replica deletes a row once, in its worker's order,
//! and later pushes make a new row.

mod elastic;

use elastic::{FAILURE_TIMEOUT, SIZE};
use sim::*;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use types::{Clock, Codecs, Combine, Consistency, NumberType, Reduce, Span, TableSpec, UpdaterSpec};

const WIDTH: usize = 2;
/// The number of keys of each worker: no other worker writes them.
const OWN: u64 = 5;

/// Makes the program of a worker on a table.
type Program = fn(&mut Xoshiro256, u32, &TableSpec, TableIndex) -> Vec<Action>;

fn own_keys(worker: u32) -> Vec<u64> {
    (0..OWN).map(|key| u64::from(worker) * OWN + key).collect()
}

fn all_keys() -> Vec<u64> {
    (0..OWN * u64::from(SIZE.workers)).collect()
}

/// A table that applies each push. The seed chooses its updater, order and cache.
fn each_table(seed: u64) -> TableSpec {
    let updater = match seed % 4 {
        0 => UpdaterSpec::Sum,
        1 => UpdaterSpec::Momentum { rate: 0.5, momentum: 0.5 },
        2 => UpdaterSpec::Adagrad { rate: 0.5, epsilon: 1e-8 },
        _ => UpdaterSpec::Adam { rate: 0.5, beta1: 0.5, beta2: 0.75, epsilon: 1e-8 },
    };
    let spec = TableSpec::sparse("t", WIDTH as u32).number(NumberType::F64).updater(updater);
    let spec = if seed.is_multiple_of(2) { spec.ordered() } else { spec };
    match seed % 3 {
        0 => spec.consistency(Consistency::slack(1)),
        1 => spec.consistency(Consistency::slack(2)).cached(100),
        _ => spec.consistency(Consistency::Bounded { slack: 1, eager: true }).cached(100),
    }
}

/// A table that sums by clock. The seed chooses its order, and whether it is eager.
fn clock_table(seed: u64) -> TableSpec {
    let spec = TableSpec::sparse("t", WIDTH as u32).number(NumberType::F64).combine(Combine::Clock(Reduce::Sum));
    let spec = if seed.is_multiple_of(2) { spec.ordered() } else { spec };
    match seed % 3 {
        0 => spec.consistency(Consistency::slack(2)),
        _ => spec.consistency(Consistency::Bounded { slack: 1, eager: true }).cached(100),
    }
}

/// A table that sums by clock, with lossy codecs both ways. Its rows are wide, so deltas of a few
/// rows take fewer bytes than the rows.
fn lossy_table(seed: u64) -> TableSpec {
    let spec = TableSpec::sparse("t", 64).ordered().combine(Combine::Clock(Reduce::Sum)).cached(100);
    spec.consistency(Consistency::slack(seed % 3)).codecs(Codecs::up(["topk=25%"]).down(["1bit"]))
}

/// Pushes to own rows and deletes them, in random order, and reads them and rows of other workers.
fn program(random: &mut Xoshiro256, worker: u32, spec: &TableSpec, table: TableIndex) -> Vec<Action> {
    let own = own_keys(worker);
    let all = all_keys();
    let width = spec.width as usize;
    let mut steps = vec![Action::MakeTable(table)];
    for _ in 0..8 {
        steps.push(Action::Compute(Span(random.below(3_000_000))));
        for _ in 0..5 {
            let keys = random.some_of(&own, 0.5);
            steps.push(match random.below(5) {
                0..=2 => {
                    let numbers = (0..keys.len() * width).map(|_| 1.0 + random.below(64) as f64 / 8.0).collect();
                    Action::push(table, &keys, Write::Numbers(numbers))
                }
                3 => Action::Delete { table, keys },
                _ => Action::pull(table, if random.chance(0.5) { &all } else { &own }),
            });
        }
        steps.push(Action::EndClock);
    }
    steps.extend(ending(spec, table));
    steps
}

/// Ends clocks until every update is visible, then reads all rows.
fn ending(spec: &TableSpec, table: TableIndex) -> Vec<Action> {
    let slack = spec.consistency.bound().unwrap_or(0) as usize;
    let mut steps = vec![Action::EndClock; slack + 1];
    steps.extend([Action::WaitUntilIdle, Action::Barrier, Action::pull_last(table, &all_keys())]);
    if spec.shape.placement() == types::Placement::Ordered {
        steps.push(Action::Scan { table, first: 0, end: u64::MAX, last: true });
    }
    steps.push(Action::Barrier);
    steps
}

/// Pushes to own rows and reads all rows, many times. Few clocks delete, because after a delete of
/// a row that is read as deltas all rows are read whole.
fn lossy_program(random: &mut Xoshiro256, worker: u32, spec: &TableSpec, table: TableIndex) -> Vec<Action> {
    let own = own_keys(worker);
    let width = spec.width as usize;
    let mut steps = vec![Action::MakeTable(table)];
    for clock in 0..15 {
        steps.push(Action::Compute(Span(random.below(3_000_000))));
        for _ in 0..2 {
            let keys = random.some_of(&own, 0.5);
            let numbers = (0..keys.len() * width).map(|_| 1.0 + random.below(64) as f64 / 8.0).collect();
            steps.push(Action::push(table, &keys, Write::Numbers(numbers)));
        }
        if clock % 5 == 4 {
            steps.push(Action::Delete { table, keys: random.some_of(&own, 0.5) });
            // Of the same clock, so the delete follows it.
            steps.push(Action::push(table, &own, Write::Ones));
        }
        steps.extend([Action::pull(table, &all_keys()), Action::EndClock]);
    }
    steps.extend(ending(spec, table));
    steps
}

/// Workers push, delete and read. While they do, a server crashes and another one joins. Every
/// shard has two replicas.
fn servers_come_and_go(seed: u64, spec: &TableSpec, program: Program) -> Cluster {
    let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
    let table = cluster.table(spec.clone());
    let mut random = Xoshiro256::new(seed ^ 0x000D_E1E7);
    cluster.programs((0..SIZE.workers).map(|worker| program(&mut random, worker, spec, table)).collect());
    cluster.join_server(Span(random.below(60_000_000)));
    cluster.crash_server(random.below(SIZE.servers.into()) as u32, Span(random.below(60_000_000)));
    cluster
}

fn deletes(cluster: &Cluster) -> usize {
    let is_delete = |entry: &&Entry| matches!(entry.event, HistoryEvent::RowsDeleted { .. });
    cluster.history().entries.iter().filter(is_delete).count()
}

#[test]
fn deleted_rows_stay_deleted_until_a_push_when_a_server_is_lost() {
    for_seeds("deletes, servers lost", |seed| {
        let mut cluster = servers_come_and_go(seed, &each_table(seed), program);
        cluster.run();
        cluster.check(one_head_at_a_time());
        cluster.check(rows_are_as_their_writer_left_them());
        cluster.check(all_finished());
        assert!(deletes(&cluster) > 10, "seed {seed}: {} deletes", deletes(&cluster));
        cluster
    });
}

#[test]
fn deletes_of_a_clock_follow_its_update_when_a_server_is_lost() {
    for_seeds("deletes by clock, servers lost", |seed| {
        let mut cluster = servers_come_and_go(seed, &clock_table(seed), program);
        cluster.run();
        cluster.check(one_head_at_a_time());
        cluster.check(deletes_follow_the_update_of_their_clock());
        cluster.check(all_finished());
        assert!(deletes(&cluster) > 10, "seed {seed}: {} deletes", deletes(&cluster));
        cluster
    });
}

/// The keys that were pushed to in a clock after that of their last delete: only these have rows at
/// the end, in a table that combines by clock.
fn keys_with_rows(cluster: &Cluster) -> BTreeSet<u64> {
    let mut pushed: BTreeMap<u64, Clock> = BTreeMap::new();
    let mut deleted: BTreeMap<u64, Clock> = BTreeMap::new();
    for entry in &cluster.history().entries {
        let (last, clock, keys) = match &entry.event {
            HistoryEvent::Pushed { clock, keys, .. } => (&mut pushed, clock, keys),
            HistoryEvent::RowsDeleted { clock, keys, .. } => (&mut deleted, clock, keys),
            _ => continue,
        };
        // Each key has one writer, whose clocks rise.
        last.extend(keys.iter().map(|key| (*key, *clock)));
    }
    pushed.retain(|key, clock| deleted.get(key).is_none_or(|deleted| *clock > *deleted));
    pushed.into_keys().collect()
}

/// The reads of the end, each by key. Scans and pulls.
fn last_reads(cluster: &Cluster) -> [Vec<BTreeMap<u64, Vec<f64>>>; 2] {
    let mut asked: BTreeMap<(u32, worker::TicketId), usize> = BTreeMap::new();
    let mut reads = [Vec::new(), Vec::new()];
    for entry in &cluster.history().entries {
        match &entry.event {
            HistoryEvent::PullIssued { ticket, keys, last: true, .. } => {
                asked.insert((entry.worker, *ticket), usize::from(!keys.is_empty()));
            }
            HistoryEvent::PullReturned { ticket, read } => {
                let Some(kind) = asked.get(&(entry.worker, *ticket)) else { continue };
                let width = read.values.len() / read.keys.len().max(1);
                let rows = read.values.chunks(width.max(1)).map(<[f64]>::to_vec);
                reads[*kind].push(read.keys.iter().copied().zip(rows).collect());
            }
            _ => {}
        }
    }
    reads
}

#[test]
fn deleted_rows_read_as_never_pushed_with_lossy_codecs_when_a_server_is_lost() {
    let deltas = Cell::new(0);
    let seeds = for_seeds("deletes by clock, lossy, servers lost", |seed| {
        let mut cluster = servers_come_and_go(seed, &lossy_table(seed), lossy_program);
        cluster.run();
        cluster.check(one_head_at_a_time());
        cluster.check(all_finished());
        let expected = keys_with_rows(&cluster);
        let [scans, pulls] = last_reads(&cluster);
        assert!(!scans.is_empty() && !pulls.is_empty(), "seed {seed}");
        for scan in scans {
            assert_eq!(scan.into_keys().collect::<BTreeSet<_>>(), expected, "seed {seed}");
        }
        for (key, row) in pulls.iter().flatten().filter(|(key, _)| !expected.contains(key)) {
            assert!(row.iter().all(|value| *value == 0.0), "seed {seed}: key {key} was deleted, and reads {row:?}");
        }
        let of = |worker| cluster.worker_counts(worker).deltas;
        deltas.set(deltas.get() + (0..SIZE.workers).map(of).sum::<u64>());
        cluster
    });
    assert!(deltas.get() >= seeds, "{} deltas in {seeds} seeds", deltas.get());
}

/// A run whose codec holds back every push, so that only residuals have the numbers. In its first
/// clock every worker deletes two of its rows, each between rows that stay.
fn held_back(seed: u64, spec: &TableSpec) -> Cluster {
    let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
    let table = cluster.table(spec.clone());
    let mut random = Xoshiro256::new(seed ^ 0x0000_4E1D);
    let mut program = |worker: u32| {
        let own = own_keys(worker);
        let mut steps = vec![Action::MakeTable(table), Action::push(table, &own, Write::Ones)];
        steps.extend([Action::Delete { table, keys: vec![own[1], own[3]] }, Action::EndClock]);
        for _ in 1..20 {
            steps.push(Action::Compute(Span(random.below(6_000_000))));
            steps.push(Action::push(table, &[own[0], own[2], own[4]], Write::Ones));
            // No worker is ahead of the others by more than the slack.
            steps.extend([Action::pull(table, &[own[0]]), Action::EndClock]);
        }
        steps.extend([Action::WaitUntilIdle, Action::Barrier]);
        steps
    };
    cluster.programs((0..SIZE.workers).map(&mut program).collect());
    cluster.checkpoint_every(Span(random.below(20_000_000)), Span::from_millis(5));
    cluster.run();
    cluster.check(all_finished());
    cluster
}

#[test]
fn deleted_rows_stay_deleted_in_a_resumed_run_with_residuals() {
    const SLACK: u64 = 2;
    let resumed = Cell::new(0);
    for combine in [Combine::Each, Combine::Clock(Reduce::Sum)] {
        let spec = TableSpec::sparse("t", 1).ordered().combine(combine).consistency(Consistency::slack(SLACK));
        let spec = spec.codecs(Codecs::up(["threshold=1000000"]));
        let seeds = for_seeds(&format!("deletes, resumed, {combine:?}"), |seed| {
            let first = held_back(seed, &spec);
            let whole = first.saved_checkpoints().iter().filter(|from| from.clock() > Clock(0));
            for from in whole.take(2) {
                let size = RunSize { servers: 2, workers: 2 };
                let mut second = Cluster::resumed(seed, size, Faults::ALL, FAILURE_TIMEOUT, 1, from);
                let table = second.table(spec.clone());
                let mut steps = vec![Action::MakeTable(table)];
                steps.extend(vec![Action::EndClock; SLACK as usize + 1]);
                steps.extend([Action::WaitUntilIdle, Action::Barrier]);
                steps.push(Action::Scan { table, first: 0, end: u64::MAX, last: true });
                second.programs(vec![steps; size.workers as usize]);
                second.run();
                second.check(all_finished());
                let live = (0..SIZE.workers).flat_map(|worker| [0, 2, 4].map(|key| own_keys(worker)[key]));
                let expected: BTreeMap<u64, Vec<f64>> = live.map(|key| (key, vec![from.clock().0 as f64])).collect();
                let [scans, _] = last_reads(&second);
                assert_eq!(scans, [expected.clone(), expected], "seed {seed}, {combine:?}, from {}", from.clock());
                resumed.set(resumed.get() + 1);
            }
            first
        });
        assert!(resumed.get() >= seeds, "{} runs resumed in {seeds} seeds", resumed.get());
        resumed.set(0);
    }
}

/// A server crashes when all deletes are acknowledged, and workers read when another has taken its
/// place. Only the rows show whether a delete is missing.
fn a_server_crashes_between_deletes_and_reads(seed: u64, sabotage: Option<Sabotage>) -> Cluster {
    let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    let table = cluster.table(each_table(seed).consistency(Consistency::Unbounded));
    let program = |worker: u32| {
        let own = own_keys(worker);
        let mut steps = vec![Action::MakeTable(table)];
        for round in 1..5 {
            let numbers = vec![f64::from(round); own.len() * WIDTH];
            steps.extend([Action::push(table, &own, Write::Numbers(numbers)), Action::WaitUntilIdle]);
            steps.extend([Action::Delete { table, keys: own[1..].to_vec() }, Action::WaitUntilIdle]);
        }
        steps.extend([Action::Barrier, Action::Compute(Span::from_secs(2)), Action::pull_last(table, &all_keys())]);
        steps
    };
    cluster.programs((0..SIZE.workers).map(program).collect());
    let mut random = Xoshiro256::new(seed ^ 0x7A11);
    cluster.crash_server(random.below(SIZE.servers.into()) as u32, Span(1_000_000_000));
    cluster
}

#[test]
fn deletes_acknowledged_before_the_tail_has_them_are_noticed() {
    let sabotage = Sabotage::AcknowledgeForTheTail;
    caught_by(rows_are_as_their_writer_left_them, sabotage, |seed, broken| {
        a_server_crashes_between_deletes_and_reads(seed, broken.then_some(sabotage))
    });
}

/// A worker makes and deletes many rows at a time, with new keys each time.
fn filled_and_emptied(seed: u64) -> Cluster {
    const ROWS: u64 = 40_000;
    let size = types::RunSize { servers: 2, workers: 1 };
    let mut cluster = Cluster::elastic(seed, size, Faults::NONE, FAILURE_TIMEOUT, 2);
    let table = cluster.table(TableSpec::sparse("t", 1).number(NumberType::F64).consistency(Consistency::Unbounded));
    let mut steps = vec![Action::MakeTable(table)];
    for round in 0..3 {
        let keys: Vec<u64> = (round * ROWS..(round + 1) * ROWS).collect();
        steps.push(Action::push(table, &keys, Write::Numbers(vec![1.0; keys.len()])));
        steps.extend([Action::WaitUntilIdle, Action::Delete { table, keys }, Action::WaitUntilIdle]);
    }
    // When a few rows more are acknowledged, the last delete is on all replicas.
    steps.push(Action::push(table, &[1, 2, 3], Write::Numbers(vec![1.0; 3])));
    steps.push(Action::WaitUntilIdle);
    cluster.programs(vec![steps]);
    cluster.run();
    cluster
}

#[test]
fn replicas_free_the_memory_of_deleted_rows() {
    for seed in 0..4 {
        let cluster = filled_and_emptied(seed);
        for server in 0..2 {
            let counts = cluster.server_counts(server).shards;
            assert!(counts.rows <= 6, "seed {seed}: {} rows", counts.rows);
            assert!(counts.slots < 1_000, "seed {seed}: server {server} has {} slots", counts.slots);
        }
    }
}
