//! Chain replication: the head sends what changed down the chain in numbered batches, and
//! acknowledges to its workers only what the tail holds.
//!
//! Batches are those of the shard's change log ([`ChangeLog`]). A replica is sent everything that
//! changed since the last batch that it holds, as it is when it is sent:
//! - each changed row once, however many workers pushed to it, with its updater's state,
//! - the sums held for clocks,
//! - the shard metadata, which includes the once-only gate.
//!
//! A replica applies a batch whole or not at all.
//!
//! [`Replication`] owns the neighbours and what they have acknowledged. It reads the shard through
//! a [`ShardView`]; the shard itself applies what chunks bring.

pub(crate) mod batch;
pub(crate) mod encode;
mod incoming;
pub(crate) mod peers;
#[cfg(test)]
mod tests;

use crate::changes::{ChangeLog, Changes};
use crate::follow::replica::encode::Contents;
use crate::follow::replica::peers::{BatchMark, ChainRole, Outgoing, Peers, Sending};
use crate::identity::Identity;
use crate::view::ShardView;
use std::collections::BTreeMap;
use types::{Clock, Measured, NodeId, Span, Time, WorkerId};
use update::Number;
use wire::{ChangeChunk, ChunkContents, Control, Frame, Message, Outbox, ReplicaChunk, Replicated};

/// A shard's place in its chain, and the batches that pass through it.
pub(crate) struct Replication {
    /// Its neighbours in the chain; `None` if no other server holds the shard.
    peers: Option<Peers>,
    /// Whether the plan says that this replica holds everything.
    whole: bool,
}

/// What a new role in the chain means for the rest of the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoleChange {
    /// Whether it is the head now.
    pub is_head: bool,
    /// Whether it is the head now and was not before.
    pub is_new_head: bool,
}

/// What the shard must do about a chunk that arrived.
pub(crate) enum Arrival {
    /// Do nothing.
    Ignored,
    /// Answer the predecessor.
    Answered,
    /// Take this chunk of a backfill into the shard, if there is one, and call
    /// [`Replication::backfill_taken`].
    Backfill {
        /// The chunk, if it is the next one.
        chunk: Option<ReplicaChunk>,
        /// Whether a new backfill begins: the shard forgets what an earlier one brought.
        begins: bool,
    },
    /// Apply this batch to the shard, then call [`Replication::batch_taken`], or
    /// [`Replication::batch_refused`] if it cannot be applied.
    Batch(Vec<ReplicaChunk>),
}

impl Replication {
    /// The only replica of its shard, which holds everything.
    pub fn new() -> Self {
        Self { peers: None, whole: true }
    }

    /// Whether the shard has other replicas.
    pub fn has_peers(&self) -> bool {
        self.peers.is_some()
    }

    /// Whether this replica takes writes and answers reads.
    pub fn is_head(&self) -> bool {
        self.peers.as_ref().is_none_or(Peers::is_head)
    }

    /// The neighbours, if acknowledgements to workers wait for the tail.
    fn chained(&self) -> Option<&Peers> {
        self.peers.as_ref().filter(|peers| !peers.is_solitary())
    }

    /// The neighbours, at a head that sends batches.
    fn sending(&mut self) -> Option<&mut Peers> {
        self.peers.as_mut().filter(|peers| peers.is_head() && peers.has_receivers())
    }

    /// The frontier that workers are told: the one that the tail holds. The shard's own,
    /// `frontier`, may be later.
    pub fn announced(&self, frontier: Clock) -> Clock {
        self.chained().map_or(frontier, Peers::announced)
    }

    /// Sets the announced frontier to one that every replica holds.
    pub fn announce(&mut self, frontier: Clock) {
        self.peers.iter_mut().for_each(|peers| peers.announce(frontier));
    }

    /// The sequence number up to which a worker's stream may be acknowledged.
    pub fn durable(&self, worker: WorkerId) -> u64 {
        self.chained().map_or(u64::MAX, |peers| peers.durable(worker))
    }

    /// Whether the shard needs ticks soon, because a batch is open or a backfill is under way.
    pub fn hurries(&self) -> bool {
        self.peers.as_ref().is_some_and(Peers::hurries)
    }

    /// The servers that have not acknowledged what this replica has sent them.
    pub fn awaited(&self) -> Vec<NodeId> {
        self.peers.iter().flat_map(Peers::awaited).collect()
    }

