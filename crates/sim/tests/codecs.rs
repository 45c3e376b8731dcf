//! Codecs change how many bytes travel, and break no rule: all checkers pass with each codec.

use sim::*;
use types::{Bandwidth, Codecs, Combine, Consistency, NumberType, Reduce, TableSpec, UpdaterSpec};

const SIZE: RunSize = RunSize { servers: 2, workers: 3 };

fn run(seed: u64, faults: Faults, spec: &TableSpec, work: &Workload) -> Cluster {
    let mut cluster = Cluster::new(seed, SIZE, faults);
    let table = cluster.table(spec.clone());
    cluster.programs(work.programs(seed, SIZE, table, spec));
    cluster.run();
    cluster.check(all_finished());
    assert_made(&cluster);
    cluster
}

fn assert_made(cluster: &Cluster) {
    let refused =
        cluster.history().entries.iter().find(|entry| matches!(entry.event, HistoryEvent::TableRefused { .. }));
    assert_eq!(refused, None);
}

fn marks() -> Workload {
    Workload { clocks: 4, ..Workload::default() }
}

fn ones() -> Workload {
    Workload { write: Write::Ones, ..marks() }
}

/// A table whose rows tell which pushes they hold. f32 holds their numbers exactly.
fn marked(number: NumberType) -> TableSpec {
    TableSpec::sparse("t", SIZE.workers).number(number).consistency(Consistency::slack(1))
}

/// A table that combines by clock, with a cache that workers add deltas to.
fn stepping(spec: TableSpec) -> TableSpec {
    spec.combine(Combine::Clock(Reduce::Sum)).cached(50)
}

fn names(pipeline: &str) -> Vec<String> {
    pipeline.split('+').map(str::to_owned).collect()
}

/// Marks survive these codecs exactly, so a row tells which pushes it holds and every checker
/// applies.
#[test]
fn exact_codecs_keep_every_rule() {
    for (number, pipeline) in [
        (NumberType::I64, "keys"),
        (NumberType::I64, "spelt"),
        (NumberType::I64, "zeros"),
        (NumberType::F64, "keys+zeros+zstd"),
        (NumberType::I64, "lz4"),
    ] {
        let spec = marked(number).codecs(Codecs::both(names(pipeline))).cached(50);
        // A list that is spelt out every time cannot be forgotten.
        let faults =
            Faults { forgetting: if pipeline == "spelt" { 0.0 } else { Faults::ALL.forgetting }, ..Faults::ALL };
        for_seeds(&format!("{pipeline} both ways, {number}"), |seed| {
            let cluster = run(
                seed,
                faults,
                &spec,
                &Workload { nan: if number == NumberType::F64 { 0.1 } else { 0.0 }, ..marks() },
            );
            cluster.check(no_acknowledged_push_lost_or_doubled());
            cluster.check(staleness_at_most(1));
            cluster.check(reads_own_writes());
            cluster.check(fifo_per_worker());
            cluster.check(not_finite_is_refused());
            cluster
        });
    }
}

/// These codecs send rows with one power of four exactly, with error feedback on.
#[test]
fn lossy_push_codecs_keep_every_rule() {
    for pipeline in ["bf16", "keys+topk=50%", "threshold=0.5+lz4"] {
        let spec = marked(NumberType::F32).codecs(Codecs::up(names(pipeline)));
        for_seeds(&format!("{pipeline} upward"), |seed| {
            let cluster = run(seed, Faults::ALL, &spec, &Workload { nan: 0.1, ..marks() });
            cluster.check(no_acknowledged_push_lost_or_doubled());
            cluster.check(staleness_at_most(1));
            cluster.check(reads_own_writes());
            cluster.check(fifo_per_worker());
            cluster.check(not_finite_is_refused());
            cluster
        });
    }
}

