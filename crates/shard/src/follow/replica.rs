//! Chain replication: the head sends what changed down the chain in numbered batches, and
//! acknowledges to its workers only what the tail holds.
//!
//! A batch is everything that changed since the one before: each row once, however many workers
//! pushed to it, with its updater's state; the sums held for clocks; and the shard's metadata,
//! which includes the once-only gate. A replica applies a batch whole or not at all.

pub(crate) mod batch;
pub(crate) mod dirty_rows;
pub(crate) mod peers;

use crate::follow::backfill::positions_of;
use crate::follow::replica::batch::OpenBatch;
use crate::follow::replica::peers::{ChainRole, Outgoing, Peers, ReplicationBatch};
use crate::intake::combine::HeldClock;
use crate::reads::parked::Parked;
use crate::shard::{AnyShard, Shard};
use types::{Clock, Combine, NodeId, PART_BYTES, Time, WorkerId};
use update::Number;
use wire::{ChunkContents, Control, Frame, Head, Message, Outbox, Payload, ReplicaChunk, Replicated};

impl<T: Number> Shard<T> {
    fn chained(&self) -> Option<&Peers> {
        self.peers.as_ref().filter(|peers| !peers.is_solitary())
    }

    /// The frontier that workers are told of: what the tail holds. Rows may hold more.
    pub(crate) fn announced(&self) -> Clock {
        self.chained().map_or_else(|| self.frontier.value(), |peers| peers.announced)
    }

    /// Whether rows are those of the announced frontier and of no later one, where the table
    /// promises that.
    pub(crate) fn is_exact(&self) -> bool {
        self.spec.combine == Combine::Each || self.announced() == self.frontier.value()
    }

    /// How much of a worker's stream may be acknowledged.
    pub(crate) fn durable(&self, worker: WorkerId) -> u64 {
        self.chained().map_or(u64::MAX, |peers| peers.durable.get(&worker).copied().unwrap_or(0))
    }

    /// Takes the role that a new plan gives it in its chain.
    pub(crate) fn take_part(&mut self, role: ChainRole, now: Time, out: &mut Outbox) {
        if self.peers.is_none() && role.is_alone() {
            return;
        }
        let was_head = AnyShard::is_head(self);
        let was_chained = self.chained().is_some();
        let (alone, is_head) = (role.is_alone(), role.from.is_none());
        let announced = self.announced();
        let mut peers = self.peers.take().unwrap_or_else(|| Peers::new(role.clone(), announced));
        if self.whole {
            peers.backfilled_by = None;
        }
        peers.take_part(role, self.batch, self.plan.0, now);
        peers.settle(self.batch);
        self.peers = (!alone).then_some(peers);
        if is_head && !was_chained && self.chained().is_some() {
            self.start_batches();
        }
        if is_head && !was_head {
            self.subscribers.start_over(self.plan);
            self.delta_log.iter_mut().for_each(|delta_log| delta_log.start_over_at(self.plan));
        }
        if !is_head {
            // Whoever waits here asks the head.
            self.unacknowledged.clear();
            self.parked = Parked::default();
        }
        if is_head {
            // Every worker has to hear what this replica knows.
            self.streams.iter_mut().for_each(crate::intake::stream::Stream::remind);
            self.unacknowledged = self.ranks.values().copied().collect();
        }
        self.announce(out);
    }

    /// Begins to replicate. What was done while there was no receiver is acknowledged already; from
    /// now on a change is acknowledged once the tail holds it.
    pub(crate) fn start_batches(&mut self) {
        let frontier = self.frontier.value();
        let streams = (0..).map(WorkerId).zip(&self.streams);
        let finished = streams.map(|(worker, stream)| (worker, stream.finished())).collect();
        if let Some(peers) = self.peers.as_mut().filter(|peers| peers.is_head()) {
            (peers.durable, peers.announced) = (finished, frontier);
            peers.open_batch = OpenBatch::default();
        }
        if self.held.is_empty() {
            return;
        }
        // The rows of sums that are held will change, and have to be known by position then.
        let positions = self.rows.positions();
        for (clock, held) in &self.held {
            if let HeldClock::Sum(sum) = held {
                let rows = sum.slots().iter().map(|slot| (positions[*slot as usize], *slot));
                self.held_changes.entry(*clock).or_default().extend(rows);
            }
        }
    }

    /// Rows have changed.
    pub(crate) fn note_rows(&mut self, rows: impl Iterator<Item = (u64, u32)> + Clone) {
        let Some(peers) = &mut self.peers else { return };
        for backfill in peers.receivers.iter_mut().filter_map(|receiver| receiver.backfill.as_mut()) {
            backfill.changed(rows.clone());
        }
        if peers.is_head() && peers.has_receivers() {
            peers.open_batch.rows.extend(rows);
        }
    }

