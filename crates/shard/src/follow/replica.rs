//! Chain replication: the head sends what changed down the chain in numbered batches, and
//! acknowledges to its workers only what the tail holds.
//!
//! A batch is everything that changed since the one before: each row once, however many workers
//! pushed to it, with its updater's state; the sums held for clocks; and the shard's metadata,
//! which includes the once-only gate. A replica applies a batch whole or not at all.
//!
//! [`Replication`] owns the numbers, the neighbours and the batches under way. It reads the shard
//! through a [`ShardView`]; what a chunk changes in the shard, the machine applies.

pub(crate) mod batch;
pub(crate) mod dirty_rows;
pub(crate) mod peers;
#[cfg(test)]
mod tests;

use crate::follow::replica::peers::{ChainRole, Outgoing, Peers, ReplicationBatch};
use crate::identity::Identity;
use crate::view::{Row, ShardView};
use types::{Clock, Measured, NodeId, PART_BYTES, Span, Time, WorkerId};
use update::Number;
use wire::{ChunkContents, Control, Frame, Message, Outbox, Payload, ReplicaChunk, Replicated};

/// A shard's place in its chain, and the batches that pass through it.
pub(crate) struct Replication {
    /// Its neighbours, where it is not alone.
    peers: Option<Peers>,
    /// The last replication batch that it holds all of.
    batch: u64,
    /// Whether the plan counts this replica as whole.
    whole: bool,
}

/// What a step of replication means for the rest of the shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct ReplicationEffect {
    /// More may be durable: acknowledge to every worker again.
    pub acknowledge: bool,
    /// Batches begin: rows of held clocks must be known by position from now on.
    pub begins: bool,
}

/// What a new role in the chain means for the rest of the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoleChange {
    /// Whether it is the head now.
    pub is_head: bool,
    /// Whether it was not before.
    pub is_new_head: bool,
    /// Batches begin: rows of held clocks must be known by position from now on.
    pub begins: bool,
}

/// What to do about a chunk that arrived.
pub(crate) enum Arrival {
    /// Nothing.
    Ignored,
    /// Answer the predecessor.
    Answered,
    /// Take this chunk of a backfill into the shard, if it is the next one, and call
    /// [`Replication::backfill_taken`].
    Backfill {
        /// The chunk, if it is the next one.
        chunk: Option<ReplicaChunk>,
        /// Whether a new backfill begins: what is held from an earlier one is forgotten.
        begins: bool,
    },
    /// Take this batch into the shard, then call [`Replication::batch_taken`].
    Batch(Vec<ReplicaChunk>),
}

impl Replication {
    /// Alone, and whole.
    pub fn new() -> Self {
        Self { peers: None, batch: 0, whole: true }
    }

    /// Whether there are other replicas, so that changed rows are named by position.
    pub fn has_peers(&self) -> bool {
        self.peers.is_some()
    }

    /// Whether this replica takes writes and answers reads.
    pub fn is_head(&self) -> bool {
        self.peers.as_ref().is_none_or(Peers::is_head)
    }

    /// The neighbours, if acknowledgements wait for them.
    fn chained(&self) -> Option<&Peers> {
        self.peers.as_ref().filter(|peers| !peers.is_solitary())
    }

    /// The neighbours, at a head that sends batches.
    fn sending(&mut self) -> Option<&mut Peers> {
        self.peers.as_mut().filter(|peers| peers.is_head() && peers.has_receivers())
    }

    /// The frontier that workers are told of: what the tail holds. The shard itself may be further.
    pub fn announced(&self, frontier: Clock) -> Clock {
        self.chained().map_or(frontier, |peers| peers.announced)
    }

    /// Starts from this frontier, which every replica holds.
    pub fn announce(&mut self, frontier: Clock) {
        self.peers.iter_mut().for_each(|peers| peers.announced = frontier);
    }

    /// How much of a worker's stream may be acknowledged.
    pub fn durable(&self, worker: WorkerId) -> u64 {
        self.chained().map_or(u64::MAX, |peers| peers.durable.get(&worker).copied().unwrap_or(0))
    }

    /// Whether time alone will bring something about.
    pub fn hurries(&self) -> bool {
        self.peers.as_ref().is_some_and(Peers::hurries)
    }

    /// The resend timeout of the slowest receiver, and its measured round trip.
    pub fn resends(&self) -> Option<(Span, Measured)> {
        self.peers.as_ref().and_then(Peers::resends)
    }

