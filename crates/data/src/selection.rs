//! [`Selection`]: which rows a pass over files reads: all of them, one worker's share, or one
//! range.

use crate::share::WorkerShare;
use std::ops::Range;

/// Which rows a pass reads. A place is a byte of text, where a row's place is where its line
/// starts; in other formats it is the number of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// One worker's blocks of every file.
    Dealt(WorkerShare),
    /// The same stretch of every file.
    Cut {
        /// Its first place.
        from: u64,
        /// The first place after it.
        to: u64,
    },
}

impl Selection {
    /// All rows.
    pub const WHOLE: Self = Self::Cut { from: 0, to: u64::MAX };

    /// Bytes of a block of text, in a file of `file_bytes`.
    pub fn block_bytes(self, file_bytes: u64) -> u64 {
        match self {
            Self::Dealt(share) => share.block_bytes(file_bytes),
            Self::Cut { .. } => 1,
        }
    }

    /// The stretch to read in file number `file` that contains `at` or is the next one after it;
    /// none if there is no more. `block` is the number of places in a block.
    pub fn next_run(self, file: usize, at: u64, block: u64) -> Option<Range<u64>> {
        match self {
            Self::Dealt(share) => {
                let run = share.next_run(file, at / block);
                Some(run.start.saturating_mul(block)..run.end.saturating_mul(block))
            }
            Self::Cut { from, to } => (at < to).then_some(from..to),
        }
    }
}
