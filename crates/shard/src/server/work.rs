//! Work that would take too long at once: initial weights of large tables, copies for checkpoints,
//! restoring, laying rows out anew, and freeing memory.
//!
//! The shell calls [`Server::work`] between frames. Each call does one piece, for one shard after
//! the other, so heartbeats, acknowledgements and reads go on. A table counts as added when the
//! last piece of its shards here is done.

use super::Server;
use super::checkpoints::cannot_restore;
use crate::discarded::Discarded;
use std::collections::BTreeSet;
use types::{NodeId, ShardId, TableId, Time};
use wire::{Control, Frame, Head, Message, Outbox};

type Name = (TableId, ShardId);

/// Row state that one piece concerns: a fraction of a millisecond of work.
const PIECE_BYTES: usize = 64 << 10;

/// Which shards have work, and which tables wait for it.
pub(super) struct LongWork {
    /// Bytes of row state that one piece concerns.
    piece_bytes: usize,
    busy: BTreeSet<Name>,
    /// The shard that worked last.
    last: Option<Name>,
    /// Tables that the coordinator is told of when all their shards here are made.
    unanswered: BTreeSet<TableId>,
    /// Memory that is to be freed elsewhere.
    discarded: Vec<Discarded>,
}

impl LongWork {
    pub fn new() -> Self {
        Self {
            piece_bytes: PIECE_BYTES,
            busy: BTreeSet::new(),
            last: None,
            unanswered: BTreeSet::new(),
            discarded: Vec::new(),
        }
    }

    pub fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    /// A shard may have work.
    pub fn note(&mut self, name: Name, has_work: bool) {
        if has_work {
            self.busy.insert(name);
        }
    }

    /// Notes memory to free.
    pub fn discard(&mut self, memory: impl IntoIterator<Item = Discarded>) {
        self.discarded.extend(memory);
    }

    /// The next busy shard after the one that worked last.
    fn next(&mut self) -> Option<Name> {
        let after =
            |last: &Name| self.busy.range((std::ops::Bound::Excluded(*last), std::ops::Bound::Unbounded)).next();
        let next = self.last.as_ref().and_then(after).or_else(|| self.busy.first()).copied();
        self.last = next;
        next
    }
}

impl Server {
    /// Sets how many bytes of row state one piece of long work concerns.
    #[must_use]
    pub fn piece_bytes(mut self, bytes: usize) -> Self {
        self.work.piece_bytes = bytes;
        self
    }

    /// Whether there is long work. Then [`work`](Self::work) should be called soon.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.work.busy.is_empty()
    }

    /// Whether somebody waits for long work: rows of a new table, a copy, a restored table.
    #[must_use]
    pub fn has_awaited_work(&self) -> bool {
        self.work.busy.iter().filter_map(|name| self.shards.get(name)).any(|shard| shard.has_awaited_work())
    }

    /// Does one piece of long work.
    pub fn work(&mut self, now: Time, out: &mut Outbox) {
        self.now = now;
        let Some(name) = self.work.next() else { return };
        let Some(shard) = self.shards.get_mut(&name) else {
            self.work.busy.remove(&name);
            return self.answer_added(out);
        };
        let result = shard.work();
        self.images.extend(shard.take_image());
        self.work.discarded.extend(shard.take_discarded());
        if !shard.has_work() {
            self.work.busy.remove(&name);
        }
        if let Err(problem) = result {
            let (table, shard) = name;
            let of = self.tables.get(&table).map(|spec| spec.name.clone()).unwrap_or_default();
            return self.refuse_table(table, cannot_restore(shard, &of, &problem), out);
        }
        self.answer_added(out);
    }

    /// Takes memory that is no longer needed. The shell frees it on another thread.
    pub fn take_discarded(&mut self) -> Vec<Discarded> {
        std::mem::take(&mut self.work.discarded)
    }

    /// A table is added, or restored: tells the coordinator when its shards here are made.
    pub(super) fn answer_when_made(&mut self, table: TableId, out: &mut Outbox) {
        self.work.unanswered.insert(table);
        self.answer_added(out);
    }

    /// Tells the coordinator which tables are added, of those whose shards here are made by now.
    pub(super) fn answer_added(&mut self, out: &mut Outbox) {
        let shards = &self.shards;
        let is_made =
            |table: &TableId| shards.iter().filter(|((of, _), _)| of == table).all(|(_, shard)| shard.is_made());
        let made: Vec<TableId> = self.work.unanswered.iter().copied().filter(is_made).collect();
        for table in made {
            self.work.unanswered.remove(&table);
            self.say_added(table, None, out);
        }
    }

    /// Drops a table that cannot be made, and tells the coordinator why.
    pub(super) fn refuse_table(&mut self, table: TableId, problem: String, out: &mut Outbox) {
        self.tables.remove(&table);
        self.drop_shards(|(of, _)| of == table);
        self.work.unanswered.remove(&table);
        self.say_added(table, Some(problem), out);
    }

    /// Drops shards. The shell frees their memory.
    pub(super) fn drop_shards(&mut self, is_dropped: impl Fn(Name) -> bool) {
        let dropped: Vec<Name> = self.shards.keys().copied().filter(|name| is_dropped(*name)).collect();
        for name in dropped {
            self.work.busy.remove(&name);
            let shard = self.shards.remove(&name).map(Discarded::new);
            self.work.discarded.extend(shard);
        }
    }

    /// Tells the coordinator that a table is added, or why it cannot be.
    pub(super) fn say_added(&self, table: TableId, problem: Option<String>, out: &mut Outbox) {
        let message = Message::Control(Control::TableAdded { table, problem });
        out.send(Frame { head: Head::plain(self.node, NodeId::Coordinator), message });
    }
}
