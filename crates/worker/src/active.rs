//! Which rows are active: asked of the shards as rows are, and answered by a bit for each.

use super::calls::{check_keys, unfit};
use super::reads::read_of;
use super::stream::{ReadKeys, Reading};
use super::tasks::Task;
use super::ticket::PendingRead;
use super::{PullTarget, TableFailure, TicketId, Worker, touch};
use types::{Clock, TableId, Time};
use wire::Outbox;
use wire::{Bits, Keys, Pulled, Refusal, Slice, Wants};

impl Worker {
    /// Asks which of these rows are active, as fresh as a pull of them would be.
    pub fn active(
        &mut self,
        now: Time,
        table: TableId,
        keys: Keys,
        after: &[TicketId],
        out: &mut Outbox,
    ) -> Result<TicketId, TableFailure> {
        let spec = self.known(table)?;
        check_keys(spec, &keys)?;
        // A run of an ordered table can be longer than anything that fits a shard, or a memory.
        if keys.len() > u32::MAX as usize {
            let expected = keys.len().div_ceil(8) as u64;
            return Err(unfit(spec, Refusal::WrongLength { expected, found: 0 }));
        }
        Ok(self.submit(now, table, Task::Active { keys }, after, out))
    }

    pub(super) fn start_active(&mut self, now: Time, ticket: TicketId, id: TableId, keys: &Keys, out: &mut Outbox) {
        let (reader, head) = (self.clock, self.head());
        let Some(table) = self.tables.get_mut(&id) else { return };
        let rows_per_part = keys.rows_per_part(table.spec.number, table.spec.width);
        let mut parts = 0;
        for link in &mut table.links {
            // In the same parts as rows are read and pushed, by which the shard knows the list.
            for rows in keys.parts(link.placed.range, rows_per_part) {
                let keys = ReadKeys::Straight { row: rows.start, keys: keys.slice(rows) };
                let reading = Reading {
                    subscribe: false,
                    wants: Wants::Active,
                    ..read_of(&table.spec, link, ticket, reader, keys)
                };
                self.requests += 1;
                touch(link, now);
                link.read(head, self.requests, reading).into_iter().for_each(|frame| out.send(frame));
                parts += 1;
            }
        }
        let Some(pending) = self.pending.get_mut(&ticket) else { return };
        pending.parts += parts;
        pending.read = Some(PendingRead {
            target: PullTarget::F32(Vec::new()),
            active: Bits::none(keys.len()),
            row_bytes: 0,
            clock: Clock(u64::MAX),
            reader,
            released_by: None,
            failed: Vec::new(),
            cached_rows: 0,
            found: Vec::new(),
        });
    }
}

/// Whether an answer has a bit for each key.
pub(super) fn is_whole(keys: Option<&Slice>, pulled: &Pulled) -> bool {
    pulled.values.is_empty() && Bits::read(keys.map_or(0, Slice::len), pulled.positions.bytes()).is_some()
}

/// Puts the bits of one part where they belong.
pub(super) fn fill(read: &mut PendingRead, keys: &ReadKeys, pulled: &Pulled) {
    let ReadKeys::Straight { keys, row } = keys else { return };
    let bits = Bits::read(keys.len(), pulled.positions.bytes());
    bits.iter().flat_map(Bits::indices).for_each(|index| read.active.set(row + index));
}
