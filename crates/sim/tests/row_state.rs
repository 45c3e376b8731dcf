//! Sets of row state among pushes to the same rows: no set is lost, and sets and pushes of a worker
//! are applied in its order.

mod elastic;

use elastic::{FAILURE_TIMEOUT, SIZE};
use sim::*;
use types::{Consistency, NumberType, Span, TableSpec, UpdaterSpec};

const WIDTH: usize = 2;
/// The number of keys of each worker: no other worker writes them.
const OWN: u64 = 4;

/// A table. The seed chooses its shape, updater and cache.
fn table(seed: u64) -> TableSpec {
    let updater = updaters(seed);
    let rows = OWN * u64::from(SIZE.workers);
    let spec = match seed % 2 {
        0 => TableSpec::sparse("t", WIDTH as u32),
        _ => TableSpec::dense("t", rows, WIDTH as u32),
    };
    let spec = spec.number(NumberType::F64).updater(updater);
    match seed % 3 {
        0 => spec.consistency(Consistency::slack(1)),
        1 => spec.consistency(Consistency::slack(2)).cached(rows),
        _ => spec.consistency(Consistency::Bounded { slack: 1, eager: true }).cached(rows),
    }
}

fn updaters(seed: u64) -> UpdaterSpec {
    match seed % 5 {
        0 => UpdaterSpec::Sum,
        1 => UpdaterSpec::Assign,
        2 => UpdaterSpec::Momentum { rate: 0.5, momentum: 0.5 },
        3 => UpdaterSpec::Adagrad { rate: 0.5, epsilon: 1e-8 },
        _ => UpdaterSpec::Adam { rate: 0.5, beta1: 0.5, beta2: 0.75, epsilon: 1e-8 },
    }
}

/// Pushes to own rows and sets them, in random order, and reads them and rows of other workers.
fn program(random: &mut Xoshiro256, worker: u32, spec: &TableSpec, table: TableIndex, slack: usize) -> Vec<Action> {
    let stored = update::row_state_width(spec).expect("built in");
    let own: Vec<u64> = (0..OWN).map(|key| u64::from(worker) * OWN + key).collect();
    let all: Vec<u64> = (0..OWN * u64::from(SIZE.workers)).collect();
    let numbers =
        |random: &mut Xoshiro256, count: usize| (0..count).map(|_| 1.0 + random.below(64) as f64 / 8.0).collect();
    let mut steps = vec![Action::MakeTable(table)];
    for _ in 0..8 {
        steps.push(Action::Compute(Span(random.below(3_000_000))));
        for _ in 0..6 {
            let keys = random.some_of(&own, 0.5);
            steps.push(match random.below(6) {
                0 | 1 => Action::Push {
                    table,
                    write: Write::Numbers(numbers(random, keys.len() * WIDTH)),
                    keys,
                    after: Vec::new(),
                },
                2 | 3 => Action::Set { table, rows: numbers(random, keys.len() * stored), keys },
                4 => Action::pull(table, if random.chance(0.5) { &all } else { &own }),
                _ => Action::PullRowState { table, keys: own.clone(), last: false },
            });
        }
        steps.push(Action::EndClock);
    }
    steps.extend(vec![Action::EndClock; slack + 1]);
    steps.extend([Action::WaitUntilIdle, Action::Barrier, Action::pull_last(table, &all)]);
    steps.extend([Action::PullRowState { table, keys: all, last: true }, Action::Barrier]);
    steps
}

fn programs(seed: u64, spec: &TableSpec, table: TableIndex) -> Vec<Vec<Action>> {
    let mut random = Xoshiro256::new(seed ^ 0x0005_E7D0);
    let slack = spec.consistency.bound().unwrap_or(0) as usize;
    (0..SIZE.workers).map(|worker| program(&mut random, worker, spec, table, slack)).collect()
}

/// A server crashes and another one joins while the run lasts. Every shard has two replicas.
fn servers_come_and_go(seed: u64, sabotage: Option<Sabotage>) -> Cluster {
    let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    let spec = table(seed);
    let table = cluster.table(spec.clone());
    cluster.programs(programs(seed, &spec, table));
    let mut random = Xoshiro256::new(seed ^ 0x5E12_7E12);
    cluster.join_server(Span(random.below(60_000_000)));
    cluster.crash_server(random.below(SIZE.servers.into()) as u32, Span(random.below(60_000_000)));
    cluster
}

fn sets_and_row_state_reads(cluster: &Cluster) -> (usize, usize) {
    let events = || cluster.history().entries.iter().map(|entry| &entry.event);
    let sets = events().filter(|event| matches!(event, HistoryEvent::RowsSet { .. })).count();
    (sets, events().filter(|event| matches!(event, HistoryEvent::RowStateReturned { .. })).count())
}

#[test]
fn sets_and_pushes_keep_their_order_when_a_server_is_lost() {
    for_seeds("rows set, servers lost", |seed| {
        let mut cluster = servers_come_and_go(seed, None);
        cluster.run();
        cluster.check(one_head_at_a_time());
        cluster.check(rows_are_as_their_writer_left_them());
        cluster.check(all_finished());
        let (sets, reads) = sets_and_row_state_reads(&cluster);
        assert!(sets > 10 && reads > 10, "seed {seed}: {sets} sets and {reads} reads of row state");
        cluster
    });
}

/// A server crashes when all sets are acknowledged, and workers read when another has taken its
/// place. Only the rows show whether a set is missing.
fn a_server_crashes_between_sets_and_reads(seed: u64, sabotage: Option<Sabotage>) -> Cluster {
    let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    let spec = table(seed).consistency(Consistency::Unbounded);
    let stored = update::row_state_width(&spec).expect("built in");
    let table = cluster.table(spec);
    let all: Vec<u64> = (0..OWN * u64::from(SIZE.workers)).collect();
    let program = |worker: u32| {
        let own: Vec<u64> = (0..OWN).map(|key| u64::from(worker) * OWN + key).collect();
        let mut steps = vec![Action::MakeTable(table)];
        for round in 1..7 {
            let rows = vec![f64::from(round); own.len() * stored];
            steps.extend([Action::Set { table, keys: own.clone(), rows }, Action::WaitUntilIdle]);
        }
        steps.extend([Action::Barrier, Action::Compute(Span::from_secs(2))]);
        steps.push(Action::PullRowState { table, keys: all.clone(), last: true });
        steps
    };
    cluster.programs((0..SIZE.workers).map(program).collect());
    let mut random = Xoshiro256::new(seed ^ 0x7A11);
    cluster.crash_server(random.below(SIZE.servers.into()) as u32, Span(1_000_000_000));
    cluster
}

#[test]
fn sets_acknowledged_before_the_tail_has_them_are_noticed() {
    let sabotage = Sabotage::AcknowledgeForTheTail;
    caught_by(rows_are_as_their_writer_left_them, sabotage, |seed, broken| {
        a_server_crashes_between_sets_and_reads(seed, broken.then_some(sabotage))
    });
}

#[test]
fn reads_that_do_not_wait_for_own_sets_are_noticed() {
    let sabotage = Sabotage::ForgetOwnPushes;
    caught_by(rows_are_as_their_writer_left_them, sabotage, |seed, broken| {
        servers_come_and_go(seed, broken.then_some(sabotage))
    });
}
