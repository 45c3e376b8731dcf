//! [`DataReader`]: which files to read, how, and which part of them is this worker's.

use crate::bad_rows::BadRows;
use crate::batches::Batches;
use crate::cuts::Layout;
use crate::idx::{self, IdxPass};
use crate::input::{InputFile, failure, files};
use crate::lines::{Next, TextLines};
use crate::parquet::{self, ParquetPass, Schema};
use crate::selection::Selection;
use crate::share::WorkerShare;
use crate::shuffle::{Shuffle, ShuffleBuffer};
use crate::source::{BatchSource, Pass};
use crate::text::TextPass;
use crate::{ColumnRules, DataError, FeatureHash, Format, Labels, Minibatch, TextParser};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::mix;

/// How many bytes at the beginning of a CSV file are read to find its heading and guess its
/// columns.
const HEAD_BYTES: usize = 1 << 20;

/// How data is to be read.
#[derive(Clone, Debug)]
pub struct ReaderSettings {
    /// The format of the files.
    pub format: Format,
    /// Which labels the files have, and what they become.
    pub labels: Labels,
    /// How names become keys.
    pub hash: FeatureHash,
    /// Rows of a minibatch; the last one of an epoch may have fewer.
    pub minibatch_rows: usize,
    /// How many times the files are read.
    pub epochs: u32,
    /// How many malformed lines are skipped in an epoch; the next one is an error.
    pub skip_bad: u64,
    /// Whether rows are shuffled, in a new order in each epoch.
    pub shuffle: Option<Shuffle>,
    /// Decides which worker reads which rows, and the order of a shuffle.
    pub seed: u64,
    /// A line with more bytes is malformed.
    pub line_limit_bytes: usize,
}

impl ReaderSettings {
    /// Settings for one epoch in the files' order: minibatches of 1,000 rows, lines of at most 16
    /// MiB, and no malformed line skipped.
    #[must_use]
    pub fn new(format: Format, labels: Labels) -> Self {
        Self {
            format,
            labels,
            hash: FeatureHash::default(),
            minibatch_rows: 1000,
            epochs: 1,
            skip_bad: 0,
            shuffle: None,
            seed: 0,
            line_limit_bytes: 16 << 20,
        }
    }
}

/// Some files and how to read them. They can be read more than once, and by several workers.
///
/// ```
/// use data::{Format, Labels, DataReader, ReaderSettings};
///
/// # let path = std::env::temp_dir().join(format!("slackwater-doc-{}.libsvm", std::process::id()));
/// # std::fs::write(&path, "+1 3:1 7:0.5\n-1 7:2\n").unwrap();
/// # let name = path.to_str().unwrap();
/// let reader = DataReader::open(&[name], ReaderSettings::new(Format::LibSvm, Labels::Binary))?;
/// let mut total = 0.0;
/// for batch in reader.batches()? {
///     for row in batch?.iter() {
///         total += row.values.iter().sum::<f32>();
///     }
/// }
/// assert_eq!(total, 3.5);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DataReader {
    files: Arc<[PathBuf]>,
    bytes: u64,
    settings: ReaderSettings,
    rows: Rows,
    part: Selection,
    /// If this reads one range: about which bytes of the file it is, to measure progress.
    span: Range<u64>,
    /// The number of the first epoch.
    first_epoch: u32,
    /// Which of the orders that follow from the seed a shuffle uses.
    stream: u64,
}

/// How rows are made, once the columns are settled.
#[derive(Clone, Debug)]
enum Rows {
    Text(TextParser),
    Parquet(Schema),
    Idx,
}

