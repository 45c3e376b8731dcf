//! Residuals on their way out of the worker: copied for a checkpoint, or pushed before it leaves.

use super::Worker;
use crate::residuals::{SavedResiduals, batch, residual_rows};
use crate::{Batch, Op};
use types::{Clock, TableId, Time};
use wire::Outbox;

impl Worker {
    /// The coordinator wants a checkpoint, and may ask several times. The worker copies its
    /// residuals if it has come to the checkpoint's clock, and reports what it knows each time.
    pub(super) fn save_residuals(&mut self, number: u64, clock: Clock, out: &mut Outbox) {
        self.checkpoint.want(number, clock);
        if !self.copy_residuals_if_due(out) {
            self.report_residuals(out);
        }
    }

    /// Copies the residuals if the worker has just come to the clock of a checkpoint. Returns
    /// whether it has.
    pub(super) fn copy_residuals_if_due(&mut self, out: &mut Outbox) -> bool {
        if !self.checkpoint.is_due(self.clock) {
            return false;
        }
        let tables = self.tables.values().filter(|table| table.spec.is_checkpointed());
        let residuals = tables.filter_map(|table| {
            let rows = residual_rows(&table.spec, &table.push_codec.residuals())?;
            Some((table.spec.name.clone(), rows))
        });
        self.checkpoint.keep(self.clock, self.identity.id(), residuals.collect());
        self.report_residuals(out);
        true
    }

    fn report_residuals(&self, out: &mut Outbox) {
        self.checkpoint.report(self.clock).into_iter().for_each(|report| self.control(report, out));
    }

    /// Pushes the residuals of the worker's codecs, and encodes nothing from then on. Returns
    /// whether there were any: then the caller ends the clock, so that a mean counts this worker.
    /// Call it when [idle](Worker::is_idle), before the worker [leaves](Worker::leave).
    pub fn flush_residuals(&mut self, now: Time, out: &mut Outbox) -> bool {
        let stopped =
            self.tables.iter_mut().filter_map(|(id, table)| Some((*id, batch(&table.spec, &table.push_codec.stop())?)));
        let residuals: Vec<(TableId, Batch)> = stopped.collect();
        let has_residuals = !residuals.is_empty();
        for (table, batch) in residuals {
            // The batch fits: codecs keep residuals of the table's rows only.
            if let Ok(ticket) = self.submit(now, table, Op::Push { batch }, None, &[], out) {
                // If a shard refuses it, closing the session reports it.
                self.detach(ticket);
            }
        }
        has_residuals
    }

    /// The residuals at the clock of a checkpoint, once. The driver of the worker writes them and
    /// reports that to the coordinator.
    pub fn take_residuals(&mut self) -> Option<SavedResiduals> {
        self.checkpoint.take()
    }
}
