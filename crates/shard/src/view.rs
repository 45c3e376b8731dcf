//! A read-only view of a shard's state, from which its followers, replication and checkpoints
//! encode rows, held sums, shard metadata and the heads of frames to workers.

use crate::identity::Identity;
use crate::intake::clocks::Clocks;
use crate::intake::gate::Streams;
use crate::leases::LeasedParts;
use crate::metadata::ShardMetadata;
use crate::rows::{Resolved, Rows};
use types::{Clock, WorkerId};
use update::{ABSENT, Number};
use wire::{Head, Payload, Pool};

/// A row by its position and slot.
pub(crate) type Row = (u64, u32);

/// The parts of a shard that hold its state.
pub(crate) struct ShardView<'a, T: Number> {
    /// Which shard it is.
    pub identity: &'a Identity,
    /// Its workers and their streams.
    pub streams: &'a Streams,
    /// Its frontier and what it holds for open clocks.
    pub clocks: &'a Clocks<T>,
    /// Which parts of data leases it holds.
    pub leases: &'a LeasedParts,
    /// Its rows.
    pub rows: &'a Rows<T>,
    /// Memory for payloads.
    pub pool: &'a Pool,
}

impl<T: Number> ShardView<'_, T> {
    /// The head of a frame to a worker that reads at this frontier.
    pub fn head_to(&self, worker: WorkerId, frontier: Clock) -> Head {
        let source = self.streams.source(worker).unwrap_or_default();
        Head { source, clock: frontier, ..self.identity.head(worker.into()) }
    }

    /// The slots of rising positions, `ABSENT` where there is no row.
    pub fn slots(&self, positions: &[u64]) -> Vec<u32> {
        match self.rows.find_rows(positions) {
            Ok(Resolved::List(slots)) => slots,
            Ok(Resolved::Run { first, count }) => (first as u32..(first + count) as u32).collect(),
            // Positions of another shard: it has none of these rows.
            Err(_) => vec![ABSENT; positions.len()],
        }
    }

    /// The state of the rows at these slots.
    pub fn row_states(&self, slots: &[u32]) -> Payload {
        self.rows.row_states(slots.iter().copied(), self.pool)
    }

    /// The values that a reader at this frontier sees at these positions and slots. Where there is
    /// no row, the values of a new row.
    pub fn values(&self, positions: &[u64], slots: &[u32], frontier: Clock) -> Payload {
        let mut values = self.pool.take(slots.len() * self.rows.width() * size_of::<T>());
        self.rows.read_all(frontier, positions, slots, values.numbers_mut::<T>());
        values.freeze()
    }

    /// The shard metadata, as bytes.
    pub fn metadata(&self) -> Vec<u8> {
        ShardMetadata::of(self).bytes()
    }

    /// The sums that a clock holds for the rows at these slots.
    pub fn sums(&self, clock: Clock, slots: &[u32]) -> Option<Payload> {
        self.clocks.sums_of(clock, self.rows.width(), slots).map(Payload::new)
    }
}
