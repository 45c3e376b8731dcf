//! One shard: a machine made of parts. Each part owns its state; the machine passes every message
//! through them.
//!
//! | part | owns |
//! | --- | --- |
//! | [`Streams`] | the workers of the plan, and the once-only gate of each worker's stream |
//! | [`PushDecoder`] | the decoder of pushes and its meter |
//! | [`LeasedParts`] | which parts of data leases the shard holds |
//! | [`Clocks`] | the frontier, and contributions held for open clocks |
//! | [`Rows`] | the rows, how keys find them, and the updater |
//! | [`Followers`] | the change log and its followers: replicas, eager caches, readers |
//! | [`Reads`], [`Serving`] | parked reads, and whether this replica may answer |
//! | [`CheckpointRequest`] | the checkpoint that was asked for |
//! | [`Restoring`] | the image that is being restored |
//!
//! Each way through the parts is one file: `push`, `read`, `advance` (the frontier moves),
//! `remove`, `replicate`, `feed`, `checkpoint`, `restore`.

mod advance;
mod checkpoint;
mod feed;
mod push;
mod read;
mod remove;
mod replicate;
mod restore;

use crate::checkpoint::{CheckpointRequest, ShardImage};
use crate::discarded::Discarded;
use crate::follow::Followers;
use crate::follow::deltas::DeltaLog;
use crate::follow::replica::peers::ChainRole;
use crate::identity::Identity;
use crate::intake::clocks::Clocks;
use crate::intake::decode::PushDecoder;
use crate::intake::gate::Streams;
use crate::leases::LeasedParts;
use crate::reads::{Reads, Serving};
use crate::residual_rows::ResidualRows;
use crate::rows::{LayoutPiece, PieceOfWork, Rows, RowsError};
use crate::shard::restore::Restoring;
use crate::view::ShardView;
use codec::{Meter, Stopwatch, TableCodecs};
use std::sync::Arc;
use types::{Clock, Measured, NodeId, Placed, Plan, PlanNumber, Span, TableId, TableSpec, Time, WorkerId};
use update::{Number, Updaters};
use wire::{
    Acked, Frame, Head, Marker, Message, Outbox, Pool, Pull, Push, ReadWaiting, Refreshed, ReplicaChunk, Replicated,
    Tune, WaitingRead,
};

/// The reader of a parked read is told that it waits after this long, and again each time it has
/// passed.
const NOTICE_AFTER: Span = Span::from_secs(3);
/// A notice names at most this many workers.
const NAMED: usize = 8;

/// What a shard has done so far.
///
/// ```
/// use shard::ShardCounts;
///
/// let counts = ShardCounts { reads: 10, parked: 4, ..ShardCounts::default() };
/// // The share of reads that had to wait:
/// assert_eq!(counts.parked as f64 / counts.reads as f64, 0.4);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardCounts {
    /// Parts applied, or held for their clock.
    pub parts: u64,
    /// Parts that were finished before and only acknowledged again.
    pub repeated: u64,
    /// Parts and settings refused.
    pub refused: u64,
    /// Parts of data leases that were held already, because another worker had pushed them before
    /// it was lost.
    pub held_already: u64,
    /// Reads answered.
    pub reads: u64,
    /// Reads that had to wait for the frontier or for the reader's own pushes.
    pub parked: u64,
    /// Most reads that waited at once.
    pub most_parked: u64,
    /// Refreshes sent.
    pub refreshes: u64,
    /// Clocks that failed for all workers.
    pub failed_clocks: u64,
    /// Rows that the shard holds now.
    pub rows: u64,
    /// Slots that it has memory for: those of rows, and those of deleted or moved rows until new
    /// rows reuse them or all rows are laid out anew.
    pub slots: u64,
    /// Bytes of those rows, with their updaters' state and positions.
    pub bytes: u64,
    /// Data leases of which it holds parts and that are not over.
    pub leases: u64,
    /// Examples of applied pushes and clocks.
    pub examples: u64,
}

