//! Answers to reads, and refreshes: decoded, kept in the caches, and put where the caller wants
//! them.
#![deny(clippy::wildcard_enum_match_arm)]

use crate::cache::{OwnWrite, ReceivedRows};
use crate::pacing::{Pacer, send};
use crate::stream::{ReadKeys, ShardStream, StreamMessage};
use crate::ticket::PartialRead;
use crate::{Worker, active, row_state};
use codec::{Formats, Meter, PayloadDecoder, Stopwatch};
use types::{Clock, Combine, PART_BYTES, TableId, TableSpec, Time};
use wire::{Frame, Head, Keys, Message, Outbox, Payload, Pulled, Refreshed, Refusal, Wants, Writes};

impl Worker {
    /// A shard answers a part of a read.
    pub(super) fn pulled(&mut self, now: Time, head: &Head, pulled: &Pulled, out: &mut Outbox) {
        let sender = self.head();
        let Some(table) = self.tables.get_mut(&pulled.table) else { return };
        table.note_failed(&pulled.failed);
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
        let decoded = decode(
            &mut self.decoder,
            &mut table.decoded,
            self.settings.stopwatch,
            &table.spec,
            head,
            &pulled.values,
            rows,
        );
        let pulled = &decoded.map_or_else(|| pulled.clone(), |values| Pulled { values, ..pulled.clone() });
        let row_bytes = match reading.wants {
            Wants::Values => Some(row_bytes).filter(|row_bytes| pulled.values.len() == rows * row_bytes),
            Wants::Active => Some(0).filter(|_| active::is_whole(reading.keys.slice(), pulled)),
            Wants::RowState => {
                let read = self.tickets.read_mut(reading.ticket);
                row_state::row_bytes(&table.spec, &reading.keys, read.map_or(0, |read| read.row_bytes), pulled)
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
        if let (Some(cache), Some(at), Some(keys)) = (&mut table.delta_cache, pulled.sequence, reading.keys.slice())
            && reading.deltas.is_some()
            && let Some(values) = pulled.values.numbers::<f32>()
        {
            cache.keep(shard, head.clock, at, keys, values);
        } else if let (Some(cache), Some(keys)) = (&mut table.cache, reading.keys.slice())
            && pulled.contains >= stream.acknowledged
            && reading.wants == Wants::Values
        {
            let waiting = waiting(self.pacer.as_ref(), pulled.table, shard);
            let received =
                received_rows(stream, waiting, head.clock, keys, &pulled.values, pulled.contains, table.spec.combine);
            cache.store(&received, pulled.sequence);
        }
        if let Some(read) = self.tickets.read_mut(reading.ticket) {
            match reading.wants {
                Wants::Values => fill(read, &reading.keys, pulled),
                Wants::Active => active::fill(read, &reading.keys, pulled),
                Wants::RowState => {
                    read.row_bytes = row_bytes;
                    fill(read, &reading.keys, pulled);
                }
            }
            read.clock = read.clock.min(head.clock);
            read.note(pulled);
        }
        let goes_on = match &mut reading.keys {
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
            self.requests += 1;
            stream.read(sender, self.requests, reading, out);
            return;
        }
        stream.next_read(sender, out);
        self.part_done(reading.ticket, None);
    }

    /// A shard refreshes rows that the worker has read.
    pub(super) fn refreshed(&mut self, head: &Head, refresh: &wire::Refresh, out: &mut Outbox) {
        let mut reply = self.head();
        let Some(table) = self.tables.get_mut(&refresh.table) else { return };
        table.note_failed(&refresh.failed);
        let Some(stream) = table.streams.get(refresh.shard.0 as usize) else { return };
        self.counts.refreshes += 1;
        reply.to = stream.placed.owner;
        let receipt = Refreshed {
            table: refresh.table,
            shard: refresh.shard,
            sequence: refresh.sequence,
            number: refresh.number,
        };
        send(&mut self.pacer, Frame { head: reply, message: Message::Refreshed(receipt) }, out);
        let Some(cache) = &mut table.cache else { return };
        let Some(positions) = refresh.positions.numbers::<u64>() else { return };
        if refresh.values.len() != positions.len() * table.spec.row_bytes() {
            return;
        }
        if !stream.owns(positions) {
            return;
        }
        let Ok(keys) = Keys::at(table.spec.shape.placement(), positions) else { return };
        let keys = keys.slice(0..keys.len());
        let waiting = waiting(self.pacer.as_ref(), refresh.table, refresh.shard.0 as usize);
        let received =
            received_rows(stream, waiting, head.clock, &keys, &refresh.values, refresh.contains, table.spec.combine);
        cache.refresh(&received, refresh.sequence, refresh.number, refresh.contains >= stream.acknowledged);
    }
}

/// Messages to a shard that wait for bandwidth.
fn waiting(pacer: Option<&Pacer>, table: TableId, shard: usize) -> impl Iterator<Item = &StreamMessage> {
    pacer.into_iter().flat_map(move |pacer| pacer.waiting(table, shard))
}

/// Rows for the cache, with the own writes that they lack.
fn received_rows<'a>(
    stream: &'a ShardStream,
    waiting: impl Iterator<Item = &'a StreamMessage>,
    frontier: Clock,
    keys: &'a wire::KeySlice,
    values: &'a Payload,
    contains: u64,
    combine: Combine,
) -> ReceivedRows<'a> {
    let unseen = stream.unacknowledged.iter().filter(|sent| sent.number > contains).map(|sent| &sent.message);
    let later = unseen.chain(waiting).filter(|_| combine == Combine::Each).filter_map(|message| match message {
        StreamMessage::Push { keys, writes: Writes::Rows, .. } => Some((keys, OwnWrite::Rows)),
        StreamMessage::Push { keys, values, plain, .. } => {
            Some((keys, OwnWrite::Gradients(plain.as_ref().unwrap_or(values))))
        }
        StreamMessage::Marker | StreamMessage::Tune { .. } => None,
    });
    ReceivedRows { shard: stream.placed.shard.0 as usize, frontier, keys, values, later: later.collect() }
}