    /// A worker moved the frontier. Returns whether workers hear of that only once the tail has it.
    pub fn frontier_moved(&mut self, by: WorkerId) -> bool {
        let chained = self.peers.as_mut().filter(|peers| !peers.is_solitary());
        chained.map(|peers| peers.moved_by = by).is_some()
    }

    /// The worker that moved the frontier last.
    pub fn moved_by(&self) -> Option<WorkerId> {
        self.peers.as_ref().map(|peers| peers.moved_by)
    }

    /// Rows have changed.
    pub fn note_rows(&mut self, rows: impl Iterator<Item = Row> + Clone) {
        let Some(peers) = &mut self.peers else { return };
        for backfill in peers.receivers.iter_mut().filter_map(|receiver| receiver.backfill.as_mut()) {
            backfill.changed(rows.clone());
        }
        if let Some(peers) = self.sending() {
            peers.open_batch.rows.extend(rows);
        }
    }

    /// Sums of a clock have changed.
    pub fn note_sums(&mut self, clock: Clock, rows: impl Iterator<Item = Row>) {
        if let Some(peers) = self.sending() {
            peers.open_batch.held.entry(clock).or_default().extend(rows);
        }
    }

    /// Something of a stream is finished, or the frontier has moved.
    pub fn note_progress(&mut self, now: Time) {
        if let Some(peers) = self.sending() {
            peers.open_batch.note(now);
        }
    }

    /// A worker has pushed.
    pub fn note_push(&mut self, worker: WorkerId) {
        self.peers.iter_mut().for_each(|peers| peers.open_batch.pushed(worker));
    }

    /// A read waits for the open batch.
    pub fn need_batch(&mut self) {
        self.peers.iter_mut().for_each(|peers| peers.open_batch.needed = true);
    }

    /// The rows have moved: `moves` gives the new slot of each old one.
    pub fn renumber(&mut self, moves: &[u32]) {
        let Some(peers) = &mut self.peers else { return };
        peers.open_batch.renumber(moves);
        let backfills = peers.receivers.iter_mut().filter_map(|receiver| receiver.backfill.as_mut());
        backfills.for_each(|backfill| backfill.renumber(moves));
    }

    /// Takes the role that a new plan gives it in its chain; `whole` where the plan says that it
    /// holds everything. `None` if it is alone, as it was.
    pub fn take_part<T: Number>(
        &mut self,
        role: ChainRole,
        whole: bool,
        now: Time,
        view: &ShardView<'_, T>,
    ) -> Option<RoleChange> {
        self.whole = whole;
        if self.peers.is_none() && role.is_alone() {
            return None;
        }
        let (was_head, was_chained) = (self.is_head(), self.chained().is_some());
        let (alone, is_head) = (role.is_alone(), role.from.is_none());
        let announced = self.announced(view.clocks.frontier());
        let mut peers = self.peers.take().unwrap_or_else(|| Peers::new(role.clone(), announced));
        if whole {
            peers.backfilled_by = None;
        }
        peers.take_part(role, self.batch, view.identity.plan.0, now);
        peers.settle(self.batch);
        self.peers = (!alone).then_some(peers);
        let begins = is_head && !was_chained && self.chained().is_some();
        if begins {
            self.start_batches(view);
        }
        Some(RoleChange { is_head, is_new_head: is_head && !was_head, begins })
    }

    /// Begins to replicate. What was done while there was no receiver is acknowledged already; from
    /// now on a change is acknowledged once the tail holds it.
    pub fn start_batches<T: Number>(&mut self, view: &ShardView<'_, T>) {
        if let Some(peers) = self.peers.as_mut().filter(|peers| peers.is_head()) {
            peers.durable = view.streams.all_finished().collect();
            peers.announced = view.clocks.frontier();
            peers.open_batch = batch::OpenBatch::default();
        }
    }

    /// Closes and sends the open batch, if it is due.
    pub fn close_batch<T: Number>(
        &mut self,
        now: Time,
        view: &ShardView<'_, T>,
        out: &mut Outbox,
    ) -> ReplicationEffect {
        let mut effect = ReplicationEffect::default();
        let row_bytes = view.rows.row_state_bytes() + 8;
        while let Some(peers) = self.sending() {
            if !peers.open_batch.is_due(now, row_bytes, peers.under_way()) {
                break;
            }
            let (rows, sums) = peers.open_batch.close();
            self.batch = self.batch.saturating_add(1);
            let chunks = self.chunks(view, &rows, &sums);
            effect.acknowledge |= self.send_batch(chunks, now, view, out);
        }
        effect
    }