impl DataReader {
    /// Finds the files, each given by name or by pattern (`*`, `**`, `?`, `[a-z]`), and reads the
    /// columns of the first.
    pub fn open(patterns: &[impl AsRef<str>], settings: ReaderSettings) -> Result<Self, DataError> {
        for (number, name) in [
            (settings.minibatch_rows, "a minibatch's rows"),
            (settings.line_limit_bytes, "a line's bytes"),
            (patterns.len(), "the number of files"),
        ] {
            if number == 0 {
                return Err(DataError::Setting { problem: format!("{name} cannot be 0") });
            }
        }
        let files = files(patterns)?;
        let mut bytes = 0;
        for path in &files {
            bytes += std::fs::metadata(path).map_err(|error| failure(path, 0, error))?.len();
        }
        let ReaderSettings { labels, hash, .. } = settings;
        let rows = match &settings.format {
            Format::LibSvm => Rows::Text(TextParser::libsvm(labels)),
            Format::LibFfm => Rows::Text(TextParser::libffm(labels)),
            Format::VowpalWabbit => Rows::Text(TextParser::vowpal_wabbit(labels, hash)),
            Format::Criteo => Rows::Text(TextParser::criteo(labels, hash)),
            Format::Csv(csv) => {
                let head = head(&files[0], settings.line_limit_bytes)?;
                let wrong = |error| DataError::Columns { file: files[0].display().to_string(), error };
                Rows::Text(TextParser::csv(csv, labels, hash, &head).map_err(wrong)?)
            }
            Format::Parquet(columns) => {
                let schema = Schema { columns: columns.clone(), labels, hash };
                parquet::check(&files[0], &schema)?;
                Rows::Parquet(schema)
            }
            Format::Idx => {
                idx::check(&files[0], labels)?;
                Rows::Idx
            }
        };
        Ok(Self {
            files: files.into(),
            bytes,
            settings,
            rows,
            part: Selection::WHOLE,
            span: 0..u64::MAX,
            first_epoch: 0,
            stream: 0,
        })
    }

    /// The share of worker `rank` of `of`. Every row is in exactly one share; the same seed gives
    /// the same shares.
    pub fn for_worker(&self, rank: u32, of: u32) -> Result<Self, DataError> {
        let part = Selection::Dealt(WorkerShare::new(rank, of, self.settings.seed)?);
        Ok(Self { part, stream: rank.into(), ..self.clone() })
    }

    /// Reads one range of one file, once, as epoch `epoch`. If rows are shuffled, `stream` decides
    /// their order.
    pub(crate) fn for_range(&self, file: usize, part: Selection, span: Range<u64>, epoch: u32, stream: u64) -> Self {
        let settings = ReaderSettings { epochs: 1, ..self.settings.clone() };
        let files = Arc::from([self.files[file].clone()]);
        let bytes = span.end - span.start;
        Self { files, bytes, settings, rows: self.rows.clone(), part, span, first_epoch: epoch, stream }
    }

