//! What the tables promise, through the public client and with real threads.

#[path = "../../net/tests/logged/mod.rs"]
mod logged;

use logged::Log;
use slackwater::{
    Combine, Consistency, Initial, Keys, Number, NumberType, Reduce, Registry, Rows, Session, Shape, Table, TableSpec,
    Ticket, Tickets, Traffic, UpdaterSpec, WorkerCounts,
};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Runs `program` as every worker of an embedded run; results by rank.
fn run<R: Send>(servers: u32, workers: u32, program: impl Fn(&Session) -> R + Sync) -> Vec<R> {
    let sessions = Session::embedded(Shape { servers, workers }).expect("a run");
    std::thread::scope(|scope| {
        let program = &program;
        let threads: Vec<_> = sessions
            .into_iter()
            .map(|session| {
                scope.spawn(move || {
                    let result = program(&session);
                    session.close().expect("left");
                    result
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn alone<R: Send>(program: impl Fn(&Session) -> R + Sync) -> R {
    run(2, 1, program).remove(0)
}

macro_rules! read {
    ($ticket:expr) => {
        $ticket.expect("asked").wait().expect("read")
    };
}

fn done(ticket: Result<Ticket<()>, slackwater::Error>) {
    ticket.expect("sent").wait().expect("done");
}

fn counts(name: &str, rows: u64) -> TableSpec {
    TableSpec::dense(name, rows, 1).number(NumberType::I64)
}

/// Uneven work, from a seed.
fn dawdle(rank: u32, clock: u64) {
    let mix = (u64::from(rank) * 31 + clock * 17 + 7).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60;
    std::thread::sleep(Duration::from_micros(mix * 150));
}

#[test]
fn no_read_is_further_behind_than_the_slack() {
    const WORKERS: u64 = 4;
    for slack in [0, 1, 3] {
        run(2, WORKERS as u32, |session| {
            // Row w counts the clocks of worker w.
            let table =
                session.table::<i64>(counts("clocks", WORKERS).consistency(Consistency::slack(slack))).expect("made");
            let own = u64::from(session.rank());
            for clock in 0..40u64 {
                drop(table.push_range(own..own + 1, vec![1]).expect("sent"));
                let rows = read!(table.pull_range(0..WORKERS));
                assert!(rows.staleness() <= slack, "{} clocks behind with slack {slack}", rows.staleness());
                assert_eq!(rows.values()[own as usize], clock as i64 + 1, "read my writes");
                for count in rows.values() {
                    // Every update of clocks ≤ c − s − 1 is in, and nobody is more than s + 1 clocks ahead of the frontier.
                    assert!(*count >= clock as i64 - slack as i64, "{:?} at clock {clock}", rows.values());
                    assert!(*count >= rows.clock().0 as i64, "{:?} says {}", rows.values(), rows.clock());
                }
                dawdle(session.rank(), clock);
                session.clock().expect("ended");
            }
            let staleness = session.counts().staleness;
            assert_eq!(staleness[slack as usize + 1..].iter().sum::<u64>(), 0, "{staleness:?}");
        });
    }
}

#[test]
fn a_clock_of_sums_or_means_is_exact_and_alike_for_everybody() {
    const WORKERS: u32 = 3;
    for (reduce, shares) in [(Reduce::Sum, 1), (Reduce::Mean, WORKERS)] {
        let seen = run(2, WORKERS, |session| {
            let spec = TableSpec::dense("gradients", 4, 1).number(NumberType::F64).combine(Combine::Clock(reduce));
            let table = session.table::<f64>(spec).expect("made");
            let mut seen = Vec::new();
            for clock in 0..12u64 {
                // Worker 2 has nothing to say in odd clocks: a mean divides by the workers all the same.
                if session.rank() < 2 || clock.is_multiple_of(2) {
                    done(table.push_range(0..4, vec![3.0 * f64::from(session.rank() + 1); 4]));
                }
                dawdle(session.rank(), clock);
                session.clock().expect("ended");
                let rows = read!(table.pull_range(0..4));
                assert_eq!(rows.clock().0, clock + 1, "exactly the clocks below the frontier");
                seen.push(rows.into_values());
            }
            seen
        });
        let per_clock = |clock: u64| if clock.is_multiple_of(2) { 18.0 } else { 9.0 } / f64::from(shares);
        let mut total = 0.0;
        for clock in 0..12 {
            total += per_clock(clock);
            for of_worker in &seen {
                assert_eq!(of_worker[clock as usize], vec![total; 4], "{reduce:?} after clock {clock}");
            }
        }
    }
}

/// Reads the same rows in every clock while everybody changes a few of them. Returns what worker 0 did and moved.
fn read_again_and_again(eager: bool) -> (WorkerCounts, Traffic) {
    const ROWS: u64 = 1_000;
    let mut results = run(2, 3, |session| {
        let spec = TableSpec::sparse("rows", 8).consistency(Consistency::Bounded { slack: 1, eager }).cached(ROWS);
        let table = session.table::<f32>(spec).expect("made");
        let all = table.keys(&(0..ROWS).collect::<Vec<_>>());
        done(table.push(&all, vec![0.0; ROWS as usize * 8]));
        session.barrier().expect("all rows are there");
        for clock in 0..40 {
            read!(table.pull(&all));
            let few: Vec<u64> = (0..20).map(|n| (clock * 37 + n * 7 + u64::from(session.rank())) % ROWS).collect();
            let few = table.keys(&few);
            done(table.push(&few, vec![1.0; few.len() * 8]));
            session.clock().expect("ended");
            // Somebody who computes for a while, so that refreshes can arrive.
            std::thread::sleep(Duration::from_millis(10));
        }
        (session.counts(), session.traffic())
    });
    results.remove(0)
}

#[test]
fn eager_refreshes_answer_a_repeated_read_from_the_cache() {
    let rate = |counts: &WorkerCounts| counts.rows_cached as f64 / counts.rows_read as f64;
    let (eager, eager_moved) = read_again_and_again(true);
    let (lazy, lazy_moved) = read_again_and_again(false);
    println!(
        "hit rate: eager {:.3}, lazy {:.3}; bytes in: eager {}, lazy {}; refreshes {}",
        rate(&eager),
        rate(&lazy),
        eager_moved.bytes_in,
        lazy_moved.bytes_in,
        eager.refreshes
    );
    assert!(rate(&eager) >= 0.9, "eager hit rate {:.3}", rate(&eager));
    assert!(eager.refreshes > 0 && lazy.refreshes == 0);
}

#[test]
fn own_pushes_are_read_whatever_the_updater_and_the_cache() {
    let sgd = UpdaterSpec::Sgd { rate: 0.5 };
    let adagrad = UpdaterSpec::Adagrad { rate: 0.5, epsilon: 0.0 };
    let specs = [
        (TableSpec::sparse("sum", 1), [2.0, 4.0, 6.0]),
        (TableSpec::sparse("cached", 1).cached(100), [2.0, 4.0, 6.0]),
        (TableSpec::sparse("sgd", 1).updater(sgd.clone()), [-1.0, -2.0, -3.0]),
        (TableSpec::sparse("cached sgd", 1).updater(sgd).cached(100), [-1.0, -2.0, -3.0]),
        (TableSpec::sparse("assign", 1).updater(UpdaterSpec::Assign).cached(100), [2.0, 2.0, 2.0]),
        (
            TableSpec::sparse("adagrad", 1).updater(adagrad).cached(100),
            // w −= η g / √(Σ g²): 1/√1, 1/√2, 1/√3 of a half each.
            [-0.5, -0.5 - 0.5 / 2f32.sqrt(), -0.5 - 0.5 / 2f32.sqrt() - 0.5 / 3f32.sqrt()],
        ),
    ];
    alone(|session| {
        for (spec, expected) in &specs {
            let table = session.table::<f32>(spec.clone().consistency(Consistency::slack(2))).expect("made");
            let keys = table.keys(&[11, 22]);
            for value in expected {
                // Not waited for: the read must find it all the same.
                drop(table.push(&keys, vec![2.0; 2]).expect("sent"));
                let rows = read!(table.pull(&keys));
                assert!(
                    rows.values().iter().all(|row| (row - value).abs() < 1e-6),
                    "{}: {:?}",
                    spec.name,
                    rows.values()
                );
            }
        }
    });
}

#[test]
fn logs_of_threads_meet_at_a_read_or_a_clock() {
    const THREADS: usize = 4;
    let totals = run(2, 2, |session| {
        let table = session.table::<i64>(counts("logged", 8)).expect("made");
        std::thread::scope(|scope| {
            for thread in 0..THREADS as u64 {
                let mut log = table.log();
                let keys = table.keys(&[thread, thread + 1]);
                scope.spawn(move || (0..50).for_each(|_| log.add(&keys, &[1, 1], 1).expect("fits")));
            }
        });
        let own = read!(table.pull_range(0..8));
        assert!(own.values()[1] >= 100, "a read sees the logs: {:?}", own.values());
        let mut log = table.log();
        log.add(&table.keys(&[7]), &[5], 1).expect("fits");
        session.clock().expect("ended");
        read!(table.pull_range(0..8)).into_values()
    });
    for total in totals {
        assert_eq!(total, [100, 200, 200, 200, 100, 0, 0, 10], "a clock sends the logs");
    }
}

#[test]
fn a_push_pull_holds_its_own_push_under_any_consistency() {
    let rules = [Consistency::LOCK_STEP, Consistency::slack(2), Consistency::Unbounded, Consistency::Delay { tau: 3 }];
    alone(|session| {
        for rule in rules {
            let table = session.table::<i64>(counts(&rule.to_string(), 6).consistency(rule)).expect("made");
            for time in 1..=5 {
                assert_eq!(read!(table.push_pull_range(0..6, vec![1; 6])).values(), [time; 6], "{rule}");
            }
        }
    });
}

#[test]
fn ranges_of_dense_and_ordered_tables() {
    alone(|session| {
        let dense = session.table::<i64>(counts("dense", 100)).expect("made");
        done(dense.push_range(45..55, (45..55).collect::<Vec<_>>()));
        assert_eq!(read!(dense.pull_range(44..47)).values(), [0, 45, 46], "across shards");
        assert_eq!(read!(dense.pull_range(0..100)).values().iter().sum::<i64>(), (45..55).sum::<i64>());
        assert!(read!(dense.pull_range(7..7)).values().is_empty());
        let spec = TableSpec::sparse("ordered", 1).number(NumberType::I64).ordered();
        let ordered = session.table::<i64>(spec).expect("made");
        let half = u64::MAX / 2;
        done(ordered.push(&ordered.keys(&[3, 5, half - 1, half + 2]), vec![30, 50, 60, 70]));
        let rows = read!(ordered.pull_range(4..u64::MAX));
        assert_eq!((rows.ids(), rows.values()), (&[5, half - 1, half + 2][..], &[50, 60, 70][..]));
        let rows = read!(ordered.pull_range(6..7));
        assert!(rows.ids().is_empty() && rows.values().is_empty());
        done(ordered.push_range(5..7, vec![1, 2]));
        let rows = read!(ordered.pull_range(0..10));
        assert_eq!((rows.ids(), rows.values()), (&[3, 5, 6][..], &[30, 51, 2][..]));
    });
}

#[test]
fn a_scan_of_more_than_a_part_comes_whole() {
    const ROWS: u64 = 60_000;
    alone(|session| {
        let ordered =
            session.table::<f64>(TableSpec::sparse("long", 4).number(NumberType::F64).ordered()).expect("made");
        let ids: Vec<u64> = (0..ROWS).map(|id| id * 300_000_000_000_000).collect();
        let values: Vec<f64> = (0..ROWS * 4).map(|n| n as f64).collect();
        assert!(values.len() * 8 > 1 << 20);
        done(ordered.push(&ordered.keys(&ids), values.clone()));
        let rows = read!(ordered.pull_range(0..u64::MAX));
        assert!(rows.ids() == ids && rows.values() == values);
        // And the same as a list of keys.
        assert!(read!(ordered.pull(&ordered.keys(&ids))).values() == values);
    });
}

#[test]
fn every_number_type_adds_up() {
    fn check<T: Number>(sum: Rows<T>, expected: &[T]) {
        assert_eq!(sum.values(), expected);
    }
    alone(|session| {
        let spec = |number| TableSpec::dense(&format!("{number}"), 2, 2).number(number);
        let keys = Keys::run(0..2);
        let large = 1i64 << 60;
        let table = session.table::<i64>(spec(NumberType::I64)).expect("made");
        done(table.push(&keys, vec![large, -1, i64::MIN, 7]));
        check(read!(table.push_pull(&keys, vec![1, -1, 5, 0])), &[large + 1, -2, i64::MIN + 5, 7]);
        let table = session.table::<f64>(spec(NumberType::F64)).expect("made");
        done(table.push(&keys, vec![1e-300, 0.1, 1e300, -0.0]));
        check(read!(table.push_pull(&keys, vec![1e-300, 0.2, 0.0, 0.0])), &[2e-300, 0.1 + 0.2, 1e300, 0.0]);
        let table = session.table::<f32>(spec(NumberType::F32)).expect("made");
        done(table.push(&keys, &[1.5f32, 2.5, 3.5, 4.5][..]));
        check(read!(table.push_pull(&keys, Arc::<[f32]>::from([1.0, 1.0, 1.0, 1.0]))), &[2.5, 3.5, 4.5, 5.5]);
    });
}

#[test]
fn a_seeded_start_is_the_same_on_any_number_of_servers() {
    let starts = [Initial::Uniform { seed: 9, scale: 0.1 }, Initial::Normal { seed: 9, scale: 0.1 }];
    for initial in starts {
        let on = |servers: u32| {
            run(servers, 1, |session| {
                let ids: Vec<u64> = (0..500).collect();
                let sparse = session.table::<f32>(TableSpec::sparse("sparse", 3).initial(initial)).expect("made");
                let keys = sparse.keys(&ids);
                let ordered = session.table::<f32>(TableSpec::sparse("o", 3).ordered().initial(initial)).expect("made");
                let dense = session.table::<f32>(TableSpec::dense("dense", 500, 3).initial(initial)).expect("made");
                let spread = read!(sparse.pull(&keys)).into_values();
                let in_order = read!(ordered.pull(&ordered.keys(&ids))).into_values();
                let rows = read!(dense.pull_range(0..500)).into_values();
                assert_eq!(in_order, rows, "a function of seed, key and column");
                for (id, row) in keys.ids().zip(spread.chunks(3)) {
                    assert_eq!(row, &rows[id as usize * 3..][..3], "whatever the placement");
                }
                rows
            })
            .remove(0)
        };
        let one = on(1);
        assert!(one.iter().any(|value| *value != one[0]));
        assert!([2, 3, 5].into_iter().all(|servers| on(servers) == one), "{initial:?}");
    }
}

#[test]
fn a_barrier_lets_nobody_pass_before_all_are_there() {
    let arrived = AtomicI64::new(0);
    run(1, 4, |session| {
        for round in 1..=10 {
            dawdle(session.rank(), round);
            arrived.fetch_add(1, Ordering::SeqCst);
            session.barrier().expect("passed");
            assert!(arrived.load(Ordering::SeqCst) >= round as i64 * 4, "round {round}");
        }
        assert!(session.ledger().barrier > Duration::ZERO);
    });
}

#[test]
fn a_task_runs_after_the_tickets_it_names() {
    alone(|session| {
        let assign = |name: &str| {
            let spec = counts(name, 1_000).consistency(Consistency::Unbounded).updater(UpdaterSpec::Assign);
            session.table::<i64>(spec).expect("made")
        };
        let (one, two) = (assign("one"), assign("two"));
        for value in 1..=30 {
            let first = one.push_range(0..1_000, vec![value; 1_000]).expect("sent");
            let after = Tickets::none().and(&first);
            let second = two.push_after(&Keys::run(0..1_000), vec![value; 1_000], 1, &after).expect("sent");
            let read =
                one.pull_into(&Keys::run(0..1_000), vec![0; 1_000], &Tickets::none().and(&second)).expect("asked");
            // The last of the three is done, so all are, and in that order.
            assert_eq!(read.wait().expect("read").values(), [value; 1_000]);
            assert!(first.is_done() && second.is_done());
        }
    });
}

#[test]
fn a_delay_of_nothing_is_sequential_and_a_long_one_loses_nothing() {
    run(2, 2, |session| {
        for tau in [0, 1, 8, u64::MAX] {
            let name = format!("delay {tau}");
            let table = session.table::<i64>(counts(&name, 50).consistency(Consistency::Delay { tau })).expect("made");
            let mut tickets = Vec::new();
            for task in 0..40u64 {
                tickets.push(table.push_range(0..50, vec![1; 50]).expect("sent"));
                if let Some(old) = (task.checked_sub(tau)).and_then(|old| old.checked_sub(1)) {
                    let rows = read!(table.pull_range(0..1));
                    // The pull is a task, too, so all before it but τ are acknowledged.
                    assert!(rows.values()[0] > old as i64, "{name}: {:?} after {task} pushes", rows.values());
                }
            }
            tickets.into_iter().for_each(|ticket| ticket.wait().expect("pushed"));
            session.barrier().expect("all done");
            assert_eq!(read!(table.pull_range(0..50)).values(), [80; 50], "{name}");
        }
    });
}

#[test]
fn a_learning_rate_changes_for_the_clocks_from_then_on() {
    alone(|session| {
        let sgd = UpdaterSpec::Sgd { rate: 1.0 };
        for combine in [Combine::Each, Combine::Clock(Reduce::Sum)] {
            let spec = TableSpec::dense(&format!("{combine:?}"), 2, 1).updater(sgd.clone()).combine(combine);
            let table = session.table::<f32>(spec).expect("made");
            let mut expected = 0.0;
            for rate in [1.0, 0.5, 0.25, 0.0, 2.0] {
                if rate != 1.0 {
                    drop(table.set_rate(rate).expect("sent"));
                }
                drop(table.push_range(0..2, vec![4.0; 2]).expect("sent"));
                session.clock().expect("ended");
                expected -= 4.0 * rate as f32;
                assert_eq!(read!(table.pull_range(0..2)).values(), [expected; 2], "{combine:?} at rate {rate}");
            }
        }
    });
}

#[test]
fn a_table_made_in_the_middle_of_a_run_has_missed_nothing() {
    run(2, 3, |session| {
        let first = session.table::<i64>(counts("first", 3)).expect("made");
        for _ in 0..5 {
            drop(first.push_range(0..3, vec![1; 3]).expect("sent"));
            session.clock().expect("ended");
        }
        // The workers get here at clocks of their own.
        let late = session.table::<i64>(counts("late", 3)).expect("made");
        for clock in 5..10 {
            drop(late.push_range(0..3, vec![1; 3]).expect("sent"));
            session.clock().expect("ended");
            let rows = read!(late.pull_range(0..3));
            assert!(rows.values().iter().all(|count| *count >= 3 * (clock - 4)), "{:?} after {clock}", rows.values());
        }
        session.barrier().expect("all done");
        assert_eq!(read!(late.pull_range(0..3)).values(), [15; 3]);
    });
}

#[test]
fn nothing_waits_in_silence() {
    let log = Log::default();
    let logger = tracing_subscriber::fmt().with_ansi(false).with_writer(Mutex::new(log.clone())).finish();
    // For all threads: the shell logs from its own. No other test here sets one.
    tracing::subscriber::set_global_default(logger).expect("the only one");
    run(1, 3, |session| {
        let table: Table<i64> = session.table(counts("shared", 1)).expect("made");
        if session.rank() == 2 {
            std::thread::sleep(Duration::from_millis(3_600));
        }
        session.clock().expect("ended");
        read!(table.pull_range(0..1));
        let ledger = session.ledger();
        if session.rank() == 0 {
            assert_eq!(ledger.slowest().map(|(worker, _)| worker.0), Some(2), "{ledger:?}");
            assert!(ledger.waited_for_others() > Duration::from_secs(2), "{ledger:?}");
        }
        if session.rank() == 1 {
            std::thread::sleep(Duration::from_millis(3_600));
        }
        session.barrier().expect("passed");
    });
    let text = log.text();
    let says = |words: &[&str]| text.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(says(&["WARN", "a read waits", "shared", "worker 2"]), "{text}");
    assert!(says(&["WARN", "barrier waits", "worker 1"]), "{text}");
}

#[test]
fn an_updater_of_the_programs_own_runs_on_the_servers() {
    struct Highest;
    impl slackwater::Updater<f64> for Highest {
        fn state(&self, _width: usize) -> usize {
            0
        }
        fn update(&self, _: &slackwater::Step, _width: usize, row: &mut [f64], gradient: &[f64]) {
            row.iter_mut().zip(gradient).for_each(|(highest, value)| *highest = highest.max(*value));
        }
    }
    let mut registry = Registry::builtin();
    registry.register::<f64>("highest", |_| Box::new(Highest));
    let shape = Shape { servers: 2, workers: 1 };
    let session = Session::embedded_with(shape, registry, slackwater::Wait::BLOCKING).expect("a run").remove(0);
    let highest = UpdaterSpec::Custom { name: "highest".into(), settings: vec![] };
    let spec = TableSpec::sparse("highest", 1).number(NumberType::F64).updater(highest);
    let table = session.table::<f64>(spec).expect("made");
    let keys = table.keys(&[1, 2, 3]);
    for value in [3.0, 9.0, 4.0] {
        drop(table.push(&keys, vec![value; 3]).expect("sent"));
    }
    assert_eq!(read!(table.pull(&keys)).values(), [9.0; 3]);
    session.close().expect("left");
}

#[test]
fn a_worker_that_never_opens_a_table_does_not_hold_its_frontier() {
    let seen = run(2, 3, |session| {
        let table =
            (session.rank() == 0).then(|| session.table::<f32>(TableSpec::dense("mine alone", 1, 1)).expect("made"));
        let mut last = 0.0;
        for _ in 0..10 {
            if let Some(table) = &table {
                last = read!(table.push_pull_range(0..1, vec![1.0])).values()[0];
            }
            session.clock().expect("ended");
        }
        last
    });
    assert_eq!(seen[0], 10.0);
}

#[test]
fn a_push_pull_is_one_task_and_fails_with_its_push() {
    run(2, 1, |session| {
        for consistency in [Consistency::LOCK_STEP, Consistency::Unbounded, Consistency::Delay { tau: 0 }] {
            let spec = TableSpec::dense(&consistency.to_string(), 8, 1).consistency(consistency);
            let table = session.table::<f32>(spec).expect("made");
            for round in 1..=20 {
                let rows = read!(table.push_pull_range(0..8, vec![1.0; 8]));
                assert_eq!(rows.values(), [round as f32; 8], "{consistency}");
            }
            let failed = table.push_pull_range(0..8, vec![f32::NAN; 8]).expect("sent").wait();
            assert!(failed.is_err_and(|error| error.to_string().contains("not finite")), "{consistency}");
        }
    });
}

#[test]
fn a_closed_session_says_so() {
    let session = Session::embedded(Shape { servers: 1, workers: 1 }).expect("started").remove(0);
    let table = session.table::<f32>(TableSpec::dense("t", 1, 1)).expect("made");
    session.close().expect("closed");
    let error = table.push_range(0..1, vec![1.0]).err().expect("refused");
    assert!(error.to_string().contains("left the run"), "{error}");
}

#[test]
fn a_cache_smaller_than_a_dense_table_answers_right() {
    run(2, 2, |session| {
        let spec = TableSpec::dense("wide", 500, 1).consistency(Consistency::slack(1)).cached(40);
        let table = session.table::<f32>(spec).expect("made");
        for clock in 0..20u64 {
            let first = clock * 23 % 460;
            let before = read!(table.pull_range(first..first + 30));
            let after = read!(table.push_pull_range(first..first + 30, vec![1.0; 30]));
            let grown = before.values().iter().zip(after.values()).all(|(before, after)| after >= &(before + 1.0));
            assert!(grown, "own pushes are read, clock {clock}");
            session.clock().expect("ended");
        }
    });
}

#[test]
fn logs_of_a_table_opened_twice_meet() {
    run(1, 1, |session| {
        let open = || session.table::<i64>(TableSpec::dense("t", 1, 1).number(NumberType::I64)).expect("made");
        let (one, two) = (open(), open());
        one.log().add(&one.keys(&[0]), &[5], 1).expect("fits");
        assert_eq!(read!(two.pull_range(0..1)).values(), [5]);
    });
}

#[test]
fn a_failed_clock_is_told_to_reads_from_the_cache_too() {
    for eager in [false, true] {
        run(1, 2, |session| {
            let spec = TableSpec::dense("t", 4, 1)
                .consistency(Consistency::Bounded { slack: 2, eager })
                .combine(Combine::Clock(Reduce::Sum))
                .cached(4);
            let table = session.table::<f32>(spec).expect("made");
            if session.rank() == 0 {
                assert!(table.push_range(0..4, vec![f32::NAN; 4]).expect("sent").wait().is_err());
            }
            (0..3).for_each(|_| session.clock().expect("ended"));
            session.barrier().expect("all clocks are over");
            let first = read!(table.pull_range(0..4));
            let again = read!(table.pull_range(0..4));
            assert_eq!(again.cached_rows(), 4, "eager {eager}");
            let clocks = |rows: &Rows<f32>| rows.failed_clocks().iter().map(|f| f.clock.0).collect::<Vec<_>>();
            assert_eq!((clocks(&first), clocks(&again)), (vec![0], vec![0]), "eager {eager}");
        });
    }
}

/// Every thread's `clock()` ends a clock that holds what the thread pushed and noted before, whoever collects the logs.
#[test]
fn threads_that_end_clocks_at_once_end_one_each_with_all_that_was_theirs() {
    const THREADS: u64 = 3;
    const CLOCKS: u64 = 400;
    let summed = counts("summed", 2 * THREADS).combine(Combine::Clock(Reduce::Sum)).consistency(Consistency::slack(0));
    alone(|session| {
        let table = session.table::<i64>(summed.clone()).expect("made");
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (table, mut log) = (table.clone(), table.log());
                scope.spawn(move || {
                    let (noted, pushed) = (table.keys(&[thread]), table.keys(&[THREADS + thread]));
                    for clock in 1..=CLOCKS as i64 {
                        log.add(&noted, &[1], 1).expect("noted");
                        drop(table.push(&pushed, vec![1]).expect("sent"));
                        session.clock().expect("ended");
                        for keys in [&noted, &pushed] {
                            assert_eq!(read!(table.pull(keys)).values(), [clock], "thread {thread}");
                        }
                    }
                });
            }
        });
        assert_eq!(session.now().0, THREADS * CLOCKS);
    });
}
