//! Reads Parquet files, one after another: the rows of this worker's share or of one range. The
//! columns are read a chunk at a time, and put together into rows.
//!
//! A damaged file gives an error or wrong rows, and never ends the process: a panic of the Parquet
//! library is caught.

mod column;
#[cfg(test)]
pub(crate) mod tests;

use crate::bad_rows::BadRows;
use crate::format::{ColumnRole, ColumnRoles, end_row};
use crate::input::{PARQUET, failure};
use crate::selection::Selection;
use crate::share::BLOCK_ROWS;
use crate::{ColumnError, ColumnRules, DataError, FeatureHash, Labels, Minibatch, RowFault};
use column::{Column, ColumnKind};
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How many rows of each column are in memory at a time.
const CHUNK_ROWS: u64 = 1024;

/// One pass over some files.
pub struct ParquetPass {
    files: Arc<[PathBuf]>,
    schema: Schema,
    part: Selection,
    bad: BadRows,
    next_file: usize,
    open: Option<OpenFile>,
    bytes_before: u64,
}

/// How columns become rows.
#[derive(Clone, Debug)]
pub struct Schema {
    pub columns: ColumnRules,
    pub labels: Labels,
    pub hash: FeatureHash,
}

impl ParquetPass {
    pub fn new(files: Arc<[PathBuf]>, schema: Schema, part: Selection, bad: BadRows) -> Self {
        Self { files, schema, part, bad, next_file: 0, open: None, bytes_before: 0 }
    }

    /// About how many bytes of the files have been read.
    pub fn position(&self) -> u64 {
        self.bytes_before + self.open.as_ref().map_or(0, OpenFile::position)
    }

    pub fn bad_rows(&self) -> u64 {
        self.bad.skipped()
    }

    /// Adds rows to `rows` until it has `limit`, or until the files have no more.
    pub fn fill(&mut self, rows: &mut Minibatch, limit: usize) -> Result<(), DataError> {
        while rows.rows() < limit {
            if self.open.is_none() {
                let Some(path) = self.files.get(self.next_file) else { return Ok(()) };
                self.open = Some(OpenFile::open(path, self.next_file, &self.schema)?);
                self.next_file += 1;
            }
            let Some(file) = &mut self.open else { return Ok(()) };
            let schema = &self.schema;
            let part = self.part;
            let bad = &mut self.bad;
            let path = file.path.clone();
            if !guarded(&path, || file.fill(rows, limit, schema, part, bad))? {
                self.bytes_before += file.size;
                self.open = None;
            }
        }
        Ok(())
    }
}

/// Runs code of the Parquet library on a file's bytes, and turns a panic into an error: damaged
/// bytes must not end this process.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, DataError>) -> Result<T, DataError> {
    let panicked = |_| unreadable(path, &ParquetError::General("its reader panicked".to_owned()));
    catch_unwind(AssertUnwindSafe(read)).map_err(panicked)?
}

fn unreadable(path: &Path, error: &ParquetError) -> DataError {
    let problem = format!("is not a readable Parquet file: {error}");
    DataError::Kind { file: path.display().to_string(), problem }
}

/// Checks that a file is there and has the columns of the schema; returns what each column is.
pub fn check(path: &Path, schema: &Schema) -> Result<ColumnRoles, DataError> {
    OpenFile::open(path, 0, schema).map(|file| file.columns)
}

struct OpenFile {
    path: PathBuf,
    number: usize,
    size: u64,
    reader: SerializedFileReader<File>,
    columns: ColumnRoles,
    kinds: Vec<ColumnKind>,
    next_group: usize,
    /// The number, in this file, of the next row that is read.
    row: u64,
    /// Rows of the open group that are still to be read.
    left_in_group: u64,
    /// The open group's columns. Ignored columns are absent.
    open: Vec<Option<Column>>,
    /// Rows of the columns' chunks that are still to be put together.
    chunk_left: u64,
}

