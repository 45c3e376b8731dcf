//! Answers to reads, and refreshes: the worker decodes them, keeps them in its caches, and copies
//! answers into the caller's memory.
#![deny(clippy::wildcard_enum_match_arm)]

use crate::cache::{LaterWrites, OwnWrite, ShardRows};
use crate::send::message::{ReadKeys, StreamMessage};
use crate::ticket::PartialRead;
use crate::worker::{Worker, active, row_state};
use types::{Combine, Time};
use wire::{FeedPage, Frame, Head, Keys, Message, Outbox, Pulled, Refreshed, Refusal, Wants};

impl Worker {
    /// A shard answers a part of a read.
    pub(super) fn pulled(&mut self, now: Time, head: &Head, pulled: &Pulled, out: &mut Outbox) {
        let sender = self.head();
        let Some(table) = self.tables.get_mut(&pulled.table) else { return };
        table.cache.note_failed(&pulled.failed);
        let Some(stream) = table.streams.get_mut(pulled.shard.0 as usize) else { return };
        stream.touch(now);
        stream.reaches(head.clock);
        if stream.take_frontier_answer(pulled.request) {
            return;
        }
        let Some(mut reading) = stream.take_read(pulled.request) else { return };
        if let ReadKeys::Deltas { .. } = reading.keys {
            return self.caught_up(now, head, pulled, reading, out);
        }
        let row_bytes = table.spec.row_bytes();
        let rows = reading.keys.slice().map_or(pulled.positions.len() / 8, wire::KeySlice::len);
        let decoded = table.decoder.rows(head.codecs, &pulled.values, &table.spec, rows);
        let pulled = &decoded.map_or_else(|| pulled.clone(), |values| Pulled { values, ..pulled.clone() });
        let row_bytes = match reading.wants {
            Wants::Values => Some(row_bytes).filter(|row_bytes| pulled.values.len() == rows * row_bytes),
            // Keys of deleted rows follow, without values.
            Wants::Changes { .. } => Some(row_bytes).filter(|row_bytes| {
                let values = pulled.values.len();
                pulled.positions.len().is_multiple_of(8)
                    && values.is_multiple_of(*row_bytes)
                    && values / row_bytes <= rows
            }),
            Wants::Active => Some(0).filter(|_| active::is_whole(reading.keys.slice(), pulled)),
            Wants::RowState => {
                let read = self.tickets.read_mut(reading.ticket);
                row_state::row_bytes(&table.spec, &reading.keys, read.map_or(0, |read| read.row_bytes()), pulled)
            }
        };
        let Some(row_bytes) = row_bytes else {
            let row_bytes = table.spec.row_bytes();
            let refusal =
                Refusal::WrongLength { expected: (rows * row_bytes) as u64, found: pulled.values.len() as u64 };
            stream.next_read(sender, out);
            return self.part_done(reading.ticket, Some(refusal));
        };
        let shard = pulled.shard.0 as usize;
        if let (Some(keys), Wants::Values) = (reading.keys.slice(), reading.wants) {
            let rows = ShardRows { shard, frontier: head.clock, keys, values: &pulled.values };
            let combine = table.spec.combine;
            let later = || Some(later_writes(combine, self.link.unseen(pulled.table, stream, pulled.contains)?));
            table.cache.store(rows, pulled.sequence, reading.deltas.is_some(), later);
        }
        if let Some(read) = self.tickets.read_mut(reading.ticket) {
            match reading.wants {
                Wants::Values => fill(read, &reading.keys, pulled),
                Wants::Changes { .. } => {
                    read.set_page(FeedPage { clock: head.clock, answer: pulled.clone() });
                }
                Wants::Active => active::fill(read, &reading.keys, pulled),
                Wants::RowState => {
                    read.set_row_bytes(row_bytes);
                    fill(read, &reading.keys, pulled);
                }
            }
            read.reflects(head.clock);
            read.note(pulled);
        }
        let goes_on = match &mut reading.keys {
            // The program itself asks for the next page.
            ReadKeys::Scan { .. } if matches!(reading.wants, Wants::Changes { .. }) => false,
            ReadKeys::Scan { range, .. } => {
                range.first = pulled.more.unwrap_or(range.first);
                pulled.more.is_some()
            }
            ReadKeys::RowState { keys, .. } => {
                *keys = keys.after(rows);
                !keys.is_empty()
            }
            ReadKeys::Straight { .. } | ReadKeys::Scattered { .. } | ReadKeys::Deltas { .. } => false,
        };
        if goes_on {
            stream.read(sender, self.requests.next(), reading, out);
            return;
        }
        stream.next_read(sender, out);
        self.part_done(reading.ticket, None);
    }

