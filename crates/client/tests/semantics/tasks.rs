//! The order of a worker's operations: push_pull, tickets to run after, bounded delay.

use crate::{alone, counts, run};
use slackwater::policy::NumberType;
use slackwater::table::{PullOptions, PushOptions, ScanOptions};
use slackwater::{Consistency, Keys, TableSpec, Tickets, UpdaterSpec};

#[test]
fn push_pull_reflects_its_own_push_under_any_consistency() {
    let rules = [Consistency::LOCK_STEP, Consistency::slack(2), Consistency::Unbounded, Consistency::Delay { tau: 3 }];
    alone(|session| {
        for rule in rules {
            let table = session.table::<i64>(counts(&rule.to_string(), 6).consistency(rule)).expect("made");
            for time in 1..=5 {
                assert_eq!(read!(table.push_pull(&Keys::run(0..6), vec![1; 6])).values(), [time; 6], "{rule}");
            }
        }
    });
}

#[test]
fn push_pull_is_one_operation_and_fails_with_its_push() {
    run(2, 1, |session| {
        for consistency in [Consistency::LOCK_STEP, Consistency::Unbounded, Consistency::Delay { tau: 0 }] {
            let spec = TableSpec::dense(&consistency.to_string(), 8, 1).consistency(consistency);
            let table = session.table::<f32>(spec).expect("made");
            for round in 1..=20 {
                let rows = read!(table.push_pull(&Keys::run(0..8), vec![1.0; 8]));
                assert_eq!(rows.values(), [round as f32; 8], "{consistency}");
            }
            let failed = table.push_pull(&Keys::run(0..8), vec![f32::NAN; 8]).expect("sent").wait();
            assert!(failed.is_err_and(|error| error.to_string().contains("not finite")), "{consistency}");
        }
    });
}

#[test]
fn operation_runs_after_the_tickets_it_names() {
    alone(|session| {
        let assign = |name: &str| {
            let spec = counts(name, 1_000).consistency(Consistency::Unbounded).updater(UpdaterSpec::Assign);
            session.table::<i64>(spec).expect("made")
        };
        let one = assign("one");
        let two = assign("two");
        for value in 1..=30 {
            let first = one.push(&Keys::run(0..1_000), vec![value; 1_000]).expect("sent");
            let after = Tickets::none().and(&first);
            let second = two
                .push_opts(
                    &Keys::run(0..1_000),
                    vec![value; 1_000],
                    PushOptions { after: after.clone(), ..PushOptions::default() },
                )
                .expect("sent");
            let read = one
                .pull_opts(
                    &Keys::run(0..1_000),
                    PullOptions {
                        into: Some(vec![0; 1_000].into()),
                        after: Tickets::none().and(&second),
                        ..PullOptions::default()
                    },
                )
                .expect("asked");
            // The last of the three operations is done, so all are, in order.
            assert_eq!(read.wait().expect("read").values(), [value; 1_000]);
            assert!(first.is_done() && second.is_done());
        }
    });
}

#[test]
fn scan_runs_after_the_tickets_it_names() {
    run(2, 2, |session| {
        let bound = session.table::<i64>(counts("bound", 10)).expect("made");
        let days = TableSpec::sparse("days", 1).number(NumberType::I64).ordered().consistency(Consistency::Unbounded);
        let days = session.table::<i64>(days).expect("made");
        if session.rank() == 0 {
            session.clock().expect("ended");
            // This read waits for the other worker's clock, which waits for the barrier.
            let held = bound.pull(&Keys::run(0..10)).expect("asked");
            let after = Tickets::none().and(&held);
            let scans = [
                days.scan_opts(0..9, ScanOptions { after: after.clone(), ..ScanOptions::default() }),
                days.scan_opts(.., ScanOptions { after: after.clone(), ..ScanOptions::default() }),
            ];
            // Later scans without tickets are answered.
            (0..2).for_each(|_| drop(read!(days.scan(..))));
            assert!(scans.iter().flatten().all(|scan| !scan.is_done()));
            session.barrier().expect("both are here");
            scans.into_iter().for_each(|scan| drop(read!(scan)));
            held.wait().expect("read");
        } else {
            session.barrier().expect("both are here");
            session.clock().expect("ended");
        }
    });
}

#[test]
fn delay_0_is_sequential_and_a_long_delay_loses_no_push() {
    run(2, 2, |session| {
        for tau in [0, 1, 8, u64::MAX] {
            let name = format!("delay {tau}");
            let table = session.table::<i64>(counts(&name, 50).consistency(Consistency::Delay { tau })).expect("made");
            let mut tickets = Vec::new();
            for task in 0..40u64 {
                tickets.push(table.push(&Keys::run(0..50), vec![1; 50]).expect("sent"));
                if let Some(old) = (task.checked_sub(tau)).and_then(|old| old.checked_sub(1)) {
                    let rows = read!(table.pull(&Keys::run(0..1)));
                    // The pull is an operation too, so all before it but the last τ are
                    // acknowledged.
                    assert!(rows.values()[0] > old as i64, "{name}: {:?} after {task} pushes", rows.values());
                }
            }
            tickets.into_iter().for_each(|ticket| ticket.wait().expect("pushed"));
            session.barrier().expect("all done");
            assert_eq!(read!(table.pull(&Keys::run(0..50))).values(), [80; 50], "{name}");
        }
    });
}
