//! Replication through the parts of a shard: its role in the chain, the batches that it sends, and
//! the chunks that it takes in.
//!
//! A replica checks every chunk of a batch before it applies the first one, so a malformed batch
//! changes nothing.

use crate::changes::ChangeLog;
use crate::discarded::Discarded;
use crate::follow::Followers;
use crate::follow::replica::peers::ChainRole;
use crate::follow::replica::{Arrival, Replication};
use crate::metadata::ShardMetadata;
use crate::shard::Shard;
use crate::shard::remove::follow_removal;
use crate::view::ShardView;
use types::{Clock, NodeId, Plan, Position, Time, WorkerId};
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
                let taken = chunk.filter(|chunk| self.take(std::slice::from_ref(chunk)).is_some());
                let Followers { log, replicas, .. } = &mut self.followers;
                if let Some(chunk) = taken {
                    replicas.backfill_taken(&chunk, log);
                }
                replicas.answer(log, &self.identity, out);
            }
            Arrival::Batch(chunks) => {
                if self.take(&chunks).is_some() {
                    self.replicate(|replicas, log, now, view| replicas.batch_taken(&chunks, now, log, view, out));
                } else {
                    let Followers { log, replicas, .. } = &mut self.followers;
                    replicas.batch_refused(log);
                }
            }
        }
    }

    /// Checks all chunks, then applies them. `None` if one is malformed; none is applied then.
    fn take(&mut self, chunks: &[ReplicaChunk]) -> Option<()> {
        let checked = chunks.iter().map(|chunk| self.check_chunk(chunk));
        let mut checked: Vec<CheckedChunk<'_, T>> = checked.collect::<Option<_>>()?;
        // Removals first: a table that is full has room for new rows only after them.
        checked.sort_by_key(|chunk| !matches!(chunk, CheckedChunk::RemovedRows { .. }));
        checked.into_iter().try_for_each(|chunk| self.apply_chunk(chunk))
    }

    /// Checks a chunk, like a message of a worker: positions rise and belong to the shard, there is
    /// a row of values for each, and metadata is readable.
    fn check_chunk<'a>(&self, chunk: &'a ReplicaChunk) -> Option<CheckedChunk<'a, T>> {
        let ReplicaChunk { contents, positions, values, .. } = chunk;
        let range = self.identity.placed.range;
        let is_ours = |positions: &&[u64]| {
            positions.is_sorted_by(|one, next| one < next)
                && [positions.first(), positions.last()].into_iter().flatten().all(|it| range.contains(Position(*it)))
        };
        let rising = || positions.numbers::<u64>().filter(is_ours);
        let removable = || rising().filter(|_| !self.rows.is_dense());
        let rows = |width: usize| {
            let positions = rising()?;
            let values =
                values.numbers::<T>().filter(|values| Some(values.len()) == positions.len().checked_mul(width))?;
            Some((positions, values))
        };
        Some(match contents {
            ChunkContents::Rows => {
                let (positions, values) = rows(self.rows.row_state_width())?;
                CheckedChunk::Rows { positions, values }
            }
            ChunkContents::RemovedRows => CheckedChunk::RemovedRows { positions: removable()? },
            ChunkContents::ClockSums { clock } => {
                let (positions, values) = rows(self.rows.width())?;
                CheckedChunk::ClockSums { clock: *clock, positions, values }
            }
            ChunkContents::ClockRemovals { clock } => {
                CheckedChunk::ClockRemovals { clock: *clock, positions: removable()? }
            }
            ChunkContents::Metadata { bytes } => CheckedChunk::Metadata(Box::new(ShardMetadata::read(bytes).ok()?)),
        })
    }

    /// Applies a chunk. `None` if the table is full: the predecessor has sent more rows than it may
    /// have.
    fn apply_chunk(&mut self, chunk: CheckedChunk<'_, T>) -> Option<()> {
        match chunk {
            CheckedChunk::Rows { positions, values } => {
                let resolved = self.rows.make_rows(positions).ok()?;
                self.rows.put_row_state(&resolved, values)
            }
            CheckedChunk::RemovedRows { positions } => {
                follow_removal(&mut self.rows, &mut self.clocks, positions).ok().map(|_| ())
            }
            CheckedChunk::ClockSums { clock, positions, values } => self.take_sums(clock, positions, values),
            CheckedChunk::ClockRemovals { clock, positions } => {
                self.clocks.hold_removal(clock, positions.iter().copied());
                Some(())
            }
            CheckedChunk::Metadata(metadata) => {
                self.load(*metadata);
                Some(())
            }
        }
    }

    /// Removes all rows of a sparse table. Held sums and the change log hold none of them any more.
    fn forget_rows(&mut self) {
        if !self.rows.is_dense() {
            self.followers.start_over(self.identity.plan);
            self.discarded.push(Discarded::new(self.rows.clear(&self.spec)));
        }
    }

    /// Replaces the metadata of this shard.
    pub(super) fn load(&mut self, metadata: ShardMetadata) {
        self.streams = metadata.streams;
        self.clocks.load(metadata.clocks);
        self.rows.load(&self.spec, metadata.rows);
        self.leases = metadata.leases;
    }

    /// Sets the sums that the predecessor holds for a clock.
    fn take_sums(&mut self, clock: Clock, positions: &[u64], values: &[T]) -> Option<()> {
        let width = self.rows.width();
        let resolved = self.rows.make_rows(positions).ok()?;
        if let Some(sum) = self.clocks.sum(clock, Vec::new) {
            sum.set(width, self.rows.slot_counts(), &resolved, values);
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

/// The contents of a chunk that fit the shard.
enum CheckedChunk<'a, T> {
    /// Row state, a row for each position.
    Rows { positions: &'a [u64], values: &'a [T] },
    /// Rows that the predecessor has removed.
    RemovedRows { positions: &'a [u64] },
    /// Sums that are held for a clock, a row for each position.
    ClockSums { clock: Clock, positions: &'a [u64], values: &'a [T] },
    /// Rows that a clock removes once it is applied.
    ClockRemovals { clock: Clock, positions: &'a [u64] },
    /// The shard metadata.
    Metadata(Box<ShardMetadata>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::{AnyShard, ShardContext};
    use codec::Stopwatch;
    use types::{Combine, Placed, PlanNumber, PositionRange, Reduce, ShardId, Source, TableId, TableSpec};
    use update::Updaters;
    use wire::{ChangeChunk, Head, Payload, Pool};

    const HEAD: NodeId = NodeId::Server(0);
    const HERE: NodeId = NodeId::Server(1);

    /// The tail of a chain of two, which holds positions below 100 of the table.
    fn tail(spec: &TableSpec) -> Shard<f32> {
        let range = PositionRange { first: Position(0), last: Position(99) };
        let placed = Placed { shard: ShardId(0), range, owner: HEAD };
        let plan = Plan::first(2, vec![Source(1)]);
        let (registry, pool) = (Updaters::builtin(), Pool::new());
        let stopwatch = Stopwatch::default();
        let context = ShardContext {
            plan: &plan,
            registry: &registry,
            pool: &pool,
            list_bytes: 1 << 20,
            stopwatch,
            piece_bytes: 1 << 20,
        };
        let mut shard = Shard::new(placed, TableId(0), spec, &context).expect("made");
        let role = ChainRole { from: Some(HEAD), next: None, backfilling: Vec::new() };
        shard.take_part(PlanNumber(1), role, true, Time(0), &mut Outbox::new());
        shard
    }

    /// What the head sends as one batch, which follows batch `from`.
    fn send(shard: &mut Shard<f32>, from: u64, contents: Vec<(ChunkContents, Vec<u64>, Vec<f32>)>) {
        let count = contents.len();
        for (chunk, (contents, positions, values)) in (0u32..).zip(contents) {
            let chunk = ReplicaChunk {
                table: TableId(0),
                shard: ShardId(0),
                changes: ChangeChunk { from, to: from + 1, chunk, ends: chunk as usize + 1 == count },
                backfill: None,
                contents,
                positions: Payload::new(positions),
                values: Payload::new(values),
            };
            shard.replica(Time(0), &Head::plain(HEAD, HERE), chunk, &mut Outbox::new());
        }
    }

    /// Sends a chunk of rows of a backfill.
    fn backfill(shard: &mut Shard<f32>, backfill: u64, chunk: u32, positions: Vec<u64>) {
        let chunk = ReplicaChunk {
            table: TableId(0),
            shard: ShardId(0),
            changes: ChangeChunk { from: 0, to: 0, chunk, ends: false },
            backfill: Some(backfill),
            contents: ChunkContents::Rows,
            values: Payload::new(vec![1.0f32; positions.len()]),
            positions: Payload::new(positions),
        };
        shard.replica(Time(0), &Head::plain(HEAD, HERE), chunk, &mut Outbox::new());
    }

    #[test]
    fn backfill_that_starts_over_forgets_all_rows_and_hands_their_memory_over() {
        for spec in [TableSpec::sparse("t", 1), TableSpec::sparse("t", 1).ordered()] {
            let mut shard = tail(&spec);
            let role = ChainRole { from: Some(HEAD), next: None, backfilling: Vec::new() };
            shard.take_part(PlanNumber(2), role, false, Time(0), &mut Outbox::new());
            backfill(&mut shard, 1, 0, (0..60).collect());
            backfill(&mut shard, 1, 1, vec![60, 61]);
            assert_eq!(shard.counts().rows, 62);
            shard.take_discarded();
            backfill(&mut shard, 2, 0, vec![3, 70]);
            let found = shard.rows.scan(PositionRange::ALL, usize::MAX).0;
            assert_eq!((found, shard.counts().slots), (vec![3, 70], 2));
            assert_eq!(shard.take_discarded().len(), 1);
            shard.settle(Time(0), &mut Outbox::new());
        }
    }

    fn metadata(shard: &Shard<f32>) -> ChunkContents {
        ChunkContents::Metadata { bytes: ShardMetadata::of(&shard.view()).bytes() }
    }

    #[test]
    fn replica_applies_nothing_of_a_batch_with_a_malformed_chunk() {
        let spec = TableSpec::sparse("t", 2).ordered().combine(Combine::Clock(Reduce::Sum));
        let mut shard = tail(&spec);
        let clock = Clock(3);
        let malformed = [
            (ChunkContents::Rows, vec![2, 1], vec![1.0; 4]),
            (ChunkContents::Rows, vec![2, 2], vec![1.0; 4]),
            (ChunkContents::Rows, vec![2, 3], vec![1.0; 3]),
            (ChunkContents::Rows, vec![2, 100], vec![1.0; 4]),
            (ChunkContents::RemovedRows, vec![100], vec![]),
            (ChunkContents::RemovedRows, vec![2, 1], vec![]),
            (ChunkContents::ClockSums { clock }, vec![1], vec![1.0]),
            (ChunkContents::ClockSums { clock }, vec![100], vec![1.0; 2]),
            (ChunkContents::ClockRemovals { clock }, vec![2, 1], vec![]),
            (ChunkContents::ClockRemovals { clock }, vec![100], vec![]),
            (ChunkContents::Metadata { bytes: vec![1, 2, 3] }, vec![], vec![]),
        ];
        let good = |shard: &Shard<f32>| {
            vec![
                (metadata(shard), vec![], vec![]),
                (ChunkContents::Rows, vec![1, 5], vec![1.0; 4]),
                (ChunkContents::ClockSums { clock }, vec![7], vec![1.0; 2]),
                (ChunkContents::ClockRemovals { clock }, vec![8], vec![]),
            ]
        };
        for chunk in malformed {
            let mut batch = good(&shard);
            batch.push(chunk.clone());
            send(&mut shard, 0, batch);
            assert_eq!(shard.counts().rows, 0, "{chunk:?}");
            assert_eq!(shard.clocks.sums().count(), 0, "{chunk:?}");
        }
        let batch = good(&shard);
        send(&mut shard, 0, batch);
        assert_eq!((shard.counts().rows, shard.clocks.removals(clock).collect::<Vec<_>>()), (3, vec![8]));
    }

    #[test]
    fn replica_of_a_full_table_removes_rows_before_it_makes_others() {
        let spec = TableSpec::sparse("t", 1).ordered().max_rows(2);
        let mut shard = tail(&spec);
        send(&mut shard, 0, vec![(ChunkContents::Rows, vec![7, 8], vec![1.0; 2])]);
        assert_eq!(shard.counts().rows, 2);
        let made = (ChunkContents::Rows, vec![1, 2], vec![1.0; 2]);
        send(&mut shard, 1, vec![made, (ChunkContents::RemovedRows, vec![7, 8], vec![])]);
        assert_eq!(shard.rows.rows_at(&[1, 2, 7, 8]).map(|rows| rows.len()), Ok(2));
        assert_eq!(shard.followers.log.last(), 2, "the replica holds the batch");
    }
}
