//! Cuts input files into ranges, in the same way for every worker. Data leases are granted for
//! these ranges. A fingerprint shows whether two workers have cut the same files in the same way.
//!
//! A range is a stretch of one file that can be read by itself:
//! - Plain text: some bytes. The range has the lines that begin in them.
//! - Parquet: whole row groups.
//! - IDX: images.
//! - A compressed file is one range, because reading cannot start in its middle.
//!
//! Where ranges of text and images begin is computed, not stored, so ten million ranges take no
//! memory. For Parquet, the first row of each range is stored.

#[cfg(test)]
mod tests;

use crate::input::failure;
use crate::parquet::bytes_behind;
use crate::selection::Selection;
use crate::{DataError, DataReader, Format};
use std::fmt;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_128;

/// Where ranges of some files begin and end. Every row is in exactly one range.
///
/// Workers whose files have the same names and lengths, and whose settings are the same, get the
/// same ranges. They compare [fingerprints](Self::fingerprint) to be sure of it.
///
/// ```
/// use data::{Cuts, Format, Labels, DataReader, ReaderSettings};
///
/// # let path = std::env::temp_dir().join(format!("slackwater-cuts-{}.libsvm", std::process::id()));
/// # std::fs::write(&path, "+1 3:1 7:0.5\n-1 7:2\n+1 9:1\n").unwrap();
/// # let name = path.to_str().unwrap();
/// let reader = DataReader::open(&[name], ReaderSettings::new(Format::LibSvm, Labels::Binary))?;
/// let cuts = Cuts::of(&reader, 10)?;
/// assert_eq!(cuts.ranges(), 3);
/// for range in 0..cuts.ranges() {
///     for batch in cuts.open(range)?.batches()? {
///         assert_eq!(batch?.rows(), 1);
///     }
/// }
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cuts {
    reader: DataReader,
    files: Vec<File>,
    ranges: u64,
    target_bytes: u64,
    fingerprint: u128,
}

#[derive(Clone, Debug)]
struct File {
    size: u64,
    /// How many ranges the files before it have together.
    before: u64,
    layout: Layout,
    /// How many ranges it is cut into.
    pieces: u64,
}

/// Where a file can be cut.
#[derive(Clone, Debug)]
pub(crate) enum Layout {
    /// Nowhere: it is compressed.
    Whole,
    /// Anywhere, because it is plain text: a line belongs to the range that it begins in.
    Text,
    /// Between images.
    Images { count: u64, image_bytes: u64, head_bytes: u64 },
    /// Between row groups: for each cut, the number of rows before it. The first cut is the file's
    /// beginning, the last its end.
    Groups(Vec<u64>),
}

impl Layout {
    /// Joins neighbouring row groups, given as (rows, bytes), up to `target_bytes`.
    pub fn of_groups(groups: impl IntoIterator<Item = (u64, u64)>, target_bytes: u64) -> Self {
        let mut cuts = vec![0];
        let mut bytes = 0u64;
        let mut row = 0u64;
        for (rows, group_bytes) in groups.into_iter().filter(|(rows, _)| *rows > 0) {
            if bytes > 0 && bytes.saturating_add(group_bytes) > target_bytes {
                cuts.push(row);
                bytes = 0;
            }
            // A row group's metadata may say that it has no bytes.
            bytes = bytes.saturating_add(group_bytes.max(1));
            row = row.saturating_add(rows);
        }
        if row > 0 {
            cuts.push(row);
        }
        Self::Groups(cuts)
    }

    /// How many ranges a file of `size` bytes is cut into.
    fn pieces(&self, size: u64, target_bytes: u64) -> u64 {
        match self {
            Self::Whole => size.min(1),
            Self::Text => size.div_ceil(target_bytes),
            Self::Images { count, image_bytes, .. } => (count * image_bytes).div_ceil(target_bytes).min(*count),
            Self::Groups(cuts) => cuts.len() as u64 - 1,
        }
    }
}

impl File {
    /// Range `index` of this file: which rows it selects, and about which bytes of the file it is.
    fn range(&self, index: u64) -> (Selection, Range<u64>) {
        let even = |length: u64, index: u64| (u128::from(length) * u128::from(index) / u128::from(self.pieces)) as u64;
        match &self.layout {
            Layout::Text => {
                let from = even(self.size, index);
                let to = even(self.size, index + 1);
                (Selection::Cut { from, to }, from..to)
            }
            Layout::Images { count, image_bytes, head_bytes } => {
                let from = even(*count, index);
                let to = even(*count, index + 1);
                (Selection::Cut { from, to }, head_bytes + from * image_bytes..head_bytes + to * image_bytes)
            }
            Layout::Groups(cuts) => {
                let from = cuts[index as usize];
                let to = cuts[index as usize + 1];
                let rows = cuts[cuts.len() - 1];
                (Selection::Cut { from, to }, bytes_behind(self.size, from, rows)..bytes_behind(self.size, to, rows))
            }
            Layout::Whole => (Selection::WHOLE, 0..self.size),
        }
    }
}