/// These codecs send rows of equal numbers exactly.
#[test]
fn rounding_codecs_count_every_push_once() {
    let wide = |consistency| TableSpec::sparse("t", 64).consistency(consistency);
    for pipeline in ["f16", "fixed1", "fixed8", "fixed12+zstd", "1bit", "keys+2bit"] {
        for combine in [Combine::Each, Combine::Clock(Reduce::Sum)] {
            let spec = wide(Consistency::slack(1)).combine(combine).codecs(Codecs::up(names(pipeline)));
            for_seeds(&format!("{pipeline} upward, {combine:?}"), |seed| {
                let cluster = run(seed, Faults::ALL, &spec, &ones());
                cluster.check(pushes_are_counted_once());
                cluster
            });
        }
    }
}

/// Workers add deltas to their cached rows, which hold exactly the clocks below the reported one.
#[test]
fn deltas_keep_every_rule() {
    for (pipeline, slack) in [("bf16", 0), ("keys+bf16+lz4", 1), ("threshold=0.5+zstd", 2)] {
        let spec = stepping(marked(NumberType::F32).consistency(Consistency::slack(slack)));
        let spec = spec.codecs(Codecs::both(["keys"]).down(names(pipeline)));
        for_seeds(&format!("{pipeline} downward, slack {slack}"), |seed| {
            let cluster = run(seed, Faults::ALL, &spec, &Workload { waits: 0.5, ..marks() });
            cluster.check(no_acknowledged_push_lost_or_doubled());
            cluster.check(staleness_at_most(slack));
            cluster.check(reported_clock_is_true());
            cluster.check(reads_hold_exactly_the_clocks_below_the_reported_one());
            cluster
        });
    }
}

/// A small cache drops rows and reads them again now and then.
#[test]
fn deltas_survive_small_caches_and_connections_that_break() {
    let spec = stepping(marked(NumberType::F32)).cached(5).codecs(Codecs::up(["keys"]).down(["bf16"]));
    for_seeds("bf16 downward, five cached rows", |seed| {
        let cluster = run(seed, Faults::CONNECTIONS, &spec, &marks());
        cluster.check(no_acknowledged_push_lost_or_doubled());
        cluster.check(staleness_at_most(1));
        cluster.check(reads_hold_exactly_the_clocks_below_the_reported_one());
        cluster
    });
}

#[test]
fn rounded_deltas_count_every_push_once() {
    for pipeline in ["1bit", "2bit", "fixed16"] {
        let spec = stepping(TableSpec::sparse("t", 64).consistency(Consistency::slack(1)));
        let spec = spec.codecs(Codecs::both(names(pipeline)));
        // Not every read gets deltas: few rows come whole.
        let deltas = std::cell::Cell::new(0);
        for_seeds(&format!("{pipeline} both ways"), |seed| {
            let cluster = run(seed, Faults::ALL, &spec, &ones());
            cluster.check(pushes_are_counted_once());
            let of = |worker| cluster.worker_counts(worker).deltas;
            deltas.set(deltas.get() + (0..SIZE.workers).map(of).sum::<u64>());
            cluster
        });
        assert!(deltas.get() > 50, "{pipeline}: {} deltas", deltas.get());
    }
}

/// In a table without a bound, cached rows of any age answer some of the pulls.
#[test]
fn skipped_pulls_lose_nothing() {
    let spec = TableSpec::sparse("t", SIZE.workers).number(NumberType::I64).consistency(Consistency::Unbounded);
    let spec = spec.cached(50).codecs(Codecs::up(["skip=50%"]));
    let mut skipped = 0;
    for seed in 0..50 {
        let cluster = run(seed, Faults::ALL, &spec, &marks());
        cluster.check(fifo_per_worker());
        skipped += (0..SIZE.workers).map(|worker| cluster.worker_counts(worker).rows_cached).sum::<u64>();
    }
    assert!(skipped > 0, "no pull was skipped");
}

