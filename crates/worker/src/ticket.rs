//! Tickets, and what they turn into.

use lease::LeaseId;
use types::{Clock, NumberType, WorkerId};
use wire::{Bits, FailedClock, Refusal};

/// Names a push or pull under way. It can be waited for, or named as what a later one runs after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(pub u64);

/// Where pulled rows go: the caller's own memory, handed back when they are there.
#[derive(Debug)]
pub enum PullTarget {
    /// f32 numbers.
    F32(Vec<f32>),
    /// f64 numbers.
    F64(Vec<f64>),
    /// i64 numbers.
    I64(Vec<i64>),
    /// Memory that is no vector, such as an array of another language: it is written where it is.
    Room(NumberType, Box<dyn Room>),
}

/// Memory that a pull may write to until it lets go of it.
pub trait Room: Send {
    /// The bytes of whole numbers, the same memory each time.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl std::fmt::Debug for dyn Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("room")
    }
}

impl PullTarget {
    /// What it has room for.
    pub(super) fn number(&self) -> NumberType {
        match self {
            Self::F32(_) => NumberType::F32,
            Self::F64(_) => NumberType::F64,
            Self::I64(_) => NumberType::I64,
            Self::Room(number, _) => *number,
        }
    }

    /// The numbers as bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice_mut(values),
            Self::F64(values) => bytemuck::cast_slice_mut(values),
            Self::I64(values) => bytemuck::cast_slice_mut(values),
            Self::Room(_, room) => room.bytes_mut(),
        }
    }

    /// Adds numbers at the end.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        fn grow<T: bytemuck::Pod>(values: &mut Vec<T>, bytes: &[u8]) {
            let old = values.len();
            values.resize(old + bytes.len() / size_of::<T>(), T::zeroed());
            bytemuck::cast_slice_mut(&mut values[old..]).copy_from_slice(bytes);
        }
        match self {
            Self::F32(values) => grow(values, bytes),
            Self::F64(values) => grow(values, bytes),
            Self::I64(values) => grow(values, bytes),
            Self::Room(..) => unreachable!("a scan makes its own target"),
        }
    }
}

/// Rows that a pull brought, and what they reflect.
#[derive(Debug)]
pub struct ReadRows {
    /// Row after row.
    pub values: PullTarget,
    /// For a scan: the keys found, as positions.
    pub positions: Vec<u64>,
    /// Where it was asked which rows are active: a bit for each, and no values.
    pub active: Bits,
    /// The smallest frontier of any part: every update of clocks below it is in.
    pub clock: Clock,
    /// The reader's clock when it asked.
    pub reader: Clock,
    /// Where a part of the read was parked: whose marker let the last of them go.
    pub released_by: Option<WorkerId>,
    /// Clocks in view that were failed for all workers alike.
    pub failed: Vec<FailedClock>,
    /// How many of the rows came from the cache.
    pub cached_rows: usize,
}

/// What a finished ticket brought.
#[derive(Debug)]
pub enum Outcome {
    /// Every part of a push was applied, or is held for its clock.
    Done,
    /// The rows of a pull.
    Rows(ReadRows),
}

/// Why a ticket failed. Parts of the batch that were not refused have been applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// What was wrong with the first refused part.
    pub refusal: Refusal,
}

pub(super) struct Pending {
    pub parts: usize,
    pub failure: Option<Failure>,
    pub read: Option<PendingRead>,
    pub table: types::TableId,
    /// Whether it is to bring rows.
    pub reads: bool,
    /// For a table with a delay: its place among the table's tasks.
    pub place: Option<u64>,
    /// The lease that it is of.
    pub lease: Option<LeaseId>,
}

pub(super) struct PendingRead {
    pub target: PullTarget,
    pub active: Bits,
    pub row_bytes: usize,
    pub clock: Clock,
    pub reader: Clock,
    pub released_by: Option<WorkerId>,
    pub failed: Vec<FailedClock>,
    pub cached_rows: usize,
    /// For a scan: what each shard has found so far.
    pub found: Vec<(Vec<u64>, Vec<u8>)>,
}

impl PendingRead {
    pub fn finish(mut self) -> ReadRows {
        let mut positions = Vec::new();
        for (keys, values) in self.found {
            positions.extend(keys);
            self.target.extend(&values);
        }
        ReadRows {
            values: self.target,
            positions,
            active: self.active,
            clock: self.clock,
            reader: self.reader,
            released_by: self.released_by,
            failed: self.failed,
            cached_rows: self.cached_rows,
        }
    }
}

/// Who is waited for, for people.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A read is parked.
    Read {
        /// The table's name.
        table: String,
        /// The workers it waits for; empty if its own pushes have not arrived.
        on: Vec<WorkerId>,
    },
    /// A push waits in this worker, for shards hold enough clocks apart.
    Push {
        /// The table's name.
        table: String,
        /// The workers it waits for.
        on: Vec<WorkerId>,
    },
    /// A codec that the program asked for takes longer than it saves on this link.
    Codec {
        /// The table's name.
        table: String,
        /// The codecs.
        pipeline: String,
        /// What was measured of the link.
        bytes_per_second: u64,
    },
    /// No lease is left for this worker, and it waits for those that others hold.
    Leases {
        /// Who holds some.
        on: Vec<WorkerId>,
    },
    /// A barrier is not complete.
    Barrier {
        /// The workers that are missing.
        on: Vec<WorkerId>,
    },
}
