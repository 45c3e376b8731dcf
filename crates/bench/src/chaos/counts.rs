//! The counts of one worker: pushes sent and acknowledged, in total and for each shard. They are in
//! a file, which outlives a killed worker.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use slackwater::Table;
use slackwater::table::Position;

use super::cluster::SHARDS;

/// The key of row `number` of a shard.
pub(crate) fn row_in(table: &Table<i64>, shard: usize, number: u64) -> u64 {
    // Tables are cut into shards of equal length.
    let first = ((shard as u128) << 64).div_ceil(SHARDS as u128) as u64;
    table.spec().shape.placement().key(Position(first + number)).0
}

/// The counts of a worker, as its file has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) acknowledged: u64,
    /// Whether the worker has stopped pushing.
    pub(crate) stopped: bool,
    /// For each shard: pushes sent, pushes acknowledged.
    pub(crate) shards: [[u64; 2]; SHARDS],
    /// Pushes to the large table that were sent, and that were acknowledged.
    pub(crate) large: [u64; 2],
}

/// Numbers in a file: sent, acknowledged, stopped, two for each shard, and two for the large table.
const NUMBERS: usize = LARGE + 2;
const LARGE: usize = 3 + 2 * SHARDS;

impl Counts {
    /// Reads the counts from a file; all are zero if the file is missing.
    pub(crate) fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_default();
        let mut numbers = [0; NUMBERS];
        for (number, place) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = place.try_into().map_or(0, u64::from_le_bytes);
        }
        let mut shards = [[0; 2]; SHARDS];
        for (shard, pair) in shards.iter_mut().zip(numbers[3..].chunks_exact(2)) {
            shard.copy_from_slice(pair);
        }
        let large = [numbers[LARGE], numbers[LARGE + 1]];
        Self { sent: numbers[0], acknowledged: numbers[1], stopped: numbers[2] > 0, shards, large }
    }
}

/// Counts for a worker. Each number is in the file before the worker goes on.
pub(crate) struct Counting {
    file: File,
    counts: Counts,
}

impl Counting {
    /// Starts counting in a new file.
    pub(crate) fn begin(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot create the count file {}", path.display()))?;
        Ok(Self { file, counts: Counts::default() })
    }

    fn write(&self, place: usize, number: u64) -> anyhow::Result<()> {
        Ok(self.file.write_all_at(&number.to_le_bytes(), 8 * place as u64)?)
    }

    /// Counts a push to these shards that is about to be sent. Returns its number, from 1.
    pub(crate) fn sent(&mut self, shards: Range<usize>) -> anyhow::Result<u64> {
        self.counts.sent += 1;
        for shard in shards {
            self.counts.shards[shard][0] += 1;
            self.write(3 + 2 * shard, self.counts.shards[shard][0])?;
        }
        self.write(0, self.counts.sent)?;
        Ok(self.counts.sent)
    }

    /// Counts a push to these shards that was acknowledged.
    pub(crate) fn acknowledged(&mut self, shards: Range<usize>) -> anyhow::Result<()> {
        self.counts.acknowledged += 1;
        self.write(1, self.counts.acknowledged)?;
        shards.into_iter().try_for_each(|shard| {
            self.counts.shards[shard][1] += 1;
            self.write(4 + 2 * shard, self.counts.shards[shard][1])
        })
    }

    /// Counts a push to the large table that is about to be sent.
    pub(crate) fn large_sent(&mut self) -> anyhow::Result<()> {
        self.counts.large[0] += 1;
        self.write(LARGE, self.counts.large[0])
    }

    /// Counts a push to the large table that was acknowledged.
    pub(crate) fn large_acknowledged(&mut self) -> anyhow::Result<()> {
        self.counts.large[1] += 1;
        self.write(LARGE + 1, self.counts.large[1])
    }

    /// Notes that the worker has stopped pushing.
    pub(crate) fn stopped(&self) -> anyhow::Result<()> {
        self.write(2, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater::{RunSize, Session, TableSpec};

    #[test]
    fn counts_are_read_back_from_their_file() {
        let path = std::env::temp_dir().join(format!("slackwater-counts-{}", std::process::id()));
        assert_eq!(Counts::read(&path), Counts::default());
        let mut counting = Counting::begin(&path).expect("a file can be made");
        assert_eq!(counting.sent(0..SHARDS).expect("counted"), 1);
        counting.acknowledged(0..SHARDS).expect("counted");
        assert_eq!(counting.sent(3..4).expect("counted"), 2);
        (0..2).for_each(|_| counting.large_sent().expect("counted"));
        counting.large_acknowledged().expect("counted");
        counting.stopped().expect("counted");
        let counts = Counts::read(&path);
        assert_eq!((counts.sent, counts.acknowledged, counts.stopped), (2, 1, true));
        assert_eq!((counts.shards[2], counts.shards[3], counts.large), ([1, 1], [2, 1], [2, 1]));
        std::fs::remove_file(&path).expect("it was there");
    }

    #[test]
    fn row_in_gives_a_key_of_the_shard() {
        let session = Session::embedded(RunSize { servers: 1, workers: 1 }).expect("a cluster").remove(0);
        let table = session
            .table::<i64>(TableSpec::sparse("t", 1).number(slackwater::policy::NumberType::I64))
            .expect("a table");
        for shard in 0..SHARDS {
            for number in [0, 1 << 41] {
                let key = row_in(&table, shard, number);
                let position = table.spec().shape.placement().position(slackwater::table::Key(key)).0;
                assert_eq!(((u128::from(position) * SHARDS as u128) >> 64) as usize, shard);
            }
        }
        session.close().expect("leaves");
    }
}
