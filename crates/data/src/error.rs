//! Why data could not be read, by what the caller can do about it.

use crate::{ColumnError, RowFault};
use std::io;

/// Why data could not be read. Every message says which file, where in it, and what is wrong.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The name of the files is no pattern. Change it.
    #[error("`{pattern}` is no pattern of files: {reason}")]
    Pattern {
        /// As given.
        pattern: String,
        /// In words.
        reason: String,
    },
    /// No file has that name. Change it, or put the file there.
    #[error("there is no file `{pattern}`")]
    NoFile {
        /// As given.
        pattern: String,
    },
    /// A setting makes no sense. Change it.
    #[error("{problem}")]
    Setting {
        /// In words.
        problem: String,
    },
    /// The file is there and cannot be opened or read.
    #[error("{file}: cannot be read at byte {offset}: {error}")]
    Read {
        /// Its name.
        file: String,
        /// Where in the file, compressed as it is.
        offset: u64,
        /// What the system or the decoder said.
        error: io::Error,
    },
    /// A compressed file ends in the middle. Get the whole of it.
    #[error("{file}: is cut off: its {packing} data goes on after its last byte, {offset}")]
    Truncated {
        /// Its name.
        file: String,
        /// How it is compressed.
        packing: &'static str,
        /// How long it is.
        offset: u64,
    },
    /// The file is of another kind than the format that was asked for.
    #[error("{file}: {problem}")]
    Kind {
        /// Its name.
        file: String,
        /// In words.
        problem: String,
    },
    /// The file's columns are not those that were asked for.
    #[error("{file}: {error}")]
    Columns {
        /// Its name.
        file: String,
        /// What is missing.
        error: ColumnError,
    },
    /// A line (of Parquet, a row) is malformed, and no more of those may be skipped. Mend it, or
    /// allow more.
    #[error("{file}:{line}:{}: {fault}{}", fault.column, after(*skipped))]
    Malformed {
        /// Its name.
        file: String,
        /// From 1.
        line: u64,
        /// What is wrong with it; its column counts bytes (of Parquet, columns) from 1.
        fault: RowFault,
        /// How many were skipped before it.
        skipped: u64,
    },
    /// A file is not what it was when it was cut into ranges: their rows are no longer those that
    /// others read. Start anew.
    #[error("{file}: has changed: it had {was} bytes when the run began and has {is}; start the run again")]
    Changed {
        /// Its name.
        file: String,
        /// How long it was.
        was: u64,
        /// How long it is.
        is: u64,
    },
    /// Text that was made from data cannot be written.
    #[error("cannot write: {error}")]
    Write {
        /// What the system said.
        error: io::Error,
    },
    /// The thread that reads is gone without a word, which is a fault of this library.
    #[error("the thread that reads data has stopped: {problem}")]
    Stopped {
        /// In words.
        problem: String,
    },
}

fn after(skipped: u64) -> String {
    if skipped == 0 { String::new() } else { format!(" (after {skipped} bad lines that were skipped)") }
}
