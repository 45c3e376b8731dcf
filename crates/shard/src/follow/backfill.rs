//! Backfill: brings a new replica up to date while the shard is in use. The tail sends every row,
//! then in rounds what changed meanwhile, until little is left; it sends the rest and the metadata
//! at once.

use crate::follow::replica::dirty_rows::DirtyRows;
use crate::follow::replica::peers::Outgoing;
use crate::intake::combine::HeldClock;
use crate::shard::Shard;
use std::collections::VecDeque;
use types::{NodeId, PART_BYTES, Position, PositionRange};
use update::Number;
use wire::{ChunkContents, Payload, ReplicaChunk};

/// Chunks under way: enough to keep a link busy, and few enough that what is pushed meanwhile does
/// not stand behind them, for every shard of a server may be backfilled at once.
const UNDER_WAY: usize = 2;
/// Rounds over what has changed meanwhile, before the rest is sent at once, however much it is.
const ROUNDS: u32 = 8;

/// The state of one backfill.
pub(crate) struct Backfill {
    id: u64,
    /// Where the first round is.
    next: Option<Position>,
    /// What a later round has yet to send, and what has changed since it began.
    round: VecDeque<(u64, u32)>,
    changed: DirtyRows,
    rounds: u32,
    /// Sent and not answered.
    sent: VecDeque<ReplicaChunk>,
    chunks: u32,
    ends_at: Option<u64>,
}

impl Backfill {
    /// From the beginning.
    pub fn new(id: u64) -> Self {
        Self {
            id,
            next: Some(Position(0)),
            round: VecDeque::new(),
            changed: DirtyRows::default(),
            rounds: 0,
            sent: VecDeque::new(),
            chunks: 0,
            ends_at: None,
        }
    }

    /// What tells it from another one, of another plan.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The batch up to which the replica holds everything, once the last chunk has been sent.
    pub fn ends_at(&self) -> Option<u64> {
        self.ends_at
    }

    /// That batch, once every chunk has arrived.
    pub fn is_over(&self) -> Option<u64> {
        self.ends_at.filter(|_| self.sent.is_empty())
    }

    /// What has not been answered.
    pub fn unanswered(&self) -> impl Iterator<Item = &ReplicaChunk> {
        self.sent.iter()
    }

    /// So many chunks of a backfill have arrived. Says whether that is news of this one.
    pub fn answered(&mut self, chunks: Option<(u64, u32)>) -> bool {
        let Some((_, arrived)) = chunks.filter(|(id, arrived)| *id == self.id && *arrived <= self.chunks) else {
            return false;
        };
        let before = self.sent.len();
        while self.sent.front().is_some_and(|chunk| chunk.chunk < arrived) {
            self.sent.pop_front();
        }
        self.sent.len() < before
    }

    /// Rows have changed.
    pub fn changed(&mut self, rows: impl Iterator<Item = (u64, u32)>) {
        if self.ends_at.is_none() {
            self.changed.extend(rows);
        }
    }

    /// All rows have been put in order.
    pub fn renumber(&mut self, moves: &[u32]) {
        self.changed.renumber(moves);
        self.round.iter_mut().for_each(|(_, slot)| *slot = moves[*slot as usize]);
    }
}

impl<T: Number> Shard<T> {
    /// Sends the next chunks to the replicas that are being backfilled.
    pub(crate) fn continue_backfills(&mut self, outgoing: &mut Outgoing) {
        let Some(mut peers) = self.peers.take() else { return };
        let was_solitary = peers.is_solitary();
        for receiver in &mut peers.receivers {
            let Some(backfill) = &mut receiver.backfill else { continue };
            while backfill.ends_at.is_none() && backfill.sent.len() < UNDER_WAY {
                self.backfill_on(receiver.node, backfill, outgoing);
            }
        }
        let begin = was_solitary && !peers.is_solitary();
        self.peers = Some(peers);
        if begin {
            self.start_batches();
        }
    }

