//! Why a part was not applied, or a read not answered, as data and in words.

use crate::field::variants;
use types::{Clock, Key, NumberType, PART_BYTES, Placement, Position};

/// Why a part was not applied, or a read not answered. Nothing of the part was applied.
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
        /// The row it is in.
        position: Position,
    },
    /// The values are not `width` numbers for each key.
    WrongLength {
        /// How many bytes they should have been.
        expected: u64,
        /// How many they were.
        found: u64,
    },
    /// The values are numbers of another type.
    WrongNumber {
        /// What the table holds.
        expected: NumberType,
        /// What came.
        found: NumberType,
    },
    /// The server has no such table.
    UnknownTable,
    /// The shard has no such row, or does not own it.
    OutOfRange {
        /// The row.
        position: Position,
    },
    /// Keys are not sorted and unique.
    Unsorted {
        /// The first key that is out of order.
        position: Position,
    },
    /// The shard is full.
    TooManyRows {
        /// What the spec allows.
        max_rows: u64,
    },
    /// The plan no longer counts this incarnation of the worker.
    Expelled,
    /// Reads only: the signature is of no list the shard remembers.
    UnknownKeys {
        /// The 128 bits of the signature.
        signature: u128,
    },
    /// The table's shape does not allow the call.
    NotOrdered,
    /// The part says it belongs to a clock that its worker has ended.
    PastClock,
    /// The part belongs to a clock too far ahead of the slowest worker's: the shard holds no more
    /// clocks apart.
    FarAhead {
        /// How many it holds.
        most: u64,
    },
    /// Reads only: the shard holds as many reads of this worker back as it ever does.
    TooManyReads {
        /// How many those are.
        most: u64,
    },
    /// A setting of the updater that makes no sense.
    BadSetting,
    /// What the codecs made of it cannot be read.
    Undecodable,
    /// The part of a lease is held already: another worker had pushed it before that worker was
    /// lost. Nothing is amiss.
    AlreadyHeld {
        /// The clock in whose sum it is, if that is not in the rows yet; otherwise the first.
        clock: Clock,
    },
    /// The shard keeps as many leases apart as it ever does.
    TooManyLeases {
        /// How many those are.
        most: u64,
    },
    /// Rows are to be set in a table that holds contributions apart by clock: there is no moment
    /// between two of them that is the rows' own.
    SetByClock,
    /// A row with its updater's state is more than travels at once.
    WideRows {
        /// Bytes of one.
        bytes: u64,
    },
    /// Rows of a dense table cannot be deleted.
    Dense,
}

impl Refusal {
    /// The refusal in words, with the row named as the program knows it.
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
                format!("{} of table '{table}' is out of order or stands there twice", key(position))
            }
            Self::TooManyRows { max_rows } => {
                format!("a shard of table '{table}' holds its {max_rows} rows already; raise max_rows or add servers")
            }
            Self::Expelled => "this worker was expelled from the run; join again as a new one".to_owned(),
            Self::UnknownKeys { .. } => "the key list was forgotten and must be sent again".to_owned(),
            Self::NotOrdered => format!("table '{table}' is not ordered, so it has no ranges; make it .ordered()"),
            Self::PastClock => "the part belongs to a clock that has ended".to_owned(),
            Self::FarAhead { most } => {
                format!("table '{table}' holds {most} clocks apart; wait for slower workers, for instance by reading")
            }
            Self::TooManyReads { most } => {
                format!("{most} reads of table '{table}' wait already; wait for some of them first")
            }
            Self::Undecodable => {
                format!("an encoded message to table '{table}' cannot be read; run the same release everywhere")
            }
            Self::AlreadyHeld { .. } => format!("table '{table}' holds this part of its lease already"),
            Self::TooManyLeases { most } => {
                format!(
                    "a shard of table '{table}' keeps {most} leases apart; commit leases before learning from others"
                )
            }
            Self::SetByClock => {
                format!(
                    "rows of table '{table}' cannot be set, for it combines by clock; set those of a table that combines each push"
                )
            }
            Self::WideRows { bytes } => {
                format!(
                    "a row of table '{table}' is kept in {bytes} bytes, and {PART_BYTES} travel at once; use narrower rows"
                )
            }
            Self::Dense => {
                format!(
                    "rows of table '{table}' cannot be deleted, for it is dense: every key has a row; set them to zero instead"
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
