//! Input cut into ranges, alike for every worker: what data leases are leases of.
//!
//! A range is a stretch of one file that can be read by itself: of plain text, bytes, and it has
//! the lines that begin in it; of Parquet, groups of rows; of IDX, images. A compressed file, which
//! cannot be entered in the middle, is one range. Where ranges lie is computed, not stored: ten
//! million of them cost nothing.

#[cfg(test)]
mod tests;

use crate::input::failure;
use crate::parquet::bytes_behind;
use crate::selection::Selection;
use crate::{DataError, DataReader, Format};
use std::fmt;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_128;

/// Where ranges of some files begin and end. No range has a row of another, and all of them
/// together have every row.
///
/// Every worker that has files of the same names and lengths, and the same settings, cuts alike:
/// the
/// [fingerprint](Self::fingerprint) says so.
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
    /// Ranges of the files before it.
    before: u64,
    layout: Layout,
    pieces: u64,
}

/// Where a file can be cut.
#[derive(Clone, Debug)]
pub(crate) enum Layout {
    /// Nowhere: it is compressed.
    Whole,
    /// Anywhere, for it is text: a line belongs to the range that it begins in.
    Text,
    /// Between images.
    Images { count: u64, image_bytes: u64, head_bytes: u64 },
    /// Between groups of rows: the rows before each of these cuts. The first is the beginning, the
    /// last the end.
    Groups(Vec<u64>),
}

impl Layout {
    /// Puts groups, of so many rows and bytes each, together up to `target_bytes`.
    pub fn of_groups(groups: impl IntoIterator<Item = (u64, u64)>, target_bytes: u64) -> Self {
        let (mut cuts, mut bytes, mut row) = (vec![0], 0u64, 0u64);
        for (rows, group_bytes) in groups.into_iter().filter(|(rows, _)| *rows > 0) {
            if bytes > 0 && bytes.saturating_add(group_bytes) > target_bytes {
                cuts.push(row);
                bytes = 0;
            }
            // A group of rows may have no bytes, by its own account.
            bytes = bytes.saturating_add(group_bytes.max(1));
            row = row.saturating_add(rows);
        }
        if row > 0 {
            cuts.push(row);
        }
        Self::Groups(cuts)
    }

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
    /// Range `index` of this file: its part, and about which bytes of the file it is.
    fn range(&self, index: u64) -> (Selection, Range<u64>) {
        let even = |length: u64, index: u64| (u128::from(length) * u128::from(index) / u128::from(self.pieces)) as u64;
        match &self.layout {
            Layout::Text => {
                let (from, to) = (even(self.size, index), even(self.size, index + 1));
                (Selection::Cut { from, to }, from..to)
            }
            Layout::Images { count, image_bytes, head_bytes } => {
                let (from, to) = (even(*count, index), even(*count, index + 1));
                (Selection::Cut { from, to }, head_bytes + from * image_bytes..head_bytes + to * image_bytes)
            }
            Layout::Groups(cuts) => {
                let (from, to, rows) = (cuts[index as usize], cuts[index as usize + 1], cuts[cuts.len() - 1]);
                (Selection::Cut { from, to }, bytes_behind(self.size, from, rows)..bytes_behind(self.size, to, rows))
            }
            Layout::Whole => (Selection::WHOLE, 0..self.size),
        }
    }
}

impl Cuts {
    /// Cuts the files of `reader` into ranges of at most `target_bytes`; what cannot be cut so
    /// small, a compressed file or a group of Parquet's rows, stays whole. A file without bytes has
    /// no range.
    pub fn of(reader: &DataReader, target_bytes: u64) -> Result<Self, DataError> {
        if target_bytes == 0 {
            return Err(DataError::Setting { problem: "a range's bytes cannot be 0".to_owned() });
        }
        let (mut files, mut before) = (Vec::with_capacity(reader.files().len()), 0u64);
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

    /// The same for all who cut and read alike, and hardly ever for others. It goes by the names of
    /// the files without their folders, their lengths, where they are cut, and what the settings
    /// say of format, minibatches and order.
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    /// What to read for lease `epoch × ranges + index`: range `index`, once, as minibatches of that
    /// epoch. They are cut from the range alone and come in the same order every time, so that a
    /// second run of a lease is cut like the first.
    ///
    /// Malformed lines are counted in each range by itself: [`DataReader::allowing`] hands on how
    /// many may yet be skipped.
    pub fn open(&self, lease: u64) -> Result<DataReader, DataError> {
        let unknown = || DataError::Setting { problem: format!("there is no lease {lease} of {self}") };
        let index = lease.checked_rem(self.ranges).ok_or_else(unknown)?;
        let epoch = u32::try_from(lease / self.ranges).map_err(|_| unknown())?;
        // The last file that begins at or before this range: those without ranges begin where the
        // next does.
        let number = self.files.partition_point(|file| file.before <= index) - 1;
        let (file, path) = (&self.files[number], &self.reader.files()[number]);
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

/// In words, for whoever must find out why two workers do not cut alike.
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
