//! Inputs as bytes: a tag, then its fields in the wire's encoding. Reading any bytes returns an
//! error rather than panic.
#![deny(clippy::wildcard_enum_match_arm)]

use super::{KeyListDictionary, RowsOfPush, WorkerInput};
use crate::{Batch, TicketId, Values};
use lease::WorkReport;
use types::{Bandwidth, TableId, Time};
use wire::{Field, Frame, Reader, WireError};

impl WorkerInput {
    /// Appends it to `out`. A key list that `lists` has goes by name; any other goes in full and is
    /// added to `lists`.
    pub fn put(&self, lists: &mut KeyListDictionary, out: &mut Vec<u8>) {
        match self {
            Self::Frame(now, frame) => put_frame(0, *now, frame, out),
            Self::Tick(now) => put_time(2, *now, out),
            Self::Reconnected(now, node) => {
                put_time(3, *now, out);
                node.put(out);
            }
            Self::Heartbeat => out.push(4),
            Self::MakeTable(spec) => {
                out.push(5);
                spec.put(out);
            }
            Self::Push(now, table, batch, after) => put_batch(6, *now, *table, batch, after, lists, out),
            Self::Pull(now, table, keys, after) => {
                put_time(7, *now, out);
                table.put(out);
                lists.put(keys, out);
                after.put(out);
            }
            Self::PushPull(now, table, batch, after) => put_batch(8, *now, *table, batch, after, lists, out),
            Self::BeginPush(table, keys, examples) => {
                out.push(9);
                table.put(out);
                lists.put(keys, out);
                examples.put(out);
            }
            Self::PushRows(now, RowsOfPush { ticket, table, keys, rows, values }) => {
                put_time(10, *now, out);
                ticket.put(out);
                table.put(out);
                lists.put(keys, out);
                (rows.start as u64, rows.end as u64).put(out);
                values.put(out);
            }
            Self::EndPush(ticket) => {
                out.push(11);
                ticket.put(out);
            }
            Self::Scan(now, table, range, after) => {
                put_time(12, *now, out);
                table.put(out);
                range.put(out);
                after.put(out);
            }
            Self::Tune(now, table, setting) => {
                put_time(13, *now, out);
                table.put(out);
                setting.put(out);
            }
            Self::EndClock(now) => put_time(14, *now, out),
            Self::Limit(now, bandwidth) => {
                put_time(18, *now, out);
                bandwidth.map(Bandwidth::bytes_per_second).put(out);
            }
            Self::SetRows(now, table, keys, values, after) => {
                put_time(26, *now, out);
                table.put(out);
                lists.put(keys, out);
                values.number.put(out);
                values.bytes.put(out);
                after.put(out);
            }
            Self::PullRowState(now, table, keys, after) => {
                put_time(27, *now, out);
                table.put(out);
                keys.is_some().put(out);
                keys.iter().for_each(|keys| lists.put(keys, out));
                after.put(out);
            }
            Self::Ask(now, table, keys) => {
                put_time(19, *now, out);
                table.put(out);
                lists.put(keys, out);
            }
            Self::OpenLeases(name, terms) => {
                out.push(20);
                name.put(out);
                terms.put(out);
            }
            Self::AskLeases(set, wanted) => {
                out.push(21);
                (*set, *wanted).put(out);
            }
            Self::TakeLeases(set) => {
                out.push(23);
                set.put(out);
            }
            Self::EndLeases(set) => {
                out.push(24);
                set.put(out);
            }
            Self::CommitLease(now, lease, work) => {
                put_time(22, *now, out);
                lease.put(out);
                (work.examples, work.busy).put(out);
            }
            Self::Barrier => out.push(15),
            Self::FlushResiduals(now) => put_time(25, *now, out),
            Self::Leave => out.push(16),
            Self::Fail(reason) => {
                out.push(17);
                reason.put(out);
            }
        }
    }

