//! Refusals: why a shard did not apply a part or answer a read, as data and in words.

use crate::field::variants;
use types::{Clock, Key, NumberType, PART_BYTES, Placement, Position};

/// Why a shard did not apply a part or answer a read. It has applied nothing of the part. The
/// worker fails the ticket with [`Refusal::describe`].
///
/// ```
/// use types::{Placement, Position};
/// use wire::Refusal;
///
/// let refusal = Refusal::OutOfRange { position: Position(12) };
/// assert_eq!(refusal.describe("layer", Placement::Ordered), "table 'layer' has no key 12");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// A value is NaN or infinite.
    NotFinite {
        /// The position of the row.
        position: Position,
    },
    /// The number of values is not `width` for each key.
    WrongLength {
        /// The expected number of bytes.
        expected: u64,
        /// The number of bytes that arrived.
        found: u64,
    },
    /// The values are of another type of number.
    WrongNumber {
        /// The type of the table.
        expected: NumberType,
        /// The type that arrived.
        found: NumberType,
    },
    /// The server has no such table.
    UnknownTable,
    /// The shard has no such row, or the row belongs to another shard.
    OutOfRange {
        /// The position of the row.
        position: Position,
    },
    /// Keys are not sorted and unique.
    Unsorted {
        /// The first key that is out of order.
        position: Position,
    },
    /// The shard holds as many rows as the table's spec allows.
    TooManyRows {
        /// The largest number of rows of a shard.
        max_rows: u64,
    },
    /// The plan does not contain this incarnation of the worker any more.
    Expelled,
    /// Reads only: the shard does not know the key list with this signature. The worker sends the
    /// list in full.
    UnknownKeys {
        /// The 128 bits of the signature.
        signature: u128,
    },
    /// The table is not ordered, so it has no ranges of keys.
    NotOrdered,
    /// The part belongs to a clock that its worker has ended.
    PastClock,
    /// The part belongs to a clock too far ahead of the frontier: the shard holds pushes of no more
    /// open clocks.
    FarAhead {
        /// The largest number of open clocks.
        most: u64,
    },
    /// Reads only: too many reads of this worker are parked already.
    TooManyReads {
        /// The largest number of parked reads.
        most: u64,
    },
    /// A setting of the updater is not valid.
    BadSetting,
    /// The encoded keys or values cannot be decoded.
    Undecodable,
    /// The shard holds this part of a data lease already, from a worker that was lost since. This
    /// is no error: the worker counts the part as applied.
    AlreadyHeld {
        /// The open clock whose sum holds the part; clock 0 if the part is in the rows already.
        clock: Clock,
    },
    /// The shard records applied parts of too many leases already.
    TooManyLeases {
        /// The largest number of recorded leases.
        most: u64,
    },
    /// The table combines by clock, so its rows cannot be set: a set row would have no defined
    /// order among the pushes of a clock.
    SetByClock,
    /// A row state is larger than a part.
    WideRows {
        /// The bytes of a row state.
        bytes: u64,
    },
    /// The table is dense, so its rows cannot be deleted.
    Dense,
}

impl Refusal {
    /// The refusal in words. It names rows by their keys.
    ///
    /// ```
    /// use types::Placement;
    /// use wire::Refusal;
    ///
    /// let words = Refusal::TooManyRows { max_rows: 100 }.describe("weights", Placement::Spread);
    /// assert!(words.contains("holds its 100 rows already; raise max_rows or add servers"));
    /// ```
    #[must_use]
    pub fn describe(&self, table: &str, placement: Placement) -> String {
        let key = |position: &Position| -> Key { placement.key(*position) };
        match self {
            Self::NotFinite { position } => {
                format!("the value for {} of table '{table}' is not finite; its rows stay as they were", key(position))
            }
            Self::WrongLength { expected, found } => {
                format!("table '{table}' needs {expected} bytes of values for these keys, not {found}")
            }
            Self::WrongNumber { expected, found } => format!("table '{table}' holds {expected}, not {found}"),
            Self::UnknownTable => format!("the server has no table '{table}'"),
            Self::OutOfRange { position } => format!("table '{table}' has no {}", key(position)),
            Self::Unsorted { position } => {
                format!("{} of table '{table}' is out of order or occurs twice", key(position))
            }
            Self::TooManyRows { max_rows } => {
                format!("a shard of table '{table}' holds its {max_rows} rows already; raise max_rows or add servers")
            }
            Self::Expelled => "this worker was expelled from the run; join again as a new one".to_owned(),
            Self::UnknownKeys { .. } => {
                "the shard does not know the key list; it must be sent again in full".to_owned()
            }
            Self::NotOrdered => format!("table '{table}' is not ordered, so it has no ranges; make it .ordered()"),
            Self::PastClock => "the push belongs to a clock that its worker has ended".to_owned(),
            Self::FarAhead { most } => {
                format!(
                    "table '{table}' holds pushes of at most {most} open clocks; wait for slower workers, for instance by reading"
                )
            }
            Self::TooManyReads { most } => {
                format!("{most} reads of table '{table}' are parked already; wait for some of them first")
            }
            Self::Undecodable => {
                format!("an encoded message to table '{table}' cannot be decoded; run the same release everywhere")
            }
            Self::AlreadyHeld { .. } => format!("table '{table}' holds this part of its data lease already"),
            Self::TooManyLeases { most } => {
                format!(
                    "a shard of table '{table}' records parts of {most} data leases already; commit leases before starting others"
                )
            }
            Self::SetByClock => {
                format!(
                    "rows of table '{table}' cannot be set, because it combines by clock; use a table that combines each push"
                )
            }
            Self::WideRows { bytes } => {
                format!(
                    "a row of table '{table}' with its updater's state has {bytes} bytes, more than a part of {PART_BYTES}; use narrower rows"
                )
            }
            Self::Dense => {
                format!(
                    "rows of table '{table}' cannot be deleted, because every key of a dense table has a row; set them to zero instead"
                )
            }
            Self::BadSetting => format!("table '{table}' needs a learning rate that is finite and not negative"),
        }
    }
}

variants!(Refusal {
    0 => NotFinite { position },
    1 => WrongLength { expected, found },
    2 => WrongNumber { expected, found },
    3 => UnknownTable,
    4 => OutOfRange { position },
    5 => Unsorted { position },
    6 => TooManyRows { max_rows },
    7 => Expelled,
    8 => UnknownKeys { signature },
    9 => NotOrdered,
    10 => PastClock,
    11 => FarAhead { most },
    12 => TooManyReads { most },
    13 => BadSetting,
    14 => Undecodable,
    15 => AlreadyHeld { clock },
    16 => TooManyLeases { most },
    17 => SetByClock,
    18 => WideRows { bytes },
    19 => Dense,
});