impl OpenFile {
    fn open(path: &Path, number: usize, schema: &Schema) -> Result<Self, DataError> {
        let file = File::open(path).map_err(|error| failure(path, 0, error))?;
        let size = file.metadata().map_err(|error| failure(path, 0, error))?.len();
        let mut start = Vec::new();
        (&file).take(4).read_to_end(&mut start).map_err(|error| failure(path, 0, error))?;
        if start != PARQUET {
            let problem = "is not a Parquet file: it does not start with `PAR1`".to_owned();
            return Err(DataError::Kind { file: path.display().to_string(), problem });
        }
        let reader = guarded(path, || SerializedFileReader::new(file).map_err(|error| unreadable(path, &error)))?;
        let leaves = reader.metadata().file_metadata().schema_descr_ptr();
        let kinds: Vec<ColumnKind> = leaves.columns().iter().map(|leaf| ColumnKind::of(leaf)).collect();
        let names = leaves.columns().iter().map(|leaf| leaf.path().string()).collect();
        let guess = |place: usize| kinds.get(place).is_some_and(ColumnKind::is_number);
        let labels_needed = schema.labels != Labels::Ignored;
        let columns = ColumnRoles::settle(&schema.columns, names, schema.hash, labels_needed, guess)
            .and_then(|columns| check_kinds(columns, &kinds))
            .map_err(|error| DataError::Columns { file: path.display().to_string(), error })?;
        Ok(Self {
            path: path.to_path_buf(),
            number,
            size,
            reader,
            columns,
            kinds,
            next_group: 0,
            row: 0,
            left_in_group: 0,
            open: Vec::new(),
            chunk_left: 0,
        })
    }

    fn position(&self) -> u64 {
        let rows = self.reader.metadata().file_metadata().num_rows();
        bytes_behind(self.size, self.row, u64::try_from(rows).unwrap_or(0))
    }

