//! Reads of the active set: the worker asks the shards which rows are active. They answer with one
//! bit for each row.

use super::Worker;
use crate::send::message::{ReadKeys, Reading};
use crate::ticket::PartialRead;
use crate::{PullTarget, TicketId};
use types::{TableId, Time};
use wire::{Bits, KeySlice, Keys, Outbox, Pulled, Wants};

impl Worker {
    pub(super) fn start_active(&mut self, now: Time, ticket: TicketId, id: TableId, keys: &Keys, out: &mut Outbox) {
        let reader = self.clock;
        self.start_read(now, ticket, id, out, |table, requests| {
            let rows_per_part = keys.rows_per_part(table.spec.number, table.spec.width);
            for stream in &mut table.streams {
                // Cut into the same parts as pulls and pushes, because the shard knows the list by
                // these parts.
                for rows in keys.parts(stream.range(), rows_per_part) {
                    let keys = ReadKeys::Straight { row: rows.start, keys: keys.slice(rows) };
                    let part = requests.part(&table.spec, stream, keys);
                    requests.request(stream, Reading { subscribe: false, wants: Wants::Active, ..part });
                }
            }
            PartialRead::new(PullTarget::F32(Vec::new()), reader).of_active(keys.len())
        });
    }
}

/// Whether an answer has a bit for each key.
pub(super) fn is_whole(keys: Option<&KeySlice>, pulled: &Pulled) -> bool {
    pulled.values.is_empty() && Bits::read(keys.map_or(0, KeySlice::len), pulled.positions.bytes()).is_some()
}

/// Copies the bits of one part to their places in the answer.
pub(super) fn fill(read: &mut PartialRead, keys: &ReadKeys, pulled: &Pulled) {
    let ReadKeys::Straight { keys, row } = keys else { return };
    let bits = Bits::read(keys.len(), pulled.positions.bytes());
    bits.iter().flat_map(Bits::indices).for_each(|index| read.set_active(row + index));
}
