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
        let tables = || self.tables.values().filter(|table| table.spec.is_checkpointed());
        let is_exact = self.checkpoint.is_at(self.clock) && !tables().any(|table| table.push_codec.has_encoded());
        let is_known = is_exact || !tables().any(|table| table.push_codec.keeps_residuals());
        let residuals = is_known.then(|| {
            let residuals = tables().filter_map(|table| {
                let rows = residual_rows(&table.spec, &table.push_codec.residuals())?;
                Some((table.spec.name.clone(), rows))
            });
            residuals.collect()
        });
        self.checkpoint.keep(self.identity.id(), residuals);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TABLE, hear, ones, worker_with_table};
    use types::{Codecs, Combine, Reduce, TableSpec};
    use wire::{Control, Keys, Message};

    /// What a worker tells the coordinator when it hears at clock 1 of a checkpoint at that clock.
    /// `pushes`: whether it has pushed in that clock.
    fn said(codecs: Codecs, pushes: bool) -> Vec<Control> {
        let spec = TableSpec::dense("t", 4, 4).combine(Combine::Clock(Reduce::Sum)).codecs(codecs);
        let mut worker = worker_with_table(spec, 1);
        let mut out = Outbox::new();
        let push = |worker: &mut Worker, out: &mut Outbox| {
            let op = Op::Push { batch: ones(Keys::run(0..4), 4, 1) };
            worker.submit(Time(0), TABLE, op, None, &[], out).expect("fits");
        };
        push(&mut worker, &mut out);
        worker.end_clock(Time(0), &mut out);
        if pushes {
            push(&mut worker, &mut out);
        }
        out.drain().for_each(drop);
        let location = String::new();
        let name = String::new();
        hear(&mut worker, Control::Checkpoint { number: 1, clock: Clock(1), last: false, location, name }, &mut out);
        let saved = worker.take_residuals().map(|saved| saved.tables.len());
        let control = |message| if let Message::Control(control) = message { Some(control) } else { None };
        let said: Vec<Control> = out.drain().filter_map(|frame| control(frame.message)).collect();
        assert_eq!(saved, said.is_empty().then_some(1), "{said:?}");
        said
    }

    #[test]
    fn worker_gives_up_a_checkpoint_if_it_has_encoded_pushes_of_its_clock() {
        let lossy = || Codecs::up(["topk=25%"]);
        let passed = Control::Passed { number: 1, clock: Clock(1) };
        let nothing = Control::ResidualsWritten { number: 1, entry: None };
        assert_eq!(said(lossy(), false), [], "the residuals are saved");
        assert_eq!(said(lossy(), true), [passed]);
        assert_eq!(said(Codecs::default(), true), [nothing], "no codec has residuals");
    }
}