/// A shard of any number type, as the server drives it.
pub(crate) trait AnyShard: Send {
    /// A worker sends a part of a push.
    fn push(&mut self, now: Time, head: &Head, push: Push, out: &mut Outbox);
    /// A worker has ended a clock.
    fn marker(&mut self, head: &Head, marker: &Marker, out: &mut Outbox);
    /// A worker changes a setting.
    fn tune(&mut self, head: &Head, tune: &Tune, out: &mut Outbox);
    /// Takes the role that a plan gives it in its chain. `whole`: the plan says that this replica
    /// holds everything.
    fn take_part(&mut self, plan: PlanNumber, role: ChainRole, whole: bool, now: Time, out: &mut Outbox);
    /// Adopts a plan: the frontier waits for the workers in it. Returns the frontier.
    fn adopt(&mut self, plan: &Plan, now: Time, out: &mut Outbox) -> Clock;
    /// Whether it is the head of its chain.
    fn is_head(&self) -> bool;
    /// Sets whether it may acknowledge and answer, as the head.
    fn answer(&mut self, may: bool, out: &mut Outbox);
    /// The predecessor sends a chunk of a replication batch or of a backfill.
    fn replica(&mut self, now: Time, head: &Head, replica: ReplicaChunk, out: &mut Outbox);
    /// A replica acknowledges batches, or chunks of a backfill.
    fn replicated(&mut self, now: Time, head: &Head, replicated: &Replicated, out: &mut Outbox);
    /// Forgets data leases of a data set that are over, if the frontier has reached `clock`.
    /// Returns whether it has.
    fn forget_leases(&mut self, set: u32, clock: Clock, is_over: &dyn Fn(u64) -> bool) -> bool;
    /// Whether it needs ticks soon, because a batch is open or a backfill is under way.
    fn hurries(&self) -> bool;
    /// Asks for checkpoint `number` at `clock`. `last`: every worker has left, and the copy is made
    /// at once.
    fn checkpoint(&mut self, number: u64, clock: Clock, last: bool);
    /// Takes the copy that was made for the checkpoint, once, if this shard is the head and may
    /// answer.
    fn take_image(&mut self) -> Option<ShardImage>;
    /// The number of the checkpoint whose clock has passed without a copy, and the frontier.
    fn missed(&self) -> Option<(u64, Clock)>;
    /// Begins to restore the shard to a checkpoint's clock; the plan's workers begin with that
    /// clock. At the end, the residuals of workers are pushed to its rows, as one contribution to
    /// that clock. Returns why it cannot.
    fn restore(&mut self, clock: Clock, image: ShardImage, residuals: Arc<Vec<ResidualRows>>) -> Result<(), String>;
    /// Whether every row is there: initial weights are made and a checkpoint is restored.
    fn is_made(&self) -> bool;
    /// Whether there is work that is done in pieces.
    fn has_work(&self) -> bool;
    /// Whether somebody waits for such work: initial weights, the copy for a checkpoint, a
    /// checkpoint to restore. Nobody waits for rows to be laid out.
    fn has_awaited_work(&self) -> bool;
    /// Does a piece of that work. Returns why a checkpoint cannot be restored.
    fn work(&mut self) -> Result<(), String>;
    /// Takes memory that is to be freed.
    fn take_discarded(&mut self) -> Vec<Discarded>;
    /// The frontier.
    fn frontier(&self) -> Clock;
    /// A reader sends a part of a read.
    fn pull(&mut self, now: Time, head: &Head, pull: Pull, out: &mut Outbox);
    /// A worker has received a refresh.
    fn refreshed(&mut self, head: &Head, receipt: &Refreshed);
    /// Everything that arrived together has been handled: sends the acknowledgements that are due.
    fn settle(&mut self, now: Time, out: &mut Outbox);
    /// Time has passed: resends what is late, and tells readers of long-parked reads whom they wait
    /// for.
    fn tick(&mut self, now: Time, out: &mut Outbox);
    /// Workers that parked reads of this shard wait for.
    fn waited_for(&self) -> Vec<WorkerId>;
    /// Parked reads that wait for the frontier.
    fn waiting_reads(&self) -> Vec<WaitingRead>;
    /// The servers that have not acknowledged what this replica has sent them.
    fn awaited_replicas(&self) -> Vec<NodeId>;
    /// The resend timeout of the slowest receiver of batches, and its measured round trip.
    fn resends(&self) -> Option<(Span, Measured)>;
    /// Counts of what it has done so far.
    fn counts(&self) -> ShardCounts;
    /// What codecs have cost and gained here: decoding pushes, and encoding answers.
    fn meters(&self) -> [Meter; 2];
}

