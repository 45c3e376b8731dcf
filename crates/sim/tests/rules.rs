//! Rules beyond bounds and clocks: order, refusals, scans, leaving, late tables, barriers and
//! settings.

use sim::*;
use types::{Combine, Consistency, NumberType, Reduce, Span, TableSpec, UpdaterSpec};
use wire::{Keys, Refusal};

const SIZE: RunSize = RunSize { servers: 3, workers: 4 };

fn marked(consistency: Consistency) -> TableSpec {
    TableSpec::sparse("t", SIZE.workers).number(NumberType::I64).consistency(consistency)
}

/// A cluster that runs one table's random programs.
fn run(seed: u64, faults: Faults, spec: &TableSpec, work: &Workload) -> Cluster {
    let mut cluster = Cluster::new(seed, SIZE, faults);
    let table = cluster.table(spec.clone());
    cluster.programs(work.programs(seed, SIZE, table, spec));
    cluster.run();
    cluster.check(all_finished());
    cluster.check(no_acknowledged_push_lost_or_doubled());
    cluster.check(reported_clock_is_true());
    cluster.check(fifo_per_worker());
    cluster
}

#[test]
fn unbounded_tables_lose_nothing() {
    for_seeds("unbounded", |seed| run(seed, Faults::ALL, &marked(Consistency::Unbounded), &Workload::default()));
}

/// Each shard counts every example once, even if parts that carry the count are refused, lost or
/// repeated. FTRL needs the count: its ℓ1 grows with the examples.
#[test]
fn every_shard_counts_every_example_once() {
    let ftrl = UpdaterSpec::Ftrl { rate: 0.1, beta: 1.0, l1: 0.01, l2: 0.0 };
    for combine in [Combine::Each, Combine::Clock(Reduce::Sum)] {
        let spec = TableSpec::sparse("t", SIZE.workers).consistency(Consistency::slack(1)).updater(ftrl.clone());
        let spec = spec.combine(combine);
        // A failed clock is skipped with its examples.
        let nan = if combine == Combine::Each { 0.2 } else { 0.0 };
        for_seeds(&format!("examples, {combine:?}"), |seed| {
            let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
            let table = cluster.table(spec.clone());
            cluster.programs(Workload { nan, ..Workload::default() }.programs(seed, SIZE, table, &spec));
            cluster.run();
            cluster.check(all_finished());
            // A push is computed from as many examples as it has rows.
            let pushed = |entry: &Entry| {
                if let HistoryEvent::Pushed { keys, .. } = &entry.event { keys.len() as u64 } else { 0 }
            };
            let made: u64 = cluster.history().entries.iter().map(pushed).sum();
            for server in 0..SIZE.servers {
                assert_eq!(cluster.server_counts(server).shards.examples, made, "server {server}");
            }
            cluster
        });
    }
}

#[test]
fn delayed_tables_lose_nothing() {
    for_seeds("delay 1, shared rows", |seed| {
        run(seed, Faults::ALL, &marked(Consistency::Delay { tau: 1 }), &Workload::default())
    });
}

/// Connections that keep order and lose nothing until they break need no resend timer: workers
/// resend when they are connected again.
#[test]
fn connections_that_break_need_no_resend_timer() {
    for_seeds("bounded, slack 1, connections break", |seed| {
        let cluster = run(seed, Faults::CONNECTIONS, &marked(Consistency::slack(1)), &Workload::default());
        assert!(cluster.worker_settings().resend_after.is_none());
        cluster.check(staleness_at_most(1));
        cluster.check(reads_own_writes());
        cluster
    });
}

/// A refresh that is lost with its connection leaves a gap in the sequence, which the next refresh
/// shows.
#[test]
fn eager_rows_survive_connections_that_break() {
    let eager = Consistency::Bounded { slack: 2, eager: true };
    let hasty = Workload { waits: 0.2, ..Workload::default() };
    for combine in [Combine::Each, Combine::Clock(Reduce::Sum)] {
        let spec = marked(eager).combine(combine).cached(50);
        for_seeds(&format!("eager, slack 2, {combine:?}, connections break"), |seed| {
            let cluster = run(seed, Faults::CONNECTIONS, &spec, &hasty);
            cluster.check(staleness_at_most(2));
            cluster.check(reads_own_writes());
            cluster.check(reads_hold_exactly_the_clocks_below_the_reported_one());
            cluster
        });
    }
}

