//! Reads, their answers (rows or refusals), notices of waiting, and what keeps cached rows fresh:
//! refreshes and deltas.

use super::Refusal;
use crate::field::{fields, fields_and_payloads, variants};
use crate::keys::KeyPart;
use crate::{ChangeChunk, Payload};
use types::{Clock, Position, ShardId, TableId, WorkerId};

/// One part of a read, from a worker to a shard. The reader's clock is in the head. The shard
/// answers when the frontier and the reader's own pushes allow it, and parks the read until then.
#[derive(Clone, Debug, PartialEq)]
pub struct Pull {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The number by which the reader knows this part of the read. Answers repeat it.
    pub request: u64,
    /// The answer must hold the reader's own stream up to this sequence number.
    pub after: u64,
    /// The answer must reflect this frontier or a later one, even if the table's rule asks for
    /// less.
    pub frontier: Clock,
    /// Whether the shard shall send refreshes when these rows change.
    pub subscribe: bool,
    /// For a reader of deltas: the number of the last delta that it has, 0 before the first, and
    /// how many rows it wants to bring up to date. The answer has rows to which deltas can be
    /// added. A read without keys asks for the deltas that follow, which come before the answer.
    pub deltas: Option<(u64, u64)>,
    /// What the reader asks of the rows.
    pub wants: Wants,
    /// The keys of the rows.
    pub keys: KeyPart,
}

/// What a read asks of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Their values.
    Values,
    /// A bit for each row, in place of positions: whether it is in the active set. Only for tables
    /// with the codec `kkt`.
    Active,
    /// Their row state: weights followed by the updater's state. The answer has as many of the
    /// first rows as fit one part, and names them. Row state is never encoded by codecs.
    RowState,
    /// The change feed: rows that changed, with their values, and deleted rows. The shard answers
    /// at once, also a process that is not a worker. The keys are a scan, and the reader asks again
    /// until `more` is `None`. Deleted rows come last, as positions without values.
    Changes {
        /// The changes that the reader has.
        cursor: FeedCursor,
    },
}

/// The changes of a shard that a reader of the change feed has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedCursor {
    /// The reader wants only changes from now on.
    Now,
    /// The reader has nothing. It wants all rows, and changes later.
    Rows,
    /// The reader has all changes before the frontier reached this clock.
    Clock {
        /// The clock.
        clock: Clock,
    },
    /// The reader has all changes up to this batch of the change log, in this sequence.
    Batch {
        /// The number of the sequence. The shard starts a new one when numbers of batches lose
        /// their meaning.
        sequence: u64,
        /// The number of the batch.
        number: u64,
    },
}

/// The answer of a shard to a `Pull`: the rows. The head's clock is the frontier that they reflect.
#[derive(Clone, Debug, PartialEq)]
pub struct Pulled {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The number of the request that this answers.
    pub request: u64,
    /// The highest sequence number of the reader's own stream that the rows hold. In the change
    /// feed, the last batch of the change log.
    pub contains: u64,
    /// The sequence of refreshes or deltas that keeps these rows fresh, and its last number so far;
    /// `None` without one. In the change feed, the sequence and batch up to which the page has
    /// changes; `None` if the reader must start over with all rows.
    pub sequence: Option<(u64, u64)>,
    /// If the read was parked, the worker whose clock marker released it.
    pub released_by: Option<WorkerId>,
    /// Clocks within the reader's view whose update was skipped for all workers.
    pub failed: Vec<FailedClock>,
    /// In a scan, the position at which to continue; `None` at the end of the range.
    pub more: Option<Position>,
    /// In a scan, or of row state: the positions of the rows, u64 each. Of the active set: the
    /// bits. Otherwise empty.
    pub positions: Payload,
    /// The rows, one after the other.
    pub values: Payload,
}

impl Pulled {
    /// An answer to this request, without rows.
    #[must_use]
    pub fn empty(table: TableId, shard: ShardId, request: u64) -> Self {
        Self {
            table,
            shard,
            request,
            contains: 0,
            sequence: None,
            released_by: None,
            failed: Vec::new(),
            more: None,
            positions: Payload::EMPTY,
            values: Payload::EMPTY,
        }
    }
}

/// The value of [`Pulled::sequence`] for a reader of deltas whose deltas would take more bytes than
/// its rows. It reads the rows instead.
pub const READ_WHOLE: (u64, u64) = (0, 0);

/// The value of [`Pulled::sequence`] for a reader of the change feed that should ask again soon.
pub const ASK_AGAIN: (u64, u64) = (0, 0);

/// A clock whose update was skipped because the shard refused a push to it.
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
    /// The worker whose push was refused.
    pub worker: WorkerId,
    /// Why it was refused.
    pub refusal: Refusal,
}

/// The answer of a shard to a `Pull` that it refuses.
#[derive(Clone, Debug, PartialEq)]
pub struct PullRefused {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The number of the request that this answers.
    pub request: u64,
    /// Why the read is refused.
    pub refusal: Refusal,
}

/// A notice from a shard to a worker whose read has been parked for a while. The worker reports it
/// to its program.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadWaiting {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The number of the parked request.
    pub request: u64,
    /// The slowest workers, whose clocks hold back the frontier. Empty if the reader's own pushes
    /// are missing.
    pub on: Vec<WorkerId>,
}

/// From a shard to a subscribed worker: the rows of its subscription that changed while the
/// frontier moved from `from` to the head's clock. The worker updates its cache, and acknowledges
/// by `Refreshed`.
#[derive(Clone, Debug, PartialEq)]
pub struct Refresh {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The number of the subscription's sequence. A new sequence starts when the shard has dropped
    /// the subscription.
    pub sequence: u64,
    /// The changes that it carries. With the last chunk, the cached rows are fresh at the head's
    /// clock.
    pub changes: ChangeChunk,
    /// Cached rows that are fresh at this frontier, or a later one, become fresh at the head's
    /// clock.
    pub from: Clock,
    /// Clocks in between whose update was skipped for all workers.
    pub failed: Vec<FailedClock>,
    /// The highest sequence number of the reader's own stream that the rows hold.
    pub contains: u64,
    /// The positions of the changed rows, u64 each.
    pub positions: Payload,
    /// The rows, one after the other.
    pub values: Payload,
}

/// A delta, from a shard to a worker that asked for deltas: how rows changed, encoded once for all
/// readers. Workers add deltas to their cached rows in order, so that all hold the same values.
/// Later deltas contain what codecs left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The number of the sequence of deltas. A new sequence starts when workers must read cached
    /// rows again.
    pub sequence: u64,
    /// The changes that it carries. Cached rows change with the last chunk, not before.
    pub changes: ChangeChunk,
    /// The frontier that cached rows reach with the last chunk.
    pub reaches: Clock,
    /// The keys of the rows.
    pub keys: KeyPart,
    /// The differences, encoded by the codecs that the head names.
    pub values: Payload,
}

/// A worker's acknowledgement of refreshes. The shard drops a subscriber that is too far behind.
#[derive(Clone, Debug, PartialEq)]
pub struct Refreshed {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The number of the subscription's sequence.
    pub sequence: u64,
    /// The last batch of changes that has arrived.
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