/// On a slow link pushes are encoded, on a fast one nothing is.
#[test]
fn auto_codecs_follow_the_rate_of_the_link() {
    let spec = TableSpec::dense("layer", 64, 1024).updater(UpdaterSpec::Sgd { rate: 0.1 }).codecs(Codecs::auto());
    let spec = stepping(spec.consistency(Consistency::LOCK_STEP)).cached(64);
    let keys: Vec<u64> = (0..64).collect();
    for (rate, chosen) in [(12_500_000, "keys, 1bit"), (2_000_000_000, "")] {
        let faults = Faults { least_delay: types::Span(20_000), most_delay: types::Span(20_000), ..Faults::NONE };
        let mut cluster =
            Cluster::new(1, RunSize { servers: 1, workers: 2 }, Faults { bytes_per_second: Some(rate), ..faults });
        let table = cluster.table(spec.clone());
        let mut program = vec![Action::MakeTable(table)];
        for _ in 0..20 {
            program.extend([Action::pull(table, &keys), Action::push(table, &keys, Write::Ones), Action::EndClock]);
        }
        cluster.programs(vec![program.clone(), program]);
        cluster.run();
        cluster.check(all_finished());
        assert_made(&cluster);
        for worker in 0..2 {
            assert_eq!(
                cluster.chosen_codecs(worker, table),
                chosen,
                "at {rate} bytes a second, {:?}",
                cluster.link_rate(worker)
            );
            assert_eq!(cluster.worker_counts(worker).deltas > 0, !chosen.is_empty());
        }
    }
}

/// Random programs of workers with so little bandwidth that most of their pushes wait.
fn paced(seed: u64, spec: &TableSpec, work: &Workload, each_clock: &[Action]) -> Cluster {
    let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
    let table = cluster.table(spec.clone());
    let mut programs = work.programs(seed, SIZE, table, spec);
    for program in &mut programs {
        program.insert(1, Action::Limit(Some(Bandwidth::from_bytes_per_second(20_000))));
        let last = program.iter().position(|step| *step == Action::WaitUntilIdle).unwrap_or(0);
        for end in (0..last).rev().filter(|at| program[*at] == Action::EndClock).collect::<Vec<_>>() {
            program.splice(end + 1..end + 1, each_clock.iter().cloned());
        }
    }
    cluster.programs(programs);
    cluster.run();
    cluster.check(all_finished());
    assert_made(&cluster);
    assert!((0..SIZE.workers).any(|worker| cluster.worker_counts(worker).waited > 0), "nothing had to wait");
    cluster
}

/// Pushes that wait for bandwidth overtake each other only within a clock: reads still hold what
/// their bound promises.
#[test]
fn bounded_bandwidth_keeps_every_rule() {
    let each = marked(NumberType::I64);
    let by_clock = each.clone().combine(Combine::Clock(Reduce::Sum)).consistency(Consistency::slack(0));
    for (what, spec, slack) in [
        ("each, slack 1", each.clone(), 1),
        ("by clock, slack 0", by_clock, 0),
        ("each, with a cache", each.clone().cached(50), 1),
        (
            "each, with a cache kept fresh",
            each.clone().cached(50).consistency(Consistency::Bounded { slack: 1, eager: true }),
            1,
        ),
        ("each, encoded, with a cache", each.cached(50).codecs(Codecs::both(["keys", "zeros", "lz4"])), 1),
    ] {
        for_seeds(&format!("20 kB/s, {what}"), |seed| {
            let cluster = paced(seed, &spec, &Workload { waits: 0.4, ..marks() }, &[]);
            cluster.check(no_acknowledged_push_lost_or_doubled());
            cluster.check(staleness_at_most(slack));
            cluster.check(reads_own_writes());
            cluster.check(reported_clock_is_true());
            cluster
        });
    }
}

/// A scan after the end of a clock shows its worker's pushes of that clock, even if they waited for
/// bandwidth.
#[test]
fn a_scan_follows_own_pushes_that_wait_for_bandwidth() {
    let spec = TableSpec::dense("t", 8, SIZE.workers).number(NumberType::I64).consistency(Consistency::slack(2));
    let scan = Action::Scan { table: TableIndex(0), first: 0, end: 7, last: false };
    for_seeds("20 kB/s, scans", |seed| {
        let cluster = paced(seed, &spec, &marks(), std::slice::from_ref(&scan));
        cluster.check(no_acknowledged_push_lost_or_doubled());
        cluster.check(reads_own_writes());
        cluster
    });
}

