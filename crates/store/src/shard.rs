//! One shard of one table, as a file: its rows, their positions, and the shard metadata.

use crate::tensors::{Buffer, Contents, Decoder, Tensor, head};
use bytemuck::cast_slice;
use safetensors::tensor::Dtype;
use std::borrow::Cow;
use types::NumberType;

const POSITIONS: &str = "positions";
const RUN: &str = "run";
const ROWS: &str = "rows";
const METADATA: &str = "metadata";

/// One shard of one table at one clock. It borrows its data when it is written, and owns its data
/// when it was read.
///
/// ```
/// use store::{Positions, RowNumbers, CheckpointShard};
///
/// let weights_and_state = [0.5, 1.0, -0.5, 2.0];
/// let shard = CheckpointShard {
///     table: "weights".into(),
///     index: 3,
///     positions: Positions::List([7, 9][..].into()),
///     stride: 2,
///     rows: RowNumbers::F32(weights_and_state[..].into()),
///     metadata: b"the shard's metadata"[..].into(),
/// };
/// assert_eq!(shard.positions.count(), 2);
/// assert_eq!(shard.holds(), "shard 3 of table `weights`");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointShard<'a> {
    /// The table's name.
    pub table: Cow<'a, str>,
    /// The shard's index in the table: 0 to P − 1.
    pub index: u32,
    /// The position of each row.
    pub positions: Positions<'a>,
    /// How many numbers a row has: its weights and its updater's state.
    pub stride: usize,
    /// The rows, one after the other.
    pub rows: RowNumbers<'a>,
    /// The shard metadata, as bytes that only the shard understands.
    pub metadata: Cow<'a, [u8]>,
}

/// The positions of rows in their table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Positions<'a> {
    /// Consecutive positions, as in a dense table.
    Run {
        /// The first position.
        first: u64,
        /// How many positions there are.
        count: u64,
    },
    /// Any positions.
    List(Cow<'a, [u64]>),
}

/// The numbers of rows.
#[derive(Clone, Debug, PartialEq)]
pub enum RowNumbers<'a> {
    /// 32-bit floating point.
    F32(Cow<'a, [f32]>),
    /// 64-bit floating point.
    F64(Cow<'a, [f64]>),
    /// 64-bit signed integers.
    I64(Cow<'a, [i64]>),
}

impl Positions<'_> {
    /// How many positions there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        match self {
            Self::Run { count, .. } => *count,
            Self::List(list) => list.len() as u64,
        }
    }
}

impl RowNumbers<'_> {
    /// The type of the numbers.
    #[must_use]
    pub fn number(&self) -> NumberType {
        match self {
            Self::F32(_) => NumberType::F32,
            Self::F64(_) => NumberType::F64,
            Self::I64(_) => NumberType::I64,
        }
    }

    /// How many numbers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::F64(numbers) => numbers.len(),
            Self::I64(numbers) => numbers.len(),
        }
    }

    /// Whether there are no numbers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the numbers, as they lie in memory and in the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(numbers) => cast_slice(numbers),
            Self::F64(numbers) => cast_slice(numbers),
            Self::I64(numbers) => cast_slice(numbers),
        }
    }
}

