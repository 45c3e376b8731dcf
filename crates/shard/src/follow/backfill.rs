//! Backfill: brings a new replica up to date while the shard is in use. The tail sends every row,
//! then in rounds what changed meanwhile, until little is left; it sends the rest and the metadata
//! at once.

use crate::follow::replica::dirty_rows::DirtyRows;
use crate::follow::replica::rows_per_chunk;
use crate::view::{Row, ShardView};
use std::collections::VecDeque;
use types::{Position, PositionRange};
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

impl Backfill {
    /// The next chunks, as many as may be under way. The replica holds `batch` and everything
    /// before it once the last of them has arrived.
    pub fn proceed<T: Number>(&mut self, batch: u64, view: &ShardView<'_, T>, mut send: impl FnMut(ReplicaChunk)) {
        while self.ends_at.is_none() && self.sent.len() < UNDER_WAY {
            self.go_on(batch, view, &mut send);
        }
    }

    fn go_on<T: Number>(&mut self, batch: u64, view: &ShardView<'_, T>, send: &mut impl FnMut(ReplicaChunk)) {
        let most = rows_per_chunk(view.rows.row_state_bytes());
        let range = view.identity.placed.range;
        if let Some(first) = self.next {
            let first = first.max(range.first);
            let (positions, resolved, more) = view.rows.scan(PositionRange { first, ..range }, most);
            self.next = more;
            let rows: Vec<Row> = positions.into_iter().zip(resolved.each()).collect();
            return self.put_rows(batch, &rows, view, send);
        }
        if self.round.is_empty() && self.changed.len() > most && self.rounds < ROUNDS {
            self.rounds += 1;
            self.round = self.changed.take().into();
        }
        if !self.round.is_empty() {
            let rows: Vec<Row> = self.round.drain(..self.round.len().min(most)).collect();
            return self.put_rows(batch, &rows, view, send);
        }
        // The rest at once, so that it is all of one moment.
        let rest = self.changed.take();
        rest.chunks(most).for_each(|rows| self.put_rows(batch, rows, view, send));
        let mut held = view.clocks.sums().peekable();
        let positions = if held.peek().is_some() { view.rows.positions() } else { Vec::new() };
        for (clock, slots) in held {
            let mut rows: Vec<Row> = slots.iter().map(|slot| (positions[*slot as usize], *slot)).collect();
            rows.sort_unstable();
            for rows in rows.chunks(rows_per_chunk(view.rows.width() * size_of::<T>())) {
                let Some(values) = view.sums(clock, rows) else { continue };
                let contents = ChunkContents::ClockSums { clock };
                self.put(batch, contents, (view.positions(rows), values), view, send);
            }
        }
        self.ends_at = Some(batch);
        let metadata = ChunkContents::Metadata { bytes: view.metadata() };
        self.put(batch, metadata, (Payload::EMPTY, Payload::EMPTY), view, send);
    }

    fn put_rows<T: Number>(
        &mut self,
        batch: u64,
        rows: &[Row],
        view: &ShardView<'_, T>,
        send: &mut impl FnMut(ReplicaChunk),
    ) {
        if !rows.is_empty() {
            self.put(batch, ChunkContents::Rows, (view.positions(rows), view.row_states(rows)), view, send);
        }
    }

    fn put<T: Number>(
        &mut self,
        batch: u64,
        contents: ChunkContents,
        (positions, values): (Payload, Payload),
        view: &ShardView<'_, T>,
        send: &mut impl FnMut(ReplicaChunk),
    ) {
        let (table, shard, chunk) = (view.identity.table, view.identity.shard(), self.chunks);
        let replica = ReplicaChunk { table, shard, batch, chunk, backfill: Some(self.id), contents, positions, values };
        self.chunks += 1;
        self.sent.push_back(replica.clone());
        send(replica);
    }
}