impl Cuts {
    /// Cuts the files of `reader` into ranges of at most `target_bytes`. A compressed file or a row
    /// group of Parquet may be larger; it stays whole. A file without bytes has no range.
    pub fn of(reader: &DataReader, target_bytes: u64) -> Result<Self, DataError> {
        if target_bytes == 0 {
            return Err(DataError::Setting { problem: "a range's bytes cannot be 0".to_owned() });
        }
        let mut files = Vec::with_capacity(reader.files().len());
        let mut before = 0u64;
        for (number, path) in reader.files().iter().enumerate() {
            let size = std::fs::metadata(path).map_err(|error| failure(path, 0, error))?.len();
            let layout = reader.layout(number, target_bytes)?;
            let pieces = layout.pieces(size, target_bytes);
            files.push(File { size, before, layout, pieces });
            before = before.saturating_add(pieces);
        }
        let fingerprint = fingerprint(reader, &files, target_bytes)?;
        Ok(Self { reader: reader.clone(), files, ranges: before, target_bytes, fingerprint })
    }

    /// How many ranges there are.
    #[must_use]
    pub fn ranges(&self) -> u64 {
        self.ranges
    }

    /// A hash that is the same for all workers that cut and read in the same way, and almost surely
    /// differs for others. It covers the names of the files without their folders, their lengths,
    /// where they are cut, and the settings of format, minibatches and order.
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    /// The reader of lease `epoch × ranges + index`: it reads range `index` once, as minibatches of
    /// that epoch. Minibatches depend on the range alone and come in the same order every time. So
    /// a second run of a lease has the same minibatches as the first.
    ///
    /// Each range counts malformed lines by itself. Use [`DataReader::allowing`] to set how many
    /// may still be skipped in this one.
    pub fn open(&self, lease: u64) -> Result<DataReader, DataError> {
        let unknown = || DataError::Setting { problem: format!("there is no lease {lease} of {self}") };
        let index = lease.checked_rem(self.ranges).ok_or_else(unknown)?;
        let epoch = u32::try_from(lease / self.ranges).map_err(|_| unknown())?;
        // The last file that begins at or before this range. A file without ranges begins where the
        // next file does.
        let number = self.files.partition_point(|file| file.before <= index) - 1;
        let file = &self.files[number];
        let path = &self.reader.files()[number];
        let size = std::fs::metadata(path).map_err(|error| failure(path, 0, error))?.len();
        if size != file.size {
            return Err(DataError::Changed { file: path.display().to_string(), was: file.size, is: size });
        }
        let (part, span) = file.range(index - file.before);
        Ok(self.reader.for_range(number, part, span, epoch, lease))
    }
}

fn fingerprint(reader: &DataReader, files: &[File], target_bytes: u64) -> Result<u128, DataError> {
    let settings = reader.settings();
    let format = match settings.format {
        Format::LibSvm => 0,
        Format::LibFfm => 1,
        Format::VowpalWabbit => 2,
        Format::Criteo => 3,
        Format::Csv(_) => 4,
        Format::Parquet(_) => 5,
        Format::Idx => 6,
    };
    let [shuffled, seed] = settings.shuffle.map_or([0, 0], |shuffle| [shuffle.minibatches as u64, settings.seed]);
    let limits = [settings.minibatch_rows as u64, settings.line_limit_bytes as u64];
    let mut told: Vec<u8> = Vec::new();
    let mut tell = |number: u64| told.extend_from_slice(&number.to_le_bytes());
    [format, target_bytes, shuffled, seed].into_iter().chain(limits).for_each(&mut tell);
    for (number, file) in files.iter().enumerate() {
        [file.size, file.pieces, reader.bytes_of_labels(number)?].into_iter().for_each(&mut tell);
        if let Layout::Groups(cuts) = &file.layout {
            cuts.iter().copied().for_each(&mut tell);
        }
    }
    for path in reader.files() {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        told.extend_from_slice(&(name.len() as u64).to_le_bytes());
        told.extend_from_slice(name);
    }
    Ok(xxh3_128(&told))
}

/// The files and ranges as text, to help find out why two workers have different fingerprints.
impl fmt::Display for Cuts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: u64 = self.files.iter().map(|file| file.size).sum();
        if let Some(first) = self.reader.files().first() {
            write!(f, "{}", first.file_name().unwrap_or_default().display())?;
        }
        match self.files.len() - 1 {
            0 => {}
            1 => write!(f, " and 1 more file")?,
            more => write!(f, " and {more} more files")?,
        }
        write!(f, " ({bytes} bytes in {} ranges of at most {})", self.ranges, self.target_bytes)
    }
}
