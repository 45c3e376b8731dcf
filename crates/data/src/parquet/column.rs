//! One column of a Parquet row group: reads a chunk of cells at a time and gives them out one by
//! one.

use crate::FeatureHash;
use crate::hash::Space;
use parquet::basic::{ConvertedType, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::schema::types::ColumnDescriptor;
use std::fmt;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    Number {
        unsigned: bool,
    },
    Text,
    /// A type that cannot become a feature, by name.
    Other(&'static str),
}

impl ColumnKind {
    pub fn of(leaf: &ColumnDescriptor) -> Self {
        let unsigned = matches!(
            leaf.converted_type(),
            ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64
        );
        match leaf.physical_type() {
            _ if leaf.max_rep_level() > 0 => Self::Other("a list"),
            _ if leaf.converted_type() == ConvertedType::DECIMAL => Self::Other("DECIMAL"),
            Type::BOOLEAN | Type::INT32 | Type::INT64 | Type::FLOAT | Type::DOUBLE => Self::Number { unsigned },
            Type::BYTE_ARRAY => Self::Text,
            Type::INT96 => Self::Other("INT96"),
            Type::FIXED_LEN_BYTE_ARRAY => Self::Other("FIXED_LEN_BYTE_ARRAY"),
        }
    }

    pub fn is_number(&self) -> bool {
        matches!(self, Self::Number { .. })
    }
}

impl fmt::Display for ColumnKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Number { .. } => "numbers",
            Self::Text => "text",
            Self::Other(name) => name,
        })
    }
}

/// A column of a row group.
pub struct Column {
    reader: ColumnReader,
    unsigned: bool,
    /// One for each row of the chunk, where cells may be missing: 1 if the row's cell is there,
    /// else 0. Empty if no cell of the chunk is missing.
    levels: Vec<i16>,
    cells: Cells,
    next_row: usize,
    next_cell: usize,
}

enum Cells {
    Whole(Vec<i128>),
    Real(Vec<f64>),
    Text(Vec<ByteArray>),
}

/// A cell that is not missing.
#[derive(Clone, Copy, Debug)]
pub enum Cell<'a> {
    Whole(i128),
    Real(f64),
    Text(&'a [u8]),
}

impl Cell<'_> {
    pub fn number(self) -> f32 {
        match self {
            Self::Whole(number) => number as f32,
            Self::Real(number) => number as f32,
            Self::Text(_) => f32::NAN,
        }
    }

    /// The key of the text, or of the number's text form.
    pub fn key(self, hash: FeatureHash, space: Space) -> u64 {
        match self {
            Self::Text(text) => hash.key(space, text),
            number => hash.key(space, number.to_string().as_bytes()),
        }
    }
}

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => write!(f, "{number}"),
            Self::Real(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(&String::from_utf8_lossy(text)),
        }
    }
}

impl Column {
    pub fn new(reader: ColumnReader, kind: ColumnKind) -> Self {
        let unsigned = kind == ColumnKind::Number { unsigned: true };
        Self { reader, unsigned, levels: Vec::new(), cells: Cells::Real(Vec::new()), next_row: 0, next_cell: 0 }
    }

    /// Skips `count` rows.
    pub fn leap(&mut self, count: u64) -> Result<(), ParquetError> {
        let rows = usize::try_from(count).unwrap_or(usize::MAX);
        let skipped = match &mut self.reader {
            ColumnReader::BoolColumnReader(reader) => reader.skip_records(rows)?,
            ColumnReader::Int32ColumnReader(reader) => reader.skip_records(rows)?,
            ColumnReader::Int64ColumnReader(reader) => reader.skip_records(rows)?,
            ColumnReader::FloatColumnReader(reader) => reader.skip_records(rows)?,
            ColumnReader::DoubleColumnReader(reader) => reader.skip_records(rows)?,
            ColumnReader::ByteArrayColumnReader(reader) => reader.skip_records(rows)?,
            ColumnReader::Int96ColumnReader(_) | ColumnReader::FixedLenByteArrayColumnReader(_) => return Err(unread()),
        };
        if skipped == rows { Ok(()) } else { Err(too_few(skipped, rows)) }
    }

