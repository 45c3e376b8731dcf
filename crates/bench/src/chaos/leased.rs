//! The same with data leases: workers that are killed leave leases half done, others learn from
//! them again, and in the end every example has counted exactly once.

use std::time::Duration;

use anyhow::ensure;
use slackwater::data_leases::LeasedInput;
use slackwater::table::PushOptions;
use slackwater::{Session, Table};

use super::cluster::SHARDS;
use super::counts::{Counting, row_in};

/// Minibatches of a lease, each of one example with a row of its own.
const MINIBATCHES: u64 = 8;
/// What a worker learns at most in a second: each minibatch takes it a while.
const MOST_PER_SECOND: u64 = 200;
const MINIBATCHES_PER_CLOCK: u32 = 8;
/// Rows of the leases in each shard, apart from those of workers.
const FIRST_ROW: u64 = 1 << 40;

/// So many leases that so many workers are not through with them after that time.
pub(crate) fn enough(seconds: u64, workers: usize) -> u64 {
    (seconds * MOST_PER_SECOND * workers as u64 * 3 / 2).div_ceil(MINIBATCHES)
}

/// The shards and rows of a lease's examples: each shard has as many as any other.
fn rows_of(table: &Table<i64>, lease: u64) -> impl Iterator<Item = (usize, u64)> {
    (0..MINIBATCHES).map(move |minibatch| {
        let example = lease * MINIBATCHES + minibatch;
        let shard = (example % SHARDS as u64) as usize;
        (shard, row_in(table, shard, FIRST_ROW + example / SHARDS as u64))
    })
}

/// What a worker process does: learns until every lease is committed, by whomever. It counts what
/// it sends and what is acknowledged.
pub(crate) fn learn(session: &Session, table: &Table<i64>, leases: u64, counting: &mut Counting) -> anyhow::Result<()> {
    let mut leases = session.leases("chaos", &LeasedInput::new(leases).shuffled(1).per_clock(MINIBATCHES_PER_CLOCK))?;
    let mut in_clock = 0;
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
    }
    Ok(())
}

/// Examples that have not counted, and how often others have counted too often.
pub(crate) fn account(table: &Table<i64>, leases: u64) -> anyhow::Result<(u64, u64)> {
    let (mut lost, mut doubled, mut examples) = (0, 0, 0);
    let all: Vec<u64> = (0..leases).flat_map(|lease| rows_of(table, lease).map(|(_, row)| row)).collect();
    for rows in all.chunks(10_000) {
        for count in table.pull(&table.keys(rows))?.wait()?.values() {
            lost += u64::from(*count < 1);
            doubled += (*count as u64).saturating_sub(1);
            examples += 1;
        }
    }
    ensure!(examples == leases * MINIBATCHES, "{examples} examples were read of {}", leases * MINIBATCHES);
    Ok((lost, doubled))
}
