//! A shard's metadata as bytes: everything it knows beside its rows, the once-only gate included.
//! Replication batches and checkpoints carry it.

use crate::intake::combine::{Combination, HeldClock};
use crate::intake::frontier::Frontier;
use crate::intake::stream::Stream;
use crate::leases::LeasedParts;
use crate::rows::pending_rows::PendingRows;
use crate::shard::Shard;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{Clock, Source, WorkerId};
use update::Number;
use wire::{FailedClock, Field, Reader, WireError};

/// Everything that a shard knows beside its rows and the sums that it holds.
struct ShardMetadata {
    sources: Vec<Option<Source>>,
    streams: Vec<Stream>,
    frontier: Frontier,
    /// Clocks of which sums are held.
    held: Vec<Clock>,
    /// Clocks that will fail.
    failing: Vec<FailedClock>,
    held_examples: Vec<(Clock, u64)>,
    settings: Vec<Clock>,
    rates: Vec<(Clock, f64)>,
    examples: u64,
    failed: Vec<FailedClock>,
    pending_rows: (Vec<u64>, Vec<(Clock, Vec<u64>)>),
    leases: LeasedParts,
}

impl Field for ShardMetadata {
    fn put(&self, out: &mut Vec<u8>) {
        self.sources.put(out);
        self.streams.put(out);
        self.frontier.put(out);
        self.held.put(out);
        self.failing.put(out);
        self.held_examples.put(out);
        self.settings.put(out);
        self.rates.put(out);
        self.examples.put(out);
        self.failed.put(out);
        self.pending_rows.put(out);
        self.leases.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let metadata = Self {
            sources: Field::get(input)?,
            streams: Field::get(input)?,
            frontier: Field::get(input)?,
            held: Field::get(input)?,
            failing: Field::get(input)?,
            held_examples: Field::get(input)?,
            settings: Field::get(input)?,
            rates: Field::get(input)?,
            examples: Field::get(input)?,
            failed: Field::get(input)?,
            pending_rows: Field::get(input)?,
            leases: Field::get(input)?,
        };
        if metadata.sources.len() != metadata.streams.len() {
            return Err(WireError::Malformed("shard metadata whose workers and streams differ in number"));
        }
        Ok(metadata)
    }
}

impl<T: Number> Shard<T> {
    /// What the shard knows beside its rows and sums, as bytes.
    pub(crate) fn metadata(&self) -> Vec<u8> {
        let failing = self.held.values().filter_map(|held| match held {
            HeldClock::Failed(failed) => Some(failed.clone()),
            HeldClock::Sum(_) => None,
        });
        let is_sum = |(clock, held): (&Clock, &HeldClock<T>)| matches!(held, HeldClock::Sum(_)).then_some(*clock);
        let metadata = ShardMetadata {
            sources: self.sources.clone(),
            streams: self.streams.clone(),
            frontier: self.frontier.clone(),
            held: self.held.iter().filter_map(is_sum).collect(),
            failing: failing.collect(),
            held_examples: self.held_examples.iter().map(|(clock, examples)| (*clock, *examples)).collect(),
            settings: self.settings.iter().copied().collect(),
            rates: self.rows.rates().iter().map(|(clock, rate)| (*clock, *rate)).collect(),
            examples: self.rows.examples(),
            failed: self.failed.iter().cloned().collect(),
            pending_rows: self.pending_rows.parts(),
            leases: self.leases.clone(),
        };
        let mut bytes = Vec::new();
        metadata.put(&mut bytes);
        bytes
    }

    /// Knows what these bytes tell, and nothing else.
    pub(crate) fn take_metadata(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        let metadata = ShardMetadata::get(&mut Reader(bytes))?;
        let present = (0..).map(WorkerId).zip(&metadata.sources);
        self.ranks = present.filter_map(|(worker, source)| source.map(|source| (source, worker))).collect();
        self.sources = metadata.sources;
        self.streams = metadata.streams;
        self.frontier = metadata.frontier;
        let sums: BTreeSet<Clock> = metadata.held.into_iter().collect();
        self.held.retain(|clock, held| sums.contains(clock) && matches!(held, HeldClock::Sum(_)));
        for clock in sums {
            self.held.entry(clock).or_insert_with(|| HeldClock::Sum(Combination::new(Vec::new())));
        }
        self.held.extend(metadata.failing.into_iter().map(|failed| (failed.clock, HeldClock::Failed(failed))));
        self.held_changes.retain(|clock, _| self.held.contains_key(clock));
        self.held_examples = metadata.held_examples.into_iter().collect();
        self.settings = metadata.settings.into_iter().collect();
        self.rows.restore(metadata.examples, metadata.rates.into_iter().collect::<BTreeMap<_, _>>());
        self.failed = metadata.failed.into_iter().collect::<VecDeque<_>>();
        self.pending_rows = PendingRows::from_parts(&self.spec, metadata.pending_rows);
        self.leases = metadata.leases;
        Ok(())
    }

    /// Rows as they are kept, from wherever they were.
    pub(crate) fn take_rows(&mut self, positions: &[u64], values: &[T]) -> Option<()> {
        if !rise(positions) {
            return None;
        }
        let resolved = self.rows.resolve_list(positions, true).ok()?;
        self.rows.put_row_state(&resolved, values)?;
        let slots: Vec<u32> = resolved.each().collect();
        self.note_rows(positions.iter().copied().zip(slots.iter().copied()));
        Some(())
    }

    /// Sums that are held for a clock.
    pub(crate) fn take_held(&mut self, clock: Clock, positions: &[u64], values: &[T]) -> Option<()> {
        if !rise(positions) {
            return None;
        }
        let resolved = self.rows.resolve_list(positions, true).ok()?;
        let width = self.rows.width();
        if values.len() != positions.len() * width {
            return None;
        }
        let rows = self.rows.len();
        let held = self.held.entry(clock).or_insert_with(|| HeldClock::Sum(Combination::new(Vec::new())));
        if let HeldClock::Sum(sum) = held {
            sum.set(width, rows, &resolved, values);
        }
        // Known by position, too, for the time when this replica is the head.
        self.held_changes.entry(clock).or_default().extend(positions.iter().copied().zip(resolved.each()));
        Some(())
    }
}

/// Whether these are in order, each once, as the index wants them: what comes from another server
/// is looked at like what comes from a worker.
fn rise(positions: &[u64]) -> bool {
    positions.is_sorted_by(|one, next| one < next)
}
