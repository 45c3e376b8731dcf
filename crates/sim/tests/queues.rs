//! Backpressure: queues have bounds. A worker that sends too much waits, and is told for whom.

use sim::*;
use types::{
    Combine, Consistency, HELD_CLOCKS, NumberType, OPEN_READS, READS_AT_ONCE, Reduce, Span, TableSpec, WorkerId,
};
use worker::Notice;

const SIZE: RunSize = RunSize { servers: 2, workers: 2 };

/// Worker 0 pushes clock after clock and never reads. Worker 1 begins after 10 s.
fn running_ahead(consistency: Consistency, sabotage: Option<Sabotage>) -> Cluster {
    let mut cluster = Cluster::new(7, SIZE, Faults::NONE);
    let spec = TableSpec::dense("t", 2, 1).number(NumberType::F64).consistency(consistency);
    let table = cluster.table(spec.combine(Combine::Clock(Reduce::Sum)));
    for worker in 0..SIZE.workers {
        let mut steps = vec![Action::MakeTable(table), Action::Barrier];
        if worker == 1 {
            steps.push(Action::Compute(Span::from_secs(10)));
        }
        for _ in 0..3 * HELD_CLOCKS {
            steps.push(Action::push(table, &[0, 1], Write::Numbers(vec![1.0; 2])));
            steps.push(Action::EndClock);
        }
        steps.extend([Action::WaitUntilIdle, Action::Barrier, Action::pull_last(table, &[0, 1])]);
        cluster.program(worker, steps);
    }
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    cluster.run();
    cluster
}

#[test]
fn a_worker_that_never_reads_stays_within_the_held_clocks() {
    for consistency in [Consistency::Unbounded, Consistency::slack(10_000), Consistency::Delay { tau: 9 }] {
        let cluster = running_ahead(consistency, None);
        cluster.check(all_finished());
        cluster.check(held_clocks_at_most(HELD_CLOCKS));
        let entries = &cluster.history().entries;
        let total = (6 * HELD_CLOCKS) as f64;
        let read = entries.iter().find_map(|entry| match &entry.event {
            HistoryEvent::PullReturned { read, .. } => Some(read.values.clone()),
            _ => None,
        });
        assert_eq!(read, Some(vec![total; 2]), "{consistency}: nothing is refused");
        let told = |event: &HistoryEvent| matches!(event, HistoryEvent::Noticed(Notice::Push { on, .. }) if on == &[WorkerId(1)]);
        assert!(
            entries.iter().any(|entry| entry.worker == 0 && told(&entry.event)),
            "{consistency}: worker 0 is told that it waits for worker 1"
        );
    }
    let caught = running_ahead(Consistency::Unbounded, Some(Sabotage::PromiseRoom));
    println!("{}", caught.violation(held_clocks_at_most(HELD_CLOCKS)).expect("a worker far ahead is caught"));
}

/// Workers make a table after many clocks. The first one to make it is far ahead of what the new
/// shards know of the other.
#[test]
fn a_late_table_has_room_once_all_workers_know_of_it() {
    for_seeds("a clock table made after many clocks", |seed| {
        let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
        let early = cluster.table(TableSpec::dense("early", 2, 1).consistency(Consistency::slack(3)));
        let spec = TableSpec::dense("late", 2, 1).number(NumberType::F64).combine(Combine::Clock(Reduce::Sum));
        let late = cluster.table(spec.consistency(Consistency::slack(3)));
        for worker in 0..SIZE.workers {
            let mut steps = vec![Action::MakeTable(early)];
            for _ in 0..HELD_CLOCKS + 50 {
                steps.push(Action::EndClock);
            }
            steps.push(Action::MakeTable(late));
            for _ in 0..3 {
                steps.extend([Action::push(late, &[0], Write::Numbers(vec![1.0])), Action::EndClock]);
            }
            steps.extend(vec![Action::EndClock; 4]);
            steps.extend([Action::WaitUntilIdle, Action::Barrier, Action::pull_last(late, &[0])]);
            cluster.program(worker, steps);
        }
        cluster.run();
        cluster.check(all_finished());
        let sums = cluster.history().entries.iter().filter_map(|entry| match &entry.event {
            HistoryEvent::PullReturned { read, .. } => Some(read.values[0]),
            _ => None,
        });
        assert_eq!(sums.collect::<Vec<_>>(), [6.0; 2], "seed {seed}: nothing is refused");
        cluster
    });
}

/// Worker 0 asks for far more reads than it may have open, while worker 1 holds up every read.
fn asking(sabotage: Option<Sabotage>) -> Cluster {
    const READS: usize = OPEN_READS + 2 * READS_AT_ONCE;
    let mut cluster = Cluster::new(3, SIZE, Faults::NONE);
    let table = cluster.table(TableSpec::dense("t", 2, 1).consistency(Consistency::slack(0)));
    let mut steps = vec![Action::MakeTable(table), Action::Barrier, Action::EndClock];
    steps.extend((0..READS).map(|read| Action::pull_later(table, &[read as u64 % 2])));
    cluster.program(0, steps);
    let slow = Action::Compute(Span::from_secs(5));
    cluster.program(1, vec![Action::MakeTable(table), Action::Barrier, slow, Action::EndClock]);
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    cluster.run();
    cluster
}

#[test]
fn reads_beyond_the_bound_wait_in_the_worker() {
    let cluster = asking(None);
    cluster.check(all_finished());
    cluster.check(open_reads_at_most(OPEN_READS));
    let refused = |event: &HistoryEvent| matches!(event, HistoryEvent::PullFailed { .. });
    assert!(!cluster.history().entries.iter().any(|entry| refused(&entry.event)), "nothing is refused");
    let parked = (0..2).map(|server| cluster.server_counts(server).shards.most_parked);
    assert_eq!(parked.collect::<Vec<_>>(), [READS_AT_ONCE as u64; 2]);
    let caught = asking(Some(Sabotage::AskWithoutRoom)).violation(open_reads_at_most(OPEN_READS));
    println!("{}", caught.expect("a worker that asks for too much is caught"));
}
