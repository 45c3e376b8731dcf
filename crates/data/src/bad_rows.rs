//! How many malformed rows may be skipped.

use crate::{DataError, RowFault};
use std::path::Path;

/// Counts the malformed rows of one pass.
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

    /// Skips one, or says what is wrong with it if no more may be skipped.
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
