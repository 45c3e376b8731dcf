//! Shard metadata as bytes: everything that a shard knows beside its rows and held sums, including
//! the once-only gate. Replication batches and checkpoints carry it.

use crate::intake::clocks::SavedClocks;
use crate::intake::gate::Streams;
use crate::leases::LeasedParts;
use crate::rows::SavedRows;
use crate::view::ShardView;
use update::Number;
use wire::{Field, Reader, WireError};

/// Everything that a shard knows beside its rows and held sums.
pub(crate) struct ShardMetadata {
    /// The workers and their streams.
    pub streams: Streams,
    /// The frontier, and which clocks are held.
    pub clocks: SavedClocks,
    /// Learning rates, examples and pending rows.
    pub rows: SavedRows,
    /// Applied parts of data leases.
    pub leases: LeasedParts,
}

impl ShardMetadata {
    /// The metadata of a shard, as it is now.
    pub fn of<T: Number>(view: &ShardView<'_, T>) -> Self {
        Self {
            streams: view.streams.clone(),
            clocks: view.clocks.save(),
            rows: view.rows.save(),
            leases: view.leases.clone(),
        }
    }

    /// Encodes the metadata.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        bytes
    }

    /// Decodes metadata.
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
        let frontier = Field::get(input)?;
        let held = Field::get(input)?;
        let failing = Field::get(input)?;
        let examples = Field::get(input)?;
        let settings = Field::get(input)?;
        let rates = Field::get(input)?;
        let counted = Field::get(input)?;
        let failed = Field::get(input)?;
        let pending = Field::get(input)?;
        let leases = Field::get(input)?;
        let clocks = SavedClocks { frontier, held, failing, examples, settings, failed };
        Ok(Self { streams, clocks, rows: SavedRows { rates, examples: counted, pending }, leases })
    }
}