    /// A batch cut into chunks, the metadata last.
    fn chunks<T: Number>(
        &self,
        view: &ShardView<'_, T>,
        rows: &[Row],
        sums: &[(Clock, Vec<Row>)],
    ) -> Vec<ReplicaChunk> {
        let mut all: Vec<(ChunkContents, Payload, Payload)> = Vec::new();
        for rows in rows.chunks(rows_per_chunk(view.rows.row_state_bytes())) {
            all.push((ChunkContents::Rows, view.positions(rows), view.row_states(rows)));
        }
        for (clock, rows) in sums {
            for rows in rows.chunks(rows_per_chunk(view.rows.width() * size_of::<T>())) {
                let Some(values) = view.sums(*clock, rows) else { continue };
                all.push((ChunkContents::ClockSums { clock: *clock }, view.positions(rows), values));
            }
        }
        all.push((ChunkContents::Metadata { bytes: view.metadata() }, Payload::EMPTY, Payload::EMPTY));
        let (table, shard, batch) = (view.identity.table, view.identity.shard(), self.batch);
        let chunk = |(chunk, (contents, positions, values))| ReplicaChunk {
            table,
            shard,
            batch,
            chunk,
            backfill: None,
            contents,
            positions,
            values,
        };
        (0u32..).zip(all).map(chunk).collect()
    }

    /// Sends a batch that is complete here to every receiver. Returns whether to acknowledge to
    /// every worker again.
    fn send_batch<T: Number>(
        &mut self,
        chunks: Vec<ReplicaChunk>,
        now: Time,
        view: &ShardView<'_, T>,
        out: &mut Outbox,
    ) -> bool {
        let finished = view.streams.all_finished().collect();
        let batch = ReplicationBatch { number: self.batch, chunks, finished, frontier: view.clocks.frontier() };
        let mut outgoing = Outgoing::new();
        if let Some(peers) = &mut self.peers {
            peers.send(batch, now, &mut outgoing);
        }
        send_chunks(view.identity, outgoing, out);
        self.settle(now, view.identity, out)
    }

    /// A receiver may hold more than before: counts what the tail holds as durable. Returns whether
    /// to acknowledge to every worker again; a replica acknowledges to its predecessor.
    fn settle(&mut self, now: Time, identity: &Identity, out: &mut Outbox) -> bool {
        let Some(peers) = &mut self.peers else { return false };
        let before = peers.under_way();
        peers.settle(self.batch);
        if !peers.is_head() {
            self.answer(identity, out);
            return false;
        }
        if before > 0 && peers.under_way() == 0 {
            peers.open_batch.arrived(now);
        }
        true
    }

    /// Acknowledges to the predecessor what every replica from here to the tail holds.
    pub fn answer(&self, identity: &Identity, out: &mut Outbox) {
        let Some(peers) = &self.peers else { return };
        let Some(from) = peers.role.from else { return };
        let (table, shard) = (identity.table, identity.shard());
        let replicated = Replicated { table, shard, through: peers.through(self.batch), backfill: peers.backfilled_by };
        out.send(Frame { head: identity.head(from), message: Message::Replicated(replicated) });
    }

    /// A chunk of a batch or of a backfill arrives.
    pub fn arrive(&mut self, from: NodeId, chunk: ReplicaChunk) -> Arrival {
        let Some(peers) = self.peers.as_mut().filter(|peers| peers.role.from == Some(from)) else {
            return Arrival::Ignored;
        };
        if let Some(backfill) = chunk.backfill {
            return if self.whole { Arrival::Answered } else { self.arrive_in_backfill(backfill, chunk) };
        }
        if !self.whole && !peers.complete {
            // Its backfill is answered instead, or a later batch.
            return Arrival::Ignored;
        }
        let ends = matches!(chunk.contents, ChunkContents::Metadata { .. });
        if chunk.batch != self.batch.saturating_add(1) || chunk.chunk as usize > peers.arriving.len() {
            peers.arriving.clear();
            // Answered once for each batch, whether it was resent or shows a gap.
            return if ends { Arrival::Answered } else { Arrival::Ignored };
        }
        peers.arriving.truncate(chunk.chunk as usize);
        peers.arriving.push(chunk);
        if ends { Arrival::Batch(std::mem::take(&mut peers.arriving)) } else { Arrival::Ignored }
    }

