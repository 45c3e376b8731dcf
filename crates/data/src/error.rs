//! [`DataError`]: why data could not be read. There is one variant for each thing that the caller
//! can do about it.

use crate::{ColumnError, RowFault};
use std::io;

/// Why data could not be read. Every message says which file, where in it, and what is wrong.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The pattern for file names is not valid. Change it.
    #[error("`{pattern}` is not a valid file pattern: {reason}")]
    Pattern {
        /// The pattern, as given.
        pattern: String,
        /// Why it is not valid, in words.
        reason: String,
    },
    /// No file has that name or matches the pattern. Change it, or put the file there.
    #[error("there is no file `{pattern}`")]
    NoFile {
        /// The pattern, as given.
        pattern: String,
    },
    /// A setting makes no sense. Change it.
    #[error("{problem}")]
    Setting {
        /// What is wrong, in words.
        problem: String,
    },
    /// The file is there, but cannot be opened or read.
    #[error("{file}: cannot be read at byte {offset}: {error}")]
    Read {
        /// The file's name.
        file: String,
        /// How many bytes of the file, as it is stored, were read before.
        offset: u64,
        /// The error of the system or the decoder.
        error: io::Error,
    },
    /// A compressed file is truncated. Get the whole file.
    #[error("{file}: is truncated: its {packing} data is incomplete after {offset} bytes; get the whole file")]
    Truncated {
        /// The file's name.
        file: String,
        /// How it is compressed: `gzip` or `zstd`.
        packing: &'static str,
        /// How many bytes it has.
        offset: u64,
    },
    /// The file does not have the format that it is read as.
    #[error("{file}: {problem}")]
    Kind {
        /// The file's name.
        file: String,
        /// What is wrong, in words.
        problem: String,
    },
    /// The file's columns do not fit the column rules.
    #[error("{file}: {error}")]
    Columns {
        /// The file's name.
        file: String,
        /// What is wrong with them.
        error: ColumnError,
    },
    /// A line (in Parquet, a row) is malformed, and no more malformed lines may be skipped. Correct
    /// it, or allow more.
    #[error("{file}:{line}:{}: {fault}{}", fault.column, after(*skipped))]
    Malformed {
        /// The file's name.
        file: String,
        /// The line's number, from 1.
        line: u64,
        /// What is wrong with it. The fault's column counts bytes (in Parquet, columns) from 1.
        fault: RowFault,
        /// How many malformed lines were skipped before it.
        skipped: u64,
    },
    /// A file has changed since it was cut into ranges, so the ranges no longer have the rows that
    /// other workers read. Start the run again.
    #[error("{file}: has changed: it had {was} bytes when the run began and has {is}; start the run again")]
    Changed {
        /// The file's name.
        file: String,
        /// How many bytes it had.
        was: u64,
        /// How many bytes it has.
        is: u64,
    },
    /// Text that was converted from data cannot be written.
    #[error("cannot write: {error}")]
    Write {
        /// The error of the system.
        error: io::Error,
    },
    /// The thread that reads could not be started, or it panicked, which is a bug of this library.
    #[error("the thread that reads data stopped: {problem}")]
    Stopped {
        /// What is wrong, in words.
        problem: String,
    },
}

fn after(skipped: u64) -> String {
    if skipped == 0 { String::new() } else { format!(" (after {skipped} skipped malformed lines)") }
}
