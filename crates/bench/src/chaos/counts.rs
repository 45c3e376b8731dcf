//! What a worker counts, in a file that outlives it: pushes sent and pushes acknowledged, in all
//! and to each shard.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use slackwater::Table;
use slackwater::table::Position;

use super::cluster::SHARDS;

/// The key of a row in a shard, by its number there.
pub(crate) fn row_in(table: &Table<i64>, shard: usize, number: u64) -> u64 {
    // Tables are cut into shards of equal length.
    let first = ((shard as u128) << 64).div_ceil(SHARDS as u128) as u64;
    table.spec().shape.placement().key(Position(first + number)).0
}

/// What a worker has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) acknowledged: u64,
    /// Whether it has stopped pushing.
    pub(crate) stopped: bool,
    /// Sent to each shard, and acknowledged.
    pub(crate) shards: [[u64; 2]; SHARDS],
}

/// Numbers in a file: three, and two for each shard.
const NUMBERS: usize = 3 + 2 * SHARDS;

impl Counts {
    /// What stands in a file by now; nothing where there is none yet.
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
        Self { sent: numbers[0], acknowledged: numbers[1], stopped: numbers[2] > 0, shards }
    }
}

/// A worker's own, each number in its file before it goes on.
pub(crate) struct Counting {
    file: File,
    counts: Counts,
}

impl Counting {
    pub(crate) fn begin(path: &Path) -> anyhow::Result<Self> {
        Ok(Self { file: File::create(path).context("cannot count")?, counts: Counts::default() })
    }

    fn write(&self, place: usize, number: u64) -> anyhow::Result<()> {
        Ok(self.file.write_all_at(&number.to_le_bytes(), 8 * place as u64)?)
    }

    /// A push to these shards is about to be sent. Returns which it is, from 1.
    pub(crate) fn sent(&mut self, shards: Range<usize>) -> anyhow::Result<u64> {
        self.counts.sent += 1;
        for shard in shards {
            self.counts.shards[shard][0] += 1;
            self.write(3 + 2 * shard, self.counts.shards[shard][0])?;
        }
        self.write(0, self.counts.sent)?;
        Ok(self.counts.sent)
    }

    /// A push to these shards was acknowledged.
    pub(crate) fn acknowledged(&mut self, shards: Range<usize>) -> anyhow::Result<()> {
        self.counts.acknowledged += 1;
        self.write(1, self.counts.acknowledged)?;
        shards.into_iter().try_for_each(|shard| {
            self.counts.shards[shard][1] += 1;
            self.write(4 + 2 * shard, self.counts.shards[shard][1])
        })
    }

    pub(crate) fn stopped(&self) -> anyhow::Result<()> {
        self.write(2, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater::{RunSize, Session, TableSpec};

    #[test]
    fn what_is_counted_can_be_read() {
        let path = std::env::temp_dir().join(format!("slackwater-counts-{}", std::process::id()));
        assert_eq!(Counts::read(&path), Counts::default());
        let mut counting = Counting::begin(&path).expect("a file can be made");
        assert_eq!(counting.sent(0..SHARDS).expect("counted"), 1);
        counting.acknowledged(0..SHARDS).expect("counted");
        assert_eq!(counting.sent(3..4).expect("counted"), 2);
        counting.stopped().expect("counted");
        let counts = Counts::read(&path);
        assert_eq!((counts.sent, counts.acknowledged, counts.stopped), (2, 1, true));
        assert_eq!((counts.shards[2], counts.shards[3]), ([1, 1], [2, 1]));
        std::fs::remove_file(&path).expect("it was there");
    }

    #[test]
    fn a_row_is_in_the_slice_that_it_is_meant_for() {
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
