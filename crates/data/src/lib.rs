//! Readers of training data: files in, minibatches out.
//!
//! A [`DataReader`] knows which files to read, in which [`Format`] and with which [`Labels`]. It
//! gives [`Batches`]: [`Minibatch`]es of labels, keys and values, which a thread of its own fills
//! while the program learns. Minibatches are lent and handed back, so memory does not grow with the
//! input. [`Cuts`] divide the same files into ranges, for data leases. A [`FeatureHash`] turns
//! names into keys.
//!
//! For each format, docs/formats.md says what is accepted and what is refused.

mod bad_rows;
mod bag_of_words;
mod batches;
mod cuts;
mod data_sets;
mod error;
mod fault;
mod format;
mod hash;
mod idx;
mod input;
mod label;
mod lines;
mod minibatch;
mod number;
mod parquet;
mod reader;
mod selection;
mod share;
mod shuffle;
mod source;
#[cfg(test)]
mod testing;
mod text;

pub use bag_of_words::{Weighting, bag_of_words};
pub use batches::{AHEAD, Batches, Loan};
pub use cuts::Cuts;
pub use data_sets::{data_set, data_sets};
pub use error::DataError;
pub use fault::RowFault;
pub use format::{ColumnError, ColumnRule, ColumnRules, Csv, CsvHeader, Format, TextParser};
pub use hash::{FeatureHash, Space};
pub use idx::{ImageShape, image_shape};
pub use input::{files, read_text};
pub use label::Labels;
pub use minibatch::{Minibatch, MinibatchRow};
pub use reader::{DataReader, ReaderSettings};
pub use shuffle::Shuffle;
pub use source::{BatchSource, ReadProgress};
