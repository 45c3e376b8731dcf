//! Sabotage: machines that are broken on purpose, by changing the frames that they send or receive.
//! Each kind shows that a checker notices the broken rule (mutation testing).

use std::collections::BTreeMap;
use types::{Clock, Combine, NumberType, ShardId, TableId};
use wire::{
    Acked, ChunkContents, Control, FeedCursor, Frame, Head, Message, Payload, Pull, Push, Refusal, Replicated, Wants,
    Writes,
};

/// How machines are broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Shards answer every reader as if it were at clock 0.
    ReadEarly,
    /// Shards do not wait for the reader's own pushes.
    ForgetOwnPushes,
    /// Shards apply some parts twice.
    ApplyTwice,
    /// Shards acknowledge some parts without applying them.
    AcknowledgeWithoutApplying,
    /// Shards report a frontier that is one clock too high.
    ClaimHigherFrontier,
    /// Shards apply every push by itself, in tables that combine by clock too.
    CombineEach,
    /// Workers count a push as acknowledged as soon as they send it.
    AcknowledgeUnseen,
    /// Workers do not wait for the operations that a task must follow.
    IgnoreAfter,
    /// Workers believe that shards hold the contributions of any number of clocks.
    PromiseRoom,
    /// Workers ask for reads beyond the bound on open ones.
    AskWithoutRoom,
    /// Shards do not say which workers a parked read waits for.
    SayNothing,
    /// Shards never hear that a clock has ended.
    LoseMarkers,
    /// Shards do not tell worker 1 of failed clocks.
    HideFailedClocks,
    /// Shards read NaN as zero.
    AcceptNan,
    /// Shards add a row of zeros at the end of scans.
    InventRows,
    /// Shards say that no row is active.
    LeaveOutAll,
    /// Workers announce a new setting for one clock too late.
    TuneLate,
    /// The coordinator lets a worker pass every barrier as soon as it reaches it.
    PassBarriersEarly,
    /// Heads believe that the tail has a replication batch as soon as they send it, and some
    /// batches are lost.
    AcknowledgeForTheTail,
    /// Replicas do not know the last part that the head has applied of each stream.
    ForgetAppliedNumbers,
    /// Servers go on answering when their serving leases have ended.
    IgnoreLeases,
    /// Coordinators send their decisions before they save them.
    TellBeforeSaving,
    /// Coordinators save their first memory only.
    KeepNothingNew,
    /// Shards do not record which parts of data leases they have applied.
    ForgetLeasedParts,
    /// Tails backfill new replicas with the metadata of another shard.
    BackfillForeignMetadata,
    /// Shards that have applied a part of a data lease before do not say in which clock it counts.
    HideWhereItCounts,
    /// Readers of the change feed say that they have one batch more than they have.
    SkipChanges,
    /// Workers commit a data lease before their pushes for it are acknowledged.
    CommitUnseen,
    /// A coordinator that goes on after its process was stopped judges nodes before it reads what
    /// they sent meanwhile.
    JudgeBeforeReading,
}

/// Whether this part is broken, where sabotage breaks only one part in four.
fn is_chosen(head: &Head) -> bool {
    head.number % 4 == 2
}

fn change(push: &mut Push, f: impl Fn(f64) -> f64) {
    fn map<T: Copy>(values: Option<&[T]>, f: impl Fn(T) -> T) -> Vec<T> {
        values.unwrap_or(&[]).iter().map(|value| f(*value)).collect()
    }
    push.values = match push.number {
        NumberType::F32 => Payload::new(map::<f32>(push.values.numbers(), |value| f(f64::from(value)) as f32)),
        NumberType::F64 => Payload::new(map::<f64>(push.values.numbers(), f)),
        NumberType::I64 => Payload::new(map::<i64>(push.values.numbers(), |value| f(value as f64) as i64)),
    };
}

