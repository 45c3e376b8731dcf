//! Chain replication, one shard: the predecessor it receives batches from, the receivers it sends
//! them to, and which batches those have acknowledged.
//!
//! Batches are those of the shard's change log. Sent batches are not kept: a receiver that lacks
//! some is sent everything after the last one that it holds, as the rows are then.
//!
//! Invariant: every replica holds everything its successors hold. So any successor can become head,
//! and a new replica is backfilled by the tail and joins behind it.

use crate::changes::ChangeLog;
use crate::follow::backfill::Backfill;
use crate::follow::replica::batch::BatchTiming;
use crate::follow::replica::incoming::Incoming;
use crate::view::ShardView;
use std::collections::{BTreeMap, VecDeque};
use types::{Chain, Clock, Measured, NodeId, Span, Time, WorkerId};
use update::Number;
use wire::ReplicaChunk;

/// Resend timeout: the measured round-trip limit, doubled after each resend, clamped to these
/// bounds.
const RESEND_MIN: Span = Span::from_millis(100);
const RESEND_MAX: Span = Span::from_secs(5);

/// A server's role in the chain of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChainRole {
    /// The predecessor, which sends changes; none at the head.
    pub from: Option<NodeId>,
    /// The successor, which gets changes; none at the tail.
    pub next: Option<NodeId>,
    /// New replicas that the tail backfills.
    pub backfilling: Vec<NodeId>,
}

impl ChainRole {
    /// A server's role in this chain, if it has one.
    pub fn of(chain: &Chain, server: NodeId) -> Option<Self> {
        let NodeId::Server(index) = server else { return None };
        let node = |index: &u32| NodeId::Server(*index);
        if let Some(place) = chain.replicas.iter().position(|member| *member == index) {
            let from = place.checked_sub(1).and_then(|before| chain.replicas.get(before)).map(node);
            let next = chain.replicas.get(place + 1).map(node);
            let backfilling = if next.is_none() { chain.backfilling.iter().map(node).collect() } else { Vec::new() };
            return Some(Self { from, next, backfilling });
        }
        let from = chain.replicas.last().map(node).filter(|_| chain.backfilling.contains(&index));
        from.map(|from| Self { from: Some(from), next: None, backfilling: Vec::new() })
    }

    /// Whether no other server holds the shard.
    pub fn is_alone(&self) -> bool {
        self.from.is_none() && self.next.is_none() && self.backfilling.is_empty()
    }
}

/// A server that changes are sent to: the successor, or a new replica.
struct Receiver {
    node: NodeId,
    /// Its backfill, while that is under way.
    backfill: Option<Backfill>,
    /// Number of its last backfill by this replica. Acknowledgements of other backfills are void.
    backfilled: Option<u64>,
    /// The last batch that it and its successors hold.
    through: u64,
    /// The last batch that it was sent.
    sent: u64,
    /// When the resend timeout began: at the last acknowledgement or resend, or when it got a batch
    /// while none was unacknowledged.
    moved: Time,
    /// The present resend timeout.
    again: Span,
    /// Measured round trip of batches, and the batch being timed. A resent batch is not timed.
    trip: Measured,
    timed: Option<(u64, Time)>,
}

impl Receiver {
    fn new(node: NodeId, backfill: Option<Backfill>, through: u64, sent: u64, now: Time) -> Self {
        Self {
            node,
            backfilled: backfill.as_ref().map(Backfill::id),
            backfill,
            through,
            sent,
            moved: now,
            again: RESEND_MIN,
            trip: Measured::default(),
            timed: None,
        }
    }

    /// The resend timeout before any resend.
    fn late_after(&self) -> Span {
        if self.trip.count == 0 { RESEND_MIN } else { self.trip.limit(RESEND_MIN, RESEND_MAX) }
    }

    /// Whether batches are sent to it: not before the last chunk of its backfill was sent.
    fn takes_batches(&self) -> bool {
        self.backfill.as_ref().is_none_or(|backfill| backfill.ends_at().is_some())
    }

    /// Adds the next chunks of its backfill to `outgoing`. With the last one, it was sent
    /// everything so far.
    fn continue_backfill<T: Number>(&mut self, log: &mut ChangeLog, view: &ShardView<'_, T>, outgoing: &mut Outgoing) {
        let Some(backfill) = &mut self.backfill else { return };
        backfill.proceed(log, view, |chunk| outgoing.push((self.node, Sending::Chunk(chunk))));
        self.sent = self.sent.max(backfill.ends_at().unwrap_or(0));
    }

