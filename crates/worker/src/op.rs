//! The list of operations: everything that a program can ask of a table.
//!
//! [`Op`] is the only list of operations. Their recorded form, their checks and what they do to
//! rows follow here, each as an exhaustive `match`; `worker/submit.rs` starts them. A new
//! operation is a variant of [`Op`]: the compiler then names every place that still lacks it.
#![deny(clippy::wildcard_enum_match_arm)]

use crate::recorded::recorded_variants;
use crate::{Batch, PullTarget, Values};
use lease::LeaseId;
use types::{NumberType, PART_BYTES, Placement, Position, PositionRange, Setting, TableShape, TableSpec};
use wire::{FeedCursor, Keys, Refusal};

/// One operation of a program on a table. [`Worker::submit`](crate::Worker::submit) takes it.
///
/// ```
/// use types::PositionRange;
/// use worker::Op;
///
/// let everything = Op::Scan { range: PositionRange::ALL, row_state: false };
/// assert_eq!(everything.held_bytes(), 0);    // it carries no keys and no values
/// ```
#[derive(Clone, Debug)]
pub enum Op {
    /// Adds a batch to its rows, by the table's updater and combine rule.
    Push {
        /// Which rows, and a row of values for each.
        batch: Batch,
    },
    /// Reads the rows of a key list, as fresh as the table's consistency rule requires.
    Pull {
        /// Which rows.
        keys: Keys,
    },
    /// Pushes a batch and pulls the same rows. Where the table combines `each`, the rows hold the
    /// push. Fails if a shard refuses any part of the push.
    PushPull {
        /// Which rows, and a row of values for each.
        batch: Batch,
    },
    /// Reads all rows that a dense or ordered table has in a range, or all rows of any table.
    Scan {
        /// Which positions.
        range: PositionRange,
        /// Whether each row comes with its updater's state, as [`Op::RowState`] reads it.
        row_state: bool,
    },
    /// Replaces rows: each new row is its weights followed by its updater's state. No codec encodes
    /// them.
    Set {
        /// Which rows.
        keys: Keys,
        /// A row for each key, as wide as its row state.
        values: Values,
    },
    /// Reads row state: each row's weights followed by its updater's state. No cache answers it and
    /// no codec encodes it.
    RowState {
        /// Which rows.
        keys: Keys,
    },
    /// Deletes rows of a sparse table, with their updater's state. A table that combines by clock
    /// deletes them after the combined update of the worker's clock.
    Delete {
        /// Which rows.
        keys: Keys,
    },
    /// Reads which rows of one shard changed: a page of the change feed. It waits for no worker.
    Follow {
        /// How far the reader has read.
        cursor: FeedCursor,
        /// Where the page starts. The shard that holds this position answers.
        first: Position,
    },
    /// Asks which rows of an ℓ1 problem are active, as fresh as a pull of them would be.
    Active {
        /// Which rows.
        keys: Keys,
    },
    /// Changes a setting of the table's updater, for updates made from the worker's clock on.
    Tune {
        /// Which setting, and its new value.
        setting: Setting,
    },
}

recorded_variants!(Op {
    0 => Push { batch },
    1 => Pull { keys },
    2 => PushPull { batch },
    3 => Scan { range, row_state },
    4 => Set { keys, values },
    5 => RowState { keys },
    6 => Active { keys },
    7 => Tune { setting },
    8 => Delete { keys },
    9 => Follow { cursor, first },
});

/// What an operation does to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Changes rows.
    Write,
    /// Reads rows.
    Read,
    /// Changes rows, then reads them.
    WriteRead,
    /// Concerns the whole table, or the change feed: no other operation has to come before it.
    Neither,
}

impl Access {
    /// Whether the operation changes rows.
    pub fn writes(self) -> bool {
        match self {
            Self::Write | Self::WriteRead => true,
            Self::Read | Self::Neither => false,
        }
    }

    /// Whether the operation reads rows.
    pub fn reads(self) -> bool {
        match self {
            Self::Read | Self::WriteRead => true,
            Self::Write | Self::Neither => false,
        }
    }
}

impl Op {
    pub(crate) fn access(&self) -> Access {
        match self {
            Self::Push { .. } | Self::Set { .. } | Self::Delete { .. } => Access::Write,
            Self::PushPull { .. } => Access::WriteRead,
            Self::Pull { .. } | Self::Scan { .. } | Self::RowState { .. } | Self::Active { .. } => Access::Read,
            Self::Tune { .. } | Self::Follow { .. } => Access::Neither,
        }
    }

