//! Restores a shard from the image of a checkpoint: the rows in pieces, then everything else.

use crate::checkpoint::{ImagePositions, ShardImage};
use crate::discarded::Discarded;
use crate::metadata::ShardMetadata;
use crate::residual_rows::ResidualRows;
use crate::shard::Shard;
use std::sync::Arc;
use types::{Clock, Position};
use update::Number;
use wire::{Head, Keys, Payload, Push, Writes};

/// A shard's image that is being restored.
pub(super) struct Restoring {
    clock: Clock,
    image: ShardImage,
    metadata: ShardMetadata,
    residuals: Arc<Vec<ResidualRows>>,
    /// Rows of the image that are in place.
    restored: usize,
}

impl<T: Number> Shard<T> {
    /// Begins to restore the shard to `clock`; [`restore_some`](Self::restore_some) does it.
    /// Returns why it cannot.
    pub(super) fn begin_restoring(
        &mut self,
        clock: Clock,
        image: ShardImage,
        residuals: Arc<Vec<ResidualRows>>,
    ) -> Result<(), String> {
        let ShardImage { number, stride, places, rows, metadata, .. } = &image;
        if *number != T::TYPE || *stride != self.rows.row_state_width() {
            let ours = T::TYPE;
            let width = self.rows.row_state_width();
            return Err(format!(
                "its rows have {stride} numbers of type {number}, and the table's {width} of {ours}, \
                 the updater's state included; resume with the number type, width and updater of the checkpoint"
            ));
        }
        let count = rows.numbers::<T>().map(<[T]>::len);
        if count.is_none() || count != count_of(places, *stride) {
            return Err(UNEQUAL.to_owned());
        }
        let metadata =
            ShardMetadata::read(metadata).map_err(|error| format!("its metadata cannot be read: {error}"))?;
        // Rows that the image lacks are refused below, so every row is set.
        self.rows.skip_initial_weights();
        self.rows.await_rows(true);
        self.restoring = Some(Box::new(Restoring { clock, image, metadata, residuals, restored: 0 }));
        Ok(())
    }

    /// Puts at most `most` more rows in place, and everything else with the last ones. Returns why
    /// it cannot.
    pub(super) fn restore_some(&mut self, most: usize) -> Result<(), String> {
        let Some(mut restoring) = self.restoring.take() else { return Ok(()) };
        let Restoring { image, restored, .. } = &mut *restoring;
        let count = image.places.count() as usize;
        let end = count.min(*restored + most);
        self.put_rows(image, *restored..end)?;
        *restored = end;
        if end < count {
            self.restoring = Some(restoring);
            return Ok(());
        }
        if self.rows.len() != count {
            let rows = self.rows.len();
            return Err(format!("it has {count} rows, and the table {rows} of them; the file is damaged"));
        }
        let Restoring { clock, image, metadata, residuals, .. } = *restoring;
        self.discarded.push(Discarded::new(image));
        self.rows.await_rows(false);
        self.start_from(clock, metadata, &residuals)
    }

    /// Gives up restoring: the predecessor sends everything.
    pub(super) fn stop_restoring(&mut self) {
        if let Some(restoring) = self.restoring.take() {
            self.rows.await_rows(false);
            self.discarded.push(Discarded::new(restoring.image));
        }
    }