    /// Sums have changed.
    pub(crate) fn note_sums(&mut self, clock: Clock, rows: impl Iterator<Item = (u64, u32)>) {
        if let Some(peers) = self.peers.as_mut().filter(|peers| peers.is_head() && peers.has_receivers()) {
            peers.open_batch.held.entry(clock).or_default().extend(rows);
        }
    }

    /// Something of a stream is finished, or the frontier has moved.
    pub(crate) fn note_progress(&mut self) {
        if let Some(peers) = self.peers.as_mut().filter(|peers| peers.is_head() && peers.has_receivers()) {
            peers.open_batch.note(self.now);
        }
    }

    /// Closes the open batch, if it is due.
    pub(crate) fn close_batch(&mut self, out: &mut Outbox) {
        while let Some(peers) = self.peers.as_mut().filter(|peers| peers.is_head() && peers.has_receivers()) {
            let row_bytes = self.rows.row_state_width() * size_of::<T>() + 8;
            if !peers.open_batch.is_due(self.now, row_bytes, peers.under_way()) {
                break;
            }
            let (rows, sums) = peers.open_batch.close();
            self.batch = self.batch.saturating_add(1);
            let chunks = self.chunks(&rows, &sums);
            self.send_batch(chunks, out);
        }
        self.announce(out);
    }

