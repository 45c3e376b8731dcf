//! Rows as they are kept, with their updater's state: read from the shards alone, and set, as pushes that no codec and no cache adds to.

use super::calls::{check_keys, unfit};
use super::pushes::PushedPart;
use super::reads::{read_of, room_of};
use super::stream::{ReadKeys, Reading};
use super::tasks::Task;
use super::ticket::PendingRead;
use super::{TableFailure, TicketId, Values, Worker, touch};
use types::{Clock, Combine, PART_BYTES, TableId, TableSpec, Time};
use wire::Outbox;
use wire::{Bits, Keys, Payload, Pulled, Refusal, Wants, Writes};

impl Worker {
    /// Puts rows in place of those that are there, after the tickets named: of each its weights, followed by its updater's state.
    pub fn set_rows(
        &mut self,
        now: Time,
        table: TableId,
        keys: Keys,
        values: Values,
        after: &[TicketId],
        out: &mut Outbox,
    ) -> Result<TicketId, TableFailure> {
        let spec = self.known(table)?;
        check_keys(spec, &keys)?;
        check_rows(spec, &keys, &values).map_err(|refusal| unfit(spec, refusal))?;
        Ok(self.submit(now, table, Task::Set { keys, values: values.bytes }, after, out))
    }

    /// Pulls rows as they are kept, as fresh as a pull of them would be, after the tickets named: those of `keys`, or all that there are.
    pub fn pull_kept(
        &mut self,
        now: Time,
        table: TableId,
        keys: Option<Keys>,
        after: &[TicketId],
        out: &mut Outbox,
    ) -> Result<TicketId, TableFailure> {
        let spec = self.known(table)?;
        if let Some(keys) = &keys {
            check_keys(spec, keys)?;
            // A run of an ordered table can be longer than anything that fits a shard, or a memory.
            if keys.len() > u32::MAX as usize {
                let expected = (keys.len() as u64).saturating_mul(spec.row_bytes() as u64);
                return Err(unfit(spec, Refusal::WrongLength { expected, found: 0 }));
            }
        }
        Ok(self.submit(now, table, Task::Kept { keys }, after, out))
    }

    pub(super) fn start_set(
        &mut self,
        now: Time,
        ticket: TicketId,
        id: TableId,
        keys: &Keys,
        values: &Payload,
        out: &mut Outbox,
    ) {
        // No rows have no width, and need nobody to set them.
        let Some(row_bytes) = values.len().checked_div(keys.len()) else { return };
        for rows in self.cut(id, keys, row_bytes) {
            let Some(table) = self.tables.get_mut(&id) else { return };
            let values = values.slice(rows.start * row_bytes..rows.end * row_bytes);
            let keys = keys.slice(rows);
            // What was pushed before is no part of the rows any more, and neither is what codecs have left of it.
            table.upward.forget(&keys);
            table.cache.iter_mut().for_each(|cache| cache.give_up(&keys));
            // It overtakes nothing, so it is sent as soon as something may be.
            let (plain, examples, significance) = (None, None, f64::MAX);
            let (formats, writes) = (codec::Formats::default(), Writes::Rows);
            let part = PushedPart { keys, values, formats, plain, writes, examples, significance };
            self.send_part_of(now, ticket, id, part, out);
        }
    }

    pub(super) fn start_kept(
        &mut self,
        now: Time,
        ticket: TicketId,
        id: TableId,
        keys: Option<&Keys>,
        out: &mut Outbox,
    ) {
        let (reader, head) = (self.clock, self.head());
        let Some(table) = self.tables.get_mut(&id) else { return };
        let mut found = Vec::new();
        for link in &mut table.links {
            let range = link.placed.range;
            // In the same parts as rows are read and pushed; a shard answers as much of each as fits.
            let parts = match keys {
                None => vec![ReadKeys::Scan { range, shard: found.len() }],
                Some(keys) => {
                    let rows = keys.rows_per_part(table.spec.number, table.spec.width);
                    let parts = keys.parts(range, rows).into_iter().zip(found.len()..);
                    parts.map(|(rows, part)| ReadKeys::Kept { keys: keys.slice(rows), part }).collect()
                }
            };
            for keys in parts {
                let of = read_of(&table.spec, link, ticket, reader, keys);
                let reading = Reading { subscribe: false, wants: Wants::Kept, ..of };
                self.requests += 1;
                touch(link, now);
                link.read(head, self.requests, reading).into_iter().for_each(|frame| out.send(frame));
                found.push((Vec::new(), Vec::new()));
            }
        }
        let target = room_of(table.spec.number);
        let Some(pending) = self.pending.get_mut(&ticket) else { return };
        pending.parts += found.len();
        pending.read = Some(PendingRead {
            target,
            active: Bits::none(0),
            row_bytes: 0,
            clock: Clock(u64::MAX),
            reader,
            released_by: None,
            failed: Vec::new(),
            cached_rows: 0,
            found,
        });
    }
}

/// Whether these are rows of the table as it keeps them. Of an updater that only servers know, only they can tell.
fn check_rows(spec: &TableSpec, keys: &Keys, values: &Values) -> Result<(), Refusal> {
    if let Combine::Clock(_) = spec.combine {
        return Err(Refusal::SetByClock);
    }
    if values.number != spec.number {
        return Err(Refusal::WrongNumber { expected: spec.number, found: values.number });
    }
    let (number_bytes, found) = (spec.number.bytes(), values.bytes.len() as u64);
    let row_bytes = match update::kept_width(spec) {
        Some(width) => width * number_bytes,
        None => {
            let each = values.bytes.len() / keys.len().max(1);
            each.next_multiple_of(number_bytes).max(spec.row_bytes())
        }
    };
    let expected = (keys.len() as u64).saturating_mul(row_bytes as u64);
    if found != expected {
        return Err(Refusal::WrongLength { expected, found });
    }
    if row_bytes > PART_BYTES {
        return Err(Refusal::WideRows { bytes: row_bytes as u64 });
    }
    Ok(())
}

/// How many bytes a row of an answer takes, if that names rows that were asked for, and its rows are like those that came before. Nothing
/// otherwise; and 0 where there are none.
pub(super) fn row_bytes(spec: &TableSpec, asked: &ReadKeys, before: usize, pulled: &Pulled) -> Option<usize> {
    let positions = pulled.positions.numbers::<u64>()?;
    if let ReadKeys::Kept { keys, .. } = asked {
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
