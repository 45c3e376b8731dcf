//! How a read is answered from what is known, and cut into parts and asked for where it is not.

use super::delta_cache::Answer;
use super::stream::{ReadKeys, Reading};
use super::ticket::PendingRead;
use super::{PullTarget, ShardLink, Table, TicketId, Worker, touch};
use codec::Percentage;
use types::{Clock, Combine, Consistency, NumberType, PositionRange, Source, TableId, TableSpec, Time};
use wire::Outbox;
use wire::{Bits, Keys, Wants};

impl Worker {
    #[expect(clippy::too_many_arguments, reason = "a read is named by its ticket, its rows and where they go")]
    pub(super) fn start_pull(
        &mut self,
        now: Time,
        ticket: TicketId,
        id: TableId,
        keys: &Keys,
        mut target: PullTarget,
        own: bool,
        out: &mut Outbox,
    ) {
        let reader = self.clock;
        let head = self.head();
        let Some(table) = self.tables.get_mut(&id) else { return };
        let row_bytes = table.spec.row_bytes();
        let Known { clock, misses, stale } = table.answer(self.source, keys, reader, &mut target);
        let failed =
            if clock < Clock(u64::MAX) || !stale.is_empty() { table.failed_in_view(reader) } else { Vec::new() };
        let missed = misses.as_ref().map_or(keys.len(), Vec::len);
        // Those that steps bring up to date are copies, too, but cost a round trip.
        let cached_rows = keys.len() - missed;
        self.counts.rows_read += keys.len() as u64;
        self.counts.rows_cached += (cached_rows - stale.len()) as u64;
        let steps = table.follows_steps();
        let mut parts = 0;
        let wanted = misses.as_ref().map_or_else(|| keys.clone(), |misses| keys.select(misses));
        let overdue = keys.select(&stale);
        let rows_per_part = wanted.rows_per_part(table.spec.number, table.spec.width);
        for (shard, link) in table.links.iter_mut().enumerate() {
            let mut readings = Vec::new();
            let late = overdue.within(link.placed.range);
            if let (Some(copies), false) = (&table.copies, late.is_empty()) {
                let wanted = late.len() as u64;
                let keys = ReadKeys::Steps { keys: overdue.slice(late.clone()), rows: stale[late].to_vec() };
                readings.push((keys, Some((copies.step(shard), wanted))));
            }
            for rows in wanted.parts(link.placed.range, rows_per_part) {
                let (slice, row) = (wanted.slice(rows.clone()), rows.start);
                let keys = match &misses {
                    Some(misses) => ReadKeys::Scattered { keys: slice, rows: misses[rows].to_vec() },
                    None => ReadKeys::Straight { keys: slice, row },
                };
                readings.push((keys, steps.then_some((0, 0))));
            }
            for (keys, steps) in readings {
                self.requests += 1;
                let mut reading = read_of(&table.spec, link, ticket, reader, keys);
                reading.steps = steps;
                if own && table.spec.combine == Combine::Each {
                    reading.after = link.last();
                }
                touch(link, now);
                link.read(head, self.requests, reading).into_iter().for_each(|frame| out.send(frame));
                parts += 1;
            }
        }
        if let Some(pending) = self.pending.get_mut(&ticket) {
            pending.parts += parts;
            pending.read = Some(PendingRead {
                target,
                active: Bits::none(0),
                row_bytes,
                clock,
                reader,
                released_by: None,
                failed,
                cached_rows,
                found: Vec::new(),
            });
        }
    }