impl Sabotage {
    /// Changes a frame that is about to be sent. Returns whether it is sent, and a frame that its
    /// sender receives at once.
    pub(crate) fn meddle(self, frame: &mut Frame, streams: &mut Streams) -> (bool, Option<Frame>) {
        let head = &mut frame.head;
        let mut sent = true;
        let mut heard = None;
        match (self, &mut frame.message) {
            (Self::ReadEarly, Message::Pull(_)) => head.clock = Clock(0),
            (Self::ForgetOwnPushes, Message::Pull(pull)) => pull.after = 0,
            (Self::ApplyTwice, Message::Push(push)) if is_chosen(head) => change(push, |value| value * 2.0),
            (Self::AcknowledgeWithoutApplying, Message::Push(push)) if is_chosen(head) => change(push, |_| 0.0),
            (Self::ClaimHigherFrontier, Message::Pulled(_)) => head.clock = head.clock.next(),
            (Self::CombineEach, Message::Control(Control::AddTable { spec, .. })) => spec.combine = Combine::Each,
            (Self::AcknowledgeUnseen, Message::Push(push)) => {
                let last = streams.sent.entry((head.from.to_bits(), push.table, push.shard)).or_default();
                *last = head.number.max(*last);
                let acked = Acked { table: push.table, shard: push.shard, through: *last, refused: Vec::new() };
                let reply = Head { source: head.source, ..Head::plain(head.to, head.from) };
                heard = Some(Frame { head: reply, message: Message::Acked(acked) });
            }
            (
                Self::SkipChanges,
                Message::Pull(Pull { wants: Wants::Changes { cursor: FeedCursor::Batch { number, .. } }, .. }),
            ) => *number += 1,
            (Self::SayNothing, Message::ReadWaiting(_)) | (Self::LoseMarkers, Message::Marker(_)) => sent = false,
            (Self::HideFailedClocks, Message::Pulled(pulled)) if head.to == types::NodeId::Worker(1) => {
                pulled.failed.clear();
            }
            (Self::AcceptNan, Message::Push(push)) => {
                change(push, |value| if value.is_nan() { 0.0 } else { value });
            }
            (Self::PromiseRoom, Message::Acked(_)) => head.clock = Clock(u64::MAX),
            (Self::InventRows, Message::Pulled(pulled)) => {
                if let Some([others @ .., last]) = pulled.positions.numbers::<u64>() {
                    let row = pulled.values.len() / (others.len() + 1);
                    let zeros = std::iter::repeat_n(&0, row);
                    let values: Vec<u8> = pulled.values.bytes().iter().chain(zeros).copied().collect();
                    pulled.positions = Payload::new([others, &[*last, last.wrapping_add(1)]].concat());
                    pulled.values = Payload::new(values);
                }
            }
            (Self::LeaveOutAll, Message::Pulled(pulled)) if pulled.values.is_empty() => {
                pulled.positions = Payload::new(vec![0u8; pulled.positions.len()]);
            }
            (Self::TuneLate, Message::Tune(tune)) => tune.at = tune.at.next(),
            (Self::AcknowledgeForTheTail, Message::ReplicaChunk(replica)) if replica.backfill.is_none() => {
                sent = replica.changes.to % 3 != 0;
                if replica.changes.ends {
                    let replicated = Replicated {
                        table: replica.table,
                        shard: replica.shard,
                        through: replica.changes.to,
                        backfill: None,
                    };
                    let reply = Head { plan: head.plan, ..Head::plain(head.to, head.from) };
                    heard = Some(Frame { head: reply, message: Message::Replicated(replicated) });
                }
            }
            (Self::ForgetAppliedNumbers, Message::ReplicaChunk(replica)) => {
                if let ChunkContents::Metadata { bytes } = &mut replica.contents {
                    forget_last(bytes);
                }
            }
            (Self::BackfillForeignMetadata, Message::ReplicaChunk(replica)) if replica.backfill.is_some() => {
                if let ChunkContents::Metadata { bytes } = &mut replica.contents {
                    let known = streams.metadata.entry(replica.table).or_default();
                    known.insert(replica.shard, bytes.clone());
                    let other = known.iter().find(|(shard, _)| **shard != replica.shard);
                    other.into_iter().for_each(|(_, other)| bytes.clone_from(other));
                }
            }
            (Self::ForgetLeasedParts, Message::Push(Push { writes: Writes::Gradients { lease }, .. })) => *lease = None,
            (Self::HideWhereItCounts, Message::Acked(acked)) => {
                for refused in &mut acked.refused {
                    if let Refusal::AlreadyHeld { clock } = &mut refused.refusal {
                        *clock = Clock(0);
                    }
                }
            }
            (Self::IgnoreLeases, Message::Control(Control::Begin { serving_lease, .. })) => *serving_lease = None,
            (Self::PassBarriersEarly, Message::Control(Control::Barrier { number })) => {
                let passed = Message::Control(Control::BarrierPassed { number: *number });
                heard = Some(Frame { head: Head::plain(head.to, head.from), message: passed });
            }
            _ => {}
        }
        (sent, heard)
    }
}

/// Changes encoded shard metadata, so that each stream has finished one item less. The metadata
/// begins with the incarnations and their streams.
fn forget_last(metadata: &mut [u8]) {
    let count =
        |at: usize, bytes: &[u8]| bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let mut at = 4;
    for _ in 0..count(0, metadata) {
        at += if metadata[at] == 1 { 9 } else { 1 };
    }
    let streams = count(at, metadata);
    at += 4;
    for _ in 0..streams {
        let mut finished = [0; 8];
        finished.copy_from_slice(&metadata[at..at + 8]);
        let less = u64::from_le_bytes(finished).saturating_sub(1);
        metadata[at..at + 8].copy_from_slice(&less.to_le_bytes());
        at += 8;
        // Stops at a stream with refusals, whose encoding is longer.
        if count(at, metadata) > 0 {
            return;
        }
        at += 4;
    }
}

/// What some kinds of sabotage must remember.
#[derive(Default)]
pub(crate) struct Streams {
    /// The last number sent on each stream.
    sent: BTreeMap<(u32, TableId, ShardId), u64>,
    /// The metadata that new replicas of each shard were last backfilled with.
    metadata: BTreeMap<TableId, BTreeMap<ShardId, Vec<u8>>>,
}