/// What all shards of a server share.
pub(crate) struct ShardContext<'a> {
    /// The plan, with its workers.
    pub plan: &'a Plan,
    /// The known updaters.
    pub registry: &'a Updaters,
    /// Memory for answers.
    pub pool: &'a Pool,
    /// Bound on the memory for key lists of one shard, in bytes.
    pub list_bytes: usize,
    /// Measures time for the meters of codecs.
    pub stopwatch: Stopwatch,
    /// Bytes of row state that one piece of long work concerns.
    pub piece_bytes: usize,
}

/// Makes the shard that `placed` describes, of the table's number type.
pub fn make(
    placed: Placed,
    table: TableId,
    spec: &TableSpec,
    context: &ShardContext<'_>,
) -> Result<Box<dyn AnyShard>, RowsError> {
    Ok(match spec.number {
        types::NumberType::F32 => Box::new(Shard::<f32>::new(placed, table, spec, context)?),
        types::NumberType::F64 => Box::new(Shard::<f64>::new(placed, table, spec, context)?),
        types::NumberType::I64 => Box::new(Shard::<i64>::new(placed, table, spec, context)?),
    })
}

/// A shard whose numbers have type `T`.
pub(crate) struct Shard<T: Number> {
    identity: Identity,
    spec: TableSpec,
    streams: Streams,
    decoder: PushDecoder,
    leases: LeasedParts,
    clocks: Clocks<T>,
    rows: Rows<T>,
    followers: Followers,
    reads: Reads,
    serving: Serving,
    checkpoint: CheckpointRequest,
    restoring: Option<Box<Restoring>>,
    /// Memory that is to be freed elsewhere.
    discarded: Vec<Discarded>,
    piece_bytes: usize,
    pool: Pool,
    counts: ShardCounts,
    /// The time of the last input.
    now: Time,
}

impl<T: Number> Shard<T> {
    fn new(placed: Placed, table: TableId, spec: &TableSpec, context: &ShardContext<'_>) -> Result<Self, RowsError> {
        let ShardContext { plan, registry, pool, list_bytes, stopwatch, piece_bytes } = *context;
        let codecs = TableCodecs::of(spec).map_err(|error| RowsError::Codecs(error.to_string()))?;
        let seed = (u64::from(table.0) << 32) | u64::from(placed.shard.0);
        let deltas = DeltaLog::new(spec, &codecs, plan.workers.len(), seed, stopwatch);
        let mut shard = Self {
            identity: Identity { table, placed, plan: plan.number },
            streams: Streams::new(plan),
            decoder: PushDecoder::new(stopwatch),
            leases: LeasedParts::default(),
            clocks: Clocks::new(spec.combine, plan.workers.iter().map(Option::is_some)),
            rows: Rows::new(spec, placed.range, registry, list_bytes)?,
            followers: Followers::new(spec, plan.number, deltas),
            reads: Reads::new(spec, &codecs, seed, stopwatch),
            serving: Serving::new(),
            checkpoint: CheckpointRequest::default(),
            restoring: None,
            discarded: Vec::new(),
            piece_bytes,
            pool: pool.clone(),
            counts: ShardCounts::default(),
            now: Time(0),
            spec: spec.clone(),
        };
        shard.rows.name_rows(shard.followers.need_changes());
        Ok(shard)
    }