    /// The next chunks.
    fn backfill_on(&self, node: NodeId, backfill: &mut Backfill, outgoing: &mut Outgoing) {
        let row_bytes = self.rows.row_state_width() * size_of::<T>();
        let most = (PART_BYTES / row_bytes.max(8)).max(1);
        if let Some(first) = backfill.next {
            let first = first.max(self.placed.range.first);
            let (positions, resolved, more) = self.rows.scan(PositionRange { first, ..self.placed.range }, most);
            backfill.next = more;
            let rows: Vec<(u64, u32)> = positions.into_iter().zip(resolved.each()).collect();
            return self.put_rows(node, backfill, &rows, outgoing);
        }
        if backfill.round.is_empty() && backfill.changed.len() > most && backfill.rounds < ROUNDS {
            backfill.rounds += 1;
            backfill.round = backfill.changed.take().into();
        }
        if !backfill.round.is_empty() {
            let rows: Vec<(u64, u32)> = backfill.round.drain(..backfill.round.len().min(most)).collect();
            return self.put_rows(node, backfill, &rows, outgoing);
        }
        // The rest at once, so that it is all of one moment.
        let rest = backfill.changed.take();
        rest.chunks(most).for_each(|rows| self.put_rows(node, backfill, rows, outgoing));
        let width = self.rows.width();
        let positions = if self.held.is_empty() { Vec::new() } else { self.rows.positions() };
        for (clock, held) in &self.held {
            let HeldClock::Sum(sum) = held else { continue };
            let mut rows: Vec<(u64, u32)> = sum.slots().iter().map(|slot| (positions[*slot as usize], *slot)).collect();
            rows.sort_unstable();
            for rows in rows.chunks((PART_BYTES / (width * size_of::<T>()).max(8)).max(1)) {
                let sums = rows.iter().filter_map(|(_, slot)| sum.get(width, *slot)).flatten().copied();
                let values = Payload::new(sums.collect::<Vec<T>>());
                self.put_chunk(
                    node,
                    backfill,
                    ChunkContents::ClockSums { clock: *clock },
                    (positions_of(rows), values),
                    outgoing,
                );
            }
        }
        backfill.ends_at = Some(self.batch);
        let metadata = ChunkContents::Metadata { bytes: self.metadata() };
        self.put_chunk(node, backfill, metadata, (Payload::EMPTY, Payload::EMPTY), outgoing);
    }

    fn put_rows(&self, node: NodeId, backfill: &mut Backfill, rows: &[(u64, u32)], outgoing: &mut Outgoing) {
        if !rows.is_empty() {
            self.put_chunk(node, backfill, ChunkContents::Rows, (positions_of(rows), self.row_states(rows)), outgoing);
        }
    }

    fn put_chunk(
        &self,
        node: NodeId,
        backfill: &mut Backfill,
        contents: ChunkContents,
        (positions, values): (Payload, Payload),
        outgoing: &mut Outgoing,
    ) {
        let (table, shard, batch, chunk) = (self.table, self.placed.shard, self.batch, backfill.chunks);
        let replica =
            ReplicaChunk { table, shard, batch, chunk, backfill: Some(backfill.id), contents, positions, values };
        backfill.chunks += 1;
        backfill.sent.push_back(replica.clone());
        outgoing.push((node, replica));
    }

    /// Rows as they are kept.
    pub(crate) fn row_states(&self, rows: &[(u64, u32)]) -> Payload {
        let kept = self.rows.row_state_width();
        let mut values = self.pool.take(rows.len() * kept * size_of::<T>());
        let each = values.numbers_mut::<T>().chunks_exact_mut(kept).zip(rows);
        each.for_each(|(value, (_, slot))| value.copy_from_slice(self.rows.row_state(*slot)));
        values.freeze()
    }
}

/// The positions of rows.
pub fn positions_of(rows: &[(u64, u32)]) -> Payload {
    Payload::new(rows.iter().map(|(position, _)| *position).collect::<Vec<u64>>())
}
