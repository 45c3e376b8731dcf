//! What a worker sends to a shard, as it is kept until it is answered: messages of the numbered
//! stream, and parts of reads.

use crate::TicketId;
use codec::Formats;
use types::{Clock, Setting};
use wire::{Frame, HEADER_BYTES, KeySlice, Payload, Wants, Writes};

/// About how long the body of a message to a shard is: that of a read is the longest.
const BODY_BYTES: usize = 64;

/// About how many bytes a frame takes on the wire: its head, body, keys and values.
pub(crate) fn frame_bytes(frame: &Frame) -> usize {
    HEADER_BYTES + BODY_BYTES + frame.message.payloads().iter().map(|payload| payload.len()).sum::<usize>()
}

/// Numbers the parts of reads of a worker, from 1.
#[derive(Debug, Default)]
pub(crate) struct RequestNumbers(u64);

impl RequestNumbers {
    /// The number of the next one.
    pub fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// A message of the stream that shards apply in order: a part of a push, the end of a clock or a
/// setting.
pub(crate) enum StreamMessage {
    Push {
        ticket: TicketId,
        keys: KeySlice,
        /// As they travel.
        values: Payload,
        formats: Formats,
        /// What the shard decodes them to, where the cache needs it and it differs.
        plain: Option<Payload>,
        /// What it does to its rows.
        writes: Writes,
    },
    Marker,
    Tune {
        ticket: TicketId,
        at: Clock,
        setting: Setting,
    },
}

impl StreamMessage {
    /// Frees the values, in a run that is over.
    pub fn free_values(&mut self) {
        if let Self::Push { values, plain, .. } = self {
            (*values, *plain) = (Payload::EMPTY, None);
        }
    }

    /// Bytes that a worker holds for it until it is acknowledged.
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
    pub clock: Clock,
    pub after: u64,
    pub subscribe: bool,
    /// For a delta cache: the last delta it has, and how many rows later deltas are to bring up to
    /// date.
    pub deltas: Option<(u64, u64)>,
    pub wants: Wants,
    pub keys: ReadKeys,
}

/// Which rows a part of a read asks for, and where they go.
pub(crate) enum ReadKeys {
    /// Rows of the target from `row` on.
    Straight { keys: KeySlice, row: usize },
    /// Rows of the target at these places.
    Scattered { keys: KeySlice, rows: Vec<u32> },
    /// No rows, but the deltas that bring these cached rows up to date. Then the rows go to these
    /// places of the target.
    Deltas { keys: KeySlice, rows: Vec<u32> },
    /// A scan: the rows found are collected, shard by shard.
    Scan { range: types::PositionRange, shard: usize },
    /// Rows as they are kept, collected part by part: the answer tells how wide they are.
    RowState { keys: KeySlice, part: usize },
}

impl ReadKeys {
    pub fn slice(&self) -> Option<&KeySlice> {
        match self {
            Self::Straight { keys, .. } | Self::Scattered { keys, .. } => Some(keys),
            Self::Scan { .. } | Self::Deltas { .. } | Self::RowState { .. } => None,
        }
    }
}
