//! Replication through the parts of a shard: its role in the chain, the batches that it sends, and
//! the chunks that it takes in.

use crate::changes::ChangeLog;
use crate::follow::Followers;
use crate::follow::replica::peers::ChainRole;
use crate::follow::replica::{Arrival, Replication};
use crate::metadata::ShardMetadata;
use crate::shard::Shard;
use crate::shard::remove::follow_removal;
use crate::view::ShardView;
use types::{Clock, NodeId, Plan, PositionRange, Time, WorkerId};
use update::Number;
use wire::{ChunkContents, Outbox, ReplicaChunk, Replicated};

impl<T: Number> Shard<T> {
    /// Takes the role that a new plan gives it in its chain.
    pub(super) fn take_role(&mut self, role: ChainRole, whole: bool, out: &mut Outbox) {
        let now = self.now;
        let needed_changes = self.followers.need_changes();
        let (view, followers) = self.view_and_followers();
        let Followers { log, replicas, .. } = followers;
        let Some(change) = replicas.take_part(role, whole, now, log, &view) else { return };
        if change.is_new_head {
            self.followers.start_over(self.identity.plan);
        }
        if !change.is_head {
            self.followers.feed.stop();
        }
        self.followers.trim();
        self.name_changes(needed_changes);
        if change.is_head {
            // Every worker must learn what is finished here.
            self.streams.acknowledge_nothing();
            self.streams.remind_all();
        } else {
            // Workers ask the head instead.
            self.streams.acknowledge_nothing();
            self.reads.drop_all();
        }
        self.announce(out);
    }

    /// Starts or stops looking up positions of changed rows, as followers need it. `before`:
    /// whether they needed it before.
    pub(super) fn name_changes(&mut self, before: bool) {
        let needed = self.followers.need_changes();
        self.rows.name_rows(needed);
        if needed && !before {
            self.clocks.name_changes(|| self.rows.positions());
        }
    }

    /// Adopts a plan: the frontier waits for the workers in it. Returns the frontier.
    pub(super) fn go_by(&mut self, plan: &Plan, out: &mut Outbox) -> Clock {
        self.identity.plan = plan.number;
        let ranks = self.streams.ranks().max(plan.workers.len() as u32);
        let changed = (0..ranks).map(WorkerId).filter(|worker| self.streams.source(*worker) != plan.source(*worker));
        let changed: Vec<WorkerId> = changed.collect();
        // New workers enter before others leave, so that the frontier does not pass them.
        for worker in &changed {
            self.expel(*worker);
            if let Some(source) = plan.source(*worker) {
                self.streams.admit(*worker, source);
                self.clocks.enter(*worker);
            }
        }
        for worker in changed.into_iter().filter(|worker| plan.source(*worker).is_none()) {
            if self.clocks.leave(worker) {
                self.frontier_moved(worker, out);
            }
        }
        self.followers.replicas.note_progress(self.now);
        self.close_batch(out);
        self.clocks.frontier()
    }

    /// Refuses what a worker still sends, and drops its reads and subscriptions.
    fn expel(&mut self, worker: WorkerId) {
        self.streams.expel(worker);
        self.followers.drop_worker(worker);
        self.reads.drop_worker(worker);
    }

    /// Begins to replicate. See [`Replication::start_batches`].
    pub(super) fn start_batches(&mut self) {
        let (view, followers) = self.view_and_followers();
        followers.replicas.start_batches(&view);
    }

    /// Closes the open batch, if it is due, and tells workers the frontier that the tail holds.
    pub(super) fn close_batch(&mut self, out: &mut Outbox) {
        self.replicate(|replicas, log, now, view| replicas.close_batch(now, log, view, out));
        self.announce(out);
    }