    /// Reads the next `count` rows as the chunk.
    pub fn read(&mut self, count: u64) -> Result<(), ParquetError> {
        let rows = count as usize;
        let levels = &mut self.levels;
        levels.clear();
        let unsigned = self.unsigned;
        self.cells = match &mut self.reader {
            ColumnReader::BoolColumnReader(reader) => Cells::Whole(read(reader, rows, levels, |&b| i128::from(b))?),
            ColumnReader::Int32ColumnReader(reader) if unsigned => {
                Cells::Whole(read(reader, rows, levels, |&number| i128::from(number.cast_unsigned()))?)
            }
            ColumnReader::Int32ColumnReader(reader) => Cells::Whole(read(reader, rows, levels, |&n| i128::from(n))?),
            ColumnReader::Int64ColumnReader(reader) if unsigned => {
                Cells::Whole(read(reader, rows, levels, |&number| i128::from(number.cast_unsigned()))?)
            }
            ColumnReader::Int64ColumnReader(reader) => Cells::Whole(read(reader, rows, levels, |&n| i128::from(n))?),
            ColumnReader::FloatColumnReader(reader) => Cells::Real(read(reader, rows, levels, |&n| f64::from(n))?),
            ColumnReader::DoubleColumnReader(reader) => Cells::Real(read(reader, rows, levels, |&number| number)?),
            ColumnReader::ByteArrayColumnReader(reader) => Cells::Text(read(reader, rows, levels, ByteArray::clone)?),
            ColumnReader::Int96ColumnReader(_) | ColumnReader::FixedLenByteArrayColumnReader(_) => return Err(unread()),
        };
        self.next_row = 0;
        self.next_cell = 0;
        Ok(())
    }

    /// The next row's cell, or none if it is missing.
    pub fn next(&mut self) -> Option<Cell<'_>> {
        let level = self.levels.get(self.next_row).copied();
        self.next_row += 1;
        // `read` has turned levels into 1 and 0.
        if level == Some(0) {
            return None;
        }
        let place = self.next_cell;
        self.next_cell += 1;
        match &self.cells {
            Cells::Whole(numbers) => numbers.get(place).map(|&number| Cell::Whole(number)),
            Cells::Real(numbers) => numbers.get(place).map(|&number| Cell::Real(number)),
            Cells::Text(texts) => texts.get(place).map(|text| Cell::Text(text.data())),
        }
    }
}

/// Reads `rows` rows and returns the cells that are not missing, each converted by `into`. `levels`
/// becomes 1 for rows whose cell is there and 0 for others, or empty if none is missing.
fn read<T: DataType, N>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    levels: &mut Vec<i16>,
    into: impl Fn(&T::T) -> N,
) -> Result<Vec<N>, ParquetError> {
    let mut values = Vec::new();
    let (records, cells, _) = reader.read_records(rows, Some(levels), None, &mut values)?;
    if records != rows || cells != values.len() || (!levels.is_empty() && levels.len() != rows) {
        return Err(too_few(records, rows));
    }
    if cells == rows {
        levels.clear();
    }
    // A cell is there if its level is the highest that the column can have. As some cell is there,
    // that is the highest level in this chunk.
    let there = levels.iter().copied().max().filter(|_| cells > 0).unwrap_or(i16::MAX);
    levels.iter_mut().for_each(|level| *level = i16::from(*level == there));
    Ok(values.iter().map(into).collect())
}

fn too_few(found: usize, expected: usize) -> ParquetError {
    ParquetError::General(format!("a column has {found} rows where its group has {expected}"))
}

fn unread() -> ParquetError {
    ParquetError::General("a column of a type that cannot be read".to_owned())
}
