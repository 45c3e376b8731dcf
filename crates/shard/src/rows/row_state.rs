//! Rows as they are kept, weights followed by their updater's state: read so, and put so in place
//! of those that are there.

use crate::reads::parked::ParkedRead;
use crate::rows::Resolved;
use crate::rows::resolve::{NotApplied, rows_of};
use crate::shard::Shard;
use types::{Combine, PART_BYTES, Position, PositionRange, WorkerId};
use update::{ABSENT, Number};
use wire::{Head, KeyPart, Pulled, Push, Refusal, Writes};

impl<T: Number> Shard<T> {
    /// Whether a push may write what it says. Where contributions are held apart by clock, no
    /// moment is a row's own.
    pub(crate) fn check_writes(&self, writes: Writes) -> Result<(), NotApplied> {
        match (writes, self.spec.combine) {
            (Writes::Rows, Combine::Clock(_)) => Err(Refusal::SetByClock.into()),
            _ => Ok(()),
        }
    }

    /// Checks rows whole, then puts them in place of those that are there.
    pub(crate) fn put_in_place(&mut self, head: &Head, push: &Push) -> Result<(), NotApplied> {
        let values = self.checked(push, self.rows.row_state_width())?;
        let (resolved, positions) = self.resolve(&push.keys, true)?;
        self.rows.count_examples(head.examples);
        // There is a row for each key: that many were checked, and those that were missing have
        // been made.
        let put = self.rows.put_row_state(&resolved, values);
        debug_assert!(put.is_some(), "{} numbers do not fill the rows", values.len());
        self.changed_at_once(&push.keys, positions.as_ref(), &resolved);
        Ok(())
    }

    /// The rows of a read as they are kept: the first of those that it asks for, as many as are a
    /// part.
    pub(crate) fn collect_row_state(
        &mut self,
        read: &ParkedRead,
        released_by: Option<WorkerId>,
    ) -> Result<Pulled, NotApplied> {
        let (width, keys) = (self.rows.row_state_width(), &read.pull.keys);
        let row_bytes = width * size_of::<T>();
        if row_bytes > PART_BYTES {
            return Err(Refusal::WideRows { bytes: row_bytes as u64 }.into());
        }
        let most = (PART_BYTES / (row_bytes + 8)).max(1);
        let mut more = None;
        let (positions, slots): (Vec<u64>, Vec<u32>) = match keys {
            KeyPart::Scan { range } => {
                let (found, resolved, next) = self.scan_shown(*range, most);
                more = next;
                (found, resolved.each().collect())
            }
            keys => {
                let (resolved, list, count) = self.resolve_read(keys)?;
                let rows: (Vec<u64>, Vec<u32>) = rows_of(keys, list.as_ref(), &resolved).take(most).unzip();
                if let KeyPart::Known { signature, .. } | KeyPart::Chosen { signature, .. } = keys
                    && rows.0.len() < most.min(count)
                {
                    // Only its slots are remembered; spelt out again, it tells which rows they are
                    // of.
                    return Err(NotApplied::UnknownKeys(signature.0));
                }
                rows
            }
        };
        let mut values = self.pool.take(slots.len() * row_bytes);
        for (row, slot) in values.numbers_mut::<T>().chunks_exact_mut(width).zip(&slots) {
            match *slot {
                ABSENT => row.fill(T::ZERO),
                slot => row.copy_from_slice(self.rows.row_state(slot)),
            }
        }
        let positions = self.pool.copy(&positions);
        Ok(Pulled { more, positions, values: values.freeze(), ..self.answered(read, released_by) })
    }

    /// The rows that a scan shows, at most `limit`, and where the next ones start.
    pub(crate) fn scan_shown(&self, range: PositionRange, limit: usize) -> (Vec<u64>, Resolved, Option<Position>) {
        let (mut found, mut resolved, next) = self.rows.scan(range, limit);
        if let Resolved::List(slots) = &mut resolved
            && self.pending_rows.are_kept()
        {
            let shown: Vec<bool> = found.iter().map(|position| !self.pending_rows.contains(*position)).collect();
            let mut each = shown.iter();
            slots.retain(|_| each.next().is_none_or(|shown| *shown));
            let mut each = shown.iter();
            found.retain(|_| each.next().is_none_or(|shown| *shown));
        }
        (found, resolved, next)
    }
}
