//! A program that follows the change feed of a table, page by page.

use super::Cluster;
use super::actor::{Actor, AwaitedEvent, Task};
use crate::history::HistoryEvent;
use crate::program::TableIndex;
use types::{NumberType, Position, TableSpec};
use wire::{FeedCursor, FeedPage, FeedReader, FeedStep, Payload};
use worker::Op;

/// How far a program has followed a table's change feed.
pub struct Follower {
    shards: Vec<FeedReader>,
    /// The shards that are still to be asked in this round.
    left: Vec<usize>,
    /// Whether a round is under way.
    is_asking: bool,
}

impl Follower {
    /// Takes a page of the shard that was asked. Returns what the program sees. None if the shard
    /// must be asked again.
    pub fn take(&mut self, table: TableIndex, last: bool, page: &FeedPage, spec: &TableSpec) -> Option<HistoryEvent> {
        let shard = &mut self.shards[*self.left.last()?];
        let range = shard.range();
        let (is_done, starts_over) = match shard.take(page) {
            FeedStep::AskAgain => return None,
            FeedStep::StartsOver => (false, true),
            FeedStep::Rows { is_up_to_date } => (is_up_to_date || !last, false),
        };
        if is_done {
            self.left.pop();
        }
        let key = |position: &u64| spec.shape.placement().key(Position(*position)).0;
        let positions = if starts_over { &[][..] } else { page.answer.positions.numbers()? };
        let values = if starts_over { Vec::new() } else { reals(spec.number, &page.answer.values)? };
        let mut keys: Vec<u64> = positions.iter().map(key).collect();
        let deleted = keys.split_off(values.len() / spec.width as usize);
        Some(HistoryEvent::Followed { table, range, starts_over, keys, values, deleted })
    }
}

fn reals(number: NumberType, values: &Payload) -> Option<Vec<f64>> {
    Some(match number {
        NumberType::F32 => values.numbers::<f32>()?.iter().map(|value| f64::from(*value)).collect(),
        NumberType::F64 => values.numbers::<f64>()?.to_vec(),
        NumberType::I64 => values.numbers::<i64>()?.iter().map(|value| *value as f64).collect(),
    })
}

impl Cluster {
    /// Asks every shard for a page or, if this is the `last` time, for pages until the shard has
    /// nothing new. The program repeats its step after each page.
    pub(super) fn follow(&mut self, worker: usize, table: TableIndex, from: FeedCursor, last: bool) {
        let shape = self.history.specs[table.0].shape;
        let Actor { worker: machine, followers, tables, .. } = &mut self.actors[worker];
        let begin = || {
            let shards = machine.plan().shards(shape);
            let shards = shards.iter().map(|placed| FeedReader::new(placed.range, from));
            Follower { shards: shards.collect(), left: Vec::new(), is_asking: false }
        };
        let follower = followers.entry(table).or_insert_with(begin);
        if !follower.is_asking {
            follower.left = (0..follower.shards.len()).collect();
        }
        follower.is_asking = !follower.left.is_empty();
        let Some(asked) = follower.left.last() else {
            if last {
                self.note(worker as u32, HistoryEvent::FollowedToTheEnd { table });
            }
            return;
        };
        let (cursor, first) = follower.shards[*asked].question();
        let id = tables[&table];
        self.actors[worker].next -= 1;
        if let Some(ticket) = self.submit(worker, id, Op::Follow { cursor, first }, Vec::new()) {
            self.actors[worker].outstanding.insert(ticket, Task::Follow(table, last));
            self.actors[worker].wait = AwaitedEvent::For(ticket);
        }
    }
}