    /// The batch that the operation pushes.
    pub(crate) fn batch(&self) -> Option<&Batch> {
        match self {
            Self::Push { batch } | Self::PushPull { batch } => Some(batch),
            Self::Pull { .. }
            | Self::Scan { .. }
            | Self::Set { .. }
            | Self::RowState { .. }
            | Self::Delete { .. }
            | Self::Active { .. }
            | Self::Follow { .. }
            | Self::Tune { .. } => None,
        }
    }

    /// The data lease that the operation is made for.
    pub(crate) fn lease(&self) -> Option<LeaseId> {
        self.batch().and_then(|batch| batch.lease)
    }

    /// The keys whose rows the operation reads into the caller's memory.
    fn pulled_keys(&self) -> Option<&Keys> {
        match self {
            Self::Pull { keys } => Some(keys),
            Self::PushPull { batch } => Some(&batch.keys),
            Self::Push { .. }
            | Self::Scan { .. }
            | Self::Set { .. }
            | Self::RowState { .. }
            | Self::Delete { .. }
            | Self::Active { .. }
            | Self::Follow { .. }
            | Self::Tune { .. } => None,
        }
    }

    /// Bytes of the values that the operation carries.
    pub(crate) fn value_bytes(&self) -> usize {
        match self {
            Self::Push { batch } | Self::PushPull { batch } => batch.values.bytes.len(),
            Self::Set { values, .. } => values.bytes.len(),
            Self::Pull { .. }
            | Self::Scan { .. }
            | Self::RowState { .. }
            | Self::Delete { .. }
            | Self::Active { .. }
            | Self::Follow { .. }
            | Self::Tune { .. } => 0,
        }
    }

    /// About how many bytes of memory the keys and values of the operation take.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let keys = match self {
            Self::Push { batch } | Self::PushPull { batch } => batch.keys.len(),
            Self::Pull { keys }
            | Self::Set { keys, .. }
            | Self::RowState { keys }
            | Self::Delete { keys }
            | Self::Active { keys } => keys.len(),
            Self::Scan { .. } | Self::Follow { .. } | Self::Tune { .. } => 0,
        };
        self.value_bytes().saturating_add(keys.saturating_mul(size_of::<u64>()))
    }

    /// Rejects an operation that does not fit a table of this spec.
    pub(crate) fn check(&self, spec: &TableSpec) -> Result<(), TableFailure> {
        match self {
            Self::Push { batch } | Self::PushPull { batch } => {
                check_keys(spec, &batch.keys)?;
                check_values(spec, &batch.keys, &batch.values).map_err(|refusal| unfit(spec, refusal))
            }
            Self::Pull { keys } => check_keys(spec, keys),
            Self::Scan { range, .. } => {
                let is_ordered = spec.shape.placement() == Placement::Ordered;
                let is_allowed = is_ordered || *range == PositionRange::ALL;
                if is_allowed { Ok(()) } else { Err(unfit(spec, Refusal::NotOrdered)) }
            }
            Self::Set { keys, values } => {
                check_keys(spec, keys)?;
                check_row_state(spec, keys, values).map_err(|refusal| unfit(spec, refusal))
            }
            Self::RowState { keys } => {
                check_keys(spec, keys)?;
                check_count(spec, keys, bytes_of(spec, keys))
            }
            Self::Delete { keys } => {
                check_keys(spec, keys)?;
                if let TableShape::Dense { .. } = spec.shape {
                    return Err(unfit(spec, Refusal::Dense));
                }
                check_count(spec, keys, 0)
            }
            Self::Active { keys } => {
                check_keys(spec, keys)?;
                check_count(spec, keys, keys.len().div_ceil(8) as u64)
            }
            Self::Follow { .. } | Self::Tune { .. } => Ok(()),
        }
    }

    /// The memory that a read writes to: `into`, which must have room for exactly these rows, or
    /// new memory if `into` is `None`. A scan collects rows as it finds them, and starts empty.
    pub(crate) fn target(&self, spec: &TableSpec, into: Option<PullTarget>) -> Result<PullTarget, TableFailure> {
        let Some(keys) = self.pulled_keys() else { return Ok(PullTarget::empty(spec.number)) };
        let expected = bytes_of(spec, keys);
        let wrong_length = |found| unfit(spec, Refusal::WrongLength { expected, found });
        let Some(mut target) = into else {
            let numbers = keys.len().saturating_mul(spec.width as usize);
            return PullTarget::zeros(spec.number, numbers).ok_or_else(|| wrong_length(0));
        };
        if target.number() != spec.number {
            return Err(unfit(spec, Refusal::WrongNumber { expected: spec.number, found: target.number() }));
        }
        match target.bytes_mut().len() as u64 {
            found if found == expected => Ok(target),
            found => Err(wrong_length(found)),
        }
    }
}