/// A subscription covers keys without a row too: a key that is never written does not make the
/// others be read again.
#[test]
fn a_key_without_a_row_does_not_stop_the_refreshes() {
    let mut cluster = Cluster::new(0, RunSize { servers: 1, workers: 2 }, Faults::NONE);
    let eager = Consistency::Bounded { slack: 0, eager: true };
    let table = cluster.table(TableSpec::sparse("t", 1).number(NumberType::F64).consistency(eager).cached(10));
    let wait = Action::Compute(Span::from_millis(50));
    let mut reader = vec![Action::MakeTable(table), Action::Barrier, Action::pull(table, &[0, 1, 2])];
    let mut writer = vec![Action::MakeTable(table), Action::Barrier, wait.clone()];
    for key in [0, 1, 0] {
        writer.extend([
            Action::push(table, &[key], Write::Numbers(vec![1.0])),
            Action::EndClock,
            wait.clone(),
            wait.clone(),
        ]);
        let arrive = Action::Compute(Span::from_millis(20));
        reader.extend([wait.clone(), wait.clone(), Action::EndClock, arrive, Action::pull(table, &[0, 1, 2])]);
    }
    cluster.programs(vec![reader, writer]);
    cluster.run();
    let reads: Vec<_> = (cluster.history().entries.iter())
        .filter_map(|entry| match &entry.event {
            HistoryEvent::PullReturned { read, .. } => Some((read.values.clone(), read.cached_rows)),
            _ => None,
        })
        .collect();
    let order = |zero: f64, one: f64| {
        Keys::distinct(types::Placement::Spread, &[0, 1, 2]).ids().map(|id| [zero, one, 0.0][id as usize]).collect()
    };
    // Refreshes bring every clock after the first, although key 2 has no row and key 1 gets one
    // late.
    assert_eq!(reads, [(order(0.0, 0.0), 0), (order(1.0, 0.0), 3), (order(1.0, 1.0), 3), (order(2.0, 1.0), 3)]);
}

#[test]
fn forgotten_key_lists_are_spelt_out_again() {
    let faults = Faults { forgetting: 0.5, ..Faults::ALL };
    let work = Workload { keys: (0..40).collect(), tasks: 6, ..Workload::default() };
    for_seeds("bounded, slack 1, many lists, half of them forgotten", |seed| {
        let cluster = run(seed, faults, &marked(Consistency::slack(1)), &work);
        cluster.check(staleness_at_most(1));
        cluster.check(reads_own_writes());
        assert!(cluster.fault_counts().forgotten > 0);
        cluster
    });
}

/// Programs of tasks with a row each, so that the checkers can tell their frames apart.
fn tasks(cluster: &mut Cluster, seed: u64, table: TableIndex, follow: bool) {
    let mut random = Xoshiro256::new(seed);
    for worker in 0..SIZE.workers {
        let mut steps = vec![Action::MakeTable(table)];
        for task in 0..12usize {
            let keys = vec![u64::from(worker) * 100 + task as u64];
            let after = if follow && task > 0 && random.chance(0.5) {
                vec![random.below(task as u64) as usize]
            } else {
                Vec::new()
            };
            steps.push(Action::Push { table, keys, write: Write::Marks, after });
            if random.chance(0.2) {
                steps.push(Action::Compute(Span(random.below(5_000_000))));
            }
        }
        steps.extend([Action::EndClock, Action::WaitUntilIdle]);
        cluster.program(worker, steps);
    }
}

fn delayed(seed: u64, tau: u64, sabotage: Option<Sabotage>) -> Cluster {
    let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
    let dense = TableSpec::dense("t", 400, SIZE.workers).number(NumberType::I64);
    let table = cluster.table(dense.consistency(Consistency::Delay { tau }));
    tasks(&mut cluster, seed, table, false);
    match sabotage {
        None => cluster.run(),
        Some(sabotage) => {
            cluster.sabotage(sabotage);
            // The worker never resends a push that it believes to be acknowledged, so the run may
            // not end.
            let _ = cluster.try_run();
        }
    }
    cluster
}

