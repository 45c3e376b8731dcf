//! What of its files a pass reads: everything, one worker's share, or one range that was cut.

use crate::share::WorkerShare;
use std::ops::Range;

/// What of its files a pass reads. Places are bytes of text, where a row is where its line starts;
/// rows elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The blocks of every file that are one worker's.
    Dealt(WorkerShare),
    /// One stretch, of every file that there is.
    Cut {
        /// The first place of it.
        from: u64,
        /// The first place after it.
        to: u64,
    },
}

impl Selection {
    pub const WHOLE: Self = Self::Cut { from: 0, to: u64::MAX };

    /// How many bytes a block of text is, in a file of this length.
    pub fn block_bytes(self, file_bytes: u64) -> u64 {
        match self {
            Self::Dealt(share) => share.block_bytes(file_bytes),
            Self::Cut { .. } => 1,
        }
    }

    /// The stretch to be read that `at` lies in or that follows it, in file number `file`; none if
    /// there is no more.
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