    /// Makes these rows of an image and sets their row state.
    fn put_rows(&mut self, image: &ShardImage, rows: std::ops::Range<usize>) -> Result<(), String> {
        let stride = self.rows.row_state_width();
        let refused = |refusal: wire::Refusal| format!("its rows do not fit the table: {refusal:?}");
        let values = image.rows.numbers::<T>().ok_or(UNEQUAL)?;
        let resolved = match &image.places {
            ImagePositions::Run { first, .. } => {
                let first = first.checked_add(rows.start as u64).ok_or("its positions end beyond the last one")?;
                self.rows.make_run(Position(first), rows.len() as u64).map_err(refused)?
            }
            ImagePositions::List(list) => {
                let mut order: Vec<usize> = rows.collect();
                order.sort_unstable_by_key(|at| list[*at]);
                let positions: Vec<u64> = order.iter().map(|at| list[*at]).collect();
                if positions.windows(2).any(|pair| pair[0] == pair[1]) {
                    return Err("it has two rows at one position; the file is damaged".to_owned());
                }
                let resolved = self.rows.make_rows(&positions).map_err(refused)?;
                let sorted: Vec<T> = order.iter().flat_map(|at| &values[at * stride..][..stride]).copied().collect();
                return self.rows.put_row_state(&resolved, &sorted).ok_or(UNEQUAL.to_owned());
            }
        };
        self.rows.put_row_state(&resolved, &values[rows.start * stride..rows.end * stride]).ok_or(UNEQUAL.to_owned())
    }

    /// Starts from restored rows. Forgets the workers of the earlier run, and what was held for
    /// that clock and later ones, parts of data leases included. The plan's workers begin with that
    /// clock and push again.
    ///
    /// The residuals of the earlier workers are pushed once, as a contribution to that clock. So
    /// they arrive whichever workers take part now.
    fn start_from(&mut self, clock: Clock, metadata: ShardMetadata, residuals: &[ResidualRows]) -> Result<(), String> {
        let streams = std::mem::take(&mut self.streams);
        self.load(metadata);
        self.streams = streams;
        self.streams.start_over();
        self.clocks.start_at(clock, self.streams.present());
        self.leases.lose_open();
        self.rows.lose_open_clocks(&self.spec);
        self.followers.deltas.iter_mut().for_each(|deltas| deltas.start_over_at(self.identity.plan));
        self.apply_residuals(clock, residuals)?;
        self.serving.told(clock, true);
        self.followers.replicas.announce(clock);
        self.start_batches();
        Ok(())
    }

    /// Applies the workers' residuals for rows of this shard, as one contribution.
    fn apply_residuals(&mut self, clock: Clock, residuals: &[ResidualRows]) -> Result<(), String> {
        let width = self.rows.width();
        let range = self.identity.placed.range;
        let mut rows: Vec<(u64, &[f32])> = Vec::new();
        for ResidualRows { width: theirs, runs } in residuals {
            if *theirs as usize != width {
                return Err(format!(
                    "rows of workers' residuals have {theirs} numbers, and the table's {width}; \
                     resume with the width of the checkpoint"
                ));
            }
            let all = runs.iter().flat_map(|(first, values)| (*first..).zip(values.chunks_exact(width)));
            rows.extend(all.filter(|(position, _)| range.contains(Position(*position))));
        }
        if rows.is_empty() {
            return Ok(());
        }
        rows.sort_by_key(|(position, _)| *position);
        let mut positions = Vec::new();
        let mut sums = Vec::<f64>::new();
        for (position, row) in rows {
            if positions.last() != Some(&position) {
                positions.push(position);
                sums.resize(positions.len() * width, 0.0);
            }
            let start = sums.len() - width;
            sums[start..].iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        let values: Vec<T> = sums.into_iter().map(T::from_f64).collect();
        let unfit =
            |_| "workers' residuals do not fit the table; resume with the table spec of the checkpoint".to_owned();
        let keys = Keys::at(self.spec.shape.placement(), &positions).map_err(|error| unfit(error.to_string()))?;
        let push = Push {
            table: self.identity.table,
            shard: self.identity.shard(),
            settled: 0,
            number: T::TYPE,
            writes: Writes::GRADIENTS,
            keys: keys.slice(0..keys.len()).in_full(),
            values: Payload::new(values),
        };
        let head = Head { clock, ..self.identity.plain_head(self.identity.placed.owner) };
        self.contribute(&head, &push).map_err(|_| unfit(String::new()))
    }
}

const UNEQUAL: &str = "its numbers of rows and positions differ; the file is damaged";

fn count_of(places: &ImagePositions, stride: usize) -> Option<usize> {
    usize::try_from(places.count()).ok()?.checked_mul(stride)
}