#[test]
fn a_task_waits_for_the_tasks_before_its_delay() {
    for tau in [0, 2] {
        for_seeds(&format!("delay {tau}"), |seed| {
            let cluster = delayed(seed, tau, None);
            cluster.check(all_finished());
            cluster.check(delay_at_most(tau));
            cluster
        });
    }
    let caught = some_seed(|seed| delayed(seed, 0, Some(Sabotage::AcknowledgeUnseen)).violation(delay_at_most(0)));
    println!("{}", caught.expect("a worker that does not wait is caught"));
}

fn following(seed: u64, sabotage: Option<Sabotage>) -> Cluster {
    let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
    let dense = TableSpec::dense("t", 400, SIZE.workers).number(NumberType::I64);
    let table = cluster.table(dense.consistency(Consistency::slack(1)));
    tasks(&mut cluster, seed, table, true);
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    cluster.run();
    cluster
}

#[test]
fn a_task_follows_the_tickets_it_names() {
    for_seeds("tickets as dependencies", |seed| {
        let cluster = following(seed, None);
        cluster.check(all_finished());
        cluster.check(runs_after());
        cluster
    });
    let caught = some_seed(|seed| following(seed, Some(Sabotage::IgnoreAfter)).violation(runs_after()));
    println!("{}", caught.expect("a worker that ignores what it follows is caught"));
}

/// Pushes to shared rows that must follow other operations, and reads among them.
#[test]
fn a_read_holds_own_pushes_that_had_to_wait() {
    for_seeds("bounded, slack 1, pushes that follow others", |seed| {
        let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
        let table = cluster.table(marked(Consistency::slack(1)));
        let mut random = Xoshiro256::new(seed);
        for worker in 0..SIZE.workers {
            let mut steps = vec![Action::MakeTable(table)];
            for task in 0..16usize {
                let keys = random.some_of(&[0, 1, 2, 3], 0.5);
                if random.chance(0.4) {
                    steps.push(Action::pull_later(table, &keys));
                } else {
                    let after = if task > 0 { vec![random.below(task as u64) as usize] } else { Vec::new() };
                    steps.push(Action::Push { table, keys, write: Write::Marks, after });
                }
            }
            steps.push(Action::EndClock);
            cluster.program(worker, steps);
        }
        cluster.run();
        cluster.check(all_finished());
        cluster.check(reads_own_writes());
        cluster.check(no_acknowledged_push_lost_or_doubled());
        cluster
    });
}

fn assigning(seed: u64, sabotage: Option<Sabotage>) -> Cluster {
    let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
    let spec = TableSpec::sparse("t", 1).updater(UpdaterSpec::Assign).consistency(Consistency::slack(2));
    let table = cluster.table(spec);
    let mut random = Xoshiro256::new(seed);
    for worker in 0..SIZE.workers {
        let mut steps = vec![Action::MakeTable(table)];
        for clock in 0..6u32 {
            steps.push(Action::Compute(Span(random.below(3_000_000))));
            for round in 0..2 {
                let value = f64::from(clock * 2 + round + 1);
                steps.push(Action::push(table, &[u64::from(worker)], Write::Numbers(vec![value])));
                steps.push(Action::pull(table, &random.some_of(&[0, 1, 2, 3], 0.6)));
            }
            steps.push(Action::EndClock);
        }
        steps.extend([Action::WaitUntilIdle, Action::Barrier, Action::pull_last(table, &[0, 1, 2, 3])]);
        cluster.program(worker, steps);
    }
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    cluster.run();
    cluster
}

fn last_reads(cluster: &Cluster) -> Vec<&ReadRecord> {
    let mut last = Vec::new();
    let mut reads = Vec::new();
    for entry in &cluster.history().entries {
        match &entry.event {
            HistoryEvent::PullIssued { ticket, last: true, .. } => last.push((entry.worker, *ticket)),
            HistoryEvent::PullReturned { ticket, read } if last.contains(&(entry.worker, *ticket)) => reads.push(read),
            _ => {}
        }
    }
    reads
}

#[test]
fn assigned_values_keep_their_workers_order() {
    for_seeds("assign, one writer a row", |seed| {
        let cluster = assigning(seed, None);
        cluster.check(all_finished());
        cluster.check(assigned_values_never_go_back());
        assert!(last_reads(&cluster).iter().all(|read| read.values == [12.0; 4]), "seed {seed}: the last value stays");
        cluster
    });
    let broken = |seed| assigning(seed, Some(Sabotage::AcknowledgeWithoutApplying));
    let caught = some_seed(|seed| broken(seed).violation(assigned_values_never_go_back()));
    println!("{}", caught.expect("a row that goes back is caught"));
}

