//! Eager tables: what subscribers are told when the frontier moves.

use crate::shard::Shard;
use types::PART_BYTES;
use update::Number;
use wire::{Frame, Message, Outbox, Refresh};

impl<T: Number> Shard<T> {
    /// Tells every subscriber which of its rows changed, and that the others are fresh at the new
    /// frontier.
    pub(crate) fn refresh(&mut self, out: &mut Outbox) {
        let frontier = self.announced();
        let rows_per_part = (PART_BYTES / (self.spec.row_bytes() + 8)).max(1);
        for (worker, rows) in self.subscribers.take_changes() {
            let contains = self.streams[worker.0 as usize].finished();
            let pieces = rows.len().div_ceil(rows_per_part).max(1);
            for piece in 0..pieces {
                let rows = &rows[piece * rows_per_part..rows.len().min((piece + 1) * rows_per_part)];
                let positions: Vec<u64> = rows.iter().map(|(position, _)| *position).collect();
                let slots: Vec<u32> = rows.iter().map(|(_, slot)| *slot).collect();
                let mut values = self.pool.take(rows.len() * self.spec.row_bytes());
                let failed = self.failed.iter();
                self.rows.read(frontier, update::Slots::List(&slots), values.numbers_mut::<T>());
                let Some(subscription) = self.subscribers.get_mut(worker) else { continue };
                let from = subscription.frontier;
                let reached = if piece + 1 == pieces { frontier } else { from };
                subscription.sent(piece + 1 == pieces);
                subscription.frontier = reached;
                let refresh = Refresh {
                    table: self.table,
                    shard: self.placed.shard,
                    sequence: subscription.sequence,
                    number: subscription.number,
                    from,
                    failed: failed.filter(|failed| failed.clock >= from).cloned().collect(),
                    contains,
                    positions: self.pool.copy(&positions),
                    values: values.freeze(),
                };
                let mut head = self.head(worker);
                head.clock = reached;
                self.counts.refreshes += 1;
                out.send(Frame { head, message: Message::Refresh(refresh) });
            }
        }
    }
}
