//! Deltas: the worker adds them to its cached rows, and answers the reads that wait for them.
#![deny(clippy::wildcard_enum_match_arm)]

use crate::cache::CaughtUp;
use crate::send::message::{ReadKeys, Reading};
use crate::worker::Worker;
use types::{PART_BYTES, Time};
use wire::{Delta, Head, KeyPart, Keys, Outbox, Pulled, Wants};

impl Worker {
    /// A delta arrives: the cache adds it if it is the next one. The worker asks for missing deltas
    /// again when a read needs their rows.
    pub(super) fn delta_received(&mut self, head: &Head, delta: &Delta) {
        let Some(table) = self.tables.get_mut(&delta.table) else { return };
        let shard = delta.shard.0 as usize;
        let Some(stream) = table.streams.get(shard) else { return };
        let most = PART_BYTES / table.spec.row_bytes().max(1);
        let count = delta.keys.count().and_then(|count| usize::try_from(count).ok()).filter(|count| *count <= most);
        let (Some(count), true) = (count, table.cache.follows(shard, delta.sequence, delta.changes)) else { return };
        let mut positions = vec![0u64; count];
        match &delta.keys {
            KeyPart::Run { first, .. } => {
                positions.iter_mut().zip(0..).for_each(|(position, index)| *position = first.0.saturating_add(index));
            }
            KeyPart::Packed { packed, .. } if codec::keys::decode(packed.bytes(), &mut positions).is_ok() => {}
            KeyPart::Packed { .. }
            | KeyPart::List { .. }
            | KeyPart::Known { .. }
            | KeyPart::Chosen { .. }
            | KeyPart::Scan { .. } => return,
        }
        if !stream.owns(&positions) {
            return;
        }
        let key_bytes = if let KeyPart::Packed { packed, .. } = &delta.keys { packed.len() } else { 0 };
        let cached = table.cache.cached(&positions);
        let plain = table.decoder.delta(head.codecs, &delta.values, &table.spec, count, cached, key_bytes);
        let values = plain.as_ref().unwrap_or(&delta.values);
        if let Some(changes) =
            values.numbers::<f32>().filter(|changes| changes.len() * 4 == count * table.spec.row_bytes())
        {
            let changes = changes.to_vec();
            table.cache.add_delta(shard, delta.changes, positions, changes, delta.reaches);
            self.counts.deltas += 1;
        }
    }

    /// A shard says that it has sent the deltas that a read asked for. The read takes its rows from
    /// the cache if all deltas have arrived, asks again if some are missing, or reads the rows
    /// whole.
    pub(super) fn caught_up(&mut self, now: Time, head: &Head, pulled: &Pulled, reading: Reading, out: &mut Outbox) {
        let sender = self.head();
        let Some(table) = self.tables.get_mut(&pulled.table) else { return };
        let shard = pulled.shard.0 as usize;
        let Some(stream) = table.streams.get_mut(shard) else { return };
        let ReadKeys::Deltas { keys, rows } = &reading.keys else { return };
        let had = reading.deltas.map(|(had, _)| had);
        let missing = match table.cache.caught_up(shard, head.clock, pulled.sequence, had) {
            CaughtUp::Fresh => {
                let Some(read) = self.tickets.read_mut(reading.ticket) else {
                    return;
                };
                read.note(pulled);
                let (clock, gone) = table.cache.fill(keys, rows, read.target());
                clock.into_iter().for_each(|clock| read.reflects(clock));
                gone
            }
            CaughtUp::AskAgain { last } => {
                let reading = Reading { deltas: Some((last, keys.len() as u64)), ..reading };
                stream.read(sender, self.requests.next(), reading, out);
                return;
            }
            CaughtUp::ReadWhole => (0..keys.len() as u32).collect(),
        };
        // Reads the rows whole that are no longer cached.
        let positions: Vec<u64> = missing.iter().map(|index| keys.position(*index as usize).0).collect();
        let places: Vec<u32> = missing.iter().map(|index| rows[*index as usize]).collect();
        let mut parts = 0;
        if let Ok(keys) = Keys::at(table.spec.shape.placement(), &positions) {
            let rows_per_part = keys.rows_per_part(table.spec.number, table.spec.width);
            for start in (0..keys.len()).step_by(rows_per_part) {
                let end = keys.len().min(start + rows_per_part);
                let keys = ReadKeys::Scattered { keys: keys.slice(start..end), rows: places[start..end].to_vec() };
                let reading = Reading {
                    ticket: reading.ticket,
                    clock: reading.clock,
                    after: reading.after,
                    subscribe: reading.subscribe,
                    deltas: Some((0, 0)),
                    wants: Wants::Values,
                    keys,
                };
                stream.touch(now);
                stream.read(sender, self.requests.next(), reading, out);
                parts += 1;
            }
        }
        stream.next_read(sender, out);
        self.tickets.add_parts(reading.ticket, parts);
        self.part_done(reading.ticket, None);
    }
}