    /// Notes that it is sent everything up to batch `last` now. Returns the last batch that it was
    /// sent before.
    fn send_to(&mut self, last: u64, now: Time) -> u64 {
        if self.sent <= self.through {
            self.moved = now;
            self.again = self.late_after();
        }
        self.timed.get_or_insert((last, now));
        std::mem::replace(&mut self.sent, last)
    }
}

/// What a replica holds once it holds a batch.
pub(crate) struct BatchMark {
    /// The batch.
    pub number: u64,
    /// For each worker: the sequence number up to which its stream is finished.
    pub finished: Vec<(WorkerId, u64)>,
    /// The frontier.
    pub frontier: Clock,
}

/// What to send, each with the server to send it to.
pub(crate) type Outgoing = Vec<(NodeId, Sending)>;

/// What to send to a replica.
pub(crate) enum Sending {
    /// A chunk of its backfill.
    Chunk(ReplicaChunk),
    /// Everything that changed after this batch.
    After(u64),
}

/// A shard's neighbours in its chain.
pub(crate) struct Peers {
    role: ChainRole,
    /// Number of the plan that gave the role.
    plan: u64,
    receivers: Vec<Receiver>,
    /// Marks of the batches that not every receiver holds yet, oldest first.
    unacknowledged: VecDeque<BatchMark>,
    /// The sequence number up to which the tail holds each worker's stream.
    durable: BTreeMap<WorkerId, u64>,
    /// The frontier that the tail holds.
    announced: Clock,
    /// The worker that moved the frontier last.
    moved_by: WorkerId,
    /// At the head: when the open batch is due.
    timing: BatchTiming,
    /// Behind the head: what the predecessor has sent.
    incoming: Incoming,
}

impl Peers {
    /// No receivers yet; the tail holds the frontier `announced`.
    pub fn new(role: ChainRole, announced: Clock) -> Self {
        Self {
            role,
            plan: 0,
            receivers: Vec::new(),
            unacknowledged: VecDeque::new(),
            durable: BTreeMap::new(),
            announced,
            moved_by: WorkerId(0),
            timing: BatchTiming::default(),
            incoming: Incoming::default(),
        }
    }

    /// The predecessor, which sends changes; none at the head.
    pub fn predecessor(&self) -> Option<NodeId> {
        self.role.from
    }

    /// The frontier that the tail holds.
    pub fn announced(&self) -> Clock {
        self.announced
    }

    /// Sets the frontier that the tail holds to one that every replica holds.
    pub fn announce(&mut self, frontier: Clock) {
        self.announced = frontier;
    }

    /// The sequence number up to which the tail holds a worker's stream.
    pub fn durable(&self, worker: WorkerId) -> u64 {
        self.durable.get(&worker).copied().unwrap_or(0)
    }

    /// The worker that moved the frontier last.
    pub fn moved_by(&self) -> WorkerId {
        self.moved_by
    }

    /// A worker has moved the frontier.
    pub fn frontier_moved(&mut self, by: WorkerId) {
        self.moved_by = by;
    }

    /// The timing of the open batch.
    pub fn open_batch(&mut self) -> &mut BatchTiming {
        &mut self.timing
    }

    /// Closes the open batch if it is due. Returns whether it was. `row_bytes`: bytes of one row.
    pub fn close_if_due(&mut self, now: Time, row_bytes: usize) -> bool {
        let is_due = self.timing.is_due(now, row_bytes, self.under_way());
        if is_due {
            self.timing.close();
        }
        is_due
    }

    /// Begins to replicate. What the shard holds now counts as durable: the streams up to `durable`
    /// and the frontier.
    pub fn start_batches(&mut self, durable: impl Iterator<Item = (WorkerId, u64)>, frontier: Clock) {
        self.durable = durable.collect();
        self.announced = frontier;
        self.timing = BatchTiming::default();
    }

    /// Behind the head: what the predecessor has sent.
    pub fn incoming(&self) -> &Incoming {
        &self.incoming
    }

    /// Behind the head: what the predecessor has sent.
    pub fn incoming_mut(&mut self) -> &mut Incoming {
        &mut self.incoming
    }

