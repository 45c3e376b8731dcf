//! The followers of a shard: replicas, eager caches, and readers of deltas and of the change feed.
//!
//! Each follower is sent the rows that the change log has for it since the last time. Replicas get
//! row state, eager caches and change feed readers get values, readers of deltas get encoded
//! differences.

pub(crate) mod backfill;
pub(crate) mod deltas;
pub(crate) mod feed;
pub(crate) mod replica;
pub(crate) mod subscribers;

use crate::changes::ChangeLog;
use crate::follow::deltas::DeltaLog;
use crate::follow::feed::Feed;
use crate::follow::replica::Replication;
use crate::follow::subscribers::Subscribers;
use crate::view::{Row, ShardView};
use types::{Clock, PlanNumber, TableSpec, Time, WorkerId};
use update::Number;
use wire::Outbox;

/// The followers of a shard, and the change log that they follow.
pub(crate) struct Followers {
    /// Which rows changed.
    pub log: ChangeLog,
    /// The other replicas of the shard's chain.
    pub replicas: Replication,
    /// Eager caches.
    pub subscribers: Subscribers,
    /// Readers of deltas, if a lossy codec shrinks what workers read.
    pub deltas: Option<DeltaLog>,
    /// Readers of the change feed.
    pub feed: Feed,
    is_eager: bool,
}

impl Followers {
    /// No followers yet.
    pub fn new(spec: &TableSpec, plan: PlanNumber, deltas: Option<DeltaLog>) -> Self {
        Self {
            log: ChangeLog::default(),
            replicas: Replication::new(),
            subscribers: Subscribers::default(),
            deltas,
            feed: Feed::new(plan),
            is_eager: spec.consistency.is_eager(),
        }
    }

    /// Whether the shard looks up the positions of changed rows: it has followers, or a read may
    /// add some.
    pub fn need_changes(&self) -> bool {
        self.is_eager || self.deltas.is_some() || self.replicas.has_peers() || self.feed.needs_after().is_some()
    }

    /// The batch after which some follower needs the change log.
    fn needs_after(&self) -> Option<u64> {
        let deltas = self.deltas.as_ref().and_then(DeltaLog::needs_after);
        let others = [self.subscribers.needs_after(), deltas, self.feed.needs_after()];
        others.into_iter().chain([self.replicas.needs_after()]).flatten().min()
    }

    /// Notes changed rows, if some follower needs them.
    pub fn changed(&mut self, rows: impl Iterator<Item = Row>) {
        if self.needs_after().is_none() {
            return;
        }
        let before = self.log.open_len();
        let times = self.log.note_rows(rows);
        self.replicas.note_changes(self.log.open_len() - before, times);
    }

    /// Notes deleted rows, at rising positions, that have their initial values again and keep their
    /// slots.
    pub fn reset(&mut self, rows: &[Row]) {
        self.deltas.iter_mut().for_each(|deltas| deltas.rows_deleted(rows));
        self.changed(rows.iter().copied());
    }

    /// Notes removed rows, at rising positions. Their slots are free already.
    pub fn removed(&mut self, rows: &[Row]) {
        self.deltas.iter_mut().for_each(|deltas| deltas.rows_deleted(rows));
        if self.needs_after().is_some() {
            self.subscribers.removed(rows);
            self.log.note_removed(rows);
            self.replicas.note_changes(rows.len(), rows.len());
        }
    }

    /// Notes rows whose sums, held for a clock, changed.
    pub fn changed_sums(&mut self, clock: Clock, rows: impl Iterator<Item = Row>) {
        if self.replicas.takes_sums() {
            let before = self.log.open_len();
            let times = self.log.note_sums(clock, rows);
            self.replicas.note_changes(self.log.open_len() - before, times);
        }
    }

    /// Forgets the changes that every follower has been sent.
    pub fn trim(&mut self) {
        match self.needs_after() {
            Some(number) => self.log.trim(number),
            None => {
                self.log.forget_open();
                self.log.trim(self.log.last());
            }
        }
    }

    /// Workers are told of a new frontier: refreshes eager caches and encodes deltas. Returns the
    /// number of refresh messages.
    pub fn publish<T: Number>(&mut self, frontier: Clock, view: &ShardView<'_, T>, out: &mut Outbox) -> u64 {
        let Self { log, subscribers, deltas, feed, .. } = self;
        let refreshes = if self.is_eager { subscribers.refresh(frontier, log, view, out) } else { 0 };
        deltas.iter_mut().for_each(|deltas| deltas.publish(frontier, log, view));
        feed.publish(frontier, log);
        feed.bound(view.rows.len(), log);
        self.trim();
        refreshes
    }

    /// A reader of the change feed asks: the log keeps changes for it. `rows`, the number of rows,
    /// bounds how many.
    pub fn read_feed(&mut self, now: Time, rows: usize) {
        self.feed.read(now, &mut self.log);
        self.feed.bound(rows, &mut self.log);
        self.trim();
    }

    /// Time has passed: stops a change feed without readers, or bounds its history.
    pub fn tick_feed(&mut self, now: Time, rows: usize) {
        if self.feed.is_idle(now) {
            self.feed.stop();
            self.trim();
        } else {
            self.feed.bound(rows, &mut self.log);
        }
    }

    /// Makes caches and readers start over: another replica answered them before.
    pub fn start_over(&mut self, plan: PlanNumber) {
        self.subscribers.start_over(plan);
        self.deltas.iter_mut().for_each(|deltas| deltas.start_over_at(plan));
        self.feed = Feed::new(plan);
    }

    /// Drops a worker that is gone.
    pub fn drop_worker(&mut self, worker: WorkerId) {
        self.subscribers.drop_worker(worker);
    }

    /// The rows have moved: `moves` gives the new slot of each old one.
    pub fn renumber(&mut self, moves: &[u32]) {
        self.subscribers.renumber(moves);
        self.log.renumber(moves);
    }
}
