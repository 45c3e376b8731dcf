//! The change feed while servers crash and join: a program that follows it ends with the table's
//! rows.

mod elastic;

use elastic::{FAILURE_TIMEOUT, SIZE};
use sim::*;
use std::cell::Cell;
use types::{Combine, Consistency, NumberType, Placement, Reduce, Span, TableSpec, UpdaterSpec};
use wire::FeedCursor;

const WIDTH: usize = 2;
const KEYS: u64 = 12;
/// The worker that follows the feed. It pushes nothing.
const FOLLOWER: u32 = SIZE.workers - 1;
const CLOCKS: u64 = 8;

/// An assign table: every push of a worker assigns higher numbers than the one before. The seed
/// chooses the rest.
fn assigned(seed: u64) -> TableSpec {
    let spec = TableSpec::sparse("t", WIDTH as u32).number(NumberType::F64).updater(UpdaterSpec::Assign);
    let spec = if seed.is_multiple_of(2) { spec.ordered() } else { spec };
    match seed % 3 {
        0 => spec.consistency(Consistency::Unbounded),
        1 => spec.consistency(Consistency::slack(2)).cached(100),
        _ => spec.consistency(Consistency::Bounded { slack: 1, eager: true }).cached(100),
    }
}

fn summed_by_clock(seed: u64) -> TableSpec {
    let spec = TableSpec::sparse("t", WIDTH as u32).number(NumberType::F64).combine(Combine::Clock(Reduce::Sum));
    let spec = if seed.is_multiple_of(2) { spec.ordered() } else { spec };
    spec.consistency(Consistency::slack(1 + seed % 2))
}

fn ending(spec: &TableSpec, table: TableIndex, follows: bool, from: FeedCursor) -> Vec<Action> {
    let slack = spec.consistency.bound().unwrap_or(0) as usize;
    let mut steps = vec![Action::EndClock; slack + 1];
    steps.extend([Action::WaitUntilIdle, Action::Barrier]);
    if follows {
        steps.push(Action::Follow { table, from, last: true });
        let all: Vec<u64> = (0..KEYS).collect();
        steps.push(match spec.shape.placement() {
            Placement::Ordered => Action::Scan { table, first: 0, end: u64::MAX, last: true },
            Placement::Spread => Action::pull_last(table, &all),
        });
    }
    steps.push(Action::Barrier);
    steps
}

/// The program of a worker that pushes to keys of its own, and deletes them.
fn writer(random: &mut Xoshiro256, worker: u32, spec: &TableSpec, table: TableIndex, from: FeedCursor) -> Vec<Action> {
    let writers = u64::from(FOLLOWER);
    let own: Vec<u64> = (0..KEYS).filter(|key| key % writers == u64::from(worker)).collect();
    let mut steps = vec![Action::MakeTable(table), Action::Barrier];
    let mut written = 0.0;
    for _ in 0..CLOCKS {
        steps.push(Action::Compute(Span(random.below(3_000_000))));
        for _ in 0..4 {
            let keys = random.some_of(&own, 0.5);
            steps.push(match random.below(4) {
                0 => Action::Delete { table, keys },
                _ => {
                    let number = || {
                        written += 1.0;
                        written
                    };
                    let numbers = std::iter::repeat_with(number).take(keys.len() * WIDTH).collect();
                    Action::push(table, &keys, Write::Numbers(numbers))
                }
            });
        }
        steps.push(Action::EndClock);
    }
    steps.extend(ending(spec, table, false, from));
    steps
}

fn follower(random: &mut Xoshiro256, spec: &TableSpec, table: TableIndex, from: FeedCursor) -> Vec<Action> {
    let mut steps = vec![Action::MakeTable(table), Action::Follow { table, from, last: false }, Action::Barrier];
    for _ in 0..CLOCKS {
        steps.push(Action::Compute(Span(random.below(3_000_000))));
        steps.extend([Action::Follow { table, from, last: false }, Action::EndClock]);
    }
    steps.extend(ending(spec, table, true, from));
    steps
}

/// Two workers write and one follows. While they do, a server crashes and another one joins. Every
/// shard has two replicas.
fn servers_come_and_go(seed: u64, spec: &TableSpec, sabotage: Option<Sabotage>) -> Cluster {
    let mut cluster = Cluster::elastic(seed, SIZE, Faults::ALL, FAILURE_TIMEOUT, 2);
    sabotage.into_iter().for_each(|sabotage| cluster.sabotage(sabotage));
    let table = cluster.table(spec.clone());
    let from = if seed.is_multiple_of(3) { FeedCursor::Rows } else { FeedCursor::Now };
    let mut random = Xoshiro256::new(seed ^ 0xFEED);
    let mut programs: Vec<Vec<Action>> =
        (0..FOLLOWER).map(|worker| writer(&mut random, worker, spec, table, from)).collect();
    programs.push(follower(&mut random, spec, table, from));
    cluster.programs(programs);
    cluster.join_server(Span(random.below(60_000_000)));
    cluster.crash_server(random.below(SIZE.servers.into()) as u32, Span(random.below(60_000_000)));
    cluster
}

/// How many pages brought rows or deletes, and how often a feed started over.
fn followed(cluster: &Cluster) -> (usize, usize) {
    let pages = cluster.history().entries.iter().filter_map(|entry| match &entry.event {
        HistoryEvent::Followed { starts_over, keys, deleted, .. } => Some((*starts_over, keys.len() + deleted.len())),
        _ => None,
    });
    let pages: Vec<(bool, usize)> = pages.collect();
    (pages.iter().filter(|page| page.1 > 0).count(), pages.iter().filter(|page| page.0).count())
}

fn feeds_hold(name: &str, table: impl Fn(u64) -> TableSpec) {
    let pages_seen = Cell::new(0);
    let started_over = Cell::new(0);
    let seeds = for_seeds(name, |seed| {
        let mut cluster = servers_come_and_go(seed, &table(seed), None);
        cluster.run();
        cluster.check(feeds_show_rows_as_they_are());
        cluster.check(one_head_at_a_time());
        cluster.check(all_finished());
        let (pages, starts) = followed(&cluster);
        pages_seen.set(pages_seen.get() + pages as u64);
        started_over.set(started_over.get() + u64::from(starts > 0));
        cluster
    });
    assert!(pages_seen.get() >= 4 * seeds, "{} pages with changes in {seeds} seeds", pages_seen.get());
    // A feed starts over when the head that answered it is lost.
    assert!(started_over.get() * 10 >= seeds, "feeds started over in {} of {seeds} seeds", started_over.get());
}

#[test]
fn feed_shows_every_change_and_deletion_when_a_server_is_lost() {
    feeds_hold("feed, servers lost", assigned);
}

#[test]
fn feed_shows_whole_clocks_when_a_server_is_lost() {
    feeds_hold("feed by clock, servers lost", summed_by_clock);
}

#[test]
fn feed_that_skips_a_batch_is_noticed() {
    let sabotage = Sabotage::SkipChanges;
    caught_by(feeds_show_rows_as_they_are, sabotage, |seed, broken| {
        servers_come_and_go(seed, &assigned(seed), broken.then_some(sabotage))
    });
}
