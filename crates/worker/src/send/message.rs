//! What a worker keeps of each message to a shard until the shard answers it: messages of the
//! numbered stream, and parts of reads.

use crate::TicketId;
use codec::Formats;
use types::{Clock, Setting};
use wire::{Frame, HEADER_BYTES, KeySlice, Payload, Wants, Writes};

/// About how many bytes the body of a message to a shard takes: a read has the longest.
const BODY_BYTES: usize = 64;

/// About how many bytes a frame takes on the wire: its head, body, keys and values.
pub(crate) fn frame_bytes(frame: &Frame) -> usize {
    HEADER_BYTES + BODY_BYTES + frame.message.payloads().iter().map(|payload| payload.len()).sum::<usize>()
}

/// Numbers the parts of a worker's reads, from 1.
#[derive(Debug, Default)]
pub(crate) struct RequestNumbers(u64);

impl RequestNumbers {
    /// The number of the next part.
    pub fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// A message of the stream that shards apply in order: a part of a push, the end of a clock or a
/// setting.
pub(crate) enum StreamMessage {
    /// A part of a push.
    Push {
        ticket: TicketId,
        keys: KeySlice,
        /// The values as they are sent.
        values: Payload,
        formats: Formats,
        /// The values as the shard decodes them, if the cache needs them and they differ.
        plain: Option<Payload>,
        /// What the push does to its rows.
        writes: Writes,
    },
    /// The end of a clock.
    Marker,
    /// A setting of the table's updater, for updates made from clock `at` on.
    Tune { ticket: TicketId, at: Clock, setting: Setting },
}

impl StreamMessage {
    /// Frees the values, in a run that is over.
    pub fn free_values(&mut self) {
        if let Self::Push { values, plain, .. } = self {
            *values = Payload::EMPTY;
            *plain = None;
        }
    }

    /// Bytes of values that the worker holds until the message is acknowledged.
    pub fn held_bytes(&self) -> usize {
        match self {
            Self::Push { values, plain, .. } => values.len() + plain.as_ref().map_or(0, Payload::len),
            Self::Marker | Self::Tune { .. } => 0,
        }
    }
}

/// One part of a read under way.
pub(crate) struct Reading {
    pub ticket: TicketId,
    /// The reader's clock when the read started.
    pub clock: Clock,
    /// The shard answers after it has applied the messages of the reader's stream up to this
    /// number.
    pub after: u64,
    /// Whether the shard sends refreshes of these rows from now on.
    pub subscribe: bool,
    /// For a delta cache: the last delta that it has, and how many cached rows deltas must bring up
    /// to date. (0, 0) for rows that are read whole and join the cache.
    pub deltas: Option<(u64, u64)>,
    pub wants: Wants,
    pub keys: ReadKeys,
}

/// Which rows a part of a read asks for, and where their values go.
pub(crate) enum ReadKeys {
    /// The values go to consecutive rows of the target, from `row` on.
    Straight { keys: KeySlice, row: usize },
    /// The values go to these rows of the target.
    Scattered { keys: KeySlice, rows: Vec<u32> },
    /// Asks for the deltas that bring these cached rows up to date. The cache then copies their
    /// values to these rows of the target.
    Deltas { keys: KeySlice, rows: Vec<u32> },
    /// A scan. The worker collects the rows found, shard by shard.
    Scan { range: types::PositionRange, shard: usize },
    /// Row state, which the worker collects part by part. The answer tells how wide it is.
    RowState { keys: KeySlice, part: usize },
}

impl ReadKeys {
    /// The keys of a read whose answer has exactly one row for each key.
    pub fn slice(&self) -> Option<&KeySlice> {
        match self {
            Self::Straight { keys, .. } | Self::Scattered { keys, .. } => Some(keys),
            Self::Scan { .. } | Self::Deltas { .. } | Self::RowState { .. } => None,
        }
    }
}