#[test]
fn a_full_shard_refuses_new_rows_and_keeps_its_rows() {
    let spec = marked(Consistency::slack(1)).max_rows(3);
    for_seeds("bounded, slack 1, three rows a shard", |seed| {
        let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
        let table = cluster.table(spec.clone());
        let mut random = Xoshiro256::new(seed);
        let keys: Vec<u64> = (0..30).collect();
        for worker in 0..SIZE.workers {
            let mut steps = vec![Action::MakeTable(table)];
            for _ in 0..5 {
                for _ in 0..3 {
                    steps.push(Action::push(table, &[random.below(30)], Write::Marks));
                }
                steps.push(Action::pull(table, &random.some_of(&keys, 0.3)));
                steps.push(Action::EndClock);
            }
            steps.extend(Workload { keys: keys.clone(), ..Workload::default() }.ending(&spec, table));
            cluster.program(worker, steps);
        }
        cluster.run();
        cluster.check(all_finished());
        cluster.check(no_acknowledged_push_lost_or_doubled());
        cluster.check(staleness_at_most(1));
        let full = |event: &HistoryEvent| {
            matches!(event, HistoryEvent::PushDone { refusal: Some(Refusal::TooManyRows { max_rows: 3 }), .. })
        };
        assert!(cluster.history().entries.iter().any(|entry| full(&entry.event)), "seed {seed}: a shard was full");
        assert!((0..SIZE.servers).all(|server| cluster.server_counts(server).shards.rows <= 3));
        cluster
    });
}

#[test]
fn a_scan_finds_every_row_of_its_range_in_order() {
    for_seeds("scan of an ordered table", |seed| {
        let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
        let spec = marked(Consistency::slack(0)).ordered();
        let table = cluster.table(spec.clone());
        let mut random = Xoshiro256::new(seed);
        // Keys on all servers: an ordered table is cut into equal ranges of u64.
        let keys: Vec<u64> = (0..12).map(|index| index * (u64::MAX / 12) + random.below(1_000)).collect();
        for worker in 0..SIZE.workers {
            let mut steps = vec![Action::MakeTable(table)];
            for _ in 0..3 {
                steps.push(Action::push(table, &random.some_of(&keys, 0.5), Write::Marks));
                steps.push(Action::Scan { table, first: keys[2], end: keys[9], last: false });
                steps.push(Action::EndClock);
            }
            steps.extend([Action::push(table, &keys[..], Write::Marks), Action::EndClock]);
            steps.extend([Action::WaitUntilIdle, Action::Barrier]);
            steps.push(Action::Scan { table, first: keys[2], end: keys[9], last: true });
            cluster.program(worker, steps);
        }
        cluster.run();
        cluster.check(all_finished());
        cluster.check(no_acknowledged_push_lost_or_doubled());
        cluster.check(staleness_at_most(0));
        cluster.check(reads_own_writes());
        assert!(last_reads(&cluster).iter().all(|read| read.keys == keys[2..=9]), "seed {seed}: all rows, in order");
        cluster
    });
}

/// Seed 2: a server missed that a worker had left, and its frontier stood still for ever.
#[test]
fn a_worker_that_leaves_early_does_not_hold_the_others() {
    for combine in [Combine::Each, Combine::Clock(Reduce::Sum)] {
        for_seeds(&format!("a worker leaves early, {combine:?}"), |seed| {
            let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
            let spec = marked(Consistency::slack(1)).combine(combine);
            let table = cluster.table(spec.clone());
            let mut programs = Workload::default().programs(seed, SIZE, table, &spec);
            let ends = programs[2].iter().position(|step| *step == Action::EndClock).expect("it has clocks");
            programs[2].truncate(ends + 1);
            cluster.programs(programs);
            cluster.run();
            cluster.check(all_finished());
            cluster.check(no_acknowledged_push_lost_or_doubled());
            cluster.check(staleness_at_most(1));
            cluster.check(barriers_hold());
            cluster
        });
    }
}

