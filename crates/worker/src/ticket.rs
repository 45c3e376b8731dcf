//! Tickets, the futures that operations return: their ids, the memory that reads fill, and their
//! outcomes; and the notices that a worker has for its user.

use types::{Clock, NumberType, WorkerId};
use wire::{Bits, FailedClock, FeedPage, Pulled, Refusal};

/// The name of an operation under way. A program can wait for it, or make a later operation run
/// after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(pub u64);

/// Where pulled rows go: the caller's own memory, which the finished ticket hands back.
#[derive(Debug)]
pub enum PullTarget {
    /// f32 numbers.
    F32(Vec<f32>),
    /// f64 numbers.
    F64(Vec<f64>),
    /// i64 numbers.
    I64(Vec<i64>),
    /// Memory other than a Rust vector, such as an array of another language. The worker writes to
    /// it in place.
    Buffer(NumberType, Box<dyn PullBuffer>),
}

/// Memory of the caller that a pull writes to until the pull is finished and drops it.
pub trait PullBuffer: Send {
    /// The buffer as bytes: a whole count of numbers, and the same memory at each call.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl std::fmt::Debug for dyn PullBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PullBuffer")
    }
}

impl PullTarget {
    /// An empty vector, for reads that collect rows as they arrive.
    pub(crate) fn empty(number: NumberType) -> Self {
        match number {
            NumberType::F32 => Self::F32(Vec::new()),
            NumberType::F64 => Self::F64(Vec::new()),
            NumberType::I64 => Self::I64(Vec::new()),
        }
    }

    /// A vector of `count` zeros; `None` if the machine has no memory for it.
    pub(crate) fn zeros(number: NumberType, count: usize) -> Option<Self> {
        /// Reserves memory first, because `vec!` ends the process where there is none. Then uses
        /// `vec!`, because the allocator can hand out memory that is zero already.
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
    /// The rows, one after another.
    pub values: PullTarget,
    /// For a scan: the keys found, as positions.
    pub positions: Vec<u64>,
    /// For [`Op::Active`](crate::Op::Active), which brings no values: one bit for each key.
    pub active: Bits,
    /// The smallest frontier of all parts: the rows hold every update of clocks below it.
    pub clock: Clock,
    /// The reader's clock when it asked.
    pub reader: Clock,
    /// If shards parked parts of the read: the worker whose marker released the last of them.
    pub released_by: Option<WorkerId>,
    /// Failed clocks within the reader's slack: shards skipped their updates, for all workers
    /// alike.
    pub failed: Vec<FailedClock>,
    /// How many of the rows came from the cache.
    pub cached_rows: usize,
    /// For the change feed: the page that the shard answered.
    pub page: Option<Box<FeedPage>>,
}

/// The outcome of a ticket that succeeded.
#[derive(Debug)]
pub enum TicketOutcome {
    /// Shards have applied every part of a push, or hold it for its clock.
    Done,
    /// The rows of a pull.
    Rows(ReadRows),
}

/// Why a ticket failed. Shards have applied the parts of the batch that they did not refuse.
#[derive(Clone, Debug, PartialEq)]
pub struct TicketFailure {
    /// Why a shard refused the first part that was refused.
    pub refusal: Refusal,
}

/// What the answers to a read have brought so far. Fields as in [`ReadRows`].
pub(crate) struct PartialRead {
    target: PullTarget,
    active: Bits,
    /// Bytes of one row; 0 until an answer tells the width of row state.
    row_bytes: usize,
    clock: Clock,
    reader: Clock,
    released_by: Option<WorkerId>,
    failed: Vec<FailedClock>,
    cached_rows: usize,
    page: Option<Box<FeedPage>>,
    /// For a read that collects rows: positions and values that each part has found so far.
    found: Vec<(Vec<u64>, Vec<u8>)>,
}

impl PartialRead {
    /// A read that no part has answered yet.
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
            page: None,
            found: Vec::new(),
        }
    }

    /// Collects the rows that each of `parts` finds.
    pub fn collecting(self, parts: usize) -> Self {
        Self { found: vec![(Vec::new(), Vec::new()); parts], ..self }
    }

    /// Reads rows of this many bytes.
    pub fn of_rows(self, row_bytes: usize) -> Self {
        Self { row_bytes, ..self }
    }

    /// Reads which of `keys` rows are active.
    pub fn of_active(self, keys: usize) -> Self {
        Self { active: Bits::none(keys), ..self }
    }

    /// Begins with `rows` rows of the cache, which reflect the frontier `clock`, and with the
    /// failed clocks that the cache knows.
    pub fn with_cached(self, rows: usize, clock: Clock, failed: Vec<FailedClock>) -> Self {
        Self { cached_rows: rows, clock, failed, ..self }
    }

    /// Bytes of one row; 0 until an answer tells the width of row state.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// An answer tells how many bytes a row takes.
    pub fn set_row_bytes(&mut self, row_bytes: usize) {
        self.row_bytes = row_bytes;
    }

    /// Some of the rows reflect the frontier `clock` only.
    pub fn reflects(&mut self, clock: Clock) {
        self.clock = self.clock.min(clock);
    }

    /// The memory that the rows go to.
    pub fn target(&mut self) -> &mut [u8] {
        self.target.bytes_mut()
    }

    /// Copies consecutive rows into the caller's memory, from row `first` on.
    pub fn put_run(&mut self, first: usize, values: &[u8]) {
        self.target.bytes_mut()[first * self.row_bytes..][..values.len()].copy_from_slice(values);
    }

    /// Copies rows into the caller's memory, each to its place in `rows`.
    pub fn put_rows(&mut self, rows: &[u32], values: &[u8]) {
        let row_bytes = self.row_bytes;
        let target = self.target.bytes_mut();
        for (row, value) in rows.iter().zip(values.chunks_exact(row_bytes)) {
            target[*row as usize * row_bytes..][..row_bytes].copy_from_slice(value);
        }
    }

    /// Adds the rows that a part has found.
    pub fn put_found(&mut self, part: usize, positions: &[u64], values: &[u8]) {
        if let Some((all_positions, all_values)) = self.found.get_mut(part) {
            all_positions.extend(positions);
            all_values.extend_from_slice(values);
        }
    }

    /// The row at this place is active.
    pub fn set_active(&mut self, row: usize) {
        self.active.set(row);
    }

    /// An answer is a page of the change feed.
    pub fn set_page(&mut self, page: FeedPage) {
        self.page = Some(Box::new(page));
    }

    /// Takes from an answer which worker released it and which clocks failed. Several shards may
    /// report the same clock; it is kept once.
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
            page: self.page,
        }
    }
}

/// Something that a user should know, mostly which workers this worker waits for.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A shard has parked a read.
    Read {
        /// The table's name.
        table: String,
        /// The workers that the read waits for; empty if it waits for this worker's own pushes.
        on: Vec<WorkerId>,
    },
    /// A push waits in this worker, because its shards hold as many open clocks as they may.
    Push {
        /// The table's name.
        table: String,
        /// The workers that are behind.
        on: Vec<WorkerId>,
    },
    /// A codec that the program asked for takes longer than it saves on this network link.
    Codec {
        /// The table's name.
        table: String,
        /// The codec pipeline.
        pipeline: String,
        /// The rate of the link: as measured, or its bound if that is lower.
        bytes_per_second: u64,
    },
    /// No data lease is left to grant. This worker waits until other workers commit theirs.
    Leases {
        /// The workers that hold leases.
        on: Vec<WorkerId>,
    },
    /// This worker waits at a barrier.
    Barrier {
        /// The workers that have not reached it.
        on: Vec<WorkerId>,
    },
}
