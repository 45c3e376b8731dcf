//! Error feedback residuals: what the worker's lossy codecs have not sent yet.
//!
//! The worker copies them for a checkpoint when it comes to the checkpoint's clock. By then it has
//! encoded every push of earlier clocks, and none of later clocks. A worker that hears of the
//! checkpoint later copies them only while it has encoded no push of the clock. Otherwise the
//! checkpoint is given up, and the next one lies further ahead. Before it leaves, the worker pushes
//! its residuals without a codec.

use crate::{Batch, Values};
use codec::ResidualRun;
use shard::ResidualRows;
use types::{Clock, NumberType, Placement, TableSpec, WorkerId};
use wire::{Control, Keys, Payload};

/// The residuals of one worker when it came to the clock of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedResiduals {
    /// The number of the checkpoint in the run.
    pub checkpoint: u64,
    /// The worker that has the residuals.
    pub worker: WorkerId,
    /// Residuals by the table's name, for tables that have some.
    pub tables: Vec<(String, ResidualRows)>,
}

/// The last checkpoint that the coordinator asked for, and the state of this worker's residuals for
/// it.
#[derive(Debug, Default)]
pub(crate) struct CheckpointRequest {
    asked: Option<AskedCheckpoint>,
}

#[derive(Debug)]
struct AskedCheckpoint {
    number: u64,
    clock: Clock,
    state: ResidualState,
}

#[derive(Debug)]
enum ResidualState {
    /// The worker has not come to the checkpoint's clock.
    Awaited,
    /// The worker has no residuals.
    Nothing,
    /// The worker is past the clock, or has encoded pushes of it: the residuals with which the
    /// clock began are gone.
    Passed,
    /// The residuals; `None` after the driver has taken them.
    Copied(Option<Box<SavedResiduals>>),
}

impl CheckpointRequest {
    /// The coordinator wants a checkpoint of this number, with the residuals as of this clock.
    /// Ignores a checkpoint that is not newer than the last.
    pub fn want(&mut self, number: u64, clock: Clock) {
        if self.asked.as_ref().is_none_or(|asked| asked.number < number) {
            self.asked = Some(AskedCheckpoint { number, clock, state: ResidualState::Awaited });
        }
    }

    /// Whether a worker at this clock must copy its residuals now.
    pub fn is_due(&self, clock: Clock) -> bool {
        let due = |asked: &AskedCheckpoint| clock >= asked.clock && matches!(asked.state, ResidualState::Awaited);
        self.asked.as_ref().is_some_and(due)
    }

    /// Whether a worker at this clock is at the checkpoint's clock, and not past it.
    pub fn is_at(&self, clock: Clock) -> bool {
        self.asked.as_ref().is_some_and(|asked| clock == asked.clock)
    }

    /// Keeps the residuals of a worker that [`is_due`](Self::is_due), by table. `None`: they are
    /// not those of the checkpoint's clock any more.
    pub fn keep(&mut self, worker: WorkerId, tables: Option<Vec<(String, ResidualRows)>>) {
        let Some(asked) = &mut self.asked else { return };
        asked.state = match tables {
            None => ResidualState::Passed,
            Some(tables) if tables.is_empty() => ResidualState::Nothing,
            Some(tables) => {
                ResidualState::Copied(Some(Box::new(SavedResiduals { checkpoint: asked.number, worker, tables })))
            }
        };
    }

    /// The report of a worker at this clock to the coordinator, if there is something to report.
    pub fn report(&self, clock: Clock) -> Option<Control> {
        let AskedCheckpoint { number, state, .. } = self.asked.as_ref()?;
        match state {
            // The driver of the worker reports it, once the residuals are written.
            ResidualState::Awaited | ResidualState::Copied(_) => None,
            ResidualState::Nothing => Some(Control::ResidualsWritten { number: *number, entry: None }),
            ResidualState::Passed => Some(Control::Passed { number: *number, clock }),
        }
    }

    /// The residuals, once.
    pub fn take(&mut self) -> Option<SavedResiduals> {
        match &mut self.asked.as_mut()?.state {
            ResidualState::Copied(residuals) => residuals.take().map(|residuals| *residuals),
            ResidualState::Awaited | ResidualState::Nothing | ResidualState::Passed => None,
        }
    }
}

/// The rows of these runs whose residuals are not zero. A row may be in more than one run.
fn rows_of(residuals: &[ResidualRun], width: usize) -> impl Iterator<Item = (u64, &[f32])> {
    let rows = residuals.iter().flat_map(move |run| {
        let rows = (0..).zip(run.values.chunks_exact(width));
        rows.map(|(index, row)| (run.first.0.wrapping_add(index), row))
    });
    rows.filter(|(_, row)| row.iter().any(|value| *value != 0.0))
}

/// Residuals of one table as a checkpoint holds them; `None` if there are none. Rows of zeros are
/// left out: a run that resumes would make a row of each, even of one that was deleted.
pub(crate) fn residual_rows(spec: &TableSpec, residuals: &[ResidualRun]) -> Option<ResidualRows> {
    let width = spec.width as usize;
    let mut runs: Vec<(u64, Vec<f32>)> = Vec::new();
    for (position, row) in rows_of(residuals, width) {
        match runs.last_mut() {
            Some((first, values)) if first.checked_add((values.len() / width) as u64) == Some(position) => {
                values.extend_from_slice(row);
            }
            _ => runs.push((position, row.to_vec())),
        }
    }
    (!runs.is_empty()).then_some(ResidualRows { width: spec.width, runs })
}

