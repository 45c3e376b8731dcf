//! Pushes: cuts a push into parts, and encodes and sends each part.

use super::Worker;
use crate::leases::LeasedPushPart;
use crate::op::check_keys;
use crate::send::message::StreamMessage;
use crate::send::pacing::{PacedPart, significance};
use crate::send::push_codec::EncodedPart;
use crate::send::stream::ShardStream;
use crate::tickets::TicketPurpose;
use crate::{Batch, RowsOfPush, TableFailure, TicketId};
use codec::Formats;
use std::ops::Range;
use types::{Consistency, TableId, TableSpec, Time};
use wire::{KeySlice, Keys, LeasedPart, Outbox, Payload, Writes};

/// One part of a push, encoded: rows of one shard.
pub(super) struct PushedPart {
    pub keys: KeySlice,
    pub values: Payload,
    pub formats: Formats,
    /// The values as the shard decodes them, if the cache needs them and they differ.
    pub plain: Option<Payload>,
    pub writes: Writes,
    /// For a part of a data lease: its examples. Other parts take those that the shard has not been
    /// told of.
    pub examples: Option<u64>,
    /// How large the change is, relative to the rows it changes.
    pub significance: f64,
}

impl Worker {
    pub(super) fn start_push(
        &mut self,
        now: Time,
        ticket: TicketId,
        id: TableId,
        batch: &Batch,
        leased_parts: Vec<LeasedPushPart>,
        out: &mut Outbox,
    ) {
        let Some(table) = self.tables.get_mut(&id) else { return };
        let row_bytes = table.spec.row_bytes();
        if batch.lease.is_some() {
            for LeasedPushPart { rows, id: part, examples } in leased_parts {
                let values = batch.values.bytes.slice(rows.start * row_bytes..rows.end * row_bytes);
                self.push_part(now, ticket, id, batch.keys.slice(rows), values, Some((part, examples)), out);
            }
            return;
        }
        table.streams.iter_mut().for_each(|stream| stream.add_examples(batch.examples));
        for rows in self.parts(id, &batch.keys) {
            let values = batch.values.bytes.slice(rows.start * row_bytes..rows.end * row_bytes);
            self.push_part(now, ticket, id, batch.keys.slice(rows), values, None, out);
        }
    }

    /// Cuts a list into parts, each of whole rows of one shard. The parts of a shard are in the
    /// order of the list. Shards take turns, so that a caller with only a few unacknowledged parts
    /// keeps all shards busy.
    #[must_use]
    pub fn parts(&self, table: TableId, keys: &Keys) -> Vec<Range<usize>> {
        self.spec(table).map(|spec| self.cut(table, keys, spec.row_bytes())).unwrap_or_default()
    }

    /// As [`Worker::parts`], for rows of this many bytes.
    pub(super) fn cut(&self, table: TableId, keys: &Keys, row_bytes: usize) -> Vec<Range<usize>> {
        let Some(table) = self.tables.get(&table) else { return Vec::new() };
        let number = table.spec.number;
        let mut rows = keys.rows_per_part(number, (row_bytes / number.bytes()) as u32);
        if let Some(part_bytes) = self.link.part_bytes() {
            rows = rows.min((part_bytes / row_bytes.max(1)).max(1));
        }
        let cut = |stream: &ShardStream| keys.parts(stream.range(), rows).into_iter().enumerate();
        let mut parts: Vec<(usize, Range<usize>)> = table.streams.iter().flat_map(cut).collect();
        parts.sort_by_key(|(turn, _)| *turn);
        parts.into_iter().map(|(_, rows)| rows).collect()
    }

    /// Begins a push whose values the program hands over part by part with [`Worker::push_rows`],
    /// and ends with [`Worker::end_push`]. `None` if the push would have to wait: for a table with
    /// a delay, or whose shards do not take pushes of this clock yet.
    pub fn begin_push(&mut self, table: TableId, keys: &Keys, examples: u64) -> Result<Option<TicketId>, TableFailure> {
        let spec = self.known(table)?;
        check_keys(spec, keys)?;
        let delayed = matches!(spec.consistency, Consistency::Delay { .. });
        if delayed || !self.tables.get(&table).is_some_and(|table| table.may_push(self.clock)) {
            return Ok(None);
        }
        let ticket = self.tickets.open(TicketPurpose::of(table), 1);
        self.schedule.begin(ticket, table);
        if let Some(table) = self.tables.get_mut(&table) {
            table.streams.iter_mut().for_each(|stream| stream.add_examples(examples));
        }
        Ok(Some(ticket))
    }