    /// A shard refreshes rows that the worker has read: keeps them, and sends a receipt after the
    /// last chunk.
    pub(super) fn refreshed(&mut self, head: &Head, refresh: &wire::Refresh, out: &mut Outbox) {
        let mut reply = self.head();
        let Some(table) = self.tables.get_mut(&refresh.table) else { return };
        table.cache.note_failed(&refresh.failed);
        let Some(stream) = table.streams.get(refresh.shard.0 as usize) else { return };
        self.counts.refreshes += 1;
        reply.to = stream.owner();
        if refresh.changes.ends {
            let receipt = Refreshed {
                table: refresh.table,
                shard: refresh.shard,
                sequence: refresh.sequence,
                number: refresh.changes.to,
            };
            self.link.send(Frame { head: reply, message: Message::Refreshed(receipt) }, out);
        }
        if !table.cache.has_rows() {
            return;
        }
        let Some(positions) = refresh.positions.numbers::<u64>() else { return };
        if refresh.values.len() != positions.len() * table.spec.row_bytes() {
            return;
        }
        if !stream.owns(positions) {
            return;
        }
        let Ok(keys) = Keys::at(table.spec.shape.placement(), positions) else { return };
        let keys = keys.slice(0..keys.len());
        let shard = refresh.shard.0 as usize;
        let unseen = self.link.unseen(refresh.table, stream, refresh.contains);
        let later = unseen.map(|unseen| later_writes(table.spec.combine, unseen));
        let rows = ShardRows { shard, frontier: head.clock, keys: &keys, values: &refresh.values };
        table.cache.refresh(rows, later.as_ref(), refresh.sequence, refresh.changes);
    }
}

/// The worker's own writes among the messages that a shard's answer does not reflect yet.
fn later_writes<'a>(combine: Combine, unseen: impl Iterator<Item = &'a StreamMessage>) -> LaterWrites<'a> {
    let later = unseen.filter(|_| !combine.holds_clocks()).filter_map(|message| match message {
        StreamMessage::Push { keys, writes, .. } if writes.replaces_rows() => Some((keys, OwnWrite::Rows)),
        StreamMessage::Push { keys, values, plain, .. } => {
            Some((keys, OwnWrite::Gradients(plain.as_ref().unwrap_or(values))))
        }
        StreamMessage::Marker | StreamMessage::Tune { .. } => None,
    });
    later.collect()
}

/// Copies the rows of one part into the caller's memory, or adds them to a read that collects rows.
fn fill(read: &mut PartialRead, keys: &ReadKeys, pulled: &Pulled) {
    let values = pulled.values.bytes();
    match keys {
        ReadKeys::Straight { row, .. } => read.put_run(*row, values),
        ReadKeys::Scattered { rows, .. } => read.put_rows(rows, values),
        // These rows come from the delta cache.
        ReadKeys::Deltas { .. } => {}
        ReadKeys::Scan { shard, .. } | ReadKeys::RowState { part: shard, .. } => {
            read.put_found(*shard, pulled.positions.numbers::<u64>().unwrap_or(&[]), values);
        }
    }
}