/// A push of the residuals; `None` if there are none. Adds up a row that is in more than one run.
pub(crate) fn batch(spec: &TableSpec, residuals: &[ResidualRun]) -> Option<Batch> {
    let width = spec.width as usize;
    let mut rows: Vec<(u64, &[f32])> = rows_of(residuals, width).collect();
    rows.sort_by_key(|(position, _)| *position);
    let mut positions: Vec<u64> = Vec::new();
    let mut values: Vec<f32> = Vec::new();
    for (position, row) in rows {
        if positions.last() == Some(&position) {
            let last = values.len() - width;
            values[last..].iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        } else {
            positions.push(position);
            values.extend_from_slice(row);
        }
    }
    let first = *positions.first()?;
    let end = positions.last()?.checked_add(1);
    let placement = spec.shape.placement();
    let keys = match end.filter(|end| placement == Placement::Ordered && end - first == positions.len() as u64) {
        Some(end) => Keys::run(first..end),
        // Cannot fail: the positions are sorted and unique.
        None => Keys::at(placement, &positions).ok()?,
    };
    let values = Values { number: NumberType::F32, bytes: Payload::new(values) };
    Some(Batch { keys, values, examples: 0, lease: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Position;

    fn rows() -> Vec<(String, ResidualRows)> {
        vec![("t".into(), ResidualRows { width: 1, runs: vec![(3, vec![0.5])] })]
    }

    fn run(first: u64, values: &[f32]) -> ResidualRun {
        ResidualRun { first: Position(first), values: values.to_vec() }
    }

    #[test]
    fn checkpoint_request_keeps_only_the_residuals_of_its_clock() {
        let nothing = Control::ResidualsWritten { number: 2, entry: None };
        let passed = Control::Passed { number: 2, clock: Clock(8) };
        // (the worker's clock, its residuals, the report, whether they are kept)
        for (clock, tables, report, kept) in [
            (7, Some(rows()), None, true),
            (7, Some(Vec::new()), Some(nothing.clone()), false),
            (8, Some(Vec::new()), Some(nothing), false),
            (8, None, Some(passed), false),
        ] {
            let mut request = CheckpointRequest::default();
            request.want(2, Clock(7));
            assert!(!request.is_due(Clock(6)) && request.is_due(Clock(clock)));
            assert_eq!(request.is_at(Clock(clock)), clock == 7);
            request.keep(WorkerId(4), tables.clone());
            assert!(!request.is_due(Clock(clock)), "once");
            assert_eq!(request.report(Clock(clock)), report, "at clock {clock}");
            let saved = SavedResiduals { checkpoint: 2, worker: WorkerId(4), tables: tables.unwrap_or_default() };
            assert_eq!([request.take(), request.take()], [kept.then_some(saved), None], "at clock {clock}");
        }
    }

    #[test]
    fn checkpoint_request_is_replaced_only_by_a_later_one() {
        let mut request = CheckpointRequest::default();
        assert!(!request.is_due(Clock(9)) && request.report(Clock(9)).is_none() && request.take().is_none());
        request.want(2, Clock(7));
        request.keep(WorkerId(4), Some(rows()));
        for number in [1, 2] {
            request.want(number, Clock(9));
            assert!(!request.is_due(Clock(9)), "{number} was asked before");
        }
        request.want(3, Clock(9));
        assert!(request.is_due(Clock(9)) && request.take().is_none());
    }

    #[test]
    fn residual_rows_leave_out_rows_of_zeros() {
        let spec = TableSpec::dense("t", 9, 2);
        // (the runs, the runs that a checkpoint holds)
        let cases = [
            (vec![run(3, &[0.0, 0.0])], vec![]),
            (vec![run(3, &[0.0; 4]), run(7, &[0.0, 2.0])], vec![(7, vec![0.0, 2.0])]),
            (
                vec![run(2, &[0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 2.0, 2.0, 0.0, 3.0, 0.0, 0.0])],
                vec![(3, vec![1.0, 0.0]), (5, vec![2.0, 2.0, 0.0, 3.0])],
            ),
            (vec![run(u64::MAX, &[1.0, 1.0])], vec![(u64::MAX, vec![1.0, 1.0])]),
        ];
        for (runs, expected) in cases {
            let rows = residual_rows(&spec, &runs);
            assert_eq!(rows.map_or_else(Vec::new, |rows| rows.runs), expected, "{runs:?}");
        }
    }

    #[test]
    fn residual_batch_adds_up_runs_that_name_a_row_twice() {
        let spec = TableSpec::dense("t", 9, 2);
        // (the runs, the positions that are pushed, their values)
        let cases: [(Vec<ResidualRun>, &[u64], &[f32]); 3] = [
            (vec![run(4, &[0.0; 4])], &[], &[]),
            (vec![run(4, &[1.0, 2.0, 3.0, 4.0]), run(5, &[0.5, 0.5])], &[4, 5], &[1.0, 2.0, 3.5, 4.5]),
            (vec![run(8, &[1.0, 1.0]), run(2, &[7.0, 0.0])], &[2, 8], &[7.0, 0.0, 1.0, 1.0]),
        ];
        for (runs, positions, values) in cases {
            let batch = batch(&spec, &runs);
            let pushed: Vec<u64> = batch
                .iter()
                .flat_map(|batch| (0..batch.keys.len()).map(|index| batch.keys.position(index).0))
                .collect();
            assert_eq!(pushed, positions);
            assert_eq!(batch.as_ref().and_then(|batch| batch.values.bytes.numbers::<f32>()).unwrap_or(&[]), values);
        }
    }
}
