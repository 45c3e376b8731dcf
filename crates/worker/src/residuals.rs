//! What a worker's codecs have still to send: copied for a checkpoint when the worker comes to its clock (every push of clocks before it
//! is encoded by then, and none of later ones), and sent as it is before a worker leaves.

use super::tasks::Task;
use super::{Batch, Values, Worker};
use codec::ResidualRun;
use shard::OwedRows;
use types::{Clock, NumberType, Placement, Position, TableId, TableSpec, Time, WorkerId};
use wire::Outbox;
use wire::{Control, Keys, Payload};

/// What one worker had still to send when it came to the clock of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Owed {
    /// Which checkpoint of the run it is for.
    pub checkpoint: u64,
    /// Whose.
    pub worker: WorkerId,
    /// By table, those of which something is owed.
    pub tables: Vec<(String, OwedRows)>,
}

/// The checkpoint that a worker was last asked for.
pub(super) struct Saving {
    number: u64,
    clock: Clock,
    state: State,
}

enum State {
    /// It has not come to the clock.
    Awaited,
    /// Nothing is owed.
    Nothing,
    /// It is past the clock, and what was owed then is not known any more.
    Passed,
    /// What is owed, until it is taken.
    Copied(Option<Box<Owed>>),
}

impl Worker {
    /// A checkpoint is wanted. What is known of it is said, each time.
    pub(super) fn save_owed(&mut self, number: u64, clock: Clock, out: &mut Outbox) {
        if self.saving.as_ref().is_none_or(|saving| saving.number < number) {
            self.saving = Some(Saving { number, clock, state: State::Awaited });
        }
        if !self.look_at_checkpoint(out) {
            self.say_owed(out);
        }
    }

    /// Whether it has come to the clock of a checkpoint just now.
    pub(super) fn look_at_checkpoint(&mut self, out: &mut Outbox) -> bool {
        let (now, worker) = (self.clock, self.id);
        let Some(saving) = &mut self.saving else { return false };
        if now < saving.clock || !matches!(saving.state, State::Awaited) {
            return false;
        }
        let tables = self.tables.values().filter(|table| table.spec.is_kept());
        let owed = tables.filter_map(|table| {
            let runs =
                table.upward.owed().into_iter().map(|ResidualRun { first: Position(first), values }| (first, values));
            let runs: Vec<_> = runs.filter(|(_, values)| values.iter().any(|value| *value != 0.0)).collect();
            let rows = OwedRows { width: table.spec.width, runs };
            (!rows.runs.is_empty()).then(|| (table.spec.name.clone(), rows))
        });
        let tables: Vec<(String, OwedRows)> = owed.collect();
        saving.state = match (tables.is_empty(), now == saving.clock) {
            (true, _) => State::Nothing,
            (false, false) => State::Passed,
            (false, true) => State::Copied(Some(Box::new(Owed { checkpoint: saving.number, worker, tables }))),
        };
        self.say_owed(out);
        true
    }

    fn say_owed(&self, out: &mut Outbox) {
        let Some(Saving { number, state, .. }) = &self.saving else { return };
        match state {
            // Whoever drives the worker says it, when it is written.
            State::Awaited | State::Copied(_) => {}
            State::Nothing => self.control(Control::Owes { number: *number, entry: None }, out),
            State::Passed => self.control(Control::Passed { number: *number, clock: self.clock }, out),
        }
    }

    /// Pushes what its codecs have still to send, and nothing is encoded from then on. Returns whether there was anything: then the clock is
    /// to be ended, so that a mean counts this worker. To be called when [idle](Worker::is_idle), by a worker that is about to
    /// [leave](Worker::leave).
    pub fn pay(&mut self, now: Time, out: &mut Outbox) -> bool {
        let stopped =
            self.tables.iter_mut().filter_map(|(id, table)| Some((*id, batch(&table.spec, &table.upward.stop())?)));
        let owed: Vec<(TableId, Batch)> = stopped.collect();
        let pays = !owed.is_empty();
        for (table, batch) in owed {
            let ticket = self.submit(now, table, Task::Push { batch, pieces: Vec::new() }, &[], out);
            // If it is refused, whoever closes the session hears of it.
            self.detach(ticket);
        }
        pays
    }

    /// What was owed at the clock of a checkpoint, once. Whoever drives the worker writes it, and says so.
    pub fn take_owed(&mut self) -> Option<Owed> {
        match &mut self.saving.as_mut()?.state {
            State::Copied(owed) => owed.take().map(|owed| *owed),
            State::Awaited | State::Nothing | State::Passed => None,
        }
    }
}

/// A push of what is owed; none if that is nothing. A row may be in more than one run.
fn batch(spec: &TableSpec, owed: &[ResidualRun]) -> Option<Batch> {
    let width = spec.width as usize;
    let rows = owed.iter().flat_map(|run| (run.first.0..).zip(run.values.chunks_exact(width)));
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