    fn view(&self) -> ShardView<'_, T> {
        let Self { identity, streams, clocks, leases, rows, pool, .. } = self;
        ShardView { identity, streams, clocks, leases, rows, pool }
    }

    /// The followers, and the view that they encode from.
    fn view_and_followers(&mut self) -> (ShardView<'_, T>, &mut Followers) {
        let Self { identity, streams, clocks, leases, rows, pool, followers, .. } = self;
        (ShardView { identity, streams, clocks, leases, rows, pool }, followers)
    }

    /// The head of a frame to a worker, with the announced frontier.
    fn head(&self, to: WorkerId) -> Head {
        self.view().head_to(to, self.announced())
    }

    fn say(&self, to: WorkerId, message: Message, out: &mut Outbox) {
        out.send(Frame { head: self.head(to), message });
    }

    /// Whether a peer sends something before the rows are there. A predecessor may have restored
    /// the shard earlier, and sends again. Workers are told of a table when all servers have it; a
    /// peer that does not wait for that pays with the time to make initial weights.
    fn is_used_too_early(&mut self) -> bool {
        self.rows.fill();
        self.restoring.is_some()
    }

    /// How many rows one piece of long work concerns.
    fn rows_of_a_piece(&self) -> usize {
        (self.piece_bytes / self.rows.row_state_bytes()).max(1)
    }

    /// Sends the acknowledgements that are due.
    fn acknowledge(&mut self, out: &mut Outbox) {
        let table = self.identity.table;
        let shard = self.identity.shard();
        let replicas = &self.followers.replicas;
        for (worker, through, refused) in self.streams.take_acknowledgements(|worker| replicas.durable(worker)) {
            self.say(worker, Message::Acked(Acked { table, shard, through, refused }), out);
        }
    }

    /// Does the next piece of laying rows out anew, if it is time: at most `most` rows. Only here,
    /// the other parts that know rows by their slots are told that rows have moved.
    fn lay_rows_out(&mut self, most: usize) {
        match self.rows.lay_out(most) {
            LayoutPiece::Nothing => {}
            LayoutPiece::Moved(moves) => {
                self.clocks.rows_moved(self.rows.slot_counts(), &moves);
                self.followers.rows_moved(&moves);
            }
            LayoutPiece::AllMoved => {
                let Some(forwarding) = self.rows.forwarding() else { return };
                let seen = self.clocks.forward(forwarding, most);
                if seen + self.followers.forward(forwarding, most - seen) == 0 {
                    self.discarded.push(Discarded::new(self.rows.end_layout()));
                }
            }
        }
    }
}

impl<T: Number> AnyShard for Shard<T> {
    fn push(&mut self, now: Time, head: &Head, push: Push, out: &mut Outbox) {
        self.now = now;
        if self.is_used_too_early() {
            return;
        }
        self.take_push(head, push, out);
    }

    fn marker(&mut self, head: &Head, marker: &Marker, out: &mut Outbox) {
        self.take_marker(head, marker, out);
    }

    fn tune(&mut self, head: &Head, tune: &Tune, out: &mut Outbox) {
        self.take_tune(head, tune, out);
    }

    fn pull(&mut self, now: Time, head: &Head, pull: Pull, out: &mut Outbox) {
        if self.is_used_too_early() {
            return;
        }
        self.start_read(now, head, pull, out);
    }

    fn refreshed(&mut self, head: &Head, receipt: &Refreshed) {
        if let Some(worker) = self.streams.worker(head.source) {
            self.followers.subscribers.received(worker, receipt.sequence, receipt.number);
        }
    }

    fn replica(&mut self, now: Time, head: &Head, replica: ReplicaChunk, out: &mut Outbox) {
        self.now = now;
        if self.is_used_too_early() {
            return;
        }
        self.take_chunk(head.from, replica, out);
    }

    fn replicated(&mut self, now: Time, head: &Head, replicated: &Replicated, out: &mut Outbox) {
        self.now = now;
        self.take_acknowledgement(head.from, replicated, out);
    }

    fn take_part(&mut self, plan: PlanNumber, role: ChainRole, whole: bool, now: Time, out: &mut Outbox) {
        self.now = now;
        self.identity.plan = plan;
        if !whole {
            // The predecessor sends every row.
            self.rows.skip_initial_weights();
            self.stop_restoring();
        }
        self.take_role(role, whole, out);
        self.look_at_clock();
    }

    fn adopt(&mut self, plan: &Plan, now: Time, out: &mut Outbox) -> Clock {
        self.now = now;
        self.go_by(plan, out)
    }

    fn is_head(&self) -> bool {
        self.followers.replicas.is_head()
    }

    fn answer(&mut self, may: bool, out: &mut Outbox) {
        self.serving.allow(may);
        if may {
            self.announce(out);
            self.tell(None, out);
        }
    }

