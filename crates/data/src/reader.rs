//! What is to be read, by whom, and how.

use crate::bad::BadRows;
use crate::batches::Batches;
use crate::idx::{self, IdxPass};
use crate::input::{Input, failure, files};
use crate::lines::{Lines, Next};
use crate::parquet::{self, ParquetPass, Schema};
use crate::share::{Share, mix};
use crate::shuffle::{Shuffle, Window};
use crate::source::{Pass, Source};
use crate::text::TextPass;
use crate::{Columns, DataError, FeatureHash, Format, Labels, Minibatch, TextParser};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How long the beginning of a file is that is looked at before reading.
const HEAD_BYTES: usize = 1 << 20;

/// How data is to be read.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the files are.
    pub format: Format,
    /// What their labels are.
    pub labels: Labels,
    /// How names become keys.
    pub hash: FeatureHash,
    /// A minibatch has this many rows, the last of an epoch fewer.
    pub minibatch_rows: usize,
    /// How often everything is read.
    pub epochs: u32,
    /// How many malformed lines are skipped in an epoch before the next is an error.
    pub skip_bad: u64,
    /// Whether rows are put in another order, a new one in each epoch.
    pub shuffle: Option<Shuffle>,
    /// Decides which rows are whose, and the order of a shuffle.
    pub seed: u64,
    /// A longer line is malformed.
    pub line_limit_bytes: usize,
}

impl Settings {
    /// One epoch in the files' order, minibatches of 1,000 rows, lines of at most 16 MiB, and nothing skipped.
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

/// Some files and how to read them. It can be read more than once, and by several workers.
///
/// ```
/// use data::{Format, Labels, Reader, Settings};
///
/// # let path = std::env::temp_dir().join(format!("slackwater-doc-{}.libsvm", std::process::id()));
/// # std::fs::write(&path, "+1 3:1 7:0.5\n-1 7:2\n").unwrap();
/// # let name = path.to_str().unwrap();
/// let reader = Reader::open(&[name], Settings::new(Format::LibSvm, Labels::Binary))?;
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
pub struct Reader {
    files: Arc<[PathBuf]>,
    bytes: u64,
    settings: Settings,
    rows: Rows,
    share: Share,
}

/// How rows are made, all settled.
#[derive(Clone, Debug)]
enum Rows {
    Text(TextParser),
    Parquet(Schema),
    Idx,
}

impl Reader {
    /// Looks the files up, each named or matched by a pattern (`*`, `**`, `?`, `[a-z]`), and at the columns of the first.
    pub fn open(patterns: &[impl AsRef<str>], settings: Settings) -> Result<Self, DataError> {
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
        let Settings { labels, hash, .. } = settings;
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
        Ok(Self { files: files.into(), bytes, settings, rows, share: Share::WHOLE })
    }

    /// The part of worker `rank` of `of`: every row is in exactly one part, the same one for the same seed.
    pub fn for_worker(&self, rank: u32, of: u32) -> Result<Self, DataError> {
        Ok(Self { share: Share::new(rank, of, self.settings.seed)?, ..self.clone() })
    }

    /// The same rows once, in the files' order.
    #[must_use]
    pub fn once(&self) -> Self {
        let settings = Settings { epochs: 1, shuffle: None, ..self.settings.clone() };
        Self { settings, ..self.clone() }
    }

    /// The files, in the order in which they are read.
    #[must_use]
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// How many bytes the files have, compressed as they are.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What each column is, nothing left to be guessed, for files that have columns. Whoever reads other files with these
    /// reads them alike.
    pub fn columns(&self) -> Result<Option<Columns>, DataError> {
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

    /// As given.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Reads in a thread of its own.
    pub fn batches(&self) -> Result<Batches, DataError> {
        self.prepared(|_, ()| ())
    }

    /// As [`batches`](Self::batches); that thread also prepares each minibatch: what `prepare` makes of it goes along. It is
    /// given what it made of an earlier one, to use its memory again.
    pub fn prepared<P: Default + Send + 'static>(
        &self,
        prepare: impl FnMut(&Minibatch, &mut P) + Send + 'static,
    ) -> Result<Batches<P>, DataError> {
        Batches::start(self.source(), prepare)
    }

    /// Reads in the caller's thread.
    #[must_use]
    pub fn source(&self) -> Source {
        Source::new(self.clone())
    }

    pub(crate) fn pass(&self) -> Pass {
        let bad = BadRows::new(self.settings.skip_bad);
        let files = Arc::clone(&self.files);
        match &self.rows {
            Rows::Text(parser) => {
                let limit = self.settings.line_limit_bytes;
                Pass::Text(Box::new(TextPass::new(files, parser.clone(), self.share, limit, bad)))
            }
            Rows::Parquet(schema) => Pass::Parquet(Box::new(ParquetPass::new(files, schema.clone(), self.share, bad))),
            Rows::Idx => Pass::Idx(Box::new(IdxPass::new(files, self.settings.labels, self.share, bad))),
        }
    }

    /// The window of rows to shuffle in, another one for each worker.
    pub(crate) fn window(&self) -> Option<Window> {
        self.settings.shuffle.map(|_| Window::new(mix(self.settings.seed ^ mix(self.share.rank()))))
    }
}

/// The first lines of a file.
fn head(path: &Path, line_limit_bytes: usize) -> Result<Vec<u8>, DataError> {
    let mut lines = Lines::new(Input::open(path)?, line_limit_bytes);
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
