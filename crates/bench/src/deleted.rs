//! Part of `bench scale`: memory of a server whose rows are deleted and made anew, again and again.
//! It should follow the rows that exist, not all rows that ever existed.

use slackwater::TableSpec;
use types::SplitMix64;

use super::lists::MILLION;
use super::measure::Report;
use super::server::{Kind, ServerProcess};

/// How often the table is filled and emptied.
const ROUNDS: usize = 10;
/// Rows of one push, and of one deletion.
const BATCH: usize = 100_000;

/// Fills a table with `rows` rows of new keys and deletes them all, ten times. Reports how much the
/// server's memory has grown when the table is full and when it is empty.
///
/// The server holds no key lists: their memory is bounded by a setting, and every batch here would
/// add one.
pub(crate) fn memory(rows: usize, report: &mut Report) -> anyhow::Result<()> {
    let server = ServerProcess::start(Kind { list_bytes: Some(0), ..Kind::default() })?;
    let session = server.session()?;
    let table = session.table::<f32>(TableSpec::sparse("t", 1))?;
    let before = server.resident_bytes()?;
    let grown = || anyhow::Ok(server.resident_bytes()?.saturating_sub(before) as f64 / MILLION as f64);
    let mut full = Vec::new();
    let mut empty = Vec::new();
    for round in 0..ROUNDS as u64 {
        for_batches(rows, round, |ids| {
            let keys = table.keys(ids);
            Ok(table.push(&keys, vec![1.0; keys.len()])?.wait()?)
        })?;
        full.push(grown()?);
        for_batches(rows, round, |ids| Ok(table.delete(&table.keys(ids))?.wait()?))?;
        empty.push(grown()?);
    }
    for (name, megabytes) in [("full", full), ("empty", empty)] {
        for round in [0, 1, ROUNDS / 2, ROUNDS - 1] {
            report.number(&format!("deleted_{rows}_rows_{name}_mb_round_{}", round + 1), megabytes[round]);
        }
    }
    session.close()?;
    Ok(())
}

/// Calls `work` with the keys of a round, in batches.
fn for_batches(rows: usize, round: u64, work: impl Fn(&[u64]) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut random = SplitMix64::new(round);
    let mut left = rows;
    while left > 0 {
        let ids: Vec<u64> = (0..left.min(BATCH)).map(|_| random.draw()).collect();
        work(&ids)?;
        left -= ids.len();
    }
    Ok(())
}