    /// Whether this replica is the head.
    pub fn is_head(&self) -> bool {
        self.role.from.is_none()
    }

    /// Whether it is the head and no receiver takes batches, so that a change is durable at once.
    pub fn is_solitary(&self) -> bool {
        self.is_head() && !self.receivers.iter().any(Receiver::takes_batches)
    }

    /// Takes the role that plan `plan` gives. This replica holds every batch up to `batch`.
    pub fn take_part(&mut self, role: ChainRole, batch: u64, plan: u64, now: Time) {
        // A new successor is complete by the plan: it holds the batches that every replica holds.
        let held = self.through(batch);
        let mut known: BTreeMap<NodeId, Receiver> =
            std::mem::take(&mut self.receivers).into_iter().map(|receiver| (receiver.node, receiver)).collect();
        if let Some(node) = role.next {
            let receiver = known.remove(&node).filter(|receiver| receiver.backfill.is_none());
            // With a resend timeout of zero, the next tick resends what it may lack.
            let new = || Receiver { again: Span(0), ..Receiver::new(node, None, held, batch, now) };
            self.receivers.push(receiver.unwrap_or_else(new));
        }
        // A former successor that is to be backfilled now was removed in between and holds nothing.
        // So may a replica that was being backfilled, if this server missed a plan in between.
        let has_missed_one = plan > self.plan.saturating_add(1);
        for node in &role.backfilling {
            let begin = || Receiver::new(*node, Some(Backfill::new(plan, batch)), 0, 0, now);
            let stays = !has_missed_one && self.role.backfilling.contains(node);
            self.receivers.push(known.remove(node).filter(|_| stays).unwrap_or_else(begin));
        }
        self.role = role;
        self.plan = plan;
        self.incoming.hold(batch);
    }

    /// The batch after which some receiver needs the change log.
    pub fn needs_after(&self) -> Option<u64> {
        let needs = |receiver: &Receiver| receiver.backfill.as_ref().map_or(receiver.through, Backfill::cursor);
        self.receivers.iter().map(needs).min()
    }

    /// The last batch that every replica from here to the tail holds.
    pub fn through(&self, batch: u64) -> u64 {
        let receivers = self.receivers.iter().filter(|receiver| receiver.takes_batches());
        receivers.map(|receiver| receiver.through).min().map_or(batch, |least| least.min(batch))
    }

    /// Counts the batches that the tail holds as durable, and forgets them.
    pub fn settle(&mut self, batch: u64) {
        let through = self.through(batch);
        let done = self.unacknowledged.partition_point(|batch| batch.number <= through);
        for batch in self.unacknowledged.drain(..done) {
            self.announced = self.announced.max(batch.frontier);
            for (worker, finished) in batch.finished {
                let durable = self.durable.entry(worker).or_default();
                *durable = (*durable).max(finished);
            }
        }
    }

    /// A batch was closed, or taken from the predecessor: adds to `outgoing` what each receiver is
    /// to be sent.
    pub fn send(&mut self, mark: BatchMark, now: Time, outgoing: &mut Outgoing) {
        for receiver in self.receivers.iter_mut().filter(|receiver| receiver.takes_batches()) {
            let from = receiver.send_to(mark.number, now);
            outgoing.push((receiver.node, Sending::After(from)));
        }
        self.unacknowledged.push_back(mark);
    }

    /// Resends what receivers have not acknowledged in time: everything after the last batch that
    /// they hold, because a receiver that lacks one batch drops the batches after it.
    pub fn send_again(&mut self, now: Time, outgoing: &mut Outgoing) {
        for receiver in self.receivers.iter_mut().filter(|receiver| now.since(receiver.moved) >= receiver.again) {
            let before = outgoing.len();
            match &receiver.backfill {
                Some(backfill) => {
                    outgoing.extend(backfill.unanswered().map(|chunk| (receiver.node, Sending::Chunk(chunk.clone()))))
                }
                None if receiver.sent > receiver.through => {
                    outgoing.push((receiver.node, Sending::After(receiver.through)));
                }
                None => {}
            }
            if outgoing.len() > before {
                receiver.moved = now;
                receiver.timed = None;
                receiver.again = Span((receiver.again.0 * 2).min(RESEND_MAX.0));
            }
        }
    }

