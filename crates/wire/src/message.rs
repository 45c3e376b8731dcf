//! The list of messages, with the sender and receiver of each. The files below document every
//! field.

#![deny(clippy::wildcard_enum_match_arm)]

mod control;
mod read;
mod refusal;
mod replica;
mod status;
mod stream;

pub use control::{Control, LeaseTerms, Member, NodeRole};
pub use read::{
    ASK_AGAIN, Delta, FailedClock, FeedCursor, Pull, PullRefused, Pulled, READ_WHOLE, ReadWaiting, Refresh, Refreshed,
    Wants,
};
pub use refusal::Refusal;
pub use replica::{ChunkContents, ReplicaChunk, Replicated};
pub use status::{MemberState, MemberStatus, NodeReport, Status, TableStatus, Timeout, Trouble, WaitingRead};
pub use stream::{Acked, LeasedPart, Marker, Push, Refused, Resend, ResendReason, Tune, Writes};

use crate::Payload;
use crate::field::{Field, Reader};
use crate::frame::WireError;
use crate::sample::Sample;
use std::fmt;
use types::SplitMix64;

/// A message from one node to another.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Worker to shard, in its stream: one part of a push. The shard applies it or refuses it, and
    /// acknowledges it by `Acked`.
    Push(Push),
    /// Worker to shard, in its stream, at the end of each clock. The shard advances its frontier,
    /// and acknowledges by `Acked`.
    Marker(Marker),
    /// Worker to shard, in its stream: changes an updater's setting from a clock on. Acknowledged
    /// by `Acked`.
    Tune(Tune),
    /// Shard to worker: acknowledges the stream up to a number. The worker frees what it kept for a
    /// resend, and finishes the tickets.
    Acked(Acked),
    /// Shard to worker, when it misses an item or does not know a key list. The worker resends its
    /// stream from a number on.
    Resend(Resend),
    /// Worker to shard: one part of a read. The shard answers by `Pulled` or `PullRefused`, maybe
    /// after parking the read.
    Pull(Pull),
    /// Shard to worker, in answer to `Pull`: the rows. The worker hands them to its program and its
    /// cache.
    Pulled(Pulled),
    /// Shard to worker, in answer to `Pull`: no rows, and why. The worker fails the ticket, or
    /// sends the keys again in full.
    PullRefused(PullRefused),
    /// Shard to worker, when a read has been parked for a while: which workers it waits for. The
    /// worker reports them to its program.
    ReadWaiting(ReadWaiting),
    /// Shard to a worker that subscribed, when the frontier moves: rows that changed since the last
    /// refresh. The worker updates its cache and answers by `Refreshed`.
    Refresh(Refresh),
    /// Worker to shard: acknowledges refreshes. The shard drops a subscriber that falls too far
    /// behind.
    Refreshed(Refreshed),
    /// Shard to a worker that asked for deltas: how rows changed. The worker adds the delta to its
    /// cached rows.
    Delta(Delta),
    /// Replica to its successor, or tail to a new replica: a chunk of a replication batch or of a
    /// backfill. The receiver applies it once the batch is complete.
    ReplicaChunk(ReplicaChunk),
    /// Replica to the sender of a `ReplicaChunk`: acknowledges replication batches and chunks of a
    /// backfill.
    Replicated(Replicated),
    /// Between the coordinator and a node: membership, tables, barriers, checkpoints, data leases.
    Control(Control),
}

/// Collects the name at the start of a message's debug form.
struct KindName(String);

impl fmt::Write for KindName {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for char in text.chars() {
            if !(char.is_alphanumeric() || (char == '(' && self.0 == "Control")) {
                return Err(fmt::Error);
            }
            self.0.push(char);
        }
        Ok(())
    }
}