    /// The resend timeout of the slowest receiver, and its measured round trip.
    pub fn resends(&self) -> Option<(Span, Measured)> {
        self.peers.as_ref().and_then(Peers::resends)
    }

    /// A worker moved the frontier. Returns whether workers are told only once the tail has it.
    pub fn frontier_moved(&mut self, by: WorkerId) -> bool {
        let chained = self.peers.as_mut().filter(|peers| !peers.is_solitary());
        chained.map(|peers| peers.frontier_moved(by)).is_some()
    }

    /// The worker that moved the frontier last.
    pub fn moved_by(&self) -> Option<WorkerId> {
        self.peers.as_ref().map(Peers::moved_by)
    }

    /// Whether the sums of open clocks are replicated.
    pub fn takes_sums(&mut self) -> bool {
        self.sending().is_some()
    }

    /// The batch after which a receiver needs the change log.
    pub fn needs_after(&self) -> Option<u64> {
        self.peers.as_ref().and_then(Peers::needs_after)
    }

    /// Counts changes in the open batch: `rows` rows or sums changed for the first time in it, and
    /// there were `times` changes in all.
    pub fn note_changes(&mut self, rows: usize, times: usize) {
        if let Some(peers) = self.sending() {
            peers.open_batch().changed(rows, times);
        }
    }

    /// An item of a stream is finished, or the frontier has moved.
    pub fn note_progress(&mut self, now: Time) {
        if let Some(peers) = self.sending() {
            peers.open_batch().note(now);
        }
    }

    /// A worker has pushed.
    pub fn note_push(&mut self, worker: WorkerId) {
        self.peers.iter_mut().for_each(|peers| peers.open_batch().pushed(worker));
    }

    /// A read waits for the open batch.
    pub fn need_batch(&mut self) {
        self.peers.iter_mut().for_each(|peers| peers.open_batch().need());
    }

    /// Takes the role that a new plan gives it in its chain. `whole`: the plan says that it holds
    /// everything. Returns `None` if it was the only replica and still is.
    pub fn take_part<T: Number>(
        &mut self,
        role: ChainRole,
        whole: bool,
        now: Time,
        log: &ChangeLog,
        view: &ShardView<'_, T>,
    ) -> Option<RoleChange> {
        self.whole = whole;
        if self.peers.is_none() && role.is_alone() {
            return None;
        }
        let was_head = self.is_head();
        let was_chained = self.chained().is_some();
        let alone = role.is_alone();
        let is_head = role.from.is_none();
        let announced = self.announced(view.clocks.frontier());
        let mut peers = self.peers.take().unwrap_or_else(|| Peers::new(role.clone(), announced));
        if whole {
            peers.incoming_mut().forget_backfill();
        }
        peers.take_part(role, log.last(), view.identity.plan.0, now);
        peers.settle(log.last());
        self.peers = (!alone).then_some(peers);
        if is_head && !was_chained && self.chained().is_some() {
            self.start_batches(view);
        }
        Some(RoleChange { is_head, is_new_head: is_head && !was_head })
    }

    /// Begins to replicate. Changes from before there was a receiver are acknowledged already. From
    /// now on, a change is acknowledged once the tail holds it.
    pub fn start_batches<T: Number>(&mut self, view: &ShardView<'_, T>) {
        if let Some(peers) = self.peers.as_mut().filter(|peers| peers.is_head()) {
            peers.start_batches(view.streams.all_finished(), view.clocks.frontier());
        }
    }

    /// Closes the open batch and sends it, if it is due. Returns whether more may be durable, so
    /// that the shard should acknowledge to every worker again.
    pub fn close_batch<T: Number>(
        &mut self,
        now: Time,
        log: &mut ChangeLog,
        view: &ShardView<'_, T>,
        out: &mut Outbox,
    ) -> bool {
        let mut acknowledge = false;
        let row_bytes = view.rows.row_state_bytes() + 8;
        while let Some(peers) = self.sending() {
            if !peers.close_if_due(now, row_bytes) {
                break;
            }
            log.close();
            acknowledge |= self.send_batch(now, log, view, out);
        }
        acknowledge
    }

