//! Which part of the data is a worker's: each row belongs to exactly one of them.
//!
//! A file is cut into blocks; a row belongs to the block that it starts in, and a block to one
//! worker. A plain file is not even read where it is another worker's; a compressed one is
//! decompressed throughout, but only its own lines are parsed.

use types::mix;

use crate::DataError;

/// Text is cut into blocks of at least this many bytes: few enough that small files reach every
/// worker.
const FEWEST_BLOCK_BYTES: u64 = 16 * 1024;
/// And at most this many.
const MOST_BLOCK_BYTES: u64 = 256 * 1024;
/// In between, each worker has about so many blocks of a file: no worker has much more than
/// another, and none leaps often.
const BLOCKS_EACH: u64 = 64;
/// Parquet and images are cut into blocks of this many rows.
pub const BLOCK_ROWS: u64 = 256;

/// One worker's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerShare {
    rank: u64,
    of: u64,
    seed: u64,
}

impl WorkerShare {
    pub fn new(rank: u32, of: u32, seed: u64) -> Result<Self, DataError> {
        if rank >= of {
            let problem = format!("worker {rank} of {of} has no share: workers count from 0");
            return Err(DataError::Setting { problem });
        }
        Ok(Self { rank: rank.into(), of: of.into(), seed })
    }

    /// How many bytes a block of text is, in a file of this length.
    pub fn block_bytes(&self, file_bytes: u64) -> u64 {
        (file_bytes / (self.of * BLOCKS_EACH)).clamp(FEWEST_BLOCK_BYTES, MOST_BLOCK_BYTES)
    }

    /// The first block from `block` on that is this worker's, in file number `file`, and the first
    /// after it that may not be.
    ///
    /// Of any `of` neighbours that start at a multiple of `of`, each worker has one; which one
    /// changes with the seed from one such group to the next, so that what repeats in a file does
    /// not fall to one worker.
    pub fn next_run(&self, file: usize, block: u64) -> std::ops::Range<u64> {
        if self.of == 1 {
            return block..u64::MAX;
        }
        let mut candidate = block;
        while !self.owns(file, candidate) {
            candidate += 1;
        }
        candidate..candidate + 1
    }

    fn owns(&self, file: usize, block: u64) -> bool {
        let turn = mix(self.seed ^ mix(block / self.of));
        (block % self.of + file as u64 % self.of + turn % self.of) % self.of == self.rank
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_one_workers_and_none_has_more_than_one_more() {
        for of in 1..6 {
            for seed in 0..3 {
                let shares: Vec<WorkerShare> = (0..of).map(|rank| WorkerShare::new(rank, of, seed).unwrap()).collect();
                for file in 0..7 {
                    let mut counts = vec![0u64; of as usize];
                    for block in 0..40 {
                        let owners: Vec<usize> = (0..of as usize)
                            .filter(|&rank| shares[rank].next_run(file, block).start == block)
                            .collect();
                        assert_eq!(owners.len(), 1, "block {block} of file {file}");
                        counts[owners[0]] += 1;
                    }
                    assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
                }
                // Many files of one block each are dealt out in turn.
                for (file, share) in (0..).zip(0..of) {
                    let first = shares.iter().position(|share| share.next_run(0, 0).start == 0).unwrap();
                    assert_eq!(shares[(first + share as usize) % of as usize].next_run(file, 0).start, 0);
                }
            }
        }
    }

    #[test]
    fn a_worker_that_is_not_there_has_no_share() {
        let problem = WorkerShare::new(3, 3, 0).unwrap_err().to_string();
        assert_eq!(problem, "worker 3 of 3 has no share: workers count from 0");
    }
}
