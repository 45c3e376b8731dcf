//! A worker's stream to a shard: its pushes, clock markers and changes of settings in order, and
//! the shard's acknowledgements and requests to resend.

use super::Refusal;
use crate::Payload;
use crate::field::{fields, fields_and_payloads, variants};
use crate::keys::KeyPart;
use types::{Clock, NumberType, Setting, ShardId, TableId};

/// One part of a push, from a worker to a shard. A part is the unit of identity, checking and
/// atomic application. Source, sequence number, clock and examples are in the head.
#[derive(Clone, Debug, PartialEq)]
pub struct Push {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The worker knows the outcome of all items up to this sequence number. The shard may forget
    /// their refusals.
    pub settled: u64,
    /// The type of the values. The shard refuses another type than the table's.
    pub number: NumberType,
    /// What the push does to the rows.
    pub writes: Writes,
    /// The keys of the rows.
    pub keys: KeyPart,
    /// The values, row by row.
    pub values: Payload,
}

/// What a push does to its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// The values are gradients, which the updater applies.
    Gradients {
        /// The part of a data lease that they are, so that they are applied once, even if two
        /// workers push them.
        lease: Option<LeasedPart>,
    },
    /// The values are row states (weights followed by the updater's state), which replace the
    /// stored ones. They are never encoded by codecs.
    Rows,
    /// The push has no values. The shard deletes the rows with their updater's state; in a table
    /// that combines by clock, after the combined update of the push's clock.
    Nothing,
}

impl Writes {
    /// Gradients outside any data lease.
    ///
    /// ```
    /// use wire::Writes;
    ///
    /// assert_eq!(Writes::GRADIENTS.lease(), None);
    /// ```
    pub const GRADIENTS: Self = Self::Gradients { lease: None };

    /// Whether the push replaces or deletes rows. The worker then sends no earlier push to these
    /// rows after it, and removes them from its cache.
    #[must_use]
    pub fn replaces_rows(self) -> bool {
        match self {
            Self::Gradients { .. } => false,
            Self::Rows | Self::Nothing => true,
        }
    }

    /// The part of a data lease; `None` for rows that are set or deleted.
    #[must_use]
    pub fn lease(self) -> Option<LeasedPart> {
        match self {
            Self::Gradients { lease } => lease,
            Self::Rows | Self::Nothing => None,
        }
    }
}

/// The name of a part of a data lease: its place among the parts of that lease for one shard. A
/// second run of the lease, by another worker, gives its parts the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeasedPart {
    /// The number of the data set.
    pub set: u32,
    /// The number of the lease.
    pub lease: u64,
    /// The number of the part, from 0.
    pub part: u64,
}

/// From a worker to a shard, at the end of a clock: ends the head's clock. It follows all pushes of
/// the clock in the stream. The shard advances its frontier.
#[derive(Clone, Debug, PartialEq)]
pub struct Marker {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The worker knows the outcome of all items up to this sequence number. The shard may forget
    /// their refusals.
    pub settled: u64,
    /// The first clock in which the worker took part. It does not count among the workers that
    /// ended earlier clocks.
    pub since: Clock,
}

/// From a worker to a shard: changes a setting of the updater for updates of clock `at` and later
/// ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Tune {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The worker knows the outcome of all items up to this sequence number. The shard may forget
    /// their refusals.
    pub settled: u64,
    /// The first clock with the new setting.
    pub at: Clock,
    /// The setting with its new value.
    pub setting: Setting,
}

/// A shard's acknowledgement to a worker: all items of the stream up to `through` are finished,
/// that is, applied, held for their clock, or refused. The worker finishes their tickets.
#[derive(Clone, Debug, PartialEq)]
pub struct Acked {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The sequence number of the last finished item.
    pub through: u64,
    /// The refused items among them.
    pub refused: Vec<Refused>,
}

/// An item of a stream that the shard refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// The sequence number of the item.
    pub number: u64,
    /// Why the shard refused it.
    pub refusal: Refusal,
}

/// A shard's request to a worker to resend its stream from `next` on.
#[derive(Clone, Debug, PartialEq)]
pub struct Resend {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The sequence number that the shard expects next.
    pub next: u64,
    /// Why the shard asks.
    pub reason: ResendReason,
}

/// Why a worker must resend its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResendReason {
    /// An item before the latest one is missing.
    Gap,
    /// The shard does not know the key list with this signature. The worker sends the keys in full.
    UnknownKeys {
        /// The 128 bits of the signature.
        signature: u128,
    },
}

variants!(Writes { 0 => Gradients { lease }, 1 => Rows, 2 => Nothing });
variants!(ResendReason { 0 => Gap, 1 => UnknownKeys { signature } });
fields!(LeasedPart { set, lease, part });
fields!(Refused { number, refusal });
fields!(Marker { table, shard, settled, since });
fields!(Tune { table, shard, settled, at, setting });
fields!(Acked { table, shard, through, refused });
fields!(Resend { table, shard, next, reason });
fields_and_payloads!(Push { table, shard, settled, number, writes } keys, |input, [positions, values]| {
    keys: KeyPart::get(input, positions)?,
    values,
});
