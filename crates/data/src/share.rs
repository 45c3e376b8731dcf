//! [`WorkerShare`]: which part of the data a worker reads, if each worker has a fixed share. Every
//! row is in exactly one share.
//!
//! A file is cut into blocks. A row belongs to the block that it starts in, and a block to one
//! worker. A worker does not even read the other workers' blocks of a plain file. It decompresses
//! all of a compressed file, but parses only its own lines.

use types::mix;

use crate::DataError;

/// Bytes of a block of text, at least: few, so that every worker has some of a small file.
const FEWEST_BLOCK_BYTES: u64 = 16 * 1024;
/// Bytes of a block of text, at most.
const MOST_BLOCK_BYTES: u64 = 256 * 1024;
/// Between these bounds, each worker has about so many blocks of a file: enough that the shares are
/// nearly equal, few enough that workers seldom skip.
const BLOCKS_EACH: u64 = 64;
/// Rows of a block, in Parquet and images.
pub const BLOCK_ROWS: u64 = 256;

/// One worker's share.
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

    /// Bytes of a block of text, in a file of `file_bytes`.
    pub fn block_bytes(&self, file_bytes: u64) -> u64 {
        (file_bytes / (self.of * BLOCKS_EACH)).clamp(FEWEST_BLOCK_BYTES, MOST_BLOCK_BYTES)
    }

    /// The next run of blocks from `block` on that are this worker's, in file number `file`.
    ///
    /// Blocks are dealt in groups of `of`, one block to each worker. The seed decides who gets
    /// which, anew for each group, so that a pattern that repeats in a file does not go to one
    /// worker.
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
    fn every_block_goes_to_one_worker_and_counts_differ_by_at_most_one() {
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
                // Files of one block each are dealt to the workers in turn.
                for (file, share) in (0..).zip(0..of) {
                    let first = shares.iter().position(|share| share.next_run(0, 0).start == 0).unwrap();
                    assert_eq!(shares[(first + share as usize) % of as usize].next_run(file, 0).start, 0);
                }
            }
        }
    }

    #[test]
    fn a_rank_beyond_the_workers_is_refused() {
        let problem = WorkerShare::new(3, 3, 0).unwrap_err().to_string();
        assert_eq!(problem, "worker 3 of 3 has no share: workers count from 0");
    }
}
