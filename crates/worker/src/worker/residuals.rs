//! Residuals on their way out of a worker: copied for a checkpoint, or pushed before it leaves.

use super::Worker;
use crate::residuals::{SavedResiduals, batch, residual_rows};
use crate::{Batch, Op};
use types::{Clock, TableId, Time};
use wire::Outbox;

impl Worker {
    /// A checkpoint is wanted. What is known of it is said, each time.
    pub(super) fn save_residuals(&mut self, number: u64, clock: Clock, out: &mut Outbox) {
        self.checkpoint.want(number, clock);
        if !self.look_at_checkpoint(out) {
            self.say_residuals(out);
        }
    }

    /// Whether it has come to the clock of a checkpoint just now.
    pub(super) fn look_at_checkpoint(&mut self, out: &mut Outbox) -> bool {
        if !self.checkpoint.is_due(self.clock) {
            return false;
        }
        let tables = self.tables.values().filter(|table| table.spec.is_checkpointed());
        let residuals = tables.filter_map(|table| {
            let rows = residual_rows(&table.spec, table.push_codec.residuals())?;
            Some((table.spec.name.clone(), rows))
        });
        self.checkpoint.keep(self.clock, self.identity.id(), residuals.collect());
        self.say_residuals(out);
        true
    }

    fn say_residuals(&self, out: &mut Outbox) {
        self.checkpoint.report(self.clock).into_iter().for_each(|report| self.control(report, out));
    }

    /// Pushes what its codecs have still to send, and encodes nothing from then on. Returns whether
    /// there was anything: then the clock is to be ended, so that a mean counts this worker. Call
    /// it when [idle](Worker::is_idle), before the worker [leaves](Worker::leave).
    pub fn flush_residuals(&mut self, now: Time, out: &mut Outbox) -> bool {
        let stopped =
            self.tables.iter_mut().filter_map(|(id, table)| Some((*id, batch(&table.spec, &table.push_codec.stop())?)));
        let residuals: Vec<(TableId, Batch)> = stopped.collect();
        let pays = !residuals.is_empty();
        for (table, batch) in residuals {
            // It fits: codecs keep residuals of the table's rows alone.
            if let Ok(ticket) = self.submit(now, table, Op::Push { batch }, None, &[], out) {
                // If a shard refuses it, closing the session reports it.
                self.detach(ticket);
            }
        }
        pays
    }

    /// The residuals at the clock of a checkpoint, once. The driver of the worker writes it, and
    /// says so.
    pub fn take_residuals(&mut self) -> Option<SavedResiduals> {
        self.checkpoint.take()
    }
}
