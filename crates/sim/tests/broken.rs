//! Checkers against broken machines: each checker notices a machine that breaks its rule, and
//! passes a sound one.

use sim::*;
use types::{Combine, Consistency, NumberType, Reduce, Span, TableSpec};

const SIZE: RunSize = RunSize { servers: 3, workers: 4 };

/// The first violation that a checker finds in a few seeds of this table and these programs.
fn caught(
    sabotage: Option<Sabotage>,
    spec: &TableSpec,
    work: &Workload,
    checker: fn() -> Checker,
) -> Option<Violation> {
    some_seed(|seed| {
        let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
        let table = cluster.table(spec.clone());
        cluster.programs(work.programs(seed, SIZE, table, spec));
        sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
        cluster.run();
        cluster.violation(checker())
    })
}

#[test]
fn each_checker_catches_the_machine_that_breaks_its_rule() {
    let each = TableSpec::sparse("t", SIZE.workers).number(NumberType::F64).consistency(Consistency::slack(1));
    let clock = each.clone().combine(Combine::Clock(Reduce::Sum));
    let some_nan = Workload { nan: 0.1, ..Workload::default() };
    let all = Workload::default();
    // (the sabotage, the table, the programs, the checker that notices)
    type Case<'a> = (Sabotage, &'a TableSpec, &'a Workload, fn() -> Checker);
    let cases: [Case<'_>; 9] = [
        (Sabotage::ReadEarly, &each, &all, || staleness_at_most(1)),
        (Sabotage::ForgetOwnPushes, &each, &all, reads_own_writes),
        (Sabotage::ApplyTwice, &each, &all, no_acknowledged_push_lost_or_doubled),
        (Sabotage::AcknowledgeWithoutApplying, &each, &all, no_acknowledged_push_lost_or_doubled),
        (Sabotage::AcknowledgeWithoutApplying, &each, &all, fifo_per_worker),
        (Sabotage::ClaimHigherFrontier, &each, &all, reported_clock_is_true),
        (Sabotage::CombineEach, &clock, &all, reads_hold_exactly_the_clocks_below_the_reported_one),
        (Sabotage::HideFailedClocks, &clock, &some_nan, failed_clocks_are_seen_alike),
        (Sabotage::AcceptNan, &each, &some_nan, not_finite_is_refused),
    ];
    for (sabotage, spec, work, checker) in cases {
        assert_eq!(caught(None, spec, work, checker), None, "a sound machine passes where {sabotage:?} does not");
        let violation = caught(Some(sabotage), spec, work, checker);
        println!("{sabotage:?}: {}", violation.unwrap_or_else(|| panic!("{sabotage:?} goes unnoticed")));
    }
}

/// Worker 0 computes for 10 s while the others wait for it at a read, and then at a barrier.
fn waiting(sabotage: Option<Sabotage>) -> Cluster {
    let mut cluster = Cluster::new(0, SIZE, Faults::NONE);
    let table = cluster.table(TableSpec::dense("t", 8, 1).consistency(Consistency::slack(0)));
    for worker in 0..SIZE.workers {
        let pause = Action::Compute(Span::from_secs(if worker == 0 { 10 } else { 0 }));
        let read = Action::pull(table, &[0, 1, 2, 3, 4, 5, 6, 7]);
        cluster.program(
            worker,
            vec![Action::MakeTable(table), pause.clone(), Action::EndClock, read, pause, Action::Barrier],
        );
    }
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    cluster.run();
    cluster
}

#[test]
fn a_worker_that_waits_long_is_told_for_whom() {
    let cluster = waiting(None);
    cluster.check(no_silent_wait(Span::from_secs(4)));
    let named: std::collections::BTreeSet<_> = (cluster.history().entries.iter())
        .filter_map(|entry| match &entry.event {
            HistoryEvent::Noticed(worker::Notice::Read { on, .. } | worker::Notice::Barrier { on }) => Some(on.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(named.into_iter().collect::<Vec<_>>(), [vec![types::WorkerId(0)]], "the slow worker alone");
    let caught = waiting(Some(Sabotage::SayNothing)).violation(no_silent_wait(Span::from_secs(4)));
    println!("{}", caught.expect("a shard that says nothing is caught"));
}

#[test]
fn a_run_that_never_ends_is_noticed() {
    let mut cluster = Cluster::new(3, SIZE, Faults::NONE);
    let spec = TableSpec::sparse("t", SIZE.workers).number(NumberType::I64).consistency(Consistency::slack(1));
    let table = cluster.table(spec.clone());
    cluster.programs(Workload::default().programs(3, SIZE, table, &spec));
    cluster.sabotage(Sabotage::LoseMarkers);
    let stuck = cluster.try_run().expect_err("no frontier moves");
    println!("{stuck}");
    assert!(cluster.violation(all_finished()).is_some());
}
