//! Row state: rows with their updater's state, as shards keep them. The worker reads row state from
//! shards only. It sets and deletes rows by pushes that no codec encodes and no cache adds.

use super::Worker;
use super::push::PushedPart;
use crate::send::message::{ReadKeys, Reading};
use crate::ticket::PartialRead;
use crate::{PullTarget, TicketId};
use types::{TableId, TableSpec, Time};
use wire::{KeySlice, Keys, Outbox, Payload, Pulled, Wants, Writes};

impl Worker {
    pub(super) fn start_set(
        &mut self,
        now: Time,
        ticket: TicketId,
        id: TableId,
        keys: &Keys,
        values: &Payload,
        out: &mut Outbox,
    ) {
        // An empty batch has no row width, and nothing to set.
        let Some(row_bytes) = values.len().checked_div(keys.len()) else { return };
        for rows in self.cut(id, keys, row_bytes) {
            let values = values.slice(rows.start * row_bytes..rows.end * row_bytes);
            self.replace_part(now, ticket, id, keys.slice(rows), values, Writes::Rows, out);
        }
    }

    pub(super) fn start_delete(&mut self, now: Time, ticket: TicketId, id: TableId, keys: &Keys, out: &mut Outbox) {
        // Cut into the same parts as pulls and pushes, so that a list that the shard knows goes by
        // its signature.
        for rows in self.parts(id, keys) {
            self.replace_part(now, ticket, id, keys.slice(rows), Payload::EMPTY, Writes::Nothing, out);
        }
    }

    /// Sends one part of rows that are set or deleted.
    #[expect(clippy::too_many_arguments, reason = "what is sent, where, and when")]
    fn replace_part(
        &mut self,
        now: Time,
        ticket: TicketId,
        id: TableId,
        keys: KeySlice,
        values: Payload,
        writes: Writes,
        out: &mut Outbox,
    ) {
        let Some(table) = self.tables.get_mut(&id) else { return };
        // Earlier pushes are no part of the new rows, so their residuals are dropped, too.
        table.push_codec.forget(&keys);
        table.cache.drop_rows(&keys);
        let part = PushedPart {
            keys,
            values,
            formats: codec::Formats::default(),
            plain: None,
            writes,
            examples: None,
            // The part overtakes no other part of its shard, so it may go first among the others.
            significance: f64::MAX,
        };
        self.send_part_of(now, ticket, id, part, out);
    }

    pub(super) fn start_row_state(&mut self, now: Time, ticket: TicketId, id: TableId, keys: &Keys, out: &mut Outbox) {
        let reader = self.clock;
        self.start_read(now, ticket, id, out, |table, requests| {
            let rows_per_part = keys.rows_per_part(table.spec.number, table.spec.width);
            for stream in &mut table.streams {
                // Cut into the same parts as pulls and pushes. A shard answers as many rows of each
                // as fit a part of row state.
                for rows in keys.parts(stream.range(), rows_per_part) {
                    let keys = ReadKeys::RowState { keys: keys.slice(rows), part: requests.parts() };
                    let part = requests.part(&table.spec, stream, keys);
                    requests.request(stream, Reading { subscribe: false, wants: Wants::RowState, ..part });
                }
            }
            PartialRead::new(PullTarget::empty(table.spec.number), reader).collecting(requests.parts())
        });
    }
}

/// How many bytes each row of an answer takes. `before`: the row width of earlier answers, or 0 if
/// there were none; an answer without rows returns it. `None` if the answer names rows that the
/// worker did not ask for, or its rows have another width.
pub(super) fn row_bytes(spec: &TableSpec, asked: &ReadKeys, before: usize, pulled: &Pulled) -> Option<usize> {
    let positions = pulled.positions.numbers::<u64>()?;
    if let ReadKeys::RowState { keys, .. } = asked {
        let first =
            positions.iter().zip(0..keys.len()).filter(|(position, index)| keys.position(*index).0 == **position);
        if first.count() < positions.len() || positions.is_empty() != keys.is_empty() {
            return None;
        }
    }
    if positions.is_empty() {
        return pulled.values.is_empty().then_some(before);
    }
    let bytes = pulled.values.len() / positions.len();
    let is_whole = bytes * positions.len() == pulled.values.len() && bytes.is_multiple_of(spec.number.bytes());
    (is_whole && bytes >= spec.row_bytes() && (before == 0 || before == bytes)).then_some(bytes)
}

#[cfg(test)]
mod tests;