    /// A chunk of a backfill is taken as it comes, if it is the next.
    fn arrive_in_backfill(&mut self, backfill: u64, chunk: ReplicaChunk) -> Arrival {
        let Some(peers) = &mut self.peers else { return Arrival::Ignored };
        let (arrived, begins) = match peers.backfilled_by {
            Some((known, arrived)) if known == backfill => (arrived, false),
            Some((known, _)) if known > backfill => return Arrival::Answered,
            _ => {
                (self.batch, peers.complete) = (0, false);
                (0, true)
            }
        };
        peers.backfilled_by = Some((backfill, arrived));
        Arrival::Backfill { chunk: (chunk.chunk == arrived).then_some(chunk), begins }
    }

    /// A chunk of a backfill is in the shard, and the predecessor is told so.
    pub fn backfill_taken(&mut self, chunk: &ReplicaChunk) {
        let Some(peers) = &mut self.peers else { return };
        let Some((backfill, arrived)) = peers.backfilled_by else { return };
        let is_last = matches!(chunk.contents, ChunkContents::Metadata { .. });
        (peers.backfilled_by, peers.complete) = (Some((backfill, arrived.saturating_add(1))), is_last);
        if is_last {
            self.batch = chunk.batch;
        }
    }

    /// The next batch is in the shard: it goes on down the chain.
    pub fn batch_taken<T: Number>(
        &mut self,
        chunks: Vec<ReplicaChunk>,
        now: Time,
        view: &ShardView<'_, T>,
        out: &mut Outbox,
    ) -> ReplicationEffect {
        self.batch = self.batch.saturating_add(1);
        ReplicationEffect { acknowledge: self.send_batch(chunks, now, view, out), begins: false }
    }

    /// A replica acknowledges batches, or chunks of a backfill.
    pub fn acknowledged<T: Number>(
        &mut self,
        from: NodeId,
        replicated: &Replicated,
        now: Time,
        view: &ShardView<'_, T>,
        out: &mut Outbox,
    ) -> ReplicationEffect {
        let mut outgoing = Outgoing::new();
        if let Some(peers) = &mut self.peers {
            peers.answered(from, replicated.through, replicated.backfill, now, &mut outgoing);
        }
        let begins = self.continue_backfills(view, &mut outgoing);
        send_chunks(view.identity, outgoing, out);
        ReplicationEffect { acknowledge: self.settle(now, view.identity, out), begins }
    }

    /// Time has passed: resends what was not acknowledged in time, and tells the coordinator which
    /// replicas are backfilled.
    pub fn tick<T: Number>(&mut self, now: Time, view: &ShardView<'_, T>, out: &mut Outbox) -> ReplicationEffect {
        let mut outgoing = Outgoing::new();
        let mut backfilled = Vec::new();
        if let Some(peers) = &mut self.peers {
            peers.send_again(now, &mut outgoing);
            backfilled.extend(peers.backfilled());
        }
        let begins = self.continue_backfills(view, &mut outgoing);
        send_chunks(view.identity, outgoing, out);
        for node in backfilled {
            let NodeId::Server(server) = node else { continue };
            let Identity { table, plan, .. } = *view.identity;
            let message = Control::Backfilled { table, shard: view.identity.shard(), server, plan };
            let head = view.identity.plain_head(NodeId::Coordinator);
            out.send(Frame { head, message: Message::Control(message) });
        }
        ReplicationEffect { acknowledge: false, begins }
    }

    /// Sends the next chunks to the replicas that are being backfilled. Returns whether batches
    /// begin.
    fn continue_backfills<T: Number>(&mut self, view: &ShardView<'_, T>, outgoing: &mut Outgoing) -> bool {
        let Some(peers) = &mut self.peers else { return false };
        let was_solitary = peers.is_solitary();
        for receiver in &mut peers.receivers {
            if let Some(backfill) = &mut receiver.backfill {
                backfill.proceed(self.batch, view, |chunk| outgoing.push((receiver.node, chunk)));
            }
        }
        let begins = was_solitary && !peers.is_solitary();
        if begins {
            self.start_batches(view);
        }
        begins
    }
}

/// Rows in a chunk, where a row takes so many bytes.
pub(crate) fn rows_per_chunk(row_bytes: usize) -> usize {
    (PART_BYTES / row_bytes.max(8)).max(1)
}

fn send_chunks(identity: &Identity, outgoing: Outgoing, out: &mut Outbox) {
    for (to, chunk) in outgoing {
        out.send(Frame { head: identity.head(to), message: Message::ReplicaChunk(chunk) });
    }
}