    fn forget_leases(&mut self, set: u32, clock: Clock, is_over: &dyn Fn(u64) -> bool) -> bool {
        let is_reached = self.clocks.frontier() >= clock;
        if is_reached {
            self.leases.forget(set, is_over);
        }
        is_reached
    }

    fn hurries(&self) -> bool {
        self.followers.replicas.hurries()
    }

    fn checkpoint(&mut self, number: u64, clock: Clock, last: bool) {
        self.begin_checkpoint(number, clock, last);
    }

    fn take_image(&mut self) -> Option<ShardImage> {
        let may_answer = self.serving.may_answer() && AnyShard::is_head(self);
        let announced = self.announced();
        // A head whose serving lease has ended may lack what a newer head has accepted.
        if may_answer { self.checkpoint.take(announced) } else { None }
    }

    fn missed(&self) -> Option<(u64, Clock)> {
        let may_answer = self.serving.may_answer() && AnyShard::is_head(self);
        let missed = self.checkpoint.missed().filter(|_| may_answer);
        missed.map(|number| (number, self.clocks.frontier()))
    }

    fn restore(&mut self, clock: Clock, image: ShardImage, residuals: Arc<Vec<ResidualRows>>) -> Result<(), String> {
        self.begin_restoring(clock, image, residuals)
    }

    fn is_made(&self) -> bool {
        self.rows.are_made()
    }

    fn has_work(&self) -> bool {
        self.has_awaited_work() || self.rows.needs_layout()
    }

    fn has_awaited_work(&self) -> bool {
        !AnyShard::is_made(self) || self.rows.is_being_copied()
    }

    fn work(&mut self) -> Result<(), String> {
        let piece = self.rows_of_a_piece();
        if self.restoring.is_some() {
            return self.restore_some(piece);
        }
        if self.rows.work(piece) == PieceOfWork::Nothing {
            self.lay_rows_out(piece);
        }
        self.take_copy();
        Ok(())
    }

    fn take_discarded(&mut self) -> Vec<Discarded> {
        std::mem::take(&mut self.discarded)
    }

    fn frontier(&self) -> Clock {
        self.clocks.frontier()
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.now = now;
        self.close_batch(out);
        if self.serving.may_answer() && AnyShard::is_head(self) {
            self.acknowledge(out);
        }
    }

    fn tick(&mut self, now: Time, out: &mut Outbox) {
        self.now = now;
        self.tick_feed();
        self.tick_chain(out);
        let table = self.identity.table;
        let shard = self.identity.shard();
        for (worker, request, own) in self.reads.overdue(now, NOTICE_AFTER) {
            let on = if own { Vec::new() } else { self.clocks.slowest(NAMED) };
            self.say(worker, Message::ReadWaiting(ReadWaiting { table, shard, request, on }), out);
        }
    }

    fn waited_for(&self) -> Vec<WorkerId> {
        if self.reads.wait_for_others() { self.clocks.slowest(NAMED) } else { Vec::new() }
    }

    fn waiting_reads(&self) -> Vec<WaitingRead> {
        let table = self.identity.table;
        self.reads.waiting().map(|(reader, clock, needs)| WaitingRead { table, reader, clock, needs }).collect()
    }

    fn awaited_replicas(&self) -> Vec<NodeId> {
        self.followers.replicas.awaited()
    }

    fn resends(&self) -> Option<(Span, Measured)> {
        self.followers.replicas.resends()
    }

    fn meters(&self) -> [Meter; 2] {
        let mut downward = self.reads.meter();
        self.followers.deltas.iter().for_each(|deltas| downward.add(deltas.meter()));
        [self.decoder.meter(), downward]
    }

    fn counts(&self) -> ShardCounts {
        let rows = self.rows.len() as u64;
        // Eight bytes for the position of each row.
        let bytes = rows * (self.rows.row_state_bytes() + 8) as u64;
        let reads = self.reads.counts();
        ShardCounts {
            rows,
            slots: self.rows.slot_count() as u64,
            bytes,
            leases: self.leases.leases() as u64,
            examples: self.rows.examples(),
            reads: reads.answered,
            parked: reads.parked,
            most_parked: reads.most_parked,
            ..self.counts
        }
    }
}