    /// Sends the last batch of the log to every receiver. Returns whether to acknowledge to every
    /// worker again.
    fn send_batch<T: Number>(
        &mut self,
        now: Time,
        log: &mut ChangeLog,
        view: &ShardView<'_, T>,
        out: &mut Outbox,
    ) -> bool {
        let mut outgoing = Outgoing::new();
        if let Some(peers) = &mut self.peers {
            peers.send(mark(log.last(), view), now, &mut outgoing);
        }
        self.send(outgoing, log, view, out);
        self.settle(now, log, view.identity, out)
    }

    /// Sends receivers what they lack. Changes are encoded as rows are now, so the open batch is
    /// part of them and is closed first.
    fn send<T: Number>(&mut self, outgoing: Outgoing, log: &mut ChangeLog, view: &ShardView<'_, T>, out: &mut Outbox) {
        let Some(peers) = &mut self.peers else { return };
        let sends_changes = outgoing.iter().any(|(_, sending)| matches!(sending, Sending::After(_)));
        if sends_changes && peers.is_head() && (peers.open_batch().is_open() || log.open_len() > 0) {
            peers.open_batch().close();
            let number = log.close();
            peers.mark(mark(number, view));
        }
        // Receivers that hold the same batches are sent the same chunks.
        let mut encoded: BTreeMap<u64, Vec<ReplicaChunk>> = BTreeMap::new();
        for (node, sending) in outgoing {
            let chunks = match sending {
                Sending::Chunk(chunk) => vec![chunk],
                Sending::After(from) => {
                    peers.was_sent(node, log.last());
                    encoded.entry(from).or_insert_with(|| batch(from, log, view)).clone()
                }
            };
            let head = view.identity.head(node);
            chunks.into_iter().for_each(|chunk| out.send(Frame { head, message: Message::ReplicaChunk(chunk) }));
        }
    }

    /// A receiver may hold more than before: counts what the tail holds as durable. The head
    /// returns true: it should acknowledge to every worker again. Other replicas acknowledge to
    /// their predecessor.
    fn settle(&mut self, now: Time, log: &ChangeLog, identity: &Identity, out: &mut Outbox) -> bool {
        let Some(peers) = &mut self.peers else { return false };
        let before = peers.under_way();
        peers.settle(log.last());
        if !peers.is_head() {
            self.answer(log, identity, out);
            return false;
        }
        if before > 0 && peers.under_way() == 0 {
            peers.open_batch().arrived(now);
        }
        true
    }

    /// Acknowledges to the predecessor what every replica from here to the tail holds.
    pub fn answer(&self, log: &ChangeLog, identity: &Identity, out: &mut Outbox) {
        let Some(peers) = &self.peers else { return };
        let Some(from) = peers.predecessor() else { return };
        let replicated = Replicated {
            table: identity.table,
            shard: identity.shard(),
            through: peers.through(log.last()),
            backfill: peers.incoming().backfill(),
        };
        out.send(Frame { head: identity.head(from), message: Message::Replicated(replicated) });
    }

    /// A chunk of a batch or of a backfill arrives.
    pub fn arrive(&mut self, from: NodeId, chunk: ReplicaChunk, log: &mut ChangeLog) -> Arrival {
        let Some(peers) = self.peers.as_mut().filter(|peers| peers.predecessor() == Some(from)) else {
            return Arrival::Ignored;
        };
        peers.incoming_mut().arrive(chunk, self.whole, log)
    }

    /// The shard has taken a chunk of a backfill.
    pub fn backfill_taken(&mut self, chunk: &ReplicaChunk, log: &mut ChangeLog) {
        self.peers.iter_mut().for_each(|peers| peers.incoming_mut().backfill_taken(chunk, log));
    }

    /// The shard has applied the next batch: sends it on down the chain. Returns whether to
    /// acknowledge to every worker again.
    pub fn batch_taken<T: Number>(
        &mut self,
        chunks: &[ReplicaChunk],
        now: Time,
        log: &mut ChangeLog,
        view: &ShardView<'_, T>,
        out: &mut Outbox,
    ) -> bool {
        let held = chunks.last().map_or(log.last(), |chunk| chunk.changes.to);
        let is_followed = self.peers.as_ref().is_some_and(Peers::is_followed);
        log.append(held, if is_followed { changes_of(chunks) } else { Changes::default() });
        self.send_batch(now, log, view, out)
    }

    /// The shard could not apply a batch: it was damaged on its way, or another release sent it.
    /// Drops it; the predecessor resends it.
    pub fn batch_refused(&mut self, log: &ChangeLog) {
        self.peers.iter_mut().for_each(|peers| peers.incoming_mut().hold(log.last()));
    }

