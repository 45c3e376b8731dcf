//! A shard's metadata as bytes: everything it knows beside its rows and the sums it holds, the
//! once-only gate included. Replication batches and checkpoints carry it.

use crate::intake::clocks::SavedClocks;
use crate::intake::gate::Streams;
use crate::leases::LeasedParts;
use crate::rows::SavedRows;
use crate::view::ShardView;
use update::Number;
use wire::{Field, Reader, WireError};

/// Everything that a shard knows beside its rows and the sums that it holds.
pub(crate) struct ShardMetadata {
    /// Its workers and their streams.
    pub streams: Streams,
    /// Its frontier, and which clocks it holds.
    pub clocks: SavedClocks,
    /// Rates, examples and pending rows.
    pub rows: SavedRows,
    /// Parts of data leases.
    pub leases: LeasedParts,
}

impl ShardMetadata {
    /// Of a shard, as it is now.
    pub fn of<T: Number>(view: &ShardView<'_, T>) -> Self {
        let (clocks, rows) = (view.clocks.save(), view.rows.save());
        Self { streams: view.streams.clone(), clocks, rows, leases: view.leases.clone() }
    }

    /// As bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        bytes
    }

    /// And back.
    pub fn read(bytes: &[u8]) -> Result<Self, WireError> {
        Self::get(&mut Reader(bytes))
    }
}

impl Field for ShardMetadata {
    fn put(&self, out: &mut Vec<u8>) {
        self.streams.put(out);
        self.clocks.frontier.put(out);
        self.clocks.held.put(out);
        self.clocks.failing.put(out);
        self.clocks.examples.put(out);
        self.clocks.settings.put(out);
        self.rows.rates.put(out);
        self.rows.examples.put(out);
        self.clocks.failed.put(out);
        self.rows.pending.put(out);
        self.leases.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let streams = Field::get(input)?;
        let (frontier, held, failing) = (Field::get(input)?, Field::get(input)?, Field::get(input)?);
        let (examples, settings) = (Field::get(input)?, Field::get(input)?);
        let (rates, counted) = (Field::get(input)?, Field::get(input)?);
        let (failed, pending) = (Field::get(input)?, Field::get(input)?);
        let leases = Field::get(input)?;
        let clocks = SavedClocks { frontier, held, failing, examples, settings, failed };
        Ok(Self { streams, clocks, rows: SavedRows { rates, examples: counted, pending }, leases })
    }
}