    pub(super) fn start_scan(
        &mut self,
        now: Time,
        ticket: TicketId,
        id: TableId,
        range: PositionRange,
        out: &mut Outbox,
    ) {
        let reader = self.clock;
        let head = self.head();
        let Some(table) = self.tables.get_mut(&id) else { return };
        let mut parts = 0;
        let mut found = Vec::new();
        for link in &mut table.links {
            let first = range.first.max(link.placed.range.first);
            let last = range.last.min(link.placed.range.last);
            if first > last {
                continue;
            }
            self.requests += 1;
            let keys = ReadKeys::Scan { range: PositionRange { first, last }, shard: parts };
            let reading = read_of(&table.spec, link, ticket, reader, keys);
            touch(link, now);
            link.read(head, self.requests, reading).into_iter().for_each(|frame| out.send(frame));
            found.push((Vec::new(), Vec::new()));
            parts += 1;
        }
        let target = room_of(table.spec.number);
        if let Some(pending) = self.pending.get_mut(&ticket) {
            pending.parts = parts;
            let row_bytes = table.spec.row_bytes();
            pending.read = Some(PendingRead {
                target,
                active: Bits::none(0),
                row_bytes,
                clock: Clock(u64::MAX),
                reader,
                released_by: None,
                failed: Vec::new(),
                cached_rows: 0,
                found,
            });
        }
    }
}

/// Room for rows that are collected, and taken when they are all there.
pub(super) fn room_of(number: NumberType) -> PullTarget {
    match number {
        NumberType::F32 => PullTarget::F32(Vec::new()),
        NumberType::F64 => PullTarget::F64(Vec::new()),
        NumberType::I64 => PullTarget::I64(Vec::new()),
    }
}

/// What copies say to a read: what they have put into its target is not part of it.
struct Known {
    /// The smallest frontier among those rows.
    clock: Clock,
    /// By place, rows to be read; `None` for all.
    misses: Option<Vec<u32>>,
    /// By place, copies that steps will bring up to date.
    stale: Vec<u32>,
}

impl Table {
    /// Answers a read from copies as far as the table's rule admits.
    fn answer(&mut self, source: Source, keys: &Keys, reader: Clock, target: &mut PullTarget) -> Known {
        let nothing = || Known { clock: Clock(u64::MAX), misses: None, stale: Vec::new() };
        self.pulls += 1;
        if let (Some(copies), true) = (&self.copies, self.follows_steps()) {
            let Answer { clock, stale, absent } = copies.read(keys, reader, target.bytes_mut());
            // With many misses the whole list goes by its signature.
            if absent.len() * 4 > keys.len() {
                return nothing();
            }
            let misses = Some(absent);
            return Known { clock: clock.unwrap_or(Clock(u64::MAX)), misses, stale };
        }
        let Some(cache) = &self.cache else { return nothing() };
        if let Some(share) = self.skips
            && !skips(source, self.pulls, share)
        {
            return nothing();
        }
        let mut misses = Vec::new();
        let clock = cache.read(keys, reader, target.bytes_mut(), &mut misses);
        // A few misses are asked for by themselves; with many, the whole list goes by its signature.
        if misses.len() * 4 > keys.len() {
            return nothing();
        }
        Known { clock: clock.unwrap_or(Clock(u64::MAX)), misses: Some(misses), stale: Vec::new() }
    }
}

/// Whether this pull is one of the share that older copies may answer: a draw of its own for each.
fn skips(source: Source, pull: u64, share: Percentage) -> bool {
    let mut bits = source.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ pull.wrapping_mul(0xD1B5_4A32_D192_ED03);
    bits = (bits ^ (bits >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    bits ^= bits >> 32;
    ((bits >> 11) as f64) < share.percent() / 100.0 * (1u64 << 53) as f64
}

/// A part of a read at `reader`'s clock. Where the rule promises read-my-writes, it follows what was pushed before it.
pub(super) fn read_of(spec: &TableSpec, link: &ShardLink, ticket: TicketId, reader: Clock, keys: ReadKeys) -> Reading {
    let own = matches!((spec.consistency, spec.combine), (Consistency::Bounded { .. }, Combine::Each));
    let after = if own { link.last() } else { 0 };
    Reading {
        ticket,
        clock: reader,
        after,
        subscribe: spec.consistency.is_eager(),
        steps: None,
        wants: Wants::Values,
        keys,
    }
}
