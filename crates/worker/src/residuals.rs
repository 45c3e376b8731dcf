//! Error feedback residuals: what a worker's lossy codecs have not sent yet.
//!
//! They are copied for a checkpoint when the worker comes to its clock: by then every push of
//! earlier clocks is encoded, and none of later ones. Before a worker leaves, they are pushed
//! without a codec.

use super::{Batch, Op, Values, Worker};
use codec::ResidualRun;
use shard::ResidualRows;
use types::{Clock, NumberType, Placement, Position, TableId, TableSpec, Time, WorkerId};
use wire::{Control, Keys, Outbox, Payload};

/// What one worker had still to send when it came to the clock of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedResiduals {
    /// Which checkpoint of the run it is for.
    pub checkpoint: u64,
    /// Whose.
    pub worker: WorkerId,
    /// By table, those that have residuals.
    pub tables: Vec<(String, ResidualRows)>,
}

/// The checkpoint that a worker was last asked for, and how far its residuals are with it.
pub(crate) struct CheckpointRequest {
    number: u64,
    clock: Clock,
    state: ResidualState,
}

enum ResidualState {
    /// It has not come to the clock.
    Awaited,
    /// There are no residuals.
    Nothing,
    /// It is past the clock, and the residuals of that clock are not known any more.
    Passed,
    /// The residuals, until they are taken.
    Copied(Option<Box<SavedResiduals>>),
}

impl Worker {
    /// A checkpoint is wanted. What is known of it is said, each time.
    pub(crate) fn save_residuals(&mut self, number: u64, clock: Clock, out: &mut Outbox) {
        if self.checkpoint.as_ref().is_none_or(|asked| asked.number < number) {
            self.checkpoint = Some(CheckpointRequest { number, clock, state: ResidualState::Awaited });
        }
        if !self.look_at_checkpoint(out) {
            self.say_residuals(out);
        }
    }

    /// Whether it has come to the clock of a checkpoint just now.
    pub(crate) fn look_at_checkpoint(&mut self, out: &mut Outbox) -> bool {
        let (now, worker) = (self.clock, self.id);
        let Some(asked) = &mut self.checkpoint else { return false };
        if now < asked.clock || !matches!(asked.state, ResidualState::Awaited) {
            return false;
        }
        let tables = self.tables.values().filter(|table| table.spec.is_checkpointed());
        let residuals = tables.filter_map(|table| {
            let runs = table
                .push_codec
                .residuals()
                .into_iter()
                .map(|ResidualRun { first: Position(first), values }| (first, values));
            let runs: Vec<_> = runs.filter(|(_, values)| values.iter().any(|value| *value != 0.0)).collect();
            let rows = ResidualRows { width: table.spec.width, runs };
            (!rows.runs.is_empty()).then(|| (table.spec.name.clone(), rows))
        });
        let tables: Vec<(String, ResidualRows)> = residuals.collect();
        asked.state = match (tables.is_empty(), now == asked.clock) {
            (true, _) => ResidualState::Nothing,
            (false, false) => ResidualState::Passed,
            (false, true) => {
                ResidualState::Copied(Some(Box::new(SavedResiduals { checkpoint: asked.number, worker, tables })))
            }
        };
        self.say_residuals(out);
        true
    }

    fn say_residuals(&self, out: &mut Outbox) {
        let Some(CheckpointRequest { number, state, .. }) = &self.checkpoint else { return };
        match state {
            // The driver of the worker says it, when it is written.
            ResidualState::Awaited | ResidualState::Copied(_) => {}
            ResidualState::Nothing => self.control(Control::ResidualsWritten { number: *number, entry: None }, out),
            ResidualState::Passed => self.control(Control::Passed { number: *number, clock: self.clock }, out),
        }
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
        match &mut self.checkpoint.as_mut()?.state {
            ResidualState::Copied(residuals) => residuals.take().map(|residuals| *residuals),
            ResidualState::Awaited | ResidualState::Nothing | ResidualState::Passed => None,
        }
    }
}

/// A push of the residuals; none if there are none. A row may be in more than one run.
fn batch(spec: &TableSpec, residuals: &[ResidualRun]) -> Option<Batch> {
    let width = spec.width as usize;
    let rows = residuals.iter().flat_map(|run| (run.first.0..).zip(run.values.chunks_exact(width)));
    let mut rows: Vec<(u64, &[f32])> = rows.filter(|(_, row)| row.iter().any(|value| *value != 0.0)).collect();
    rows.sort_by_key(|(position, _)| *position);
    let (mut positions, mut values): (Vec<u64>, Vec<f32>) = (Vec::new(), Vec::new());
    for (position, row) in rows {
        if positions.last() == Some(&position) {
            let last = values.len() - width;
            values[last..].iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        } else {
            positions.push(position);
            values.extend_from_slice(row);
        }
    }
    let (first, end) = (*positions.first()?, positions.last()?.checked_add(1));
    let placement = spec.shape.placement();
    let keys = match end.filter(|end| placement == Placement::Ordered && end - first == positions.len() as u64) {
        Some(end) => Keys::run(first..end),
        // They are in order, and each is there once.
        None => Keys::at(placement, &positions).ok()?,
    };
    let values = Values { number: NumberType::F32, bytes: Payload::new(values) };
    Some(Batch { keys, values, examples: 0, lease: None })
}
