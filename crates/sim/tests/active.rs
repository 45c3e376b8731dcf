//! Key lists that are chosen from other lists, and the KKT filter of ℓ1 problems that chooses them.

use sim::*;
use types::{Codecs, Combine, Consistency, NumberType, Reduce, TableSpec, UpdaterSpec};

const SIZE: RunSize = RunSize { servers: 3, workers: 4 };

/// Keys are named by bits of a list that the shard knows, or has forgotten.
#[test]
fn key_lists_chosen_from_others_lose_nothing() {
    let keys: Vec<u64> = (0..40).collect();
    let work = Workload { keys: keys.clone(), tasks: 6, ..Workload::default() };
    for (name, combine) in [("each", Combine::Each), ("clock", Combine::Clock(Reduce::Sum))] {
        let spec = TableSpec::sparse("t", SIZE.workers).number(NumberType::F64).consistency(Consistency::slack(1));
        let spec = spec.combine(combine);
        for_seeds(&format!("bounded, slack 1, {name}, chosen lists, some forgotten"), |seed| {
            let mut cluster = Cluster::new(seed, SIZE, Faults { forgetting: 0.3, ..Faults::ALL });
            let table = cluster.table(spec.clone());
            cluster.choose_from(&keys);
            let mut programs = work.programs(seed, SIZE, table, &spec);
            // The whole list goes first: all later lists are chosen from it.
            programs.iter_mut().for_each(|steps| steps.insert(1, Action::pull(table, &keys)));
            cluster.programs(programs);
            cluster.run();
            cluster.check(all_finished());
            cluster.check(no_acknowledged_push_lost_or_doubled());
            cluster.check(reported_clock_is_true());
            cluster.check(staleness_at_most(1));
            if combine == Combine::Each {
                cluster.check(reads_own_writes());
                cluster.check(fifo_per_worker());
            } else {
                cluster.check(reads_hold_exactly_the_clocks_below_the_reported_one());
            }
            cluster
        });
    }
}

fn proximal(codecs: &[&str]) -> TableSpec {
    TableSpec::sparse("w", 2)
        .number(NumberType::F64)
        .consistency(Consistency::slack(1))
        .combine(Combine::Clock(Reduce::Sum))
        .updater(UpdaterSpec::Proximal { rate: 1.0, l1: 1.0 })
        .codecs(Codecs::both(codecs.iter().copied()))
}

/// In each clock all workers push gradients of the same rows, all rows or some, and ask which rows
/// are active.
fn asking(seed: u64, codecs: &[&str], faults: Faults, sabotage: Option<Sabotage>) -> Cluster {
    let keys: Vec<u64> = (0..12).collect();
    let mut cluster = Cluster::new(seed, SIZE, faults);
    let table = cluster.table(proximal(codecs));
    cluster.choose_from(&keys);
    let mut random = Xoshiro256::new(seed ^ 0xAC71);
    let mut programs = vec![vec![Action::MakeTable(table)]; SIZE.workers as usize];
    for clock in 0..8 {
        let pushed = if clock % 3 == 0 { keys.clone() } else { random.some_of(&keys, 0.5) };
        // Sixteenths add up exactly in any order. They get smaller from clock to clock, so that
        // some rows settle.
        let reach = 64 >> (clock / 2);
        let sixteenths: Vec<f64> = pushed.iter().map(|_| random.below(reach) as f64 - reach as f64 / 2.0).collect();
        for steps in &mut programs {
            let row = |sixteenths: &f64| [sixteenths / 16.0, 0.25];
            let numbers = Write::Numbers(sixteenths.iter().flat_map(row).collect());
            steps.extend([Action::push(table, &pushed, numbers), Action::EndClock]);
            for _ in 0..3 {
                steps.push(Action::Ask { table, keys: vec![keys[random.below(keys.len() as u64) as usize]] });
            }
        }
    }
    cluster.programs(programs);
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    cluster.run();
    cluster
}

/// How many answers leave out a row.
fn left_out(cluster: &Cluster) -> usize {
    let told = |event: &HistoryEvent| matches!(event, HistoryEvent::Told { active, .. } if active.iter().any(|(_, active)| !active));
    cluster.history().entries.iter().filter(|entry| told(&entry.event)).count()
}

#[test]
fn rows_left_out_are_zero_and_within_the_penalty_for_all_workers() {
    for codecs in [&["kkt"][..], &["keys", "kkt", "zeros", "zstd"], &["spelt", "kkt"]] {
        let total = std::cell::Cell::new(0);
        for_seeds(&format!("proximal, slack 1, {codecs:?}, who is active"), |seed| {
            let cluster = asking(seed, codecs, Faults { forgetting: 0.3, ..Faults::ALL }, None);
            cluster.check(all_finished());
            cluster.check(nothing_that_counts_is_left_out());
            total.set(total.get() + left_out(&cluster));
            cluster
        });
        assert!(total.get() > 100, "only {} answers leave something out", total.get());
    }
}

#[test]
fn a_shard_that_leaves_out_too_much_is_caught() {
    let caught = some_seed(|seed| {
        asking(seed, &["kkt"], Faults::ALL, Some(Sabotage::LeaveOutAll)).violation(nothing_that_counts_is_left_out())
    });
    println!("{}", caught.expect("the checker notices no violation"));
}
