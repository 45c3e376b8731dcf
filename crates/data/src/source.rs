//! [`BatchSource`]: reads minibatches one after another in the caller's thread, pass by pass,
//! through the shuffle buffer if there is one. Counts its progress.

use crate::idx::IdxPass;
use crate::parquet::ParquetPass;
use crate::shuffle::ShuffleBuffer;
use crate::text::TextPass;
use crate::{DataError, DataReader, Minibatch};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Fills minibatches in the caller's thread. [`DataReader::batches`] does so in a thread of its
/// own.
pub struct BatchSource {
    reader: DataReader,
    pass: Pass,
    buffer: Option<ShuffleBuffer>,
    epoch: u32,
    progress: Arc<Counters>,
    /// An error has ended the reading.
    failed: bool,
}

/// One pass over the files.
pub(crate) enum Pass {
    Text(Box<TextPass>),
    Parquet(Box<ParquetPass>),
    Idx(Box<IdxPass>),
}

/// How far a reader has read, all epochs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadProgress {
    /// Bytes of the files that it has read, as they are stored.
    pub bytes: u64,
    /// Bytes of all files, times the epochs.
    pub bytes_total: u64,
    /// Rows read, including those that wait in the shuffle buffer.
    pub rows_read: u64,
    /// Rows given to the program.
    pub rows: u64,
    /// Malformed lines that were skipped. The same line counts once in each epoch.
    pub bad_rows: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    bytes: AtomicU64,
    bytes_total: AtomicU64,
    rows_read: AtomicU64,
    rows: AtomicU64,
    bad_rows: AtomicU64,
}

impl Counters {
    pub fn read(&self) -> ReadProgress {
        ReadProgress {
            bytes: self.bytes.load(Relaxed),
            bytes_total: self.bytes_total.load(Relaxed),
            rows_read: self.rows_read.load(Relaxed),
            rows: self.rows.load(Relaxed),
            bad_rows: self.bad_rows.load(Relaxed),
        }
    }
}

impl Pass {
    fn fill(&mut self, rows: &mut Minibatch, limit: usize) -> Result<(), DataError> {
        match self {
            Self::Text(pass) => pass.fill(rows, limit),
            Self::Parquet(pass) => pass.fill(rows, limit),
            Self::Idx(pass) => pass.fill(rows, limit),
        }
    }

    fn position(&mut self) -> u64 {
        match self {
            Self::Text(pass) => pass.position(),
            Self::Parquet(pass) => pass.position(),
            Self::Idx(pass) => pass.position(),
        }
    }

    fn bad_rows(&self) -> u64 {
        match self {
            Self::Text(pass) => pass.bad_rows(),
            Self::Parquet(pass) => pass.bad_rows(),
            Self::Idx(pass) => pass.bad_rows(),
        }
    }
}

impl BatchSource {
    pub(crate) fn new(reader: DataReader) -> Self {
        let progress = Counters::default();
        progress.bytes_total.store(reader.bytes() * u64::from(reader.settings().epochs), Relaxed);
        Self {
            pass: reader.pass(),
            buffer: reader.shuffle_buffer(),
            epoch: reader.epochs().start,
            reader,
            progress: Arc::new(progress),
            failed: false,
        }
    }

    /// How far it has read.
    #[must_use]
    pub fn progress(&self) -> ReadProgress {
        self.progress.read()
    }

    pub(crate) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.progress)
    }

    /// Replaces the contents of `batch` with the next rows. Returns false when there are no more,
    /// and always after an error.
    pub fn fill(&mut self, batch: &mut Minibatch) -> Result<bool, DataError> {
        batch.clear();
        let epochs = self.reader.epochs();
        let span = self.reader.span();
        let position = |pass: &mut Pass| pass.position().clamp(span.start, span.end);
        let limit = self.reader.settings().minibatch_rows;
        while !self.failed && epochs.contains(&self.epoch) {
            let bytes = position(&mut self.pass);
            let bad_rows = self.pass.bad_rows();
            let filled = match &mut self.buffer {
                None => self.pass.fill(batch, limit).inspect(|()| {
                    self.progress.rows_read.fetch_add(batch.rows() as u64, Relaxed);
                }),
                Some(buffer) => {
                    let held = self.reader.settings().shuffle.map_or(1, |shuffle| shuffle.minibatches.max(1));
                    let refilled = if buffer.is_empty() {
                        buffer.refill(|rows| {
                            self.pass.fill(rows, limit.saturating_mul(held))?;
                            self.progress.rows_read.fetch_add(rows.rows() as u64, Relaxed);
                            Ok(())
                        })
                    } else {
                        Ok(())
                    };
                    buffer.give(batch, limit);
                    refilled
                }
            };
            self.progress.bytes.fetch_add(position(&mut self.pass).saturating_sub(bytes), Relaxed);
            self.progress.bad_rows.fetch_add(self.pass.bad_rows() - bad_rows, Relaxed);
            if let Err(error) = filled {
                self.failed = true;
                batch.clear();
                return Err(error);
            }
            batch.set_epoch(self.epoch);
            if batch.rows() > 0 {
                self.progress.rows.fetch_add(batch.rows() as u64, Relaxed);
                return Ok(true);
            }
            self.epoch += 1;
            self.pass = self.reader.pass();
        }
        Ok(false)
    }
}
