//! Reads: answers rows from the caches, and requests the others from the shards, part by part.
//!
//! [`Worker::start_read`] starts every operation that reads: a closure requests the parts and
//! returns the [`PartialRead`] that collects their answers.

use super::Worker;
use super::table::Table;
use crate::cache::CacheAnswer;
use crate::send::message::{ReadKeys, Reading, RequestNumbers};
use crate::send::stream::ShardStream;
use crate::ticket::PartialRead;
use crate::{PullTarget, TicketId};
use types::{Clock, Position, PositionRange, TableId, TableSpec, Time};
use wire::{FeedCursor, Head, Keys, Outbox, Wants};

/// Requests the parts of one read from the streams of a table.
pub(super) struct ReadRequests<'a> {
    now: Time,
    head: Head,
    ticket: TicketId,
    reader: Clock,
    numbers: &'a mut RequestNumbers,
    /// Parts requested so far.
    parts: usize,
    out: &'a mut Outbox,
}

impl ReadRequests<'_> {
    /// How many parts the read has requested so far.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// A part of the read. Where the table promises read-my-writes, the shard answers it after the
    /// pushes before it.
    pub fn part(&self, spec: &TableSpec, stream: &ShardStream, keys: ReadKeys) -> Reading {
        Reading {
            ticket: self.ticket,
            clock: self.reader,
            after: if spec.reads_own_pushes() { stream.last() } else { 0 },
            subscribe: spec.consistency.is_eager(),
            deltas: None,
            wants: Wants::Values,
            keys,
        }
    }

    /// Requests a part from its shard.
    pub fn request(&mut self, stream: &mut ShardStream, reading: Reading) {
        self.parts += 1;
        stream.touch(self.now);
        stream.read(self.head, self.numbers.next(), reading, self.out);
    }
}

impl Worker {
    /// Starts a read: `request` requests its parts, and returns what collects their answers.
    pub(super) fn start_read(
        &mut self,
        now: Time,
        ticket: TicketId,
        id: TableId,
        out: &mut Outbox,
        request: impl FnOnce(&mut Table, &mut ReadRequests<'_>) -> PartialRead,
    ) {
        let head = self.head();
        let reader = self.clock;
        let Some(table) = self.tables.get_mut(&id) else { return };
        let mut requests = ReadRequests { now, head, ticket, reader, numbers: &mut self.requests, parts: 0, out };
        let read = request(table, &mut requests);
        let parts = requests.parts;
        self.tickets.collect(ticket, parts, read);
    }

    #[expect(clippy::too_many_arguments, reason = "a read is named by its ticket, its rows and where they go")]
    pub(super) fn start_pull(
        &mut self,
        now: Time,
        ticket: TicketId,
        id: TableId,
        keys: &Keys,
        mut target: PullTarget,
        own: bool,
        out: &mut Outbox,
    ) {
        let reader = self.clock;
        let mut rows_cached = 0;
        self.start_read(now, ticket, id, out, |table, requests| {
            let mut answer = table.cache.read(keys, reader, table.push_codec.pipeline(), target.bytes_mut());
            let missed = answer.misses.as_ref().map_or(keys.len(), Vec::len);
            // Rows that deltas bring up to date count as cached for the program. They cost a round
            // trip, so the worker's own counts leave them out.
            let cached_rows = keys.len() - missed;
            rows_cached = cached_rows - answer.stale.len();
            table.request_rows(keys, &answer, own, requests);
            let clock = answer.clock;
            let failed = std::mem::take(&mut answer.failed);
            let read = PartialRead::new(target, reader).of_rows(table.spec.row_bytes());
            read.with_cached(cached_rows, clock, failed)
        });
        self.counts.rows_read += keys.len() as u64;
        self.counts.rows_cached += rows_cached as u64;
    }

    pub(super) fn start_scan(
        &mut self,
        now: Time,
        ticket: TicketId,
        id: TableId,
        range: PositionRange,
        row_state: bool,
        out: &mut Outbox,
    ) {
        let reader = self.clock;
        self.start_read(now, ticket, id, out, |table, requests| {
            for stream in &mut table.streams {
                let first = range.first.max(stream.range().first);
                let last = range.last.min(stream.range().last);
                if first > last {
                    continue;
                }
                let keys = ReadKeys::Scan { range: PositionRange { first, last }, shard: requests.parts() };
                let part = requests.part(&table.spec, stream, keys);
                let reading =
                    if row_state { Reading { subscribe: false, wants: Wants::RowState, ..part } } else { part };
                requests.request(stream, reading);
            }
            // The first answer tells how wide row state is.
            let row_bytes = if row_state { 0 } else { table.spec.row_bytes() };
            let read = PartialRead::new(PullTarget::empty(table.spec.number), reader);
            read.of_rows(row_bytes).collecting(requests.parts())
        });
    }

    pub(super) fn start_follow(
        &mut self,
        now: Time,
        ticket: TicketId,
        id: TableId,
        cursor: FeedCursor,
        first: Position,
        out: &mut Outbox,
    ) {
        let reader = self.clock;
        self.start_read(now, ticket, id, out, |table, requests| {
            if let Some(stream) = table.streams.iter_mut().find(|stream| stream.range().contains(first)) {
                let range = PositionRange { first, last: stream.range().last };
                let part = requests.part(&table.spec, stream, ReadKeys::Scan { range, shard: 0 });
                let wants = Wants::Changes { cursor };
                requests.request(stream, Reading { after: 0, subscribe: false, wants, ..part });
            }
            PartialRead::new(PullTarget::empty(table.spec.number), reader)
        });
    }
}

impl Table {
    /// Requests the rows of a pull that the caches do not have: deltas for the stale ones, and the
    /// misses, or all rows, whole.
    fn request_rows(&mut self, keys: &Keys, cached: &CacheAnswer, own: bool, requests: &mut ReadRequests<'_>) {
        let CacheAnswer { stale, asks_deltas, .. } = cached;
        let misses = cached.misses.as_deref();
        let wanted = misses.map_or_else(|| keys.clone(), |misses| keys.select(misses));
        let overdue = keys.select(stale);
        let rows_per_part = wanted.rows_per_part(self.spec.number, self.spec.width);
        for (shard, stream) in self.streams.iter_mut().enumerate() {
            let mut parts = Vec::new();
            let late = overdue.within(stream.range());
            if !late.is_empty() {
                let rows = late.len() as u64;
                let keys = ReadKeys::Deltas { keys: overdue.slice(late.clone()), rows: stale[late].to_vec() };
                parts.push((keys, Some((self.cache.last_delta(shard), rows))));
            }
            for rows in wanted.parts(stream.range(), rows_per_part) {
                let slice = wanted.slice(rows.clone());
                let row = rows.start;
                let keys = match misses {
                    Some(misses) => ReadKeys::Scattered { keys: slice, rows: misses[rows].to_vec() },
                    None => ReadKeys::Straight { keys: slice, row },
                };
                parts.push((keys, asks_deltas.then_some((0, 0))));
            }
            for (keys, deltas) in parts {
                let mut reading = Reading { deltas, ..requests.part(&self.spec, stream, keys) };
                if own && !self.spec.combine.holds_clocks() {
                    reading.after = stream.last();
                }
                requests.request(stream, reading);
            }
        }
    }
}