    /// A batch cut into chunks, the metadata last.
    fn chunks(&self, rows: &[(u64, u32)], sums: &[(Clock, Vec<(u64, u32)>)]) -> Vec<ReplicaChunk> {
        let width = self.rows.width();
        let per_chunk = |numbers: usize| (PART_BYTES / (numbers * size_of::<T>()).max(8)).max(1);
        let mut all: Vec<(ChunkContents, Payload, Payload)> = Vec::new();
        for rows in rows.chunks(per_chunk(self.rows.row_state_width())) {
            all.push((ChunkContents::Rows, positions_of(rows), self.row_states(rows)));
        }
        for (clock, rows) in sums {
            let Some(HeldClock::Sum(sum)) = self.held.get(clock) else { continue };
            for rows in rows.chunks(per_chunk(width)) {
                let sums = rows.iter().filter_map(|(_, slot)| sum.get(width, *slot)).flatten().copied();
                let values = Payload::new(sums.collect::<Vec<T>>());
                all.push((ChunkContents::ClockSums { clock: *clock }, positions_of(rows), values));
            }
        }
        all.push((ChunkContents::Metadata { bytes: self.metadata() }, Payload::EMPTY, Payload::EMPTY));
        let (table, shard, batch) = (self.table, self.placed.shard, self.batch);
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

    /// Sends a batch that is complete here to every receiver.
    fn send_batch(&mut self, chunks: Vec<ReplicaChunk>, out: &mut Outbox) {
        let streams = (0..).map(WorkerId).zip(&self.streams);
        let finished = streams.map(|(worker, stream)| (worker, stream.finished())).collect();
        let batch = ReplicationBatch { number: self.batch, chunks, finished, frontier: self.frontier.value() };
        let mut outgoing = Outgoing::new();
        if let Some(peers) = &mut self.peers {
            peers.send(batch, self.now, &mut outgoing);
        }
        self.send_chunks(outgoing, out);
        self.settle_peers(out);
    }

    fn send_chunks(&self, outgoing: Outgoing, out: &mut Outbox) {
        for (to, replica) in outgoing {
            let head = Head { plan: self.plan, ..Head::plain(self.placed.owner, to) };
            out.send(Frame { head, message: Message::ReplicaChunk(replica) });
        }
    }

    /// A receiver may hold more than before: acknowledges what the tail holds now.
    fn settle_peers(&mut self, out: &mut Outbox) {
        let Some(peers) = &mut self.peers else { return };
        let before = peers.under_way();
        peers.settle(self.batch);
        if !peers.is_head() {
            return self.answer_chain(out);
        }
        if before > 0 && peers.under_way() == 0 {
            peers.open_batch.arrived(self.now);
        }
        let ranks = self.ranks.values().copied();
        for worker in ranks.collect::<Vec<_>>() {
            if let Some(stream) = self.streams.get_mut(worker.0 as usize) {
                stream.remind();
                self.unacknowledged.push(worker);
            }
        }
    }

    /// Acknowledges to the predecessor what every replica from here to the tail holds.
    fn answer_chain(&mut self, out: &mut Outbox) {
        let Some(peers) = &self.peers else { return };
        let Some(from) = peers.role.from else { return };
        let (table, shard) = (self.table, self.placed.shard);
        let replicated = Replicated { table, shard, through: peers.through(self.batch), backfill: peers.backfilled_by };
        let head = Head { plan: self.plan, ..Head::plain(self.placed.owner, from) };
        out.send(Frame { head, message: Message::Replicated(replicated) });
    }

    /// A chunk of a batch arrives. With the last of them the batch is taken, if it is the next.
    pub(crate) fn replica(&mut self, from: NodeId, replica: ReplicaChunk, out: &mut Outbox) {
        let Some(peers) = self.peers.as_mut().filter(|peers| peers.role.from == Some(from)) else { return };
        if let Some(backfill) = replica.backfill {
            if !self.whole {
                self.take_chunk(backfill, &replica);
            }
            return self.answer_chain(out);
        }
        if !self.whole && !peers.complete {
            // Its backfill is answered instead, or a later batch.
            return;
        }
        let ends = matches!(replica.contents, ChunkContents::Metadata { .. });
        if replica.batch != self.batch.saturating_add(1) || replica.chunk as usize > peers.arriving.len() {
            peers.arriving.clear();
            // Answered once for each batch, whether it was resent or shows a gap.
            if ends {
                self.answer_chain(out);
            }
            return;
        }
        peers.arriving.truncate(replica.chunk as usize);
        peers.arriving.push(replica);
        if ends {
            let chunks = std::mem::take(&mut peers.arriving);
            // A batch that cannot be applied was damaged on its way, or is of another release. It
            // is resent.
            if chunks.iter().all(|chunk| self.take(chunk).is_some()) {
                self.batch = self.batch.saturating_add(1);
                self.send_batch(chunks, out);
            }
        }
    }

    /// A chunk of a backfill is taken as it comes, if it is the next.
    fn take_chunk(&mut self, backfill: u64, replica: &ReplicaChunk) {
        let Some(peers) = &mut self.peers else { return };
        let arrived = match peers.backfilled_by {
            Some((known, arrived)) if known == backfill => arrived,
            Some((known, _)) if known > backfill => return,
            _ => {
                // From the beginning: sums of an earlier one may be of clocks that are over.
                self.held.clear();
                self.held_changes.clear();
                (self.batch, peers.complete) = (0, false);
                0
            }
        };
        peers.backfilled_by = Some((backfill, arrived));
        if replica.chunk == arrived && self.take(replica).is_some() {
            let is_last = matches!(replica.contents, ChunkContents::Metadata { .. });
            if let Some(peers) = &mut self.peers {
                (peers.backfilled_by, peers.complete) = (Some((backfill, arrived.saturating_add(1))), is_last);
            }
            if is_last {
                self.batch = replica.batch;
            }
        }
    }

    fn take(&mut self, ReplicaChunk { contents, positions, values, .. }: &ReplicaChunk) -> Option<()> {
        match contents {
            ChunkContents::Rows => self.take_rows(positions.numbers()?, values.numbers()?),
            ChunkContents::ClockSums { clock } => self.take_held(*clock, positions.numbers()?, values.numbers()?),
            ChunkContents::Metadata { bytes } => self.take_metadata(bytes).ok(),
        }
    }

    /// A replica acknowledges batches, or chunks of a backfill.
    pub(crate) fn replicated(&mut self, from: NodeId, replicated: &Replicated, out: &mut Outbox) {
        let mut outgoing = Outgoing::new();
        if let Some(peers) = &mut self.peers {
            peers.answered(from, replicated.through, replicated.backfill, self.now, &mut outgoing);
        }
        self.continue_backfills(&mut outgoing);
        self.send_chunks(outgoing, out);
        self.settle_peers(out);
        self.close_batch(out);
    }

    /// Time has passed: resends what was not acknowledged in time, and tells the coordinator which
    /// replicas are backfilled.
    pub(crate) fn tick_chain(&mut self, out: &mut Outbox) {
        let mut outgoing = Outgoing::new();
        let mut backfilled = Vec::new();
        if let Some(peers) = &mut self.peers {
            peers.send_again(self.now, &mut outgoing);
            backfilled.extend(peers.backfilled());
        }
        self.continue_backfills(&mut outgoing);
        self.send_chunks(outgoing, out);
        for node in backfilled {
            let NodeId::Server(server) = node else { continue };
            let (table, shard, plan) = (self.table, self.placed.shard, self.plan);
            let head = Head::plain(self.placed.owner, NodeId::Coordinator);
            out.send(Frame { head, message: Message::Control(Control::Backfilled { table, shard, server, plan }) });
        }
        self.close_batch(out);
    }

    /// Workers are told of the frontier that the tail holds, if it is a new one.
    pub(crate) fn announce(&mut self, out: &mut Outbox) {
        if !AnyShard::is_head(self) || !self.may_answer {
            return;
        }
        if self.announced() == self.told && self.is_exact() == self.told_exact {
            return;
        }
        (self.told, self.told_exact) = (self.announced(), self.is_exact());
        let by = self.peers.as_ref().map(|peers| peers.moved_by);
        self.tell(by, out);
    }
}