    /// Runs a step of replication. The step returns whether to acknowledge to every worker again.
    fn replicate(&mut self, step: impl FnOnce(&mut Replication, &mut ChangeLog, Time, &ShardView<'_, T>) -> bool) {
        let now = self.now;
        let (view, followers) = self.view_and_followers();
        let acknowledge = step(&mut followers.replicas, &mut followers.log, now, &view);
        followers.trim();
        if acknowledge {
            self.streams.remind_all();
        }
    }

    /// A chunk of a batch or of a backfill arrives. A chunk of a backfill is applied at once, a
    /// batch when its last chunk has arrived.
    pub(super) fn take_chunk(&mut self, from: NodeId, chunk: ReplicaChunk, out: &mut Outbox) {
        let Followers { log, replicas, .. } = &mut self.followers;
        match replicas.arrive(from, chunk, log) {
            Arrival::Ignored => {}
            Arrival::Answered => replicas.answer(log, &self.identity, out),
            Arrival::Backfill { chunk, begins } => {
                if begins {
                    // The clocks of an earlier backfill's sums may be over, and its rows may have
                    // been removed since.
                    self.clocks.forget_held();
                    self.forget_rows();
                }
                let taken = chunk.filter(|chunk| self.take(chunk).is_some());
                let Followers { log, replicas, .. } = &mut self.followers;
                if let Some(chunk) = taken {
                    replicas.backfill_taken(&chunk, log);
                }
                replicas.answer(log, &self.identity, out);
            }
            Arrival::Batch(chunks) => {
                if chunks.iter().all(|chunk| self.take(chunk).is_some()) {
                    self.replicate(|replicas, log, now, view| replicas.batch_taken(&chunks, now, log, view, out));
                } else {
                    let Followers { log, replicas, .. } = &mut self.followers;
                    replicas.batch_refused(log);
                }
            }
        }
    }

    /// Applies a chunk. `None` if it is malformed.
    fn take(&mut self, ReplicaChunk { contents, positions, values, .. }: &ReplicaChunk) -> Option<()> {
        match contents {
            ChunkContents::Rows => self.take_rows(positions.numbers()?, values.numbers()?),
            ChunkContents::RemovedRows => self.take_removal(positions.numbers()?),
            ChunkContents::ClockSums { clock } => self.take_sums(*clock, positions.numbers()?, values.numbers()?),
            ChunkContents::ClockRemovals { clock } => {
                let positions = positions.numbers::<u64>().filter(|positions| rise(positions))?;
                self.clocks.hold_removal(*clock, positions.iter().copied());
                Some(())
            }
            ChunkContents::Metadata { bytes } => {
                self.load(ShardMetadata::read(bytes).ok()?);
                Some(())
            }
        }
    }

    /// Removes all rows of a sparse table.
    fn forget_rows(&mut self) {
        if !self.rows.is_dense() {
            let (positions, ..) = self.rows.scan(PositionRange::ALL, usize::MAX);
            self.rows.remove(&positions);
        }
    }

    /// Replaces the metadata of this shard.
    pub(super) fn load(&mut self, metadata: ShardMetadata) {
        self.streams = metadata.streams;
        self.clocks.load(metadata.clocks);
        self.rows.load(&self.spec, metadata.rows);
        self.leases = metadata.leases;
    }

    /// Sets row state that another replica has sent.
    fn take_rows(&mut self, positions: &[u64], values: &[T]) -> Option<()> {
        if !rise(positions) {
            return None;
        }
        let resolved = self.rows.make_rows(positions).ok()?;
        self.rows.put_row_state(&resolved, values)
    }

    /// Removes rows that the predecessor has removed.
    fn take_removal(&mut self, positions: &[u64]) -> Option<()> {
        if self.rows.is_dense() || !rise(positions) {
            return None;
        }
        follow_removal(&mut self.rows, &mut self.clocks, positions).ok().map(|_| ())
    }

    /// Sets the sums that the predecessor holds for a clock.
    fn take_sums(&mut self, clock: Clock, positions: &[u64], values: &[T]) -> Option<()> {
        let width = self.rows.width();
        if !rise(positions) || values.len() != positions.len() * width {
            return None;
        }
        let resolved = self.rows.make_rows(positions).ok()?;
        if let Some(sum) = self.clocks.sum(clock, Vec::new) {
            sum.set(width, self.rows.slot_count(), &resolved, values);
        }
        // Also by position, for when this replica becomes head.
        self.clocks.will_change(clock, positions.iter().copied().zip(resolved.each()));
        Some(())
    }

    /// A replica acknowledges batches, or chunks of a backfill.
    pub(super) fn take_acknowledgement(&mut self, from: NodeId, replicated: &Replicated, out: &mut Outbox) {
        self.replicate(|replicas, log, now, view| replicas.acknowledged(from, replicated, now, log, view, out));
        self.close_batch(out);
    }

    /// Time has passed: resends what is late, and closes a batch that is due.
    pub(super) fn tick_chain(&mut self, out: &mut Outbox) {
        self.replicate(|replicas, log, now, view| {
            replicas.tick(now, log, view, out);
            false
        });
        self.close_batch(out);
    }
}

/// Whether positions rise, each once, as the index requires. Chunks of other servers are checked
/// like messages of workers.
fn rise(positions: &[u64]) -> bool {
    positions.is_sorted_by(|one, next| one < next)
}