    /// Pushes one of the [`Worker::parts`] of a list. Ignores a part without a push that it fits,
    /// which a damaged recording can hold.
    pub fn push_rows(&mut self, now: Time, part: RowsOfPush, out: &mut Outbox) {
        let RowsOfPush { ticket, table, keys, rows, values } = part;
        if !self.schedule.has_begun(ticket, table) || rows.is_empty() || rows.end > keys.len() {
            return;
        }
        let row_bytes = self.spec(table).map(TableSpec::row_bytes);
        if row_bytes.map(|row_bytes| row_bytes.saturating_mul(rows.len())) != Some(values.len()) {
            return;
        }
        self.push_part(now, ticket, table, keys.slice(rows), values, None, out);
    }

    /// Pushes rows of one shard. `leased`: for a part of a data lease, its id and its examples.
    #[expect(clippy::too_many_arguments, reason = "a part is named by its rows, its ticket and its place in a lease")]
    fn push_part(
        &mut self,
        now: Time,
        ticket: TicketId,
        id: TableId,
        keys: KeySlice,
        values: Payload,
        leased: Option<(LeasedPart, u64)>,
        out: &mut Outbox,
    ) {
        let Some(table) = self.tables.get_mut(&id) else { return };
        let significance = if self.link.is_bounded() {
            significance(table.spec.number, &values, table.cache.squares(&keys))
        } else {
            0.0
        };
        let encoded = table.push_codec.encode(&keys, values);
        let mut plain = None;
        if table.cache.adds_own_pushes() {
            if !encoded.formats.leaves_values() {
                plain = table.push_codec.decode(&encoded, keys.len());
            }
            table.cache.pushed(&keys, plain.as_ref().unwrap_or(&encoded.values));
        }
        let EncodedPart { values, formats } = encoded;
        let (lease, examples) = leased.unzip();
        let writes = Writes::Gradients { lease };
        let part = PushedPart { keys, values, formats, plain, writes, examples, significance };
        self.send_part_of(now, ticket, id, part, out);
    }

    /// Sends one part of a push to the shard that has its rows.
    pub(super) fn send_part_of(
        &mut self,
        now: Time,
        ticket: TicketId,
        id: TableId,
        part: PushedPart,
        out: &mut Outbox,
    ) {
        let PushedPart { keys, values, formats, plain, writes, examples, significance } = part;
        let Some(table) = self.tables.get(&id) else { return };
        let first = keys.position(0);
        let Some(shard) = table.streams.iter().position(|stream| stream.range().contains(first)) else { return };
        let message = StreamMessage::Push { ticket, keys, values, formats, plain, writes };
        self.counts.parts += 1;
        self.tickets.add_parts(ticket, 1);
        self.send_push(now, id, shard, message, examples, significance, out);
    }

    /// Sends a part to a shard, or holds it until there is bandwidth. The part takes `examples`
    /// along, or else those that the shard has not been told of.
    #[expect(clippy::too_many_arguments, reason = "what is sent, where, and when")]
    pub(super) fn send_push(
        &mut self,
        now: Time,
        id: TableId,
        shard: usize,
        message: StreamMessage,
        examples: Option<u64>,
        significance: f64,
        out: &mut Outbox,
    ) {
        let mut head = self.head();
        let Some(table) = self.tables.get_mut(&id) else { return };
        let Some(stream) = table.streams.get_mut(shard) else { return };
        head.examples = examples.unwrap_or_else(|| stream.take_examples());
        self.link.hold(&message);
        if !self.link.is_bounded() {
            return self.link.send_part(now, stream, head, message, out);
        }
        // Sums are the same in any order. Replaced rows and other updaters need the order kept.
        let replaces = matches!(&message, StreamMessage::Push { writes, .. } if writes.replaces_rows());
        let ordered = replaces || !table.spec.combine.holds_clocks() && !table.spec.updater.is_additive();
        let number = self.link.wait(PacedPart { table: id, shard, head, message, significance, ordered });
        self.send_paced(now, out);
        self.counts.waited += u64::from(self.link.has_waiting_part(number));
    }

    /// The program has handed over every part of a push that it began.
    pub fn end_push(&mut self, ticket: TicketId) {
        if self.schedule.end(ticket) {
            self.part_done(ticket, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TABLE, worker_with_table};

    #[test]
    fn push_parts_alternate_between_shards_and_keep_the_order_of_each_shard() {
        // Four rows to a part, and twelve to a shard.
        let worker = worker_with_table(TableSpec::dense("t", 36, 1 << 16), 3);
        let parts = worker.parts(TABLE, &Keys::run(4..36));
        assert_eq!(parts, [0..4, 8..12, 20..24, 4..8, 12..16, 24..28, 16..20, 28..32]);
    }
}