    /// Reads what [`WorkerInput::put`] has written. `lists` must be as it was for the writer.
    pub fn get(input: &mut Reader<'_>, lists: &mut KeyListDictionary) -> Result<Self, WireError> {
        Ok(match u8::get(input)? {
            0 => Self::Frame(Field::get(input)?, Box::new(Frame::get(input)?)),
            2 => Self::Tick(Field::get(input)?),
            3 => Self::Reconnected(Field::get(input)?, Field::get(input)?),
            4 => Self::Heartbeat,
            5 => Self::MakeTable(Field::get(input)?),
            6 => Self::Push(Field::get(input)?, Field::get(input)?, batch(input, lists)?, Field::get(input)?),
            7 => Self::Pull(Field::get(input)?, Field::get(input)?, lists.get(input)?, Field::get(input)?),
            8 => Self::PushPull(Field::get(input)?, Field::get(input)?, batch(input, lists)?, Field::get(input)?),
            9 => Self::BeginPush(Field::get(input)?, lists.get(input)?, Field::get(input)?),
            10 => Self::PushRows(Field::get(input)?, rows_of_push(input, lists)?),
            11 => Self::EndPush(Field::get(input)?),
            12 => Self::Scan(Field::get(input)?, Field::get(input)?, Field::get(input)?, Field::get(input)?),
            13 => Self::Tune(Field::get(input)?, Field::get(input)?, Field::get(input)?),
            14 => Self::EndClock(Field::get(input)?),
            18 => Self::Limit(Field::get(input)?, Option::get(input)?.map(Bandwidth::from_bytes_per_second)),
            15 => Self::Barrier,
            16 => Self::Leave,
            17 => Self::Fail(Field::get(input)?),
            20 => Self::OpenLeases(Field::get(input)?, Field::get(input)?),
            21 => Self::AskLeases(Field::get(input)?, Field::get(input)?),
            22 => {
                let (now, lease) = (Field::get(input)?, Field::get(input)?);
                Self::CommitLease(now, lease, WorkReport { examples: Field::get(input)?, busy: Field::get(input)? })
            }
            23 => Self::TakeLeases(Field::get(input)?),
            24 => Self::EndLeases(Field::get(input)?),
            25 => Self::FlushResiduals(Field::get(input)?),
            26 => {
                let (now, table, keys) = (Field::get(input)?, Field::get(input)?, lists.get(input)?);
                let values = Values { number: Field::get(input)?, bytes: Field::get(input)? };
                Self::SetRows(now, table, keys, values, Field::get(input)?)
            }
            27 => {
                let (now, table) = (Field::get(input)?, Field::get(input)?);
                let keys = if bool::get(input)? { Some(lists.get(input)?) } else { None };
                Self::PullRowState(now, table, keys, Field::get(input)?)
            }
            19 => Self::Ask(Field::get(input)?, Field::get(input)?, lists.get(input)?),
            _ => return Err(UNKNOWN),
        })
    }
}

const UNKNOWN: WireError = WireError::Malformed("an unknown kind of input");

impl Field for TicketId {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self(Field::get(input)?))
    }
}

fn put_time(tag: u8, now: Time, out: &mut Vec<u8>) {
    out.push(tag);
    now.put(out);
}

fn put_frame(tag: u8, now: Time, frame: &Frame, out: &mut Vec<u8>) {
    put_time(tag, now, out);
    frame.put(out);
}

fn put_batch(
    tag: u8,
    now: Time,
    table: TableId,
    batch: &Batch,
    after: &Vec<TicketId>,
    lists: &mut KeyListDictionary,
    out: &mut Vec<u8>,
) {
    put_time(tag, now, out);
    table.put(out);
    lists.put(&batch.keys, out);
    batch.values.number.put(out);
    batch.values.bytes.put(out);
    batch.examples.put(out);
    batch.lease.put(out);
    after.put(out);
}

fn batch(input: &mut Reader<'_>, lists: &mut KeyListDictionary) -> Result<Batch, WireError> {
    let keys = lists.get(input)?;
    let values = Values { number: Field::get(input)?, bytes: Field::get(input)? };
    Ok(Batch { keys, values, examples: Field::get(input)?, lease: Field::get(input)? })
}

fn rows_of_push(input: &mut Reader<'_>, lists: &mut KeyListDictionary) -> Result<RowsOfPush, WireError> {
    let (ticket, table, keys) = (Field::get(input)?, Field::get(input)?, lists.get(input)?);
    let (start, end) = <(u64, u64)>::get(input)?;
    let values = Field::get(input)?;
    let outside = WireError::Malformed("rows that the list does not have");
    if start >= end || end > keys.len() as u64 {
        return Err(outside);
    }
    let rows = usize::try_from(start).map_err(|_| outside)?..usize::try_from(end).map_err(|_| outside)?;
    Ok(RowsOfPush { ticket, table, keys, rows, values })
}