    /// A replica acknowledges batches, or chunks of a backfill. Returns whether to acknowledge to
    /// every worker again.
    pub fn acknowledged<T: Number>(
        &mut self,
        from: NodeId,
        replicated: &Replicated,
        now: Time,
        log: &mut ChangeLog,
        view: &ShardView<'_, T>,
        out: &mut Outbox,
    ) -> bool {
        let mut outgoing = Outgoing::new();
        if let Some(peers) = &mut self.peers {
            peers.answered(from, replicated.through, replicated.backfill, now, &mut outgoing);
        }
        self.continue_backfills(log, view, &mut outgoing);
        self.send(outgoing, log, view, out);
        self.settle(now, log, view.identity, out)
    }

    /// Time has passed: resends batches and chunks that were not acknowledged in time, and tells
    /// the coordinator which replicas are backfilled.
    pub fn tick<T: Number>(&mut self, now: Time, log: &mut ChangeLog, view: &ShardView<'_, T>, out: &mut Outbox) {
        let mut outgoing = Outgoing::new();
        let mut backfilled = Vec::new();
        if let Some(peers) = &mut self.peers {
            peers.send_again(now, &mut outgoing);
            backfilled.extend(peers.backfilled());
        }
        self.continue_backfills(log, view, &mut outgoing);
        self.send(outgoing, log, view, out);
        for node in backfilled {
            let NodeId::Server(server) = node else { continue };
            let Identity { table, plan, .. } = *view.identity;
            let message = Control::Backfilled { table, shard: view.identity.shard(), server, plan };
            let head = view.identity.plain_head(NodeId::Coordinator);
            out.send(Frame { head, message: Message::Control(message) });
        }
    }

    /// Sends the next chunks to the replicas that are being backfilled.
    fn continue_backfills<T: Number>(&mut self, log: &mut ChangeLog, view: &ShardView<'_, T>, outgoing: &mut Outgoing) {
        let Some(peers) = &mut self.peers else { return };
        if !view.rows.are_made() {
            // First this replica gets its rows.
            return;
        }
        let was_solitary = peers.is_solitary();
        peers.continue_backfills(log, view, outgoing);
        if was_solitary && !peers.is_solitary() {
            self.start_batches(view);
        }
    }
}

/// What a replica holds once it holds batch `number`, which is made now.
fn mark<T: Number>(number: u64, view: &ShardView<'_, T>) -> BatchMark {
    BatchMark { number, finished: view.streams.all_finished().collect(), frontier: view.clocks.frontier() }
}

/// Everything that changed after batch `from`, as it is now, cut into chunks. Metadata comes last.
fn batch<T: Number>(from: u64, log: &ChangeLog, view: &ShardView<'_, T>) -> Vec<ReplicaChunk> {
    let mut all: Vec<Contents> = Vec::new();
    let changes = log.since(from);
    encode::rows(&changes.rows, view, |contents| all.push(contents));
    for (clock, rows) in &changes.sums {
        encode::sums(*clock, rows, view, |contents| all.push(contents));
    }
    all.push(encode::metadata(view));
    let table = view.identity.table;
    let shard = view.identity.shard();
    let to = log.last();
    let count = all.len();
    let chunk = |(chunk, (contents, positions, values)): (u32, Contents)| {
        let changes = ChangeChunk { from, to, chunk, ends: chunk as usize + 1 == count };
        ReplicaChunk { table, shard, changes, backfill: None, contents, positions, values }
    };
    (0u32..).zip(all).map(chunk).collect()
}

/// The rows and sums that a batch changes, for the replica's own change log.
fn changes_of(chunks: &[ReplicaChunk]) -> Changes {
    let mut changes = Changes::default();
    for chunk in chunks {
        let positions = chunk.positions.numbers::<u64>().unwrap_or(&[]);
        match &chunk.contents {
            ChunkContents::Rows | ChunkContents::RemovedRows => changes.rows.extend_from_slice(positions),
            ChunkContents::ClockSums { clock } | ChunkContents::ClockRemovals { clock } => {
                changes.sums.entry(*clock).or_default().extend(positions);
            }
            ChunkContents::Metadata { .. } => {}
        }
    }
    for rows in changes.sums.values_mut().chain([&mut changes.rows]) {
        rows.sort_unstable();
        rows.dedup();
    }
    changes
}
