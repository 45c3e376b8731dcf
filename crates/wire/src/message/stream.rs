//! A worker's stream to a shard: what it pushes, ends and changes, in order, and what the shard
//! says to that.

use super::Refusal;
use crate::Payload;
use crate::field::{fields, fields_and_payloads, variants};
use crate::keys::KeyPart;
use types::{Clock, NumberType, Setting, ShardId, TableId};

/// One part of a push: the unit of identity, checking and atomic application. Source, number, clock
/// and examples are in the head.
#[derive(Clone, Debug, PartialEq)]
pub struct Push {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The sender will never ask about numbers up to this one again.
    pub settled: u64,
    /// The type of the values, so that a worker with another idea of the table is found out.
    pub number: NumberType,
    /// What becomes of the rows.
    pub writes: Writes,
    /// Which rows.
    pub keys: KeyPart,
    /// Row after row.
    pub values: Payload,
}

/// What a push does to its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Its values are gradients: the updater makes of them what it does.
    Gradients {
        /// What they are in a lease of the input, so that they are applied once, whoever pushes
        /// them.
        lease: Option<LeasedPart>,
    },
    /// Its values are rows as they are kept, weights followed by the updater's state, and take the
    /// place of those that are there. They are never encoded.
    Rows,
    /// It has no values: its rows are deleted, with their updater's state. Where the table combines
    /// by clock, after the combined update of the push's clock.
    Nothing,
}

impl Writes {
    /// Gradients that are of no lease.
    ///
    /// ```
    /// use wire::Writes;
    ///
    /// assert_eq!(Writes::GRADIENTS.lease(), None);
    /// ```
    pub const GRADIENTS: Self = Self::Gradients { lease: None };

    /// Whether the rows are something else afterwards, whatever they were: then nothing that was
    /// pushed to them before may come after it, and no cache can tell what they are.
    #[must_use]
    pub fn replaces_rows(self) -> bool {
        match self {
            Self::Gradients { .. } => false,
            Self::Rows | Self::Nothing => true,
        }
    }

    /// What they are in a lease. Rows that are set or deleted are in none.
    #[must_use]
    pub fn lease(self) -> Option<LeasedPart> {
        match self {
            Self::Gradients { lease } => lease,
            Self::Rows | Self::Nothing => None,
        }
    }
}

/// A part of what is learnt from a lease, by a name that every run of the lease gives it: its place
/// among the parts of that lease for one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeasedPart {
    /// Which data set.
    pub set: u32,
    /// Which lease of it.
    pub lease: u64,
    /// Which part, from 0.
    pub part: u64,
}

/// Ends the head's clock for one shard. It follows everything before it in the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Marker {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The sender will never ask about numbers up to this one again.
    pub settled: u64,
    /// The first clock that the sender took part in: in those before it, nobody misses it.
    pub since: Clock,
}

/// Changes a setting of the updater for updates made in clock `at` and later ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Tune {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The sender will never ask about numbers up to this one again.
    pub settled: u64,
    /// The first clock it holds for.
    pub at: Clock,
    /// What changes.
    pub setting: Setting,
}

/// Everything in the stream up to `through` is finished: applied, held for its clock, or refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Acked {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The last finished number.
    pub through: u64,
    /// Which of them were refused, and why.
    pub refused: Vec<Refused>,
}

/// A part that was not applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// Its number in the stream.
    pub number: u64,
    /// Why.
    pub refusal: Refusal,
}

/// The shard needs the stream again from `next` on.
#[derive(Clone, Debug, PartialEq)]
pub struct Resend {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The number it needs next.
    pub next: u64,
    /// Why.
    pub reason: ResendReason,
}

/// Why a stream must be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResendReason {
    /// Something before the latest arrival is missing.
    Gap,
    /// The signature is of no list the shard remembers; spell the keys out.
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
