//! Clocks and barriers: which pushes belong to a clock, and when a barrier lets workers pass.

use crate::{alone, counts, dawdle, done, run};
use slackwater::policy::{Combine, NumberType, Reduce};
use slackwater::{Consistency, Keys, TableSpec, UpdaterSpec};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

#[test]
fn clock_of_sums_or_means_is_exact_and_equal_for_all_workers() {
    const WORKERS: u32 = 3;
    for (reduce, shares) in [(Reduce::Sum, 1), (Reduce::Mean, WORKERS)] {
        let seen = run(2, WORKERS, |session| {
            let spec = TableSpec::dense("gradients", 4, 1).number(NumberType::F64).combine(Combine::Clock(reduce));
            let table = session.table::<f64>(spec).expect("made");
            let mut seen = Vec::new();
            for clock in 0..12u64 {
                // Worker 2 pushes nothing in odd clocks; a mean still divides by all workers.
                if session.rank() < 2 || clock.is_multiple_of(2) {
                    done(table.push(&Keys::run(0..4), vec![3.0 * f64::from(session.rank() + 1); 4]));
                }
                dawdle(session.rank(), clock);
                session.clock().expect("ended");
                let rows = read!(table.pull(&Keys::run(0..4)));
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

#[test]
fn read_or_clock_pushes_the_logs_of_all_threads() {
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
        let own = read!(table.pull(&Keys::run(0..8)));
        assert!(own.values()[1] >= 100, "a read reflects the logs: {:?}", own.values());
        let mut log = table.log();
        log.add(&table.keys(&[7]), &[5], 1).expect("fits");
        session.clock().expect("ended");
        read!(table.pull(&Keys::run(0..8))).into_values()
    });
    for total in totals {
        assert_eq!(total, [100, 200, 200, 200, 100, 0, 0, 10], "a clock sends the logs");
    }
}

#[test]
fn logs_are_shared_by_handles_of_one_table() {
    run(1, 1, |session| {
        let open = || session.table::<i64>(TableSpec::dense("t", 1, 1).number(NumberType::I64)).expect("made");
        let one = open();
        let two = open();
        one.log().add(&one.keys(&[0]), &[5], 1).expect("fits");
        assert_eq!(read!(two.pull(&Keys::run(0..1))).values(), [5]);
    });
}

/// Every thread's `clock()` ends a clock that holds everything that the thread pushed and logged
/// before, even if another thread collects the logs.
#[test]
fn concurrent_clock_calls_end_one_clock_each_with_the_callers_pushes() {
    const THREADS: u64 = 3;
    const CLOCKS: u64 = 400;
    let summed = counts("summed", 2 * THREADS).combine(Combine::Clock(Reduce::Sum)).consistency(Consistency::slack(0));
    alone(|session| {
        let table = session.table::<i64>(summed.clone()).expect("made");
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let table = table.clone();
                let mut log = table.log();
                scope.spawn(move || {
                    let noted = table.keys(&[thread]);
                    let pushed = table.keys(&[THREADS + thread]);
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

#[test]
fn set_rate_changes_the_rate_from_the_current_clock_on() {
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
                drop(table.push(&Keys::run(0..2), vec![4.0; 2]).expect("sent"));
                session.clock().expect("ended");
                expected -= 4.0 * rate as f32;
                assert_eq!(read!(table.pull(&Keys::run(0..2))).values(), [expected; 2], "{combine:?} at rate {rate}");
            }
        }
    });
}

#[test]
fn table_made_in_the_middle_of_a_run_gets_every_push() {
    run(2, 3, |session| {
        let first = session.table::<i64>(counts("first", 3)).expect("made");
        for _ in 0..5 {
            drop(first.push(&Keys::run(0..3), vec![1; 3]).expect("sent"));
            session.clock().expect("ended");
        }
        // The workers make the table at different clocks.
        let late = session.table::<i64>(counts("late", 3)).expect("made");
        for clock in 5..10 {
            drop(late.push(&Keys::run(0..3), vec![1; 3]).expect("sent"));
            session.clock().expect("ended");
            let rows = read!(late.pull(&Keys::run(0..3)));
            assert!(rows.values().iter().all(|count| *count >= 3 * (clock - 4)), "{:?} after {clock}", rows.values());
        }
        session.barrier().expect("all done");
        assert_eq!(read!(late.pull(&Keys::run(0..3))).values(), [15; 3]);
    });
}

#[test]
fn barrier_blocks_until_all_workers_have_arrived() {
    let arrived = AtomicI64::new(0);
    run(1, 4, |session| {
        for round in 1..=10 {
            dawdle(session.rank(), round);
            arrived.fetch_add(1, Ordering::SeqCst);
            session.barrier().expect("passed");
            assert!(arrived.load(Ordering::SeqCst) >= round as i64 * 4, "round {round}");
        }
        assert!(session.time_breakdown().barrier > Duration::ZERO);
    });
}
