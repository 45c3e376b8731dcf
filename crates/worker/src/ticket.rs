//! Futures of a worker: tickets, what is pending for each, and what it finishes with.

use types::{Clock, NumberType, WorkerId};
use wire::{Bits, FailedClock, FeedProgress, Pulled, Refusal};

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
    /// Memory that is no vector, such as an array of another language. It is written in place.
    Buffer(NumberType, Box<dyn PullBuffer>),
}

/// Memory of the caller that a pull writes to until the pull is finished and drops it.
pub trait PullBuffer: Send {
    /// The bytes of whole numbers, the same memory each time.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl std::fmt::Debug for dyn PullBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PullBuffer")
    }
}

impl PullTarget {
    /// An empty vector, for rows that are collected until all of them are there.
    pub(crate) fn empty(number: NumberType) -> Self {
        match number {
            NumberType::F32 => Self::F32(Vec::new()),
            NumberType::F64 => Self::F64(Vec::new()),
            NumberType::I64 => Self::I64(Vec::new()),
        }
    }

    /// So many zeros, unless the machine has no memory for them.
    pub(crate) fn zeros(number: NumberType, count: usize) -> Option<Self> {
        /// Tried first, for a vector of zeros is best made as one: its memory may be zero already.
        fn zeros<T: bytemuck::Pod>(count: usize) -> Option<Vec<T>> {
            Vec::<T>::new().try_reserve_exact(count).ok()?;
            Some(vec![T::zeroed(); count])
        }
        Some(match number {
            NumberType::F32 => Self::F32(zeros(count)?),
            NumberType::F64 => Self::F64(zeros(count)?),
            NumberType::I64 => Self::I64(zeros(count)?),
        })
    }

    /// The type of its numbers.
    pub(crate) fn number(&self) -> NumberType {
        match self {
            Self::F32(_) => NumberType::F32,
            Self::F64(_) => NumberType::F64,
            Self::I64(_) => NumberType::I64,
            Self::Buffer(number, _) => *number,
        }
    }

    /// The numbers as bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice_mut(values),
            Self::F64(values) => bytemuck::cast_slice_mut(values),
            Self::I64(values) => bytemuck::cast_slice_mut(values),
            Self::Buffer(_, buffer) => buffer.bytes_mut(),
        }
    }

    /// Adds numbers at the end.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        fn grow<T: bytemuck::Pod>(values: &mut Vec<T>, bytes: &[u8]) {
            let old = values.len();
            values.resize(old + bytes.len() / size_of::<T>(), T::zeroed());
            bytemuck::cast_slice_mut(&mut values[old..]).copy_from_slice(bytes);
        }
        match self {
            Self::F32(values) => grow(values, bytes),
            Self::F64(values) => grow(values, bytes),
            Self::I64(values) => grow(values, bytes),
            Self::Buffer(..) => unreachable!("a scan makes its own target"),
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
    /// Of a page of the change feed: how far it reaches. Positions without values are of rows that
    /// were deleted.
    pub feed: FeedProgress,
}

/// What a finished ticket brought.
#[derive(Debug)]
pub enum TicketOutcome {
    /// Every part of a push was applied, or is held for its clock.
    Done,
    /// The rows of a pull.
    Rows(ReadRows),
}

/// Why a ticket failed. Parts of the batch that were not refused have been applied.
#[derive(Clone, Debug, PartialEq)]
pub struct TicketFailure {
    /// What was wrong with the first refused part.
    pub refusal: Refusal,
}

/// What a read has brought so far.
pub(crate) struct PartialRead {
    pub target: PullTarget,
    pub active: Bits,
    pub row_bytes: usize,
    pub clock: Clock,
    pub reader: Clock,
    pub released_by: Option<WorkerId>,
    pub failed: Vec<FailedClock>,
    pub cached_rows: usize,
    /// Of a page of the change feed.
    pub feed: FeedProgress,
    /// For a scan: what each shard has found so far.
    pub found: Vec<(Vec<u64>, Vec<u8>)>,
}

impl PartialRead {
    /// Nothing is read yet.
    pub fn new(target: PullTarget, reader: Clock) -> Self {
        Self {
            target,
            active: Bits::none(0),
            row_bytes: 0,
            clock: Clock(u64::MAX),
            reader,
            released_by: None,
            failed: Vec::new(),
            cached_rows: 0,
            feed: FeedProgress::default(),
            found: Vec::new(),
        }
    }

    /// Collects the rows that each of `parts` finds.
    pub fn collecting(self, parts: usize) -> Self {
        Self { found: vec![(Vec::new(), Vec::new()); parts], ..self }
    }

    /// An answer says who released it and which clocks failed. Each shard tells of its own; a clock
    /// is named once.
    pub fn note(&mut self, pulled: &Pulled) {
        self.released_by = pulled.released_by.or(self.released_by);
        let new = |failed: &&FailedClock| self.failed.iter().all(|known| known.clock != failed.clock);
        let new: Vec<_> = pulled.failed.iter().filter(new).cloned().collect();
        self.failed.extend(new);
    }

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
            feed: self.feed,
        }
    }
}

/// Something that people should know, mostly which nodes are waited for.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A read is parked.
    Read {
        /// The table's name.
        table: String,
        /// The workers it waits for; empty if its own pushes have not arrived.
        on: Vec<WorkerId>,
    },
    /// A push waits in this worker, because its shards hold as many clocks as they may.
    Push {
        /// The table's name.
        table: String,
        /// The workers it waits for.
        on: Vec<WorkerId>,
    },
    /// A codec that the program asked for takes longer than it saves on this network link.
    Codec {
        /// The table's name.
        table: String,
        /// The codecs.
        pipeline: String,
        /// The measured rate of the link.
        bytes_per_second: u64,
    },
    /// No data lease is left for this worker, and it waits for those that others hold.
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
