//! Reads and what answers them: rows, refusals, word of waiting, and refreshes that come by
//! themselves.

use super::Refusal;
use crate::field::{fields, fields_and_payloads, variants};
use crate::keys::KeyPart;
use crate::{ChangeChunk, Payload};
use types::{Clock, Position, ShardId, TableId, WorkerId};

/// One part of a read. The reader's clock is in the head.
#[derive(Clone, Debug, PartialEq)]
pub struct Pull {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The reader's name for this part of the read.
    pub request: u64,
    /// The answer must hold the reader's own stream up to this number.
    pub after: u64,
    /// The answer must reflect this frontier or a later one, whatever the table's rule.
    pub frontier: Clock,
    /// Whether later changes of these rows shall be sent by themselves.
    pub subscribe: bool,
    /// Where the reader adds deltas to its cached rows: the last one that it has, 0 before the
    /// first, and how many rows it wants to bring up to date. The answer is rows that deltas can be
    /// added to; without keys, the deltas that follow come before it.
    pub deltas: Option<(u64, u64)>,
    /// What is asked of the rows.
    pub wants: Wants,
    /// Which rows.
    pub keys: KeyPart,
}

/// What a read asks of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Their numbers.
    Values,
    /// A bit for each, in place of positions: whether it is active. Of tables whose shards say so:
    /// see the codec `kkt`.
    Active,
    /// All that is kept of them: their weights, followed by their updater's state. The answer names
    /// the rows that it holds: the first of those asked for, as many as are a part. They are never
    /// encoded.
    RowState,
    /// Which rows changed, and their numbers. Answered at once, also for a reader that is no
    /// worker. The keys are a scan; the reader asks again until `more` is none. Positions without
    /// numbers, behind the others, are of rows that were deleted.
    Changes {
        /// What the reader has.
        cursor: FeedCursor,
    },
}

/// What a reader of the change feed of a shard has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedCursor {
    /// It wants what changes from now on.
    Now,
    /// Nothing: it wants all rows, and later what changes.
    Rows,
    /// Everything that changed before the frontier came to this clock.
    Clock {
        /// The clock.
        clock: Clock,
    },
    /// Everything up to this batch of the change log, of this sequence.
    Batch {
        /// The sequence.
        sequence: u64,
        /// The batch.
        number: u64,
    },
}

/// The rows of one part of a read. The frontier they reflect is the head's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Pulled {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The reader's name for this part of the read.
    pub request: u64,
    /// The highest number of the reader's own stream that the rows hold. Of changes: the last batch
    /// of the change log.
    pub contains: u64,
    /// The sequence of refreshes or deltas that keeps these rows fresh, if there is one, and its
    /// last number so far. Of changes: what the reader has with the last part, or nothing if it has
    /// to start over with all rows.
    pub sequence: Option<(u64, u64)>,
    /// Where the read was parked: whose marker let it go.
    pub released_by: Option<WorkerId>,
    /// Clocks within the reader's view that were failed for all workers alike.
    pub failed: Vec<FailedClock>,
    /// For a scan: where the next one should start, if this part ends before the range does.
    pub more: Option<Position>,
    /// For a scan: the keys found, u64 each. Of rows as they are kept: which they are, in the same
    /// way. Where it was asked which rows are active: the bits.
    pub positions: Payload,
    /// Row after row.
    pub values: Payload,
}

/// In place of a sequence and its last number, to a reader that asked for deltas: they would take
/// more than its rows. Read those.
pub const READ_WHOLE: (u64, u64) = (0, 0);

/// In place of a sequence and its last number, to a reader of changes: ask again soon.
pub const ASK_AGAIN: (u64, u64) = (0, 0);

/// A clock whose update was skipped because a contribution to it was refused.
///
/// ```
/// use types::{Clock, Position, WorkerId};
/// use wire::{FailedClock, Refusal};
///
/// let refusal = Refusal::NotFinite { position: Position(3) };
/// let failed = FailedClock { clock: Clock(7), worker: WorkerId(1), refusal };
/// assert_eq!(format!("{} by {}", failed.clock, failed.worker), "clock 7 by worker 1");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FailedClock {
    /// The clock.
    pub clock: Clock,
    /// Whose contribution it was.
    pub worker: WorkerId,
    /// What was wrong with it.
    pub refusal: Refusal,
}

/// A read that gets no rows.
#[derive(Clone, Debug, PartialEq)]
pub struct PullRefused {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The reader's name for this part of the read.
    pub request: u64,
    /// Why.
    pub refusal: Refusal,
}

/// A read has been parked for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadWaiting {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The reader's name for this part of the read.
    pub request: u64,
    /// The slowest workers: those at the frontier. Empty if the reader's own pushes are missing.
    pub on: Vec<WorkerId>,
}

/// The rows among a worker's subscription that changed while the frontier moved from `from` to the
/// head's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Refresh {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The sequence it belongs to; a new one starts when the shard gave the old one up.
    pub sequence: u64,
    /// Which changes of the shard it carries. With the last chunk, cached rows are as fresh as the
    /// head's clock says.
    pub changes: ChangeChunk,
    /// Cached rows fresh at this frontier, or later, become fresh at the head's clock.
    pub from: Clock,
    /// Clocks on the way there that were failed for all workers alike.
    pub failed: Vec<FailedClock>,
    /// The highest number of the reader's own stream that the rows hold.
    pub contains: u64,
    /// The rows that changed, u64 each.
    pub positions: Payload,
    /// Row after row.
    pub values: Payload,
}

/// A delta: what published rows change by, encoded once for all readers. Readers add deltas to
/// their cached rows in order, and then hold the published values. Later deltas make up for what
/// codecs left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The sequence of deltas it belongs to; a new one starts when cached rows have to be read
    /// anew.
    pub sequence: u64,
    /// Which changes of the shard it carries. Cached rows change with the last chunk, not before.
    pub changes: ChangeChunk,
    /// The frontier that cached rows reach with the last chunk.
    pub reaches: Clock,
    /// Which rows.
    pub keys: KeyPart,
    /// What they change by, as the head's codecs say.
    pub values: Payload,
}

/// Receipt of a refresh: a subscriber that falls too many behind is dropped.
#[derive(Clone, Debug, PartialEq)]
pub struct Refreshed {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The sequence.
    pub sequence: u64,
    /// Refreshes up to this batch of changes have arrived.
    pub number: u64,
}

fields!(FailedClock { clock, worker, refusal });
fields!(PullRefused { table, shard, request, refusal });
fields!(ReadWaiting { table, shard, request, on });
fields!(Refreshed { table, shard, sequence, number });
variants!(Wants { 0 => Values, 1 => Active, 2 => RowState, 3 => Changes { cursor } });
variants!(FeedCursor { 0 => Now, 1 => Rows, 2 => Clock { clock }, 3 => Batch { sequence, number } });
fields_and_payloads!(Pull { table, shard, request, after, frontier, subscribe, deltas, wants } keys, |input, [positions, _]| {
    keys: KeyPart::get(input, positions)?,
});
fields_and_payloads!(
    Pulled { table, shard, request, contains, sequence, released_by, failed, more },
    |input, [positions, values]| { positions, values }
);
fields_and_payloads!(
    Refresh { table, shard, sequence, changes, from, failed, contains },
    |input, [positions, values]| { positions, values }
);
fields_and_payloads!(Delta { table, shard, sequence, changes, reaches } keys, |input, [positions, values]| {
    keys: KeyPart::get(input, positions)?,
    values,
});
