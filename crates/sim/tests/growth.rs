//! A measurement: how the time of a run grows with the number of workers.

use sim::*;
use types::{Consistency, NumberType, TableSpec};

/// Measures runs of thousands of workers in lock-step, in virtual and real seconds:
/// `cargo test --release -p slackwater-sim -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement, for the release profile"]
fn run_time_by_workers() {
    for workers in [500, 1_000, 2_000] {
        let started = std::time::Instant::now();
        let mut cluster = Cluster::new(1, RunSize { servers: 4, workers }, Faults::NONE);
        let table =
            cluster.table(TableSpec::dense("t", 64, 1).number(NumberType::I64).consistency(Consistency::slack(0)));
        let keys: Vec<u64> = (0..64).collect();
        for worker in 0..workers {
            let mut steps = vec![Action::MakeTable(table)];
            for clock in 0..5 {
                let row = u64::from(worker) % 64;
                steps.push(Action::push(table, &[row], Write::Numbers(vec![1.0])));
                steps.push(Action::EndClock);
                steps.push(if clock == 4 { Action::pull_last(table, &keys) } else { Action::pull(table, &[row]) });
            }
            cluster.program(worker, steps);
        }
        cluster.run();
        let last = cluster.history().entries.iter().rev().find_map(|entry| match &entry.event {
            HistoryEvent::PullReturned { read, .. } => Some(read.values.iter().sum::<f64>()),
            _ => None,
        });
        assert_eq!(last, Some(5.0 * f64::from(workers)));
        let virtual_s = cluster.history().ended.0 as f64 / 1e9;
        let real_s = started.elapsed().as_secs_f64();
        println!("{workers} workers: {virtual_s:.3} s of virtual time in {real_s:.1} s of real time");
    }
}
