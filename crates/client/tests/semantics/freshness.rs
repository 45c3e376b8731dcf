//! Freshness of reads: bounded staleness, answers from the cache, and read-my-writes.

use crate::{alone, counts, dawdle, done, run};
use slackwater::monitor::{Traffic, WorkerCounts};
use slackwater::policy::{Combine, Reduce};
use slackwater::{Consistency, Keys, Rows, TableSpec, UpdaterSpec};
use std::time::{Duration, Instant};

/// A refresh that takes longer is missing.
const NEVER: Duration = Duration::from_secs(60);

#[test]
fn staleness_of_reads_stays_within_the_slack() {
    const WORKERS: u64 = 4;
    for slack in [0, 1, 3] {
        run(2, WORKERS as u32, |session| {
            // Row w counts the clocks of worker w.
            let table =
                session.table::<i64>(counts("clocks", WORKERS).consistency(Consistency::slack(slack))).expect("made");
            let own = u64::from(session.rank());
            for clock in 0..40u64 {
                drop(table.push(&Keys::run(own..own + 1), vec![1]).expect("sent"));
                let rows = read!(table.pull(&Keys::run(0..WORKERS)));
                assert!(rows.staleness() <= slack, "{} clocks behind with slack {slack}", rows.staleness());
                assert_eq!(rows.values()[own as usize], clock as i64 + 1, "read my writes");
                for count in rows.values() {
                    // Every update of clocks ≤ c − s − 1 is in, and no worker is more than s + 1
                    // clocks ahead of the frontier.
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

/// Reads the same rows in every clock while all workers change a few of them. Returns worker 0's
/// counts and traffic.
fn read_again_and_again(eager: bool) -> (WorkerCounts, Traffic) {
    const ROWS: u64 = 1_000;
    const SERVERS: u64 = 2;
    let mut results = run(SERVERS as u32, 3, |session| {
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
            let before = session.counts().refreshes;
            session.clock().expect("ended");
            // Wait until every server's refresh of this clock has arrived, as a program that
            // computes would.
            session.barrier().expect("all have ended it");
            let begin = Instant::now();
            while eager && session.counts().refreshes < before + SERVERS {
                assert!(begin.elapsed() < NEVER, "no refresh after clock {clock}");
                std::thread::yield_now();
            }
        }
        (session.counts(), session.traffic())
    });
    results.remove(0)
}

#[test]
fn eager_refreshes_let_the_cache_answer_repeated_reads() {
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
fn reads_reflect_own_pushes_with_any_updater_and_cache() {
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
                // Drop the ticket: the read must reflect the push all the same.
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
fn worker_that_never_opens_a_table_does_not_hold_back_its_frontier() {
    let seen = run(2, 3, |session| {
        let table =
            (session.rank() == 0).then(|| session.table::<f32>(TableSpec::dense("mine alone", 1, 1)).expect("made"));
        let mut last = 0.0;
        for _ in 0..10 {
            if let Some(table) = &table {
                last = read!(table.push_pull(&Keys::run(0..1), vec![1.0])).values()[0];
            }
            session.clock().expect("ended");
        }
        last
    });
    assert_eq!(seen[0], 10.0);
}

#[test]
fn cache_smaller_than_a_dense_table_returns_right_rows() {
    run(2, 2, |session| {
        let spec = TableSpec::dense("wide", 500, 1).consistency(Consistency::slack(1)).cached(40);
        let table = session.table::<f32>(spec).expect("made");
        for clock in 0..20u64 {
            let first = clock * 23 % 460;
            let before = read!(table.pull(&Keys::run(first..first + 30)));
            let after = read!(table.push_pull(&Keys::run(first..first + 30), vec![1.0; 30]));
            let grown = before.values().iter().zip(after.values()).all(|(before, after)| after >= &(before + 1.0));
            assert!(grown, "own pushes are read, clock {clock}");
            session.clock().expect("ended");
        }
    });
}

#[test]
fn reads_from_the_cache_report_failed_clocks() {
    for eager in [false, true] {
        run(1, 2, |session| {
            let spec = TableSpec::dense("t", 4, 1)
                .consistency(Consistency::Bounded { slack: 2, eager })
                .combine(Combine::Clock(Reduce::Sum))
                .cached(4);
            let table = session.table::<f32>(spec).expect("made");
            if session.rank() == 0 {
                assert!(table.push(&Keys::run(0..4), vec![f32::NAN; 4]).expect("sent").wait().is_err());
            }
            (0..3).for_each(|_| session.clock().expect("ended"));
            session.barrier().expect("all clocks are over");
            let first = read!(table.pull(&Keys::run(0..4)));
            let again = read!(table.pull(&Keys::run(0..4)));
            assert_eq!(again.cached_rows(), 4, "eager {eager}");
            let clocks = |rows: &Rows<f32>| rows.failed_clocks().iter().map(|f| f.clock.0).collect::<Vec<_>>();
            assert_eq!((clocks(&first), clocks(&again)), (vec![0], vec![0]), "eager {eager}");
        });
    }
}
