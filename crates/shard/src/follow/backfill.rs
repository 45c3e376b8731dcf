//! Backfill: brings a new replica up to date while the shard is in use.
//!
//! The tail first sends every row. Then, in rounds, it sends the rows that the change log says have
//! changed meanwhile. When little is left, it sends the rest, the held sums and the shard metadata
//! at one moment.

use crate::changes::ChangeLog;
use crate::follow::replica::encode::{self, Contents, rows_per_chunk};
use crate::view::ShardView;
use std::collections::VecDeque;
use types::{Position, PositionRange};
use update::Number;
use wire::{ChangeChunk, ReplicaChunk};

/// How many chunks may be under way: enough to keep a link busy, and few enough that pushes do not
/// queue behind them. All shards of a server may be backfilled at the same time.
const UNDER_WAY: usize = 2;
/// After this many rounds over changed rows, the rest is sent at once, however much it is.
const ROUNDS: u32 = 8;

/// The state of one backfill.
pub(crate) struct Backfill {
    /// Number of the plan that started it.
    id: u64,
    /// The next position of the first round, which sends every row. `None` once it is over.
    next: Option<Position>,
    /// Changes after this batch have not been sent, nor are they in `round`.
    cursor: u64,
    /// Positions that the present round has yet to send, last first.
    round: Vec<u64>,
    /// Rounds over changed rows so far.
    rounds: u32,
    /// Chunks that the replica has not acknowledged, oldest first.
    sent: VecDeque<ReplicaChunk>,
    /// Chunks sent so far.
    chunks: u32,
    /// The batch up to which the replica holds everything, once the last chunk has been sent.
    ends_at: Option<u64>,
}

impl Backfill {
    /// A backfill of plan `id` that begins when batch `last` is the last closed one.
    pub fn new(id: u64, last: u64) -> Self {
        Self {
            id,
            next: Some(Position(0)),
            cursor: last,
            round: Vec::new(),
            rounds: 0,
            sent: VecDeque::new(),
            chunks: 0,
            ends_at: None,
        }
    }

    /// Number of the plan that started it: tells it from earlier and later backfills.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The batch after which it needs the change log.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// The batch up to which the replica holds everything, once the last chunk has been sent.
    pub fn ends_at(&self) -> Option<u64> {
        self.ends_at
    }

    /// The batch of [`Self::ends_at`], once the replica has acknowledged every chunk.
    pub fn is_over(&self) -> Option<u64> {
        self.ends_at.filter(|_| self.sent.is_empty())
    }

    /// Chunks that the replica has not acknowledged.
    pub fn unanswered(&self) -> impl Iterator<Item = &ReplicaChunk> {
        self.sent.iter()
    }

    /// The replica acknowledges chunks of a backfill: its number and how many arrived. Returns
    /// whether that acknowledges more chunks of this backfill.
    pub fn answered(&mut self, chunks: Option<(u64, u32)>) -> bool {
        let Some((_, arrived)) = chunks.filter(|(id, arrived)| *id == self.id && *arrived <= self.chunks) else {
            return false;
        };
        let before = self.sent.len();
        while self.sent.front().is_some_and(|chunk| chunk.changes.chunk < arrived) {
            self.sent.pop_front();
        }
        self.sent.len() < before
    }

    /// Sends the next chunks, as many as may be under way.
    pub fn proceed<T: Number>(
        &mut self,
        log: &mut ChangeLog,
        view: &ShardView<'_, T>,
        mut send: impl FnMut(ReplicaChunk),
    ) {
        while self.ends_at.is_none() && self.sent.len() < UNDER_WAY {
            self.send_next(log, view, &mut send);
        }
    }

    /// Sends the next rows of the present round, or begins the next round, or ends the backfill.
    fn send_next<T: Number>(
        &mut self,
        log: &mut ChangeLog,
        view: &ShardView<'_, T>,
        send: &mut impl FnMut(ReplicaChunk),
    ) {
        let most = rows_per_chunk(view.rows.row_state_bytes());
        let range = view.identity.placed.range;
        if let Some(first) = self.next {
            let first = first.max(range.first);
            let (positions, _, more) = view.rows.scan(PositionRange { first, ..range }, most);
            self.next = more;
            return encode::rows(&positions, view, |contents| self.put(contents, false, view, send));
        }
        if self.round.is_empty() {
            let last = log.close_if_changed();
            let mut changed = log.since(self.cursor).into_owned().rows;
            self.cursor = last;
            if changed.len() <= most || self.rounds >= ROUNDS {
                return self.end(last, &changed, view, send);
            }
            self.rounds += 1;
            changed.reverse();
            self.round = changed;
        }
        let left = self.round.len().saturating_sub(most);
        let mut positions = self.round.split_off(left);
        positions.reverse();
        encode::rows(&positions, view, |contents| self.put(contents, false, view, send));
    }

    /// Sends the rest at one moment. With it, the replica holds everything up to batch `last`.
    fn end<T: Number>(
        &mut self,
        last: u64,
        changed: &[u64],
        view: &ShardView<'_, T>,
        send: &mut impl FnMut(ReplicaChunk),
    ) {
        self.ends_at = Some(last);
        encode::rows(changed, view, |contents| self.put(contents, false, view, send));
        let mut held = view.clocks.sums().peekable();
        let of_slots = if held.peek().is_some() { view.rows.positions() } else { Vec::new() };
        for (clock, slots) in held {
            let mut positions: Vec<u64> = slots.iter().map(|slot| of_slots[*slot as usize]).collect();
            positions.extend(view.clocks.removals(clock));
            positions.sort_unstable();
            positions.dedup();
            encode::sums(clock, &positions, view, |contents| self.put(contents, false, view, send));
        }
        self.put(encode::metadata(view), true, view, send);
    }

    fn put<T: Number>(
        &mut self,
        (contents, positions, values): Contents,
        ends: bool,
        view: &ShardView<'_, T>,
        send: &mut impl FnMut(ReplicaChunk),
    ) {
        let chunk = ReplicaChunk {
            table: view.identity.table,
            shard: view.identity.shard(),
            changes: ChangeChunk { from: 0, to: self.cursor, chunk: self.chunks, ends },
            backfill: Some(self.id),
            contents,
            positions,
            values,
        };
        self.chunks += 1;
        self.sent.push_back(chunk.clone());
        send(chunk);
    }
}