/// Decodes values; `None` where they are not encoded.
pub(super) fn decode(
    decoder: &mut PayloadDecoder,
    meter: &mut Meter,
    stopwatch: Stopwatch,
    spec: &TableSpec,
    head: &Head,
    values: &Payload,
    rows: usize,
) -> Option<Payload> {
    let formats = Formats(head.codecs.0);
    if formats.leaves_values() {
        return None;
    }
    let bytes = rows.checked_mul(spec.row_bytes()).filter(|bytes| *bytes <= PART_BYTES)?;
    let began = (stopwatch.0)();
    let mut numbers = vec![0u64; bytes.div_ceil(8)];
    let out = &mut bytemuck::cast_slice_mut(&mut numbers)[..bytes];
    // Values that cannot be decoded have the wrong length, too, and are refused for that.
    decoder.decode(formats, values.bytes(), spec.number, spec.width as usize, out).ok()?;
    meter.encoded(bytes, values.len(), 0);
    meter.decoded(bytes, (stopwatch.0)().saturating_sub(began));
    Some(Payload::new(numbers).slice(0..bytes))
}

/// Puts the rows of one part where the caller wants them.
fn fill(read: &mut PartialRead, keys: &ReadKeys, pulled: &Pulled) {
    let row_bytes = read.row_bytes;
    let values = pulled.values.bytes();
    match keys {
        ReadKeys::Straight { row, .. } => {
            read.target.bytes_mut()[row * row_bytes..][..values.len()].copy_from_slice(values);
        }
        ReadKeys::Scattered { rows, .. } => {
            let target = read.target.bytes_mut();
            for (row, value) in rows.iter().zip(values.chunks_exact(row_bytes)) {
                target[*row as usize * row_bytes..][..row_bytes].copy_from_slice(value);
            }
        }
        // Those come from the delta cache.
        ReadKeys::Deltas { .. } => {}
        ReadKeys::Scan { shard, .. } | ReadKeys::RowState { part: shard, .. } => {
            if let Some((positions, rows)) = read.found.get_mut(*shard) {
                positions.extend(pulled.positions.numbers::<u64>().unwrap_or(&[]));
                rows.extend_from_slice(values);
            }
        }
    }
}
