//! The large table of `bench chaos`: making, backfilling and checkpointing it takes long enough
//! that faults happen meanwhile.
//!
//! Its initial values are drawn with a standard deviation of 0.05, and a push adds one to each
//! value of a row. So the nearest whole number to a value is the number of pushes that it holds.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use slackwater::policy::{Initial, NumberType};
use slackwater::{Consistency, Keys, Session, Table, TableSpec};

use super::counts::{Counting, Counts};

/// The name of the table.
pub(crate) const NAME: &str = "large";
/// Numbers of a row, of eight bytes each.
const COLUMNS: u64 = 256;
/// Rows of each worker, spread evenly over the table.
const ROWS_OF_A_WORKER: u64 = 16;
/// A worker pushes to the table once in this many pushes.
pub(crate) const PUSH_EVERY: u64 = 16;

/// Tells the workers to make the table.
pub(crate) fn make_file(folder: &Path) -> PathBuf {
    folder.join("make")
}

/// The table as a worker uses it.
pub(crate) struct LargeTable {
    table: Table<f64>,
    keys: Keys,
}

impl LargeTable {
    /// Makes the table, or opens it when another worker has made it. `worker` is the number of the
    /// worker, which says which rows it writes.
    pub(crate) fn open(session: &Session, mebibytes: u64, worker: u64) -> anyhow::Result<Self> {
        let rows = (mebibytes << 20) / (8 * COLUMNS);
        let spec = TableSpec::dense(NAME, rows, COLUMNS as u32)
            .number(NumberType::F64)
            .initial(Initial::Normal { seed: 1, scale: 0.05 })
            .consistency(Consistency::slack(4));
        let apart = rows / ROWS_OF_A_WORKER;
        ensure!(worker < apart, "the large table has no row left for worker {worker}: make it larger");
        let table = session.table::<f64>(spec)?;
        let keys: Vec<u64> = (0..ROWS_OF_A_WORKER).map(|row| row * apart + worker).collect();
        Ok(Self { keys: table.keys(&keys), table })
    }

    /// Adds one to each value of the worker's rows, and counts that.
    pub(crate) fn push(&self, counting: &mut Counting) -> anyhow::Result<()> {
        counting.large_sent()?;
        self.table.push(&self.keys, vec![1.0; (ROWS_OF_A_WORKER * COLUMNS) as usize])?.wait()?;
        counting.large_acknowledged()
    }

    /// How many pushes the rows of a worker lack, and how many they hold too often. A worker that
    /// was killed may have sent pushes that were not acknowledged.
    pub(crate) fn account(&self, counts: &Counts, was_killed: bool) -> anyhow::Result<(u64, u64)> {
        let [sent, acknowledged] = counts.large;
        let most = if was_killed { sent } else { acknowledged };
        let mut lost = 0;
        let mut doubled = 0;
        for value in self.table.pull(&self.keys)?.wait()?.values() {
            let held = value.round() as u64;
            lost = acknowledged.saturating_sub(held).max(lost);
            doubled = held.saturating_sub(most).max(doubled);
        }
        Ok((lost, doubled))
    }
}
