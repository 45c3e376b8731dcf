//! Row state: rows with their updater's state, as shards keep them. They are read from the shards
//! alone, and set by pushes that no codec encodes and no cache adds to.

use crate::calls::{check_count, check_keys, unfit};
use crate::operations::Operation;
use crate::pushes::PushedPart;
use crate::stream::{ReadKeys, Reading};
use crate::ticket::PartialRead;
use crate::{PullTarget, TableFailure, TicketId, Values, Worker};
use types::{Combine, PART_BYTES, TableId, TableSpec, Time};
use wire::{Keys, Outbox, Payload, Pulled, Refusal, Wants, Writes};

impl Worker {
    /// Sets rows, after the tickets named. Each row is its weights followed by its updater's state.
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
        Ok(self.submit(now, table, Operation::Set { keys, values: values.bytes }, after, out))
    }

    /// Pulls rows as they are kept, as fresh as a pull of them would be, after the tickets named:
    /// those of `keys`, or all rows.
    pub fn pull_row_state(
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
            let expected = (keys.len() as u64).saturating_mul(spec.row_bytes() as u64);
            check_count(spec, keys, expected)?;
        }
        Ok(self.submit(now, table, Operation::RowState { keys }, after, out))
    }

    pub(crate) fn start_set(
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
            let Some(table) = self.tables.get_mut(&id) else { return };
            let values = values.slice(rows.start * row_bytes..rows.end * row_bytes);
            let keys = keys.slice(rows);
            // What was pushed before is no part of the rows any more, nor are its residuals.
            table.push_codec.forget(&keys);
            table.cache.iter_mut().for_each(|cache| cache.drop_rows(&keys));
            // It overtakes nothing, so it is sent as soon as something may be.
            let (plain, examples, significance) = (None, None, f64::MAX);
            let (formats, writes) = (codec::Formats::default(), Writes::Rows);
            let part = PushedPart { keys, values, formats, plain, writes, examples, significance };
            self.send_part_of(now, ticket, id, part, out);
        }
    }

    pub(crate) fn start_row_state(
        &mut self,
        now: Time,
        ticket: TicketId,
        id: TableId,
        keys: Option<&Keys>,
        out: &mut Outbox,
    ) {
        let reader = self.clock;
        self.start_read(now, ticket, id, out, |table, requests| {
            for stream in &mut table.streams {
                let range = stream.placed.range;
                let first = requests.parts();
                // In the same parts as rows are read and pushed; a shard answers as much of each as
                // fits.
                let parts = match keys {
                    None => vec![ReadKeys::Scan { range, shard: first }],
                    Some(keys) => {
                        let rows = keys.rows_per_part(table.spec.number, table.spec.width);
                        let parts = keys.parts(range, rows).into_iter().zip(first..);
                        parts.map(|(rows, part)| ReadKeys::RowState { keys: keys.slice(rows), part }).collect()
                    }
                };
                for keys in parts {
                    let part = requests.part(&table.spec, stream, keys);
                    requests.request(stream, Reading { subscribe: false, wants: Wants::RowState, ..part });
                }
            }
            PartialRead::new(PullTarget::empty(table.spec.number), reader).collecting(requests.parts())
        });
    }
}

/// Whether these are rows of the table as it keeps them. Of an updater that only servers know, only
/// they can tell.
fn check_rows(spec: &TableSpec, keys: &Keys, values: &Values) -> Result<(), Refusal> {
    if let Combine::Clock(_) = spec.combine {
        return Err(Refusal::SetByClock);
    }
    if values.number != spec.number {
        return Err(Refusal::WrongNumber { expected: spec.number, found: values.number });
    }
    let (number_bytes, found) = (spec.number.bytes(), values.bytes.len() as u64);
    let row_bytes = match update::row_state_width(spec) {
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

/// How many bytes a row of an answer takes; 0 where there are none. `None` if the answer names rows
/// that were not asked for, or its rows are not as wide as those that came before.
pub(crate) fn row_bytes(spec: &TableSpec, asked: &ReadKeys, before: usize, pulled: &Pulled) -> Option<usize> {
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