    /// The same rows; in an epoch, `skip_bad` malformed lines are skipped, and the next one is an
    /// error.
    ///
    /// ```
    /// use data::{Format, Labels, DataReader, ReaderSettings};
    ///
    /// # let path = std::env::temp_dir().join(format!("slackwater-allowing-{}.libsvm", std::process::id()));
    /// # std::fs::write(&path, "+1 3:1\nwhat\n-1 7:2\n").unwrap();
    /// # let name = path.to_str().unwrap();
    /// let reader = DataReader::open(&[name], ReaderSettings::new(Format::LibSvm, Labels::Binary))?;
    /// assert!(reader.batches()?.any(|batch| batch.is_err()));
    /// assert!(reader.allowing(1).batches()?.all(|batch| batch.is_ok()));
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), data::DataError>(())
    /// ```
    #[must_use]
    pub fn allowing(&self, skip_bad: u64) -> Self {
        let settings = ReaderSettings { skip_bad, ..self.settings.clone() };
        Self { settings, ..self.clone() }
    }

    /// The same rows once, in the files' order.
    #[must_use]
    pub fn once(&self) -> Self {
        let settings = ReaderSettings { epochs: 1, shuffle: None, ..self.settings.clone() };
        Self { settings, ..self.clone() }
    }

    /// The files, in the order in which they are read.
    #[must_use]
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// How many bytes the files have, as they are stored.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What each column is, without guesses, if the format has columns. With these rules, other
    /// files are read in the same way.
    pub fn columns(&self) -> Result<Option<ColumnRules>, DataError> {
        let roles = match &self.rows {
            Rows::Text(parser) => parser.columns().cloned(),
            Rows::Parquet(schema) => Some(parquet::check(&self.files[0], schema)?),
            Rows::Idx => None,
        };
        let label = match &self.settings.format {
            Format::Csv(csv) => &csv.columns.label,
            Format::Parquet(columns) => &columns.label,
            _ => return Ok(None),
        };
        Ok(roles.map(|roles| roles.settled(label)))
    }

    /// The settings, as given.
    #[must_use]
    pub fn settings(&self) -> &ReaderSettings {
        &self.settings
    }

    /// Reads the minibatches in a thread of its own.
    pub fn batches(&self) -> Result<Batches, DataError> {
        self.prepared(|_, ()| ())
    }

    /// Like [`batches`](Self::batches), and that thread also calls `prepare` on each minibatch.
    /// `prepare` gets the value that it filled for an earlier minibatch, to use its memory again.
    pub fn prepared<P: Default + Send + 'static>(
        &self,
        prepare: impl FnMut(&Minibatch, &mut P) + Send + 'static,
    ) -> Result<Batches<P>, DataError> {
        Batches::start(self.source(), prepare)
    }

    /// Reads the minibatches in the caller's thread.
    #[must_use]
    pub fn source(&self) -> BatchSource {
        BatchSource::new(self.clone())
    }

    pub(crate) fn pass(&self) -> Pass {
        let bad = BadRows::new(self.settings.skip_bad);
        let files = Arc::clone(&self.files);
        match &self.rows {
            Rows::Text(parser) => {
                let limit = self.settings.line_limit_bytes;
                Pass::Text(Box::new(TextPass::new(files, parser.clone(), self.part, limit, bad)))
            }
            Rows::Parquet(schema) => Pass::Parquet(Box::new(ParquetPass::new(files, schema.clone(), self.part, bad))),
            Rows::Idx => Pass::Idx(Box::new(IdxPass::new(files, self.settings.labels, self.part, bad))),
        }
    }

    pub(crate) fn span(&self) -> Range<u64> {
        self.span.clone()
    }

    /// The numbers of the epochs to read.
    pub(crate) fn epochs(&self) -> Range<u32> {
        self.first_epoch..self.first_epoch.saturating_add(self.settings.epochs)
    }

    /// Where file number `file` can be cut into ranges of up to `target_bytes`.
    pub(crate) fn layout(&self, file: usize, target_bytes: u64) -> Result<Layout, DataError> {
        let path = &self.files[file];
        match &self.rows {
            Rows::Text(_) if InputFile::open(path)?.can_leap() => Ok(Layout::Text),
            Rows::Text(_) => Ok(Layout::Whole),
            Rows::Parquet(schema) => Ok(Layout::of_groups(parquet::groups(path, schema)?, target_bytes)),
            Rows::Idx => idx::layout(path),
        }
    }

    /// The length in bytes of the label file of file number `file`; 0 if labels are not in a file
    /// of their own.
    pub(crate) fn bytes_of_labels(&self, file: usize) -> Result<u64, DataError> {
        match &self.rows {
            Rows::Idx if self.settings.labels != Labels::Ignored => idx::bytes_of_labels(&self.files[file]),
            _ => Ok(0),
        }
    }

    /// The shuffle buffer, if rows are shuffled. Each worker and each lease has an order of its
    /// own.
    pub(crate) fn shuffle_buffer(&self) -> Option<ShuffleBuffer> {
        self.settings.shuffle.map(|_| ShuffleBuffer::new(mix(self.settings.seed ^ mix(self.stream))))
    }
}

/// The first lines of a file, about [`HEAD_BYTES`] of them.
fn head(path: &Path, line_limit_bytes: usize) -> Result<Vec<u8>, DataError> {
    let mut lines = TextLines::new(InputFile::open(path)?, line_limit_bytes);
    let mut head = Vec::new();
    while head.len() < HEAD_BYTES {
        match lines.next()? {
            Next::Line(line) => head.extend_from_slice(line),
            Next::TooLong => {}
            Next::End => break,
        }
        head.push(b'\n');
    }
    Ok(head)
}
