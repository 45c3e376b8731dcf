//! Pushes and pulls of key lists that a server knows and of new ones, and pushes that make rows.
//! `bench wire` and `bench embedded` measure these alike.

use std::sync::Arc;

use indicatif::ProgressBar;
use slackwater::table::PullOptions;
use slackwater::{Consistency, Keys, Rows, Session, Table, TableSpec};

use super::measure::{Columns, timed};
use types::SplitMix64;

pub(crate) const MILLION: usize = 1_000_000;

pub(crate) fn random_ids(count: usize, seed: u64) -> Vec<u64> {
    let mut random = SplitMix64::new(seed);
    (0..count).map(|_| random.draw()).collect()
}

/// Makes rows in batches, in another order than that of the lists that are measured.
pub(crate) fn fill(table: &Table<f32>, ids: &[u64]) -> anyhow::Result<()> {
    for chunk in ids.chunks(MILLION / 4) {
        let keys = table.keys(chunk);
        table.push(&keys, vec![1.0; keys.len()])?.wait()?;
    }
    Ok(())
}

/// Measures repeated lists and new lists, on a table of `rows` rows. `names` are the columns for
/// pushes and pulls of repeated lists, then for pushes and pulls of new ones.
pub(crate) fn sparse(
    session: &Session,
    rounds: u32,
    rows: usize,
    columns: &mut Columns,
    progress: &ProgressBar,
    names: [&'static str; 4],
) -> anyhow::Result<()> {
    let table = session.table::<f32>(TableSpec::sparse("sparse", 1).consistency(Consistency::Unbounded))?;
    let ids = random_ids(rows, 1);
    fill(&table, &ids)?;
    let sample = |seed: u64| {
        // About a million of the rows; of a table that has no more, 99 of 100.
        let mut random = SplitMix64::new(seed);
        let share = if rows > MILLION { MILLION as f64 / rows as f64 } else { 0.99 };
        let picked: Vec<u64> = ids.iter().copied().filter(|_| random.unit() < share).collect();
        table.keys(&picked)
    };
    let all = if rows > MILLION { sample(2) } else { table.keys(&ids) };
    let values: Arc<[f32]> = vec![0.25; all.len()].into();
    let mut target = vec![0.0; all.len()];
    for round in 0..rounds + 2 {
        // The first two rounds do not count: the server learns the repeated list in them.
        let mut put = |name, keys: &Keys, seconds: f64| {
            if round > 1 {
                columns.put(name, keys.len() as f64 / seconds / 1e6);
            }
        };
        let (seconds, ()) = timed(|| Ok(table.push(&all, values.clone())?.wait()?))?;
        put(names[0], &all, seconds);
        let (seconds, rows) = timed(|| pull(&table, &all, std::mem::take(&mut target)))?;
        put(names[1], &all, seconds);
        target = rows.into_values();
        let new_push = sample(100 + u64::from(round));
        let new_pull = sample(200 + u64::from(round));
        let new_values: Arc<[f32]> = vec![0.25; new_push.len()].into();
        let (seconds, ()) = timed(|| Ok(table.push(&new_push, new_values)?.wait()?))?;
        put(names[2], &new_push, seconds);
        let new_target = vec![1.0; new_pull.len()];
        let (seconds, _) = timed(|| pull(&table, &new_pull, new_target))?;
        put(names[3], &new_pull, seconds);
        progress.inc(1);
    }
    Ok(())
}

/// Pulls rows into `target`.
pub(crate) fn pull(table: &Table<f32>, keys: &Keys, target: Vec<f32>) -> anyhow::Result<Rows<f32>> {
    Ok(table.pull_opts(keys, PullOptions { into: Some(target.into()), ..PullOptions::default() })?.wait()?)
}

/// Measures pushes that make a million new rows.
pub(crate) fn create(
    session: &Session,
    rounds: u32,
    columns: &mut Columns,
    progress: &ProgressBar,
) -> anyhow::Result<()> {
    for round in 0..rounds {
        let table = session.table::<f32>(TableSpec::sparse(&format!("table {round}"), 1))?;
        let keys = table.keys(&random_ids(MILLION, u64::from(round) + 9));
        let values: Arc<[f32]> = vec![0.25; keys.len()].into();
        let (seconds, ()) = timed(|| Ok(table.push(&keys, values)?.wait()?))?;
        columns.put("create", keys.len() as f64 / seconds / 1e6);
        progress.inc(1);
    }
    Ok(())
}