impl CheckpointShard<'_> {
    /// The shard and its table, in words.
    #[must_use]
    pub fn holds(&self) -> String {
        holds(&self.table, self.index)
    }

    /// Passes the pieces of its file to `write`, in order: a head, the positions, the rows and the
    /// metadata.
    ///
    /// # Errors
    /// Why positions and rows are inconsistent, in words.
    pub(crate) fn with_pieces<R>(&self, write: impl FnOnce(&[&[u8]]) -> R) -> Result<R, String> {
        let count = self.count_rows()?;
        let run = match self.positions {
            Positions::Run { first, count } => [first, count],
            Positions::List(_) => [0, 0],
        };
        let (name, places, positions): (_, _, &[u8]) = match &self.positions {
            Positions::Run { .. } => (RUN, run.len(), cast_slice(&run)),
            Positions::List(list) => (POSITIONS, count, cast_slice(list)),
        };
        let dtype = match self.rows {
            RowNumbers::F32(_) => Dtype::F32,
            RowNumbers::F64(_) => Dtype::F64,
            RowNumbers::I64(_) => Dtype::I64,
        };
        let tensors = [
            Tensor { name, dtype: Dtype::U64, shape: vec![places], bytes: positions },
            Tensor { name: ROWS, dtype, shape: vec![count, self.stride], bytes: self.rows.bytes() },
            Tensor { name: METADATA, dtype: Dtype::U8, shape: vec![self.metadata.len()], bytes: &self.metadata },
        ];
        let head = head(&self.holds(), &tensors)?;
        Ok(write(&[&head, positions, self.rows.bytes(), &self.metadata]))
    }

    /// How many rows there are, if positions and numbers agree.
    fn count_rows(&self) -> Result<usize, String> {
        let count = self.positions.count();
        let numbers = self.rows.len();
        let rows = usize::try_from(count).ok().filter(|rows| rows.checked_mul(self.stride) == Some(numbers));
        let rows =
            rows.ok_or(format!("{}: {numbers} numbers are not {count} rows of {}", self.holds(), self.stride))?;
        match self.positions {
            Positions::Run { first, count } if count > 0 && first.checked_add(count - 1).is_none() => {
                Err(format!("{}: {count} positions from {first} go past the largest position", self.holds()))
            }
            _ => Ok(rows),
        }
    }
}

impl CheckpointShard<'static> {
    /// Decodes a whole file from memory. [`Opened::shard`](crate::Opened::shard) reads a shard from
    /// a store, and compares it with its manifest.
    ///
    /// ```
    /// assert!(store::CheckpointShard::from_bytes("weights", 3, b"something else").is_err());
    /// ```
    ///
    /// # Errors
    /// The problem with the file, in words.
    pub fn from_bytes(table: &str, index: u32, file: &[u8]) -> Result<Self, String> {
        let mut decoder = Decoder::new(file.len() as u64);
        decoder.feed(file)?;
        Self::from_contents(table, index, decoder.finish()?)
    }

    pub(crate) fn from_contents(table: &str, index: u32, contents: Contents) -> Result<Self, String> {
        if contents.holds != holds(table, index) {
            return Err(format!("it says that it holds {}", contents.holds));
        }
        let mut positions = None;
        let mut rows = None;
        let mut metadata = None;
        for tensor in contents.tensors {
            match (tensor.name.as_str(), tensor.buffer, &tensor.shape[..]) {
                (POSITIONS, Buffer::U64(list), [_]) if positions.is_none() => {
                    positions = Some(Positions::List(list.into()));
                }
                (RUN, Buffer::U64(run), [2]) if positions.is_none() => {
                    positions = Some(Positions::Run { first: run[0], count: run[1] });
                }
                (ROWS, buffer, &[count, stride]) => rows = Some((rows_of(buffer)?, count, stride)),
                (METADATA, Buffer::U8(bytes), [_]) => metadata = Some(bytes.into()),
                (name, ..) => return Err(format!("a shard has no tensor `{name}` of this type and shape")),
            }
        }
        let (Some(positions), Some((rows, count, stride)), Some(metadata)) = (positions, rows, metadata) else {
            return Err("it lacks its positions, its rows or its metadata".to_owned());
        };
        if positions.count() != count as u64 {
            return Err(format!("it has {} positions for {count} rows", positions.count()));
        }
        let shard = Self { table: table.to_owned().into(), index, positions, stride, rows, metadata };
        shard.count_rows()?;
        Ok(shard)
    }
}

/// The shard and its table, in words.
pub(crate) fn holds(table: &str, index: u32) -> String {
    format!("shard {index} of table `{table}`")
}

fn rows_of(buffer: Buffer) -> Result<RowNumbers<'static>, String> {
    Ok(match buffer {
        Buffer::F32(numbers) => RowNumbers::F32(numbers.into()),
        Buffer::F64(numbers) => RowNumbers::F64(numbers.into()),
        Buffer::I64(numbers) => RowNumbers::I64(numbers.into()),
        Buffer::U8(_) | Buffer::U64(_) => return Err("its rows are of a type that no table has".to_owned()),
    })
}
