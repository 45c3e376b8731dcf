//! The followers of a shard: replicas, eager caches, and readers of deltas and of the change feed.
//! Each is sent what the change log has since the last time, in its own encoding: replicas get row
//! state, eager caches and the change feed values, readers of deltas encoded differences.

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

/// Everything that follows the changes of a shard, and the log that it follows.
pub(crate) struct Followers {
    /// Which rows changed.
    pub log: ChangeLog,
    /// The other replicas of its chain.
    pub replicas: Replication,
    /// Eager caches.
    pub subscribers: Subscribers,
    /// Readers of deltas, where a lossy codec shrinks what is read.
    pub deltas: Option<DeltaLog>,
    /// Readers of the change feed.
    pub feed: Feed,
    is_eager: bool,
}

impl Followers {
    /// No followers yet.
    pub fn new(spec: &TableSpec, plan: PlanNumber, deltas: Option<DeltaLog>) -> Self {
        let (log, replicas, subscribers) = (ChangeLog::default(), Replication::new(), Subscribers::default());
        let feed = Feed::new(plan);
        Self { log, replicas, subscribers, deltas, feed, is_eager: spec.consistency.is_eager() }
    }

    /// Whether changed rows are noted by position, because the table has followers or may get some
    /// by a read.
    pub fn need_changes(&self) -> bool {
        self.is_eager || self.deltas.is_some() || self.replicas.has_peers() || self.feed.needs_after().is_some()
    }

    /// The batch after which some follower needs the change log.
    fn needs_after(&self) -> Option<u64> {
        let deltas = self.deltas.as_ref().and_then(DeltaLog::needs_after);
        let others = [self.subscribers.needs_after(), deltas, self.feed.needs_after()];
        others.into_iter().chain([self.replicas.needs_after()]).flatten().min()
    }

    /// Rows have changed.
    pub fn changed(&mut self, rows: impl Iterator<Item = Row>) {
        if self.needs_after().is_none() {
            return;
        }
        let before = self.log.open_len();
        let times = self.log.note_rows(rows);
        self.replicas.note_changes(self.log.open_len() - before, times);
    }

    /// Rows were removed. Their slots are free.
    pub fn removed(&mut self, rows: &[Row]) {
        if self.needs_after().is_some() {
            self.subscribers.removed(rows);
            self.log.note_removed(rows);
            self.replicas.note_changes(rows.len(), rows.len());
        }
    }

    /// Sums that are held for a clock have changed.
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

    /// Workers are told of a new frontier: refreshes caches and encodes deltas. Returns how many
    /// refreshes that took.
    pub fn publish<T: Number>(&mut self, frontier: Clock, view: &ShardView<'_, T>, out: &mut Outbox) -> u64 {
        let Self { log, subscribers, deltas, feed, .. } = self;
        let refreshes = if self.is_eager { subscribers.refresh(frontier, log, view, out) } else { 0 };
        deltas.iter_mut().for_each(|deltas| deltas.publish(frontier, log, view));
        feed.publish(frontier, log);
        feed.bound(view.rows.len(), log);
        self.trim();
        refreshes
    }

    /// A reader of the change feed asks: the log keeps changes for it, as many as so many rows
    /// account for.
    pub fn read_feed(&mut self, now: Time, rows: usize) {
        self.feed.read(now, &mut self.log);
        self.feed.bound(rows, &mut self.log);
        self.trim();
    }

    /// Time has passed: stops a change feed without readers, and bounds its history.
    pub fn tick_feed(&mut self, now: Time, rows: usize) {
        if self.feed.is_idle(now) {
            self.feed.stop();
            self.trim();
        } else {
            self.feed.bound(rows, &mut self.log);
        }
    }

    /// Caches and readers start over: another replica answered them before.
    pub fn start_over(&mut self, plan: PlanNumber) {
        self.subscribers.start_over(plan);
        self.deltas.iter_mut().for_each(|deltas| deltas.start_over_at(plan));
        self.feed = Feed::new(plan);
    }

    /// A worker that is gone needs nothing any more.
    pub fn drop_worker(&mut self, worker: WorkerId) {
        self.subscribers.drop_worker(worker);
    }

    /// The rows have moved: `moves` gives the new slot of each old one.
    pub fn renumber(&mut self, moves: &[u32]) {
        self.subscribers.renumber(moves);
        self.log.renumber(moves);
    }
}