/// In an assign table, a worker's pushes to a row are applied in the worker's order, even if later
/// ones are larger.
#[test]
fn assigned_values_that_wait_for_bandwidth_keep_their_order() {
    let spec = TableSpec::sparse("t", 1).updater(UpdaterSpec::Assign).consistency(Consistency::slack(2));
    for_seeds("20 kB/s, assign, one writer a row", |seed| {
        let mut cluster = Cluster::new(seed, SIZE, Faults::ALL);
        let table = cluster.table(spec.clone());
        for worker in 0..SIZE.workers {
            let limit = Action::Limit(Some(Bandwidth::from_bytes_per_second(20_000)));
            let mut program = vec![Action::MakeTable(table), limit];
            for clock in 0..2u32 {
                let values = (1..=8).map(|round| f64::from(clock * 8 + round));
                program
                    .extend(values.map(|value| Action::push(table, &[u64::from(worker)], Write::Numbers(vec![value]))));
                // This is long enough for all pushes to be sent before the clock ends: after its
                // end the oldest would go first.
                let compute = Action::Compute(types::Span::from_millis(200));
                program.extend([compute, Action::EndClock, Action::pull(table, &[0, 1, 2])]);
            }
            program.extend([Action::WaitUntilIdle, Action::Barrier, Action::pull_last(table, &[0, 1, 2])]);
            cluster.program(worker, program);
        }
        cluster.run();
        cluster.check(all_finished());
        cluster.check(assigned_values_never_go_back());
        let reads = cluster.history().entries.iter().rev().filter_map(|entry| match &entry.event {
            HistoryEvent::PullReturned { read, .. } => Some(&read.values),
            _ => None,
        });
        assert!(reads.take(SIZE.workers as usize).all(|values| *values == [16.0; 3]), "the last value stays");
        assert!((0..SIZE.workers).all(|worker| cluster.worker_counts(worker).waited > 0), "nothing had to wait");
        cluster
    });
}

/// A worker keeps to its bandwidth, and sends the largest pushes first.
#[test]
fn little_bandwidth_sends_the_largest_pushes_first() {
    let spec = TableSpec::dense("t", 40, 1024).consistency(Consistency::slack(3)).combine(Combine::Clock(Reduce::Sum));
    let mut cluster = Cluster::new(1, RunSize { servers: 1, workers: 1 }, Faults::NONE);
    let table = cluster.table(spec);
    let rate = 400_000;
    let row = |key: u64| vec![key as f64; 1024];
    let mut program = vec![Action::MakeTable(table), Action::Limit(Some(Bandwidth::from_bytes_per_second(rate)))];
    program.extend((0..40).map(|key| Action::push(table, &[key], Write::Numbers(row(key)))));
    program.extend([Action::Compute(types::Span::from_secs(2)), Action::EndClock, Action::WaitUntilIdle]);
    cluster.programs(vec![program]);
    cluster.run();
    cluster.check(all_finished());
    let sent: Vec<(types::Time, u64)> = (cluster.history().entries.iter())
        .filter_map(|entry| match entry.event {
            HistoryEvent::TaskSent { row, .. } => Some((entry.at, row)),
            _ => None,
        })
        .collect();
    let rows: Vec<u64> = sent.iter().map(|(_, row)| *row).collect();
    assert_eq!(rows, (0..40).rev().collect::<Vec<u64>>(), "the largest first, each once");
    let seconds = sent[39].0.since(sent[0].0).as_secs_f64();
    let bytes = 39.0 * 4096.0;
    assert!(bytes / seconds < rate as f64 * 1.3, "{bytes} bytes in {seconds} s");
}
