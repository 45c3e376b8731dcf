//! The followers of a shard: replicas, eager caches and readers of deltas. Each notes what changed
//! and is sent it in its own encoding.
//!
//! [`Followers`] is told of each change once, and passes it on to those that need it.

pub(crate) mod backfill;
pub(crate) mod deltas;
pub(crate) mod replica;
pub(crate) mod subscribers;

use crate::follow::deltas::DeltaLog;
use crate::follow::replica::Replication;
use crate::follow::subscribers::Subscribers;
use crate::view::{Row, ShardView};
use std::collections::BTreeMap;
use types::{Clock, PlanNumber, TableSpec, WorkerId};
use update::Number;
use wire::Outbox;

/// Everything that follows the changes of a shard.
pub(crate) struct Followers {
    /// The other replicas of its chain.
    pub replicas: Replication,
    /// Eager caches.
    pub subscribers: Subscribers,
    /// Readers of deltas, where a lossy codec shrinks what is read.
    pub deltas: Option<DeltaLog>,
    is_eager: bool,
}

impl Followers {
    /// No followers yet.
    pub fn new(spec: &TableSpec, deltas: Option<DeltaLog>) -> Self {
        let (replicas, subscribers) = (Replication::new(), Subscribers::default());
        Self { replicas, subscribers, deltas, is_eager: spec.consistency.is_eager() }
    }

    /// Whether followers of this table are told which rows changed, by position.
    pub fn name_rows(&self) -> bool {
        self.is_eager || self.deltas.is_some() || self.replicas.has_peers()
    }

    /// Whether any of them needs to know which rows a held clock will change.
    pub fn need_changes(&self) -> bool {
        self.is_eager || self.deltas.as_ref().is_some_and(DeltaLog::is_followed) || self.replicas.has_peers()
    }

    /// A push has changed these rows at once, not with a clock.
    pub fn changed(&mut self, rows: impl Iterator<Item = Row> + Clone) {
        if self.is_eager {
            self.subscribers.changed(rows.clone());
        }
        if self.replicas.has_peers() {
            let rows: Vec<Row> = rows.collect();
            self.replicas.note_rows(rows.iter().copied());
        }
    }

    /// A clock has changed these rows.
    pub fn changed_in_clock(&mut self, clock: Clock, rows: &BTreeMap<u64, u32>) {
        let each = rows.iter().map(|(position, slot)| (*position, *slot));
        self.replicas.note_rows(each.clone());
        if let Some(deltas) = &mut self.deltas {
            deltas.changed(clock, rows.keys().copied());
        }
        self.subscribers.changed(each);
    }

    /// Workers are told of a new frontier: refreshes caches and encodes deltas. Returns how many
    /// refreshes that took.
    pub fn publish<T: Number>(&mut self, frontier: Clock, view: &ShardView<'_, T>, out: &mut Outbox) -> u64 {
        let refreshes = if self.is_eager { self.subscribers.refresh(frontier, view, out) } else { 0 };
        self.deltas.iter_mut().for_each(|deltas| deltas.publish(frontier, view));
        refreshes
    }

    /// Caches and readers of deltas start over: another replica answered them before.
    pub fn start_over(&mut self, plan: PlanNumber) {
        self.subscribers.start_over(plan);
        self.deltas.iter_mut().for_each(|deltas| deltas.start_over_at(plan));
    }

    /// A worker that is gone needs nothing any more.
    pub fn drop_worker(&mut self, worker: WorkerId) {
        self.subscribers.drop_worker(worker);
    }

    /// The rows have moved: `moves` gives the new slot of each old one.
    pub fn renumber(&mut self, moves: &[u32]) {
        self.subscribers.renumber(moves);
        self.replicas.renumber(moves);
    }
}
