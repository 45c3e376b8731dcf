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
use crate::rows::slot::{Forwarding, Move};
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

    /// Rows have moved.
    pub fn rows_moved(&mut self, moves: &[Move]) {
        self.subscribers.rows_moved(moves);
        self.log.rows_moved(moves);
    }

    /// All rows have moved: forgets slots that they have left, at most `most`. Returns how many it
    /// has looked at.
    pub fn forward(&mut self, forwarding: &Forwarding, most: usize) -> usize {
        self.log.forward(forwarding, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::follow::replica::peers::ChainRole;
    use crate::testing::Parts;
    use codec::{Stopwatch, TableCodecs};
    use types::{Codecs, Combine, Consistency, NodeId, Reduce, Span};

    const PLAN: PlanNumber = PlanNumber(1);
    const WORKER: WorkerId = WorkerId(0);
    const ROWS: usize = 4;

    fn lazy() -> TableSpec {
        TableSpec::dense("t", ROWS as u64, 1).cached(ROWS as u64)
    }

    fn eager() -> TableSpec {
        lazy().consistency(Consistency::Bounded { slack: 1, eager: true })
    }

    fn followers(spec: &TableSpec) -> Followers {
        let codecs = TableCodecs::of(spec).expect("they go together");
        Followers::new(spec, PLAN, DeltaLog::new(spec, &codecs, 1, 7, Stopwatch::default()))
    }

    fn parts() -> Parts {
        Parts::new(&lazy(), ROWS as u64)
    }

    /// The head of a chain of two.
    fn replicate(followers: &mut Followers) {
        let role = ChainRole { from: None, next: Some(NodeId::Server(2)), backfilling: Vec::new() };
        let Followers { log, replicas, .. } = followers;
        replicas.take_part(role, true, Time(0), log, &parts().view()).expect("a role in a chain");
    }

    /// The first batch that the log has forgotten everything up to.
    fn trimmed(followers: &Followers) -> u64 {
        followers.log.holds_after(usize::MAX)
    }

    #[test]
    fn changes_are_needed_while_there_is_a_follower_or_a_read_may_add_one() {
        let deltas = lazy().combine(Combine::Clock(Reduce::Sum)).codecs(Codecs::default().down(["1bit"]));
        assert!(!followers(&lazy()).need_changes());
        assert!(followers(&eager()).need_changes());
        assert!(followers(&deltas).need_changes());
        let mut with_replica = followers(&lazy());
        replicate(&mut with_replica);
        assert!(with_replica.need_changes());
        let mut with_feed = followers(&lazy());
        with_feed.read_feed(Time(0), ROWS);
        assert!(with_feed.need_changes());
    }

    #[test]
    fn change_log_notes_rows_only_while_some_follower_needs_them() {
        let mut followers = followers(&lazy());
        followers.changed([(0, 0)].into_iter());
        followers.removed(&[(1, 1)]);
        assert_eq!(followers.log.open_len(), 0, "there is no follower");
        followers.read_feed(Time(0), ROWS);
        followers.changed([(0, 0), (0, 0)].into_iter());
        followers.removed(&[(1, 1)]);
        assert_eq!(followers.log.open_len(), 2);
        followers.tick_feed(Time(0) + Span::from_secs(1), ROWS);
        assert_eq!(followers.log.open_len(), 2, "the reader may ask again");
        followers.tick_feed(Time(0) + Span::from_secs(3600), ROWS);
        assert_eq!((followers.log.open_len(), followers.need_changes()), (0, false), "the feed has no reader");
    }

    #[test]
    fn change_log_keeps_what_the_slowest_follower_lacks() {
        let parts = parts();
        let mut out = Outbox::new();
        let mut followers = followers(&eager());
        followers.read_feed(Time(0), ROWS);
        let began = followers.log.last();
        followers.subscribers.subscribe(WORKER, Clock(0), &[(2, 2)], ROWS as u64, began).expect("room");
        for frontier in 1..4 {
            followers.changed([(2, 2)].into_iter());
            assert_eq!(followers.publish(Clock(frontier), &parts.view(), &mut out), 1, "the subscriber reads row 2");
        }
        assert_eq!((followers.log.last(), trimmed(&followers)), (began + 3, began), "the feed keeps them");
        followers.tick_feed(Time(0) + Span::from_secs(3600), ROWS);
        assert_eq!(trimmed(&followers), began + 3, "the subscriber was sent all of them");
        followers.changed([(2, 2)].into_iter());
        followers.drop_worker(WORKER);
        followers.trim();
        assert_eq!(followers.log.open_len(), 0, "there is no follower");
    }

    #[test]
    fn eager_caches_are_refreshed_when_a_row_that_they_read_changes() {
        let parts = parts();
        // (spec, changed row, refreshes)
        for (spec, row, refreshes) in [(eager(), 2, 1), (eager(), 3, 1), (lazy(), 2, 0)] {
            let mut followers = followers(&spec);
            let last = followers.log.last();
            followers.subscribers.subscribe(WORKER, Clock(0), &[(2, 2)], ROWS as u64, last).expect("room");
            followers.changed([(row, row as u32)].into_iter());
            let mut out = Outbox::new();
            assert_eq!(followers.publish(Clock(1), &parts.view(), &mut out), refreshes, "{spec:?} {row}");
            let rows: usize = out
                .drain()
                .map(|frame| match frame.message {
                    wire::Message::Refresh(refresh) => refresh.positions.len() / 8,
                    other => panic!("{other:?}"),
                })
                .sum();
            assert_eq!(rows, usize::from(refreshes == 1 && row == 2), "{row}");
        }
    }

    #[test]
    fn held_sums_are_noted_for_replicas_only() {
        let mut followers = followers(&eager());
        followers.read_feed(Time(0), ROWS);
        followers.changed_sums(Clock(3), [(1, 1)].into_iter());
        assert_eq!(followers.log.open_len(), 0, "caches and readers are told of the clock when it is applied");
        replicate(&mut followers);
        followers.changed_sums(Clock(3), [(1, 1)].into_iter());
        assert_eq!(followers.log.open_len(), 1);
    }

    #[test]
    fn caches_and_feed_readers_start_over_when_another_replica_answered_before() {
        let mut followers = followers(&eager());
        followers.read_feed(Time(0), ROWS);
        followers.subscribers.subscribe(WORKER, Clock(0), &[(2, 2)], ROWS as u64, 0).expect("room");
        followers.start_over(PlanNumber(9));
        followers.changed([(2, 2)].into_iter());
        assert_eq!(followers.log.open_len(), 0, "neither follows any more");
        let again = followers.subscribers.subscribe(WORKER, Clock(0), &[(2, 2)], ROWS as u64, 0);
        assert_eq!(again.map(|(sequence, _)| sequence), Some((9 << 32) + 1), "no other replica used this number");
    }
}
