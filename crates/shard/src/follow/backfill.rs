//! How a copy that is new comes to hold everything: row by row while the slice is in use, then whatever has changed meanwhile, until
//! little enough is left to send it at once, and the ledger with it.

use crate::follow::replica::dirty_rows::Dirty;
use crate::follow::replica::peers::Post;
use crate::intake::combine::Held;
use crate::shard::Shard;
use std::collections::VecDeque;
use types::{NodeId, PART_BYTES, Position, PositionRange};
use update::Number;
use wire::{Payload, Piece, Replica};

/// Pieces under way: enough to keep a link busy, and few enough that what is pushed meanwhile does not stand behind them, for every slice
/// of a server may be filled at once.
const UNDER_WAY: usize = 2;
/// Rounds over what has changed meanwhile, before the rest is sent at once, however much it is.
const ROUNDS: u32 = 8;

/// How far somebody has been filled.
pub struct Filling {
    id: u64,
    /// Where the first round is.
    next: Option<Position>,
    /// What a later round has yet to send, and what has changed since it began.
    round: VecDeque<(u64, u32)>,
    changed: Dirty,
    rounds: u32,
    /// Sent and not answered.
    sent: VecDeque<Replica>,
    pieces: u32,
    ends_at: Option<u64>,
}

impl Filling {
    /// From the beginning.
    pub fn new(id: u64) -> Self {
        Self {
            id,
            next: Some(Position(0)),
            round: VecDeque::new(),
            changed: Dirty::default(),
            rounds: 0,
            sent: VecDeque::new(),
            pieces: 0,
            ends_at: None,
        }
    }

    /// What tells it from another one, of another plan.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The window up to which the copy holds everything, once the last piece has been sent.
    pub fn ends_at(&self) -> Option<u64> {
        self.ends_at
    }

    /// That window, once every piece has arrived.
    pub fn is_over(&self) -> Option<u64> {
        self.ends_at.filter(|_| self.sent.is_empty())
    }

    /// What has not been answered.
    pub fn unanswered(&self) -> impl Iterator<Item = &Replica> {
        self.sent.iter()
    }

    /// So many pieces of a filling have arrived. Says whether that is news of this one.
    pub fn answered(&mut self, pieces: Option<(u64, u32)>) -> bool {
        let Some((_, arrived)) = pieces.filter(|(id, arrived)| *id == self.id && *arrived <= self.pieces) else {
            return false;
        };
        let before = self.sent.len();
        while self.sent.front().is_some_and(|piece| piece.piece < arrived) {
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
    /// Goes on filling whoever is being filled.
    pub(crate) fn fill(&mut self, post: &mut Post) {
        let Some(mut links) = self.links.take() else { return };
        let was_solitary = links.is_solitary();
        for child in &mut links.children {
            let Some(filling) = &mut child.filling else { continue };
            while filling.ends_at.is_none() && filling.sent.len() < UNDER_WAY {
                self.fill_on(child.node, filling, post);
            }
        }
        let begin = was_solitary && !links.is_solitary();
        self.links = Some(links);
        if begin {
            self.windows_begin();
        }
    }

    /// The next pieces.
    fn fill_on(&self, node: NodeId, filling: &mut Filling, post: &mut Post) {
        let row_bytes = self.rows.kept_width() * size_of::<T>();
        let most = (PART_BYTES / row_bytes.max(8)).max(1);
        if let Some(first) = filling.next {
            let first = first.max(self.placed.range.first);
            let (positions, resolved, more) = self.rows.scan(PositionRange { first, ..self.placed.range }, most);
            filling.next = more;
            let rows: Vec<(u64, u32)> = positions.into_iter().zip(resolved.each()).collect();
            return self.put_rows(node, filling, &rows, post);
        }
        if filling.round.is_empty() && filling.changed.len() > most && filling.rounds < ROUNDS {
            filling.rounds += 1;
            filling.round = filling.changed.take().into();
        }
        if !filling.round.is_empty() {
            let rows: Vec<(u64, u32)> = filling.round.drain(..filling.round.len().min(most)).collect();
            return self.put_rows(node, filling, &rows, post);
        }
        // The rest at once, so that it is all of one moment.
        let rest = filling.changed.take();
        rest.chunks(most).for_each(|rows| self.put_rows(node, filling, rows, post));
        let width = self.rows.width();
        let positions = if self.held.is_empty() { Vec::new() } else { self.rows.positions() };
        for (clock, held) in &self.held {
            let Held::Sum(sum) = held else { continue };
            let mut rows: Vec<(u64, u32)> = sum.slots().iter().map(|slot| (positions[*slot as usize], *slot)).collect();
            rows.sort_unstable();
            for rows in rows.chunks((PART_BYTES / (width * size_of::<T>()).max(8)).max(1)) {
                let sums = rows.iter().filter_map(|(_, slot)| sum.get(width, *slot)).flatten().copied();
                let values = Payload::new(sums.collect::<Vec<T>>());
                self.put_piece(node, filling, Piece::Held { clock: *clock }, (positions_of(rows), values), post);
            }
        }
        filling.ends_at = Some(self.window);
        let ledger = Piece::Ledger { bytes: self.ledger() };
        self.put_piece(node, filling, ledger, (Payload::EMPTY, Payload::EMPTY), post);
    }

    fn put_rows(&self, node: NodeId, filling: &mut Filling, rows: &[(u64, u32)], post: &mut Post) {
        if !rows.is_empty() {
            self.put_piece(node, filling, Piece::Rows, (positions_of(rows), self.kept_rows(rows)), post);
        }
    }

    fn put_piece(
        &self,
        node: NodeId,
        filling: &mut Filling,
        what: Piece,
        (positions, values): (Payload, Payload),
        post: &mut Post,
    ) {
        let (table, shard, window, piece) = (self.table, self.placed.shard, self.window, filling.pieces);
        let replica = Replica { table, shard, window, piece, filling: Some(filling.id), what, positions, values };
        filling.pieces += 1;
        filling.sent.push_back(replica.clone());
        post.push((node, replica));
    }

    /// Rows as they are kept.
    pub(crate) fn kept_rows(&self, rows: &[(u64, u32)]) -> Payload {
        let kept = self.rows.kept_width();
        let mut values = self.pool.take(rows.len() * kept * size_of::<T>());
        let each = values.numbers_mut::<T>().chunks_exact_mut(kept).zip(rows);
        each.for_each(|(value, (_, slot))| value.copy_from_slice(self.rows.kept(*slot)));
        values.freeze()
    }
}

/// The positions of rows.
pub fn positions_of(rows: &[(u64, u32)]) -> Payload {
    Payload::new(rows.iter().map(|(position, _)| *position).collect::<Vec<u64>>())
}