/// Why a worker refuses an operation before it sends anything.
///
/// ```
/// use worker::TableFailure;
///
/// assert!(TableFailure::Left.to_string().contains("open a new session"));
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TableFailure {
    /// The keys are in another order than the table's.
    #[error("these keys were made for a table in another order; make them with this table's keys()")]
    Placement,
    /// The worker has left the run.
    #[error("this worker has left the run; open a new session")]
    Left,
    /// The push is made for a data lease that the worker does not hold.
    #[error("this worker does not hold data lease {lease}: it was committed, given back, or never granted")]
    NotLeased {
        /// The number of the lease in its data set.
        lease: u64,
    },
    /// The operation does not fit the table.
    #[error("{}", refusal.describe(table, *placement))]
    Unfit {
        /// The table's name.
        table: String,
        /// The table's order of keys, with which the message names keys.
        placement: Placement,
        /// What does not fit.
        refusal: Refusal,
    },
}

pub(crate) fn unfit(spec: &TableSpec, refusal: Refusal) -> TableFailure {
    TableFailure::Unfit { table: spec.name.clone(), placement: spec.shape.placement(), refusal }
}

/// How many bytes the rows of `keys` take.
fn bytes_of(spec: &TableSpec, keys: &Keys) -> u64 {
    (keys.len() as u64).saturating_mul(spec.row_bytes() as u64)
}

/// Rejects keys in another order than the table's, or beyond its last row.
pub(crate) fn check_keys(spec: &TableSpec, keys: &Keys) -> Result<(), TableFailure> {
    if keys.placement() != spec.shape.placement() {
        return Err(TableFailure::Placement);
    }
    let last = keys.len().checked_sub(1).map(|last| keys.position(last));
    match last.filter(|last| *last > spec.shape.extent().last) {
        Some(position) => Err(unfit(spec, Refusal::OutOfRange { position })),
        None => Ok(()),
    }
}

/// Rejects a list of more than `u32::MAX` keys: a run of keys takes no memory here, but its answer
/// would fit neither a shard nor memory. `expected`: the bytes that the answer would have.
fn check_count(spec: &TableSpec, keys: &Keys, expected: u64) -> Result<(), TableFailure> {
    if keys.len() > u32::MAX as usize {
        return Err(unfit(spec, Refusal::WrongLength { expected, found: 0 }));
    }
    Ok(())
}

/// Checks that `values` are one row of the table for each key.
fn check_values(spec: &TableSpec, keys: &Keys, values: &Values) -> Result<(), Refusal> {
    check_number(spec, values.number)?;
    let expected = bytes_of(spec, keys);
    let found = values.bytes.len() as u64;
    if found == expected { Ok(()) } else { Err(Refusal::WrongLength { expected, found }) }
}

fn check_number(spec: &TableSpec, found: NumberType) -> Result<(), Refusal> {
    if found == spec.number { Ok(()) } else { Err(Refusal::WrongNumber { expected: spec.number, found }) }
}

/// Checks that `values` are row state: one row for each key, as wide as shards keep it. A worker
/// does not know the width for a custom updater, so it checks whole numbers and the least width;
/// the shard checks the rest.
fn check_row_state(spec: &TableSpec, keys: &Keys, values: &Values) -> Result<(), Refusal> {
    if spec.combine.holds_clocks() {
        return Err(Refusal::SetByClock);
    }
    check_number(spec, values.number)?;
    let number_bytes = spec.number.bytes();
    let found = values.bytes.len() as u64;
    let row_bytes = match update::row_state_width(spec) {
        Some(width) => width * number_bytes,
        None => {
            let each = values.bytes.len() / keys.len().max(1);
            each.next_multiple_of(number_bytes).max(spec.row_bytes())
        }
    };
    let expected = (keys.len() as u64).saturating_mul(row_bytes as u64);
    if found != expected {
        return Err(Refusal::WrongLength { expected, found });
    }
    if row_bytes > PART_BYTES {
        return Err(Refusal::WideRows { bytes: row_bytes as u64 });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