impl Message {
    /// The byte for the kind of message in the frame's header.
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Push(_) => 0,
            Self::Marker(_) => 1,
            Self::Tune(_) => 2,
            Self::Acked(_) => 3,
            Self::Resend(_) => 4,
            Self::Pull(_) => 5,
            Self::Pulled(_) => 6,
            Self::PullRefused(_) => 7,
            Self::ReadWaiting(_) => 8,
            Self::Refresh(_) => 9,
            Self::Refreshed(_) => 10,
            Self::Control(_) => 11,
            Self::Delta(_) => 12,
            Self::ReplicaChunk(_) => 13,
            Self::Replicated(_) => 14,
        }
    }

    /// One message of every kind but `Control`, with random content.
    pub(crate) fn sample_of_each_apart_from_control(random: &mut SplitMix64) -> Vec<Self> {
        vec![
            Self::Push(Sample::sample(random)),
            Self::Marker(Sample::sample(random)),
            Self::Tune(Sample::sample(random)),
            Self::Acked(Sample::sample(random)),
            Self::Resend(Sample::sample(random)),
            Self::Pull(Sample::sample(random)),
            Self::Pulled(Sample::sample(random)),
            Self::PullRefused(Sample::sample(random)),
            Self::ReadWaiting(Sample::sample(random)),
            Self::Refresh(Sample::sample(random)),
            Self::Refreshed(Sample::sample(random)),
            Self::Delta(Sample::sample(random)),
            Self::ReplicaChunk(Sample::sample(random)),
            Self::Replicated(Sample::sample(random)),
        ]
    }

    /// The kind of message in words, such as `Push` or `Control(Join`, for log lines.
    #[must_use]
    pub fn kind_name(&self) -> String {
        let mut name = KindName(String::new());
        // The writer fails when it has the name: the rest, which may be long, is never formatted.
        let _ = fmt::Write::write_fmt(&mut name, format_args!("{self:?}"));
        name.0.trim_start_matches("Control(").to_owned()
    }

    /// The payloads that follow the message: positions, then values.
    #[must_use]
    pub fn payloads(&self) -> [&Payload; 2] {
        const NONE: &Payload = &Payload::EMPTY;
        match self {
            Self::Push(push) => [push.keys.payload().unwrap_or(NONE), &push.values],
            Self::Pull(pull) => [pull.keys.payload().unwrap_or(NONE), NONE],
            Self::Pulled(pulled) => [&pulled.positions, &pulled.values],
            Self::Refresh(refresh) => [&refresh.positions, &refresh.values],
            Self::ReplicaChunk(replica) => [&replica.positions, &replica.values],
            Self::Delta(delta) => [delta.keys.payload().unwrap_or(NONE), &delta.values],
            Self::Marker(_)
            | Self::Tune(_)
            | Self::Acked(_)
            | Self::Resend(_)
            | Self::PullRefused(_)
            | Self::ReadWaiting(_)
            | Self::Refreshed(_)
            | Self::Replicated(_)
            | Self::Control(_) => [NONE, NONE],
        }
    }

    /// Refuses keys that a receiver would refuse.
    pub(crate) fn check_keys(&self) -> Result<(), WireError> {
        match self {
            Self::Push(push) => push.keys.check(),
            Self::Pull(pull) => pull.keys.check(),
            Self::Delta(delta) => delta.keys.check(),
            Self::Pulled(_)
            | Self::Refresh(_)
            | Self::ReplicaChunk(_)
            | Self::Marker(_)
            | Self::Tune(_)
            | Self::Acked(_)
            | Self::Resend(_)
            | Self::PullRefused(_)
            | Self::ReadWaiting(_)
            | Self::Refreshed(_)
            | Self::Replicated(_)
            | Self::Control(_) => Ok(()),
        }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Push(push) => push.put(out),
            Self::Marker(marker) => marker.put(out),
            Self::Tune(tune) => tune.put(out),
            Self::Acked(acked) => acked.put(out),
            Self::Resend(resend) => resend.put(out),
            Self::Pull(pull) => pull.put(out),
            Self::Pulled(pulled) => pulled.put(out),
            Self::PullRefused(refused) => refused.put(out),
            Self::ReadWaiting(waiting) => waiting.put(out),
            Self::Refresh(refresh) => refresh.put(out),
            Self::Refreshed(refreshed) => refreshed.put(out),
            Self::Control(control) => control.put(out),
            Self::Delta(delta) => delta.put(out),
            Self::ReplicaChunk(replica) => replica.put(out),
            Self::Replicated(replicated) => replicated.put(out),
        }
    }

    pub(crate) fn get(kind: u8, body: &[u8], payloads: [Payload; 2]) -> Result<Self, WireError> {
        let input = &mut Reader(body);
        let announced = [payloads[0].len(), payloads[1].len()];
        let message = match kind {
            0 => Self::Push(Push::get(input, payloads)?),
            1 => Self::Marker(Field::get(input)?),
            2 => Self::Tune(Field::get(input)?),
            3 => Self::Acked(Field::get(input)?),
            4 => Self::Resend(Field::get(input)?),
            5 => Self::Pull(Pull::get(input, payloads)?),
            6 => Self::Pulled(Pulled::get(input, payloads)?),
            7 => Self::PullRefused(Field::get(input)?),
            8 => Self::ReadWaiting(Field::get(input)?),
            9 => Self::Refresh(Refresh::get(input, payloads)?),
            10 => Self::Refreshed(Field::get(input)?),
            11 => Self::Control(Field::get(input)?),
            12 => Self::Delta(Delta::get(input, payloads)?),
            13 => Self::ReplicaChunk(ReplicaChunk::get(input, payloads)?),
            14 => Self::Replicated(Field::get(input)?),
            _ => return Err(WireError::Malformed("an unknown kind of message")),
        };
        if !input.0.is_empty() {
            return Err(WireError::Malformed("bytes after the end of a message"));
        }
        if message.payloads().map(Payload::len) != announced {
            return Err(WireError::Malformed("a payload with a kind of message that has none"));
        }
        Ok(message)
    }
}