    /// Adds rows to `rows` until it has `limit`. Returns false when the file has no more.
    fn fill(
        &mut self,
        rows: &mut Minibatch,
        limit: usize,
        schema: &Schema,
        part: Selection,
        bad: &mut BadRows,
    ) -> Result<bool, DataError> {
        while rows.rows() < limit {
            if self.chunk_left > 0 {
                let number = self.row - self.chunk_left + 1;
                self.chunk_left -= 1;
                if let Err(fault) = self.put_together(schema, rows) {
                    rows.abandon_row();
                    bad.skip(&self.path, || Ok(number), fault)?;
                }
                continue;
            }
            let goes_on = if self.left_in_group > 0 { self.next_chunk(part) } else { self.next_group(part) };
            if !goes_on.map_err(|error| unreadable(&self.path, &error))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Opens the next group that has rows of `part`, and skips the groups before it unopened.
    /// Returns false if there is none.
    fn next_group(&mut self, part: Selection) -> Result<bool, ParquetError> {
        let Some(ours) = part.next_run(self.number, self.row, BLOCK_ROWS) else { return Ok(false) };
        loop {
            let Some(group) = self.reader.metadata().row_groups().get(self.next_group) else { return Ok(false) };
            self.left_in_group = rows_of(group)?;
            let after = self.row.saturating_add(self.left_in_group);
            if after > ours.start {
                break;
            }
            self.row = after;
            self.left_in_group = 0;
            self.next_group += 1;
        }
        let group = self.reader.get_row_group(self.next_group)?;
        self.open.clear();
        for (place, role) in self.columns.roles.iter().enumerate() {
            let used = *role != ColumnRole::Ignored;
            let column = used.then(|| group.get_column_reader(place)).transpose()?;
            self.open.push(column.map(|column| Column::new(column, self.kinds[place])));
        }
        self.next_group += 1;
        Ok(true)
    }

    /// Reads the next rows if they are of `part`, and skips them otherwise. Returns false if no
    /// further row is of `part`.
    fn next_chunk(&mut self, part: Selection) -> Result<bool, ParquetError> {
        let Some(ours) = part.next_run(self.number, self.row, BLOCK_ROWS) else { return Ok(false) };
        let count = if ours.start > self.row {
            let count = self.left_in_group.min(ours.start - self.row);
            self.open.iter_mut().flatten().try_for_each(|column| column.leap(count))?;
            count
        } else {
            let count = self.left_in_group.min(ours.end - self.row).min(CHUNK_ROWS);
            self.open.iter_mut().flatten().try_for_each(|column| column.read(count))?;
            self.chunk_left = count;
            count
        };
        self.row += count;
        self.left_in_group -= count;
        Ok(true)
    }

    /// Adds the next row of the chunk. Every column advances by one row, even if a cell is
    /// malformed.
    fn put_together(&mut self, schema: &Schema, rows: &mut Minibatch) -> Result<(), RowFault> {
        let mut label = None;
        let mut first_fault = None;
        for (place, (role, column)) in self.columns.roles.iter().zip(&mut self.open).enumerate() {
            let Some(column) = column else { continue };
            let cell = column.next();
            let fault = |expected: String| RowFault {
                column: place as u64 + 1,
                expected: format!("{expected} in column `{}`", self.columns.names[place]).into(),
                found: cell.map_or_else(|| "nothing".to_owned(), |cell| format!("`{cell}`")),
            };
            match (*role, cell) {
                (ColumnRole::Ignored, _) => {}
                (ColumnRole::Label, cell) => {
                    label = cell.and_then(|cell| schema.labels.read(cell.number()));
                    if label.is_none() && schema.labels != Labels::Ignored {
                        first_fault.get_or_insert_with(|| fault(schema.labels.expected()));
                    }
                }
                (ColumnRole::Number { .. }, None) => {}
                (ColumnRole::Number { key }, Some(cell)) => {
                    let value = cell.number();
                    if !value.is_finite() {
                        first_fault.get_or_insert_with(|| fault("a finite number".to_owned()));
                    }
                    rows.push_in_field(place as u32, key, value);
                }
                (ColumnRole::Category { space }, cell) => {
                    let key = cell.map_or_else(|| schema.hash.key(space, b""), |cell| cell.key(schema.hash, space));
                    rows.push_in_field(place as u32, key, 1.0);
                }
            }
        }
        match first_fault {
            Some(fault) => Err(fault),
            None => {
                end_row(rows, schema.labels, label.unwrap_or_default());
                Ok(())
            }
        }
    }
}

/// About how many bytes of a file come before row `row`, if the file has `size` bytes and `rows`
/// rows.
pub fn bytes_behind(size: u64, row: u64, rows: u64) -> u64 {
    (size as f64 * (row as f64 / rows.max(1) as f64).min(1.0)) as u64
}

fn rows_of(group: &RowGroupMetaData) -> Result<u64, ParquetError> {
    u64::try_from(group.num_rows()).map_err(|_| ParquetError::General(format!("a group of {} rows", group.num_rows())))
}

/// The row groups of a file: how many rows and how many bytes each has.
pub fn groups(path: &Path, schema: &Schema) -> Result<Vec<(u64, u64)>, DataError> {
    let file = OpenFile::open(path, 0, schema)?;
    let group =
        |group: &RowGroupMetaData| Ok((rows_of(group)?, u64::try_from(group.compressed_size()).unwrap_or_default()));
    file.reader
        .metadata()
        .row_groups()
        .iter()
        .map(group)
        .collect::<Result<_, _>>()
        .map_err(|error| unreadable(path, &error))
}

/// Checks that each column's type fits its role.
fn check_kinds(columns: ColumnRoles, kinds: &[ColumnKind]) -> Result<ColumnRoles, ColumnError> {
    for ((name, role), kind) in columns.names.iter().zip(&columns.roles).zip(kinds) {
        let wanted = match role {
            ColumnRole::Label if !kind.is_number() => "the label",
            ColumnRole::Number { .. } if !kind.is_number() => "numeric",
            ColumnRole::Category { .. } if matches!(kind, ColumnKind::Other(_)) => "categorical",
            _ => continue,
        };
        return Err(ColumnError::Type { name: name.clone(), found: kind.to_string(), wanted });
    }
    Ok(columns)
}