    /// Adds the next chunks of each backfill to `outgoing`.
    pub fn continue_backfills<T: Number>(
        &mut self,
        log: &mut ChangeLog,
        view: &ShardView<'_, T>,
        outgoing: &mut Outgoing,
    ) {
        self.receivers.iter_mut().for_each(|receiver| receiver.continue_backfill(log, view, outgoing));
    }

    /// A receiver is being sent everything up to batch `last`.
    pub fn was_sent(&mut self, node: NodeId, last: u64) {
        for receiver in self.receivers.iter_mut().filter(|receiver| receiver.node == node) {
            receiver.sent = receiver.sent.max(last);
        }
    }

    /// Adds the mark of a batch that was closed only because a receiver is sent everything so far.
    pub fn mark(&mut self, mark: BatchMark) {
        self.unacknowledged.push_back(mark);
    }

    /// A receiver acknowledges every batch up to `through`, and the chunks of its backfill. If it
    /// repeats an acknowledgement after the round-trip limit, it has seen a gap: the later batches
    /// are resent.
    pub fn answered(
        &mut self,
        node: NodeId,
        through: u64,
        chunks: Option<(u64, u32)>,
        now: Time,
        outgoing: &mut Outgoing,
    ) {
        let Some(receiver) = self.receivers.iter_mut().find(|receiver| receiver.node == node) else { return };
        if let (Some(backfilled), Some((number, _))) = (receiver.backfilled, chunks)
            && backfilled != number
        {
            // A late answer, which the receiver sent before this backfill began.
            return;
        }
        let late_after = receiver.late_after();
        if let Some(backfill) = &mut receiver.backfill {
            if !backfill.answered(chunks) {
                return;
            }
            receiver.moved = now;
            receiver.again = late_after;
            let Some(end) = backfill.is_over() else { return };
            receiver.backfill = None;
            receiver.through = end;
            if receiver.sent > end {
                outgoing.push((node, Sending::After(end)));
            }
        }
        if through > receiver.through {
            if let Some((_, sent)) = receiver.timed.take_if(|(number, _)| *number <= through) {
                receiver.trip.observe(now.since(sent));
            }
            receiver.through = through;
            receiver.moved = now;
            receiver.again = receiver.late_after();
        } else if through == receiver.through && now.since(receiver.moved) >= receiver.late_after() {
            receiver.moved = now;
            receiver.timed = None;
            if receiver.sent > through {
                outgoing.push((node, Sending::After(through)));
            }
        }
    }

    /// How many closed batches some receiver does not hold yet.
    pub fn under_way(&self) -> usize {
        self.unacknowledged.len()
    }

    /// The receivers that have not acknowledged a batch or a chunk of their backfill.
    pub fn awaited(&self) -> impl Iterator<Item = NodeId> + '_ {
        let has_sent = |backfill: &Backfill| backfill.unanswered().next().is_some();
        let lacks_answer = move |receiver: &&Receiver| match &receiver.backfill {
            Some(backfill) => has_sent(backfill),
            None => receiver.sent > receiver.through,
        };
        self.receivers.iter().filter(lacks_answer).map(|receiver| receiver.node)
    }

    /// The resend timeout of the slowest receiver, and its measured round trip.
    pub fn resends(&self) -> Option<(Span, Measured)> {
        let measured = self.receivers.iter().filter(|receiver| receiver.trip.count > 0);
        measured.map(|receiver| (receiver.late_after(), receiver.trip)).max_by_key(|(late, trip)| (*late, trip.mean))
    }

    /// Whether ticks are needed soon, because a batch is open at the head or a backfill is under
    /// way.
    pub fn hurries(&self) -> bool {
        let is_backfilling = self.receivers.iter().any(|receiver| receiver.backfill.is_some());
        is_backfilling || self.is_head() && self.timing.is_open()
    }

    /// New replicas whose backfill is complete.
    pub fn backfilled(&self) -> impl Iterator<Item = NodeId> + '_ {
        let backfilled = |receiver: &&Receiver| receiver.backfill.is_none() && self.role.next != Some(receiver.node);
        self.receivers.iter().filter(backfilled).map(|receiver| receiver.node)
    }

    /// Whether there is a successor or a new replica.
    pub fn is_followed(&self) -> bool {
        !self.receivers.is_empty()
    }

    /// Whether any receiver takes batches.
    pub fn has_receivers(&self) -> bool {
        self.receivers.iter().any(Receiver::takes_batches)
    }
}

#[cfg(test)]
mod tests;
