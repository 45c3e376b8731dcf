//! Checkpoints through the parts of a shard: copies everything at a clock, and restores a shard
//! from such a copy.

use crate::checkpoint::{ImagePositions, ShardImage};
use crate::metadata::ShardMetadata;
use crate::residual_rows::ResidualRows;
use crate::shard::{AnyShard, Shard};
use types::{Clock, Position, WorkerId};
use update::Number;
use wire::{Head, Keys, Payload, Push, Writes};

impl<T: Number> Shard<T> {
    /// Asks for checkpoint `number` at `clock`. `last`: every worker has left, and none of their
    /// messages is under way. Then the copy holds every clock that any of them has ended.
    pub(super) fn begin_checkpoint(&mut self, number: u64, clock: Clock, last: bool) {
        if !self.spec.is_checkpointed() || !self.checkpoint.ask(number, clock, last) {
            return;
        }
        if last && AnyShard::is_head(self) {
            for worker in (0..self.streams.ranks()).map(WorkerId) {
                self.clocks.leave(worker);
            }
            self.apply_before(clock.max(self.clocks.frontier()));
            self.copy();
        }
        self.look_at_clock();
    }

    /// Copies the shard now if it is the head and its frontier is at the checkpoint's clock
    /// already. Called when a checkpoint is asked for, and when the role changes.
    pub(super) fn look_at_clock(&mut self) {
        if !AnyShard::is_head(self) {
            self.checkpoint.await_again();
        } else if self.checkpoint.stands_at(self.clocks.frontier()) {
            self.copy();
        }
    }

    /// Copies everything for the checkpoint, as it is now.
    pub(super) fn copy(&mut self) {
        let mut checkpoint = std::mem::take(&mut self.checkpoint);
        let Self { identity, spec, rows, .. } = &*self;
        let places = if rows.is_dense() {
            ImagePositions::Run { first: identity.placed.range.first.0, count: rows.len() as u64 }
        } else {
            ImagePositions::List(rows.all_positions())
        };
        let image = |checkpoint, clock| ShardImage {
            checkpoint,
            clock,
            table: identity.table,
            name: spec.name.clone(),
            shard: identity.shard(),
            number: T::TYPE,
            stride: rows.row_state_width(),
            places,
            rows: Payload::new(rows.all_row_state()),
            metadata: self.view().metadata(),
        };
        checkpoint.copied(image);
        self.checkpoint = checkpoint;
    }

    /// Restores the shard to `clock`. Forgets the workers of the earlier run, and what was held for
    /// that clock and later ones, parts of data leases included. The plan's workers begin with that
    /// clock and push again.
    ///
    /// The residuals of the earlier workers are pushed once, as a contribution to that clock. So
    /// they arrive whichever workers take part now.
    pub(super) fn start_from(
        &mut self,
        clock: Clock,
        image: &ShardImage,
        residuals: &[ResidualRows],
    ) -> Result<(), String> {
        let ShardImage { number, stride, places, rows, metadata, .. } = image;
        if *number != T::TYPE || *stride != self.rows.row_state_width() {
            let ours = T::TYPE;
            let width = self.rows.row_state_width();
            return Err(format!(
                "its rows have {stride} numbers of type {number}, and the table's {width} of {ours}, \
                 the updater's state included; resume with the number type, width and updater of the checkpoint"
            ));
        }
        let values = rows.numbers::<T>().filter(|values| Some(values.len()) == count_of(places, *stride));
        let values = values.ok_or("its numbers of rows and positions differ; the file is damaged")?;
        self.put_image(places, values)?;
        let metadata =
            ShardMetadata::read(metadata).map_err(|error| format!("its metadata cannot be read: {error}"))?;
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

    /// Makes the rows of an image and sets their row state.
    fn put_image(&mut self, places: &ImagePositions, values: &[T]) -> Result<(), String> {
        let stride = self.rows.row_state_width();
        let refused = |refusal: wire::Refusal| format!("its rows do not fit the table: {refusal:?}");
        let unequal = "its numbers of rows and positions differ; the file is damaged".to_owned();
        match places {
            ImagePositions::Run { first, count } => {
                let resolved = self.rows.make_run(Position(*first), *count).map_err(refused)?;
                self.rows.put_row_state(&resolved, values).ok_or(unequal)
            }
            ImagePositions::List(list) => {
                let mut order: Vec<usize> = (0..list.len()).collect();
                order.sort_unstable_by_key(|at| list[*at]);
                let positions: Vec<u64> = order.iter().map(|at| list[*at]).collect();
                if positions.windows(2).any(|pair| pair[0] == pair[1]) {
                    return Err("it has two rows at one position; the file is damaged".to_owned());
                }
                let resolved = self.rows.make_rows(&positions).map_err(refused)?;
                let sorted: Vec<T> = order.iter().flat_map(|at| &values[at * stride..][..stride]).copied().collect();
                self.rows.put_row_state(&resolved, &sorted).ok_or(unequal)
            }
        }
    }
}

/// How many numbers the rows at these positions take.
fn count_of(places: &ImagePositions, stride: usize) -> Option<usize> {
    usize::try_from(places.count()).ok()?.checked_mul(stride)
}
