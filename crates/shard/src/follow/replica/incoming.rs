//! What arrives at a replica behind the head: the chunks of the next batch, or of the backfill that
//! brings it up to date.
//!
//! A batch is handed over whole. Chunks of a backfill are handed over one by one, in order.

use crate::changes::ChangeLog;
use crate::follow::replica::Arrival;
use wire::{ChangeChunk, ChangeStep, FollowerCursor, ReplicaChunk};

/// The chunks that have arrived, and which batches the replica holds.
#[derive(Default)]
pub(crate) struct Incoming {
    /// Chunks of the next batch that have arrived.
    chunks: Vec<ReplicaChunk>,
    /// Which batches this replica holds.
    cursor: FollowerCursor,
    /// While this replica is being backfilled: the number of the backfill, and how many chunks
    /// arrived.
    backfill: Option<(u64, u32)>,
    /// Whether the last chunk of that backfill arrived.
    complete: bool,
}

impl Incoming {
    /// The number of the backfill that is under way, and how many of its chunks arrived.
    pub fn backfill(&self) -> Option<(u64, u32)> {
        self.backfill
    }

    /// The plan says that this replica holds everything: forgets its backfill.
    pub fn forget_backfill(&mut self) {
        self.backfill = None;
    }

    /// Sets that this replica holds every batch up to `batch`. Drops chunks of later batches that
    /// have arrived.
    pub fn hold(&mut self, batch: u64) {
        self.chunks.clear();
        self.cursor = FollowerCursor::at(batch);
    }

    /// A chunk of a batch or of a backfill arrives. `whole`: the plan says that this replica holds
    /// everything.
    pub fn arrive(&mut self, chunk: ReplicaChunk, whole: bool, log: &mut ChangeLog) -> Arrival {
        if let Some(backfill) = chunk.backfill {
            return if whole { Arrival::Answered } else { self.arrive_in_backfill(backfill, chunk, log) };
        }
        if !whole && !self.complete {
            // The chunks of its backfill are answered instead, or a later batch.
            return Arrival::Ignored;
        }
        let ChangeChunk { chunk: number, ends, .. } = chunk.changes;
        match self.cursor.take(chunk.changes) {
            // Answered once for each batch that is held already or shows a gap.
            ChangeStep::Held | ChangeStep::Gap if ends => Arrival::Answered,
            ChangeStep::Held | ChangeStep::Gap => Arrival::Ignored,
            step @ (ChangeStep::First | ChangeStep::Next | ChangeStep::Complete) => {
                self.chunks.truncate(number as usize);
                self.chunks.push(chunk);
                let is_whole = step == ChangeStep::Complete;
                if is_whole { Arrival::Batch(std::mem::take(&mut self.chunks)) } else { Arrival::Ignored }
            }
        }
    }

    /// A chunk of a backfill arrives. It is taken at once if it is the next one.
    fn arrive_in_backfill(&mut self, backfill: u64, chunk: ReplicaChunk, log: &mut ChangeLog) -> Arrival {
        let (arrived, begins) = match self.backfill {
            Some((known, arrived)) if known == backfill => (arrived, false),
            Some((known, _)) if known > backfill => return Arrival::Answered,
            _ => {
                log.start_at(0);
                self.hold(0);
                self.complete = false;
                (0, true)
            }
        };
        self.backfill = Some((backfill, arrived));
        Arrival::Backfill { chunk: (chunk.changes.chunk == arrived).then_some(chunk), begins }
    }

    /// The shard has taken a chunk of a backfill. After the last one, it holds every batch up to
    /// the end of the backfill.
    pub fn backfill_taken(&mut self, chunk: &ReplicaChunk, log: &mut ChangeLog) {
        let Some((backfill, arrived)) = self.backfill else { return };
        let ChangeChunk { to, ends, .. } = chunk.changes;
        self.backfill = Some((backfill, arrived.saturating_add(1)));
        self.complete = ends;
        if ends {
            log.start_at(to);
            self.hold(to);
        }
    }
}
