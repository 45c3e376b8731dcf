//! Encodes, in chunks, what replicas are sent: row states and removed rows, sums and removals that
//! are held for clocks, and the shard metadata.

use crate::view::ShardView;
use types::{Clock, PART_BYTES};
use update::{ABSENT, Number};
use wire::{ChunkContents, Payload};

/// What a chunk holds, its positions and its values.
pub(crate) type Contents = (ChunkContents, Payload, Payload);

/// How many rows fit in a chunk, if a row takes `row_bytes` bytes.
pub(crate) fn rows_per_chunk(row_bytes: usize) -> usize {
    (PART_BYTES / row_bytes.max(8)).max(1)
}

/// Encodes the row states at rising positions, as they are now, and which positions have no row.
pub(crate) fn rows<T: Number>(positions: &[u64], view: &ShardView<'_, T>, mut put: impl FnMut(Contents)) {
    for positions in positions.chunks(rows_per_chunk(view.rows.row_state_bytes())) {
        let slots = view.slots(positions);
        if !slots.contains(&ABSENT) {
            put((ChunkContents::Rows, view.pool.copy(positions), view.row_states(&slots)));
            continue;
        }
        let all = || positions.iter().copied().zip(slots.iter().copied());
        let gone: Vec<u64> = all().filter(|(_, slot)| *slot == ABSENT).map(|(position, _)| position).collect();
        let (there, slots): (Vec<u64>, Vec<u32>) = all().filter(|(_, slot)| *slot != ABSENT).unzip();
        put((ChunkContents::RemovedRows, view.pool.copy(&gone), Payload::EMPTY));
        if !there.is_empty() {
            put((ChunkContents::Rows, view.pool.copy(&there), view.row_states(&slots)));
        }
    }
}

/// Encodes what is held for a clock at rising positions: sums, and which rows it removes. Nothing
/// if no sum is held for the clock, because it is over or has failed.
pub(crate) fn sums<T: Number>(clock: Clock, positions: &[u64], view: &ShardView<'_, T>, mut put: impl FnMut(Contents)) {
    let Some(sum) = view.clocks.held_sum(clock) else { return };
    let removes = view.clocks.removals(clock).next().is_some();
    for positions in positions.chunks(rows_per_chunk(view.rows.width() * size_of::<T>())) {
        let all = positions.iter().copied().zip(view.slots(positions));
        let (summed, slots): (Vec<u64>, Vec<u32>) =
            all.filter(|(_, slot)| *slot != ABSENT && sum.contains(*slot)).unzip();
        if let Some(values) = view.sums(clock, &slots).filter(|_| !slots.is_empty()) {
            put((ChunkContents::ClockSums { clock }, view.pool.copy(&summed), values));
        }
        let removed = positions.iter().copied().filter(|position| removes && view.clocks.removes(clock, *position));
        let removed: Vec<u64> = removed.collect();
        if !removed.is_empty() {
            put((ChunkContents::ClockRemovals { clock }, view.pool.copy(&removed), Payload::EMPTY));
        }
    }
}

/// Encodes the shard metadata: everything that the shard knows beside its rows and sums.
pub(crate) fn metadata<T: Number>(view: &ShardView<'_, T>) -> Contents {
    (ChunkContents::Metadata { bytes: view.metadata() }, Payload::EMPTY, Payload::EMPTY)
}