#[test]
fn a_table_made_in_the_middle_of_a_run_keeps_its_bounds() {
    for_seeds("a table made in the middle", |seed| {
        let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
        let first = marked(Consistency::slack(1));
        let second = TableSpec { name: "late".into(), ..marked(Consistency::slack(1)) };
        let tables = [cluster.table(first.clone()), cluster.table(second.clone())];
        let work = Workload { clocks: 3, ..Workload::default() };
        let mut random = Xoshiro256::new(seed);
        for worker in 0..SIZE.workers {
            let mut steps = vec![Action::MakeTable(tables[0])];
            // Each worker makes the table at a clock of its own. Workers that are ahead wait at
            // their reads, not for the table.
            let makes_at = random.below(3);
            for clock in 0..6 {
                if clock == makes_at {
                    steps.push(Action::MakeTable(tables[1]));
                }
                let table = if clock >= makes_at { tables[random.below(2) as usize] } else { tables[0] };
                steps.extend(work.clock(&mut random, table));
                steps.push(Action::EndClock);
            }
            steps.extend(work.ending(&first, tables[0]));
            steps.push(Action::pull_last(tables[1], &work.keys));
            cluster.program(worker, steps);
        }
        cluster.run();
        cluster.check(all_finished());
        cluster.check(no_acknowledged_push_lost_or_doubled());
        cluster.check(staleness_at_most(1));
        cluster.check(reads_own_writes());
        cluster
    });
}

fn meeting(seed: u64, sabotage: Option<Sabotage>) -> Cluster {
    let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
    let mut random = Xoshiro256::new(seed);
    for worker in 0..SIZE.workers {
        let rounds = if worker == 3 { 2 } else { 5 };
        let pause = |random: &mut Xoshiro256| Action::Compute(Span(random.below(30_000_000)));
        cluster.program(worker, (0..rounds).flat_map(|_| [pause(&mut random), Action::Barrier]).collect());
    }
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    cluster.run();
    cluster
}

#[test]
fn no_worker_passes_a_barrier_alone() {
    for_seeds("barriers, one worker leaves after two", |seed| {
        let cluster = meeting(seed, None);
        cluster.check(all_finished());
        cluster.check(barriers_hold());
        cluster
    });
    let caught = some_seed(|seed| meeting(seed, Some(Sabotage::PassBarriersEarly)).violation(barriers_hold()));
    println!("{}", caught.expect("a barrier that lets a worker pass alone is caught"));
}

/// w −= η Σ g, with η halved from clock 2 on. After four clocks in which four workers push 1:
/// w = −(2 · 4 + 2 · 4 / 2).
fn tuned(seed: u64, sabotage: Option<Sabotage>) -> Cluster {
    let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
    let spec = TableSpec::dense("t", 6, 1)
        .updater(UpdaterSpec::Sgd { rate: 1.0 })
        .combine(Combine::Clock(Reduce::Sum))
        .consistency(Consistency::slack(0));
    let table = cluster.table(spec);
    for worker in 0..SIZE.workers {
        let mut steps = vec![Action::MakeTable(table)];
        for clock in 0..4 {
            if clock == 2 && worker == 1 {
                steps.push(Action::Tune { table, rate: 0.5 });
            }
            steps.push(Action::push(table, &[0, 1, 2, 3, 4, 5], Write::Numbers(vec![1.0; 6])));
            steps.push(Action::EndClock);
            steps.push(Action::pull(table, &[0, 5]));
        }
        cluster.program(worker, steps);
    }
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    cluster.run();
    cluster
}

fn weights(cluster: &Cluster) -> Vec<(u64, Vec<f64>)> {
    let returned = |event: &HistoryEvent| match event {
        HistoryEvent::PullReturned { read, .. } => Some((read.clock.0, read.values.clone())),
        _ => None,
    };
    cluster.history().entries.iter().filter_map(|entry| returned(&entry.event)).collect()
}

#[test]
fn a_new_rate_holds_exactly_from_its_clock() {
    let expected = [0.0, -4.0, -8.0, -10.0, -12.0];
    let wrong = |cluster: &Cluster| {
        weights(cluster).into_iter().find(|(clock, rows)| rows.iter().any(|w| *w != expected[*clock as usize]))
    };
    for_seeds("sgd, clock(sum), a new rate at clock 2", |seed| {
        let cluster = tuned(seed, None);
        cluster.check(all_finished());
        assert_eq!(wrong(&cluster), None, "seed {seed}");
        cluster
    });
    assert!(some_seed(|seed| wrong(&tuned(seed, Some(Sabotage::TuneLate)))).is_some(), "a late rate is caught");
}
