//! Counts malformed rows, and decides whether one more may be skipped.

use crate::{DataError, RowFault};
use std::path::Path;

/// The malformed rows of one pass: how many may be skipped, and how many were.
#[derive(Clone, Copy, Debug)]
pub struct BadRows {
    allowed: u64,
    skipped: u64,
}

impl BadRows {
    pub fn new(allowed: u64) -> Self {
        Self { allowed, skipped: 0 }
    }

    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Skips a malformed row, or returns the error that describes it if no more may be skipped.
    /// `line` computes its line number, which may cost a second reading of the file.
    pub fn skip(
        &mut self,
        path: &Path,
        line: impl FnOnce() -> Result<u64, DataError>,
        fault: RowFault,
    ) -> Result<(), DataError> {
        if self.skipped == self.allowed {
            let file = path.display().to_string();
            return Err(DataError::Malformed { file, line: line()?, fault, skipped: self.skipped });
        }
        self.skipped += 1;
        Ok(())
    }
}
