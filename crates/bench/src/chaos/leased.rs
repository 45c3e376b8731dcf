//! `bench chaos --leases`: workers push for data leases. A killed worker leaves a lease half done
//! and another worker runs it again. In the end every example must have counted exactly once.

use std::time::Duration;

use anyhow::ensure;
use slackwater::data_leases::LeasedInput;
use slackwater::table::PushOptions;
use slackwater::{Session, Table};

use super::cluster::SHARDS;
use super::counts::{Counting, row_in};

/// Minibatches of a lease, each of one example with a row of its own.
const MINIBATCHES: u64 = 8;
/// Minibatches that a worker pushes per second, at most: it sleeps before each.
const MOST_PER_SECOND: u64 = 200;
/// Minibatches in one clock, for a worker of average speed.
const MINIBATCHES_PER_CLOCK: u32 = 8;
/// The first row of the leases in each shard. The rows of workers are far below.
const FIRST_ROW: u64 = 1 << 40;

/// How many leases `workers` workers cannot finish within `seconds` seconds.
pub(crate) fn enough(seconds: u64, workers: usize) -> u64 {
    (seconds * MOST_PER_SECOND * workers as u64 * 3 / 2).div_ceil(MINIBATCHES)
}

/// The shards and keys of a lease's examples. Examples are spread evenly over the shards.
fn rows_of(table: &Table<i64>, lease: u64) -> impl Iterator<Item = (usize, u64)> {
    (0..MINIBATCHES).map(move |minibatch| {
        let example = lease * MINIBATCHES + minibatch;
        let shard = (example % SHARDS as u64) as usize;
        (shard, row_in(table, shard, FIRST_ROW + example / SHARDS as u64))
    })
}

/// What a worker process does: pushes for leases until every lease is committed, by any worker. It
/// counts pushes sent and acknowledged, and calls `beside` with their number after each lease.
pub(crate) fn learn(
    session: &Session,
    table: &Table<i64>,
    leases: u64,
    counting: &mut Counting,
    mut beside: impl FnMut(u64, &mut Counting) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut leases = session.leases("chaos", &LeasedInput::new(leases).shuffled(1).per_clock(MINIBATCHES_PER_CLOCK))?;
    let mut in_clock = 0;
    let mut learnt = 0;
    while let Some(lease) = leases.next_lease()? {
        for (shard, row) in rows_of(table, lease.range()) {
            std::thread::sleep(Duration::from_micros(1_000_000 / MOST_PER_SECOND));
            let keys = table.keys(&[row]);
            table.pull(&keys)?.wait()?;
            counting.sent(shard..shard + 1)?;
            table.push_opts(&keys, vec![1], PushOptions { lease: Some(&lease), ..PushOptions::default() })?.wait()?;
            counting.acknowledged(shard..shard + 1)?;
            in_clock += 1;
            if in_clock >= leases.share() {
                session.clock()?;
                in_clock = 0;
            }
        }
        leases.commit(lease)?;
        learnt += 1;
        beside(learnt * MINIBATCHES, counting)?;
    }
    Ok(())
}

/// Reads every example's row. Returns how many examples have not counted, and how many times too
/// often the others have.
pub(crate) fn account(table: &Table<i64>, leases: u64) -> anyhow::Result<(u64, u64)> {
    let mut lost = 0;
    let mut doubled = 0;
    let mut examples = 0;
    let all: Vec<u64> = (0..leases).flat_map(|lease| rows_of(table, lease).map(|(_, row)| row)).collect();
    for rows in all.chunks(10_000) {
        for count in table.pull(&table.keys(rows))?.wait()?.values() {
            lost += u64::from(*count < 1);
            doubled += (*count as u64).saturating_sub(1);
            examples += 1;
        }
    }
    ensure!(examples == leases * MINIBATCHES, "read {examples} examples instead of {}", leases * MINIBATCHES);
    Ok((lost, doubled))
}
