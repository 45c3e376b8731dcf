//! Residuals by row: what error feedback has not sent yet. Bounded to a number of rows; counts what
//! it drops.
//!
//! A range of rows that is asked for as a range is stored as one slice and lent without copying.
//! Other rows are stored one by one. When the store is full, a row that was not used recently is
//! evicted (clock eviction, [`SingleRows`]). A range for which there is no room is stored row by
//! row.

use std::collections::BTreeMap;

use types::Position;

use crate::single_rows::SingleRows;

/// The rows of a batch, by rising position.
#[derive(Clone, Copy, Debug)]
pub enum BatchRows<'a> {
    /// Consecutive rows.
    Run {
        /// The position of the first row.
        first: Position,
        /// The number of rows.
        count: usize,
    },
    /// The rows at these positions, which rise strictly.
    List(&'a [u64]),
}

/// Residuals of consecutive rows, as a checkpoint holds them.
#[derive(Clone, Debug, PartialEq)]
pub struct ResidualRun {
    /// The position of the first row.
    pub first: Position,
    /// Whole rows, one after the other.
    pub values: Vec<f32>,
}

/// Residuals that were lost because the store was full.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Dropped {
    /// The number of rows.
    pub rows: u64,
    /// The sum of the squared residuals: the part of the gradients that never arrives.
    pub squared_norm: f64,
}

/// Why residuals from a checkpoint are refused. A refusal changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbsorbError {
    /// A run does not consist of whole rows, or extends past the last position.
    NotRows {
        /// The first position of the run.
        first: Position,
    },
    /// A residual is not a finite number.
    NotFinite {
        /// The first position of its run.
        first: Position,
    },
}

/// Rows in a range, at least. Shorter runs are stored row by row, because a range would cost more
/// than it saves.
const SHORTEST_RUN: usize = 16;

/// The residuals of one table in one encoder.
#[derive(Debug)]
pub struct RowResiduals {
    width: usize,
    max_rows: usize,
    /// Ranges by their first position; they never overlap.
    runs: BTreeMap<u64, Vec<f32>>,
    run_rows: usize,
    single: SingleRows,
    dropped: Dropped,
    scratch: Vec<f32>,
}

impl RowResiduals {
    /// An empty store for rows of `width` values and at most `max_rows` rows.
    #[must_use]
    pub fn new(width: usize, max_rows: usize) -> Self {
        Self {
            width: width.max(1),
            max_rows,
            runs: BTreeMap::new(),
            run_rows: 0,
            single: SingleRows::default(),
            dropped: Dropped::default(),
            scratch: Vec::new(),
        }
    }

    /// The number of rows stored.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.run_rows + self.single.positions.len()
    }

    /// The residuals lost so far.
    #[must_use]
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// Passes the residuals of `rows` to `work`, zeros for rows that have none, and stores what
    /// `work` leaves there.
    pub fn with<R>(&mut self, rows: BatchRows<'_>, work: impl FnOnce(&mut [f32]) -> R) -> R {
        match rows {
            BatchRows::Run { first, count } => {
                if self.has_run(first.0, count)
                    && let Some(residual) = self.run_mut(first.0, count)
                {
                    work(residual)
                } else {
                    self.with_rows((0..count as u64).map(|row| first.0.wrapping_add(row)), count, work)
                }
            }
            BatchRows::List(positions) => self.with_rows(positions.iter().copied(), positions.len(), work),
        }
    }

    /// All residuals, by rising position.
    #[must_use]
    pub fn export(&self) -> Vec<ResidualRun> {
        let runs = self.runs.iter().map(|(&first, values)| (first, values.as_slice()));
        let single = self.single.positions.iter().zip(self.single.values.chunks_exact(self.width));
        let single = single.map(|(&position, values)| (position, values));
        let mut parts: Vec<(u64, &[f32])> = runs.chain(single).collect();
        parts.sort_unstable_by_key(|&(first, _)| first);
        let mut exported: Vec<ResidualRun> = Vec::new();
        for (first, values) in parts {
            match exported.last_mut() {
                Some(last) if last.first.0.checked_add((last.values.len() / self.width) as u64) == Some(first) => {
                    last.values.extend_from_slice(values);
                }
                _ => exported.push(ResidualRun { first: Position(first), values: values.to_vec() }),
            }
        }
        exported
    }

    /// Adds residuals that this or another encoder exported.
    pub fn absorb(&mut self, runs: &[ResidualRun]) -> Result<(), AbsorbError> {
        for ResidualRun { first, values } in runs {
            let rows = (values.len() / self.width) as u64;
            if !values.len().is_multiple_of(self.width) || first.0.checked_add(rows.saturating_sub(1)).is_none() {
                return Err(AbsorbError::NotRows { first: *first });
            }
            if !values.iter().all(|value| value.is_finite()) {
                return Err(AbsorbError::NotFinite { first: *first });
            }
        }
        for ResidualRun { first, values } in runs {
            let rows = BatchRows::Run { first: *first, count: values.len() / self.width };
            self.with(rows, |residual| {
                residual.iter_mut().zip(values).for_each(|(residual, value)| *residual += value)
            });
        }
        Ok(())
    }

    /// Whether these rows lie in one range. Creates the range if they are many and there is room.
    fn has_run(&mut self, first: u64, count: usize) -> bool {
        if self.run_mut(first, count).is_some() {
            return true;
        }
        if count < SHORTEST_RUN {
            return false;
        }
        first.checked_add(count as u64 - 1).is_some_and(|last| self.make_run(first, last))
    }

    fn run_mut(&mut self, first: u64, count: usize) -> Option<&mut [f32]> {
        let (start, values) = self.runs.range_mut(..=first).next_back()?;
        let from = usize::try_from(first - start).ok()?.checked_mul(self.width)?;
        values.get_mut(from..from.checked_add(count.checked_mul(self.width)?)?)
    }

    /// Joins the ranges and rows that overlap `first`…`last` into one range that covers it. Returns
    /// false if there is no room.
    fn make_run(&mut self, first: u64, last: u64) -> bool {
        let width = self.width;
        let end_of = |first: u64, values: &Vec<f32>| first + (values.len() / width - 1) as u64;
        let before = self.runs.range(..first).next_back().filter(|&(&start, values)| end_of(start, values) >= first);
        let within = self.runs.range(first..=last);
        let joined: Vec<u64> = before.into_iter().chain(within).map(|(&start, _)| start).collect();
        let ends = joined.iter().filter_map(|start| self.runs.get(start).map(|values| end_of(*start, values)));
        let start = joined.first().map_or(first, |&start| start.min(first));
        let end = ends.fold(last, u64::max);
        let held: usize =
            joined.iter().filter_map(|start| self.runs.get(start)).map(|values| values.len() / width).sum();
        let Some(rows) = usize::try_from(end - start).ok().and_then(|rows| rows.checked_add(1)) else { return false };
        if self.rows() - held + rows > self.max_rows {
            return false;
        }
        let mut values = vec![0.0; rows * width];
        for old_start in joined {
            let Some(old) = self.runs.remove(&old_start) else { continue };
            let from = (old_start - start) as usize * width;
            values[from..from + old.len()].copy_from_slice(&old);
        }
        for (position, row) in self.single.take_between(start, end, width) {
            let from = (position - start) as usize * width;
            values[from..from + width].copy_from_slice(&row);
        }
        self.runs.insert(start, values);
        self.run_rows += rows - held;
        true
    }

    /// Copies the rows to scratch memory, calls `work`, and stores them again.
    fn with_rows<R>(
        &mut self,
        positions: impl Iterator<Item = u64> + Clone,
        count: usize,
        work: impl FnOnce(&mut [f32]) -> R,
    ) -> R {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.resize(count * self.width, 0.0);
        for (row, position) in scratch.chunks_exact_mut(self.width).zip(positions.clone()) {
            if let Some(kept) = self.row_mut(position) {
                row.copy_from_slice(kept);
            }
        }
        let result = work(&mut scratch);
        // Stored rows go first. A new row may evict a row of this batch, which is then dropped with
        // its new residual.
        let mut new = Vec::new();
        for (row, position) in scratch.chunks_exact(self.width).zip(positions) {
            match self.row_mut(position) {
                Some(kept) => kept.copy_from_slice(row),
                None if row.iter().all(|&value| value == 0.0) => {}
                None => new.push((position, row)),
            }
        }
        new.into_iter().for_each(|(position, row)| self.insert(position, row));
        self.scratch = scratch;
        result
    }

    fn row_mut(&mut self, position: u64) -> Option<&mut [f32]> {
        // Most tables have no ranges, or only ranges.
        if !self.runs.is_empty() && self.run_mut(position, 1).is_some() {
            return self.run_mut(position, 1);
        }
        self.single.row_mut(position, self.width)
    }

    fn insert(&mut self, position: u64, row: &[f32]) {
        let room = self.max_rows - self.run_rows;
        if room == 0 {
            return self.dropped.count(row);
        }
        if self.single.positions.len() >= room {
            let slot = self.single.oldest();
            self.dropped.count(&self.single.values[slot * self.width..][..self.width]);
            return self.single.replace(slot, position, row);
        }
        self.single.push(position, row);
    }
}

impl Dropped {
    fn count(&mut self, row: &[f32]) {
        let squared_norm: f64 = row.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
        if squared_norm > 0.0 {
            self.rows += 1;
            self.squared_norm += squared_norm;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WIDTH: usize = 2;

    fn run(first: u64, count: usize) -> BatchRows<'static> {
        BatchRows::Run { first: Position(first), count }
    }

    fn read(residuals: &mut RowResiduals, rows: BatchRows<'_>) -> Vec<f32> {
        residuals.with(rows, |residual| residual.to_vec())
    }

    #[derive(Clone, Debug)]
    enum Ask {
        Run(u64, usize),
        List(Vec<u64>),
    }

    fn ask() -> impl Strategy<Value = Ask> {
        let run = (0u64..200, 0usize..60).prop_map(|(first, count)| Ask::Run(first, count));
        let list = prop::collection::btree_set(0u64..260, 0..20).prop_map(|set| Ask::List(set.into_iter().collect()));
        prop_oneof![run, list]
    }

    proptest! {
        /// Each row has the residual that was last stored for it, by range or by list, while there
        /// is room.
        #[test]
        fn residuals_stay_with_their_rows(asks in prop::collection::vec(ask(), 1..30)) {
            let mut residuals = RowResiduals::new(WIDTH, 300);
            let mut model: BTreeMap<u64, [f32; WIDTH]> = BTreeMap::new();
            for (step, ask) in asks.iter().enumerate() {
                let positions: Vec<u64> = match ask {
                    Ask::Run(first, count) => (*first..first + *count as u64).collect(),
                    Ask::List(list) => list.clone(),
                };
                let rows = match ask {
                    Ask::Run(first, count) => run(*first, *count),
                    Ask::List(list) => BatchRows::List(list),
                };
                residuals.with(rows, |residual| {
                    prop_assert_eq!(residual.len(), positions.len() * WIDTH);
                    for (row, position) in residual.chunks_mut(WIDTH).zip(&positions) {
                        let kept = model.entry(*position).or_default();
                        prop_assert_eq!(&*row, &kept[..]);
                        row[step % WIDTH] += (step + 1) as f32;
                        kept.copy_from_slice(row);
                    }
                    Ok(())
                })?;
            }
            prop_assert_eq!(residuals.rows(), model.len());
            prop_assert_eq!(residuals.dropped(), Dropped::default());
            let exported = residuals.export();
            let rows = exported.iter().flat_map(|run| {
                run.values.chunks(WIDTH).enumerate().map(|(row, values)| (run.first.0 + row as u64, values.to_vec()))
            });
            prop_assert!(rows.eq(model.iter().map(|(&position, values)| (position, values.to_vec()))));
            let mut other = RowResiduals::new(WIDTH, 300);
            other.absorb(&exported).unwrap();
            prop_assert_eq!(other.export(), exported);
        }

        /// With too little room, the bound holds, and stored plus dropped residuals add up to all
        /// of them.
        #[test]
        fn residuals_keep_their_bound_and_count_what_they_drop(asks in prop::collection::vec(ask(), 1..30), room in 0usize..80) {
            let mut residuals = RowResiduals::new(1, room);
            let mut made = 0.0;
            for ask in &asks {
                let rows = match ask {
                    Ask::Run(first, count) => run(*first, *count),
                    Ask::List(list) => BatchRows::List(list),
                };
                // Each requested row ends with a residual of 1.
                residuals.with(rows, |residual| {
                    made += residual.iter().filter(|&&value| value == 0.0).count() as f64;
                    residual.fill(1.0);
                });
                prop_assert!(residuals.rows() <= room);
            }
            let kept: f32 = residuals.export().iter().flat_map(|run| &run.values).sum();
            let dropped = residuals.dropped();
            prop_assert_eq!(f64::from(kept) + dropped.rows as f64, made);
            prop_assert_eq!(dropped.squared_norm, dropped.rows as f64);
        }
    }

    #[test]
    fn residuals_of_used_rows_stay_and_of_unused_rows_are_evicted() {
        let mut residuals = RowResiduals::new(1, 4);
        for new in 10..100 {
            residuals.with(BatchRows::List(&[1, 2, new]), |residual| residual.fill(5.0));
        }
        assert_eq!(read(&mut residuals, BatchRows::List(&[1, 2])), [5.0, 5.0]);
        assert_eq!(residuals.dropped().rows, 88);
    }

    #[test]
    fn residual_ranges_may_end_at_the_last_position() {
        let mut residuals = RowResiduals::new(1, 100);
        for (first, count) in [(u64::MAX - 31, 32), (u64::MAX - 31, 32), (u64::MAX - 40, 41)] {
            residuals.with(run(first, count), |residual| residual.iter_mut().for_each(|value| *value += 1.0));
        }
        assert_eq!(read(&mut residuals, BatchRows::List(&[u64::MAX - 40, u64::MAX])), [1.0, 3.0]);
        let exported = residuals.export();
        assert_eq!((exported.len(), exported[0].values.len()), (1, 41));
        residuals.absorb(&exported).unwrap();
        assert_eq!(read(&mut residuals, run(u64::MAX - 1, 2)), [6.0, 6.0]);
    }

    #[test]
    fn absorb_adds_residuals_and_refuses_invalid_ones() {
        let mut residuals = RowResiduals::new(2, 100);
        let whole = ResidualRun { first: Position(3), values: vec![1.0, 2.0, 3.0, 4.0] };
        residuals.absorb(&[whole.clone(), whole.clone()]).unwrap();
        assert_eq!(read(&mut residuals, run(3, 2)), [2.0, 4.0, 6.0, 8.0]);
        let first = Position(u64::MAX);
        let table = [
            (ResidualRun { first, values: vec![1.0] }, AbsorbError::NotRows { first }),
            (ResidualRun { first, values: vec![1.0; 4] }, AbsorbError::NotRows { first }),
            (ResidualRun { first, values: vec![1.0, f32::NAN] }, AbsorbError::NotFinite { first }),
        ];
        for (bad, error) in table {
            assert_eq!(residuals.absorb(&[whole.clone(), bad]), Err(error));
        }
        assert_eq!(read(&mut residuals, run(3, 2)), [2.0, 4.0, 6.0, 8.0], "a refusal changes nothing");
        residuals.absorb(&[ResidualRun { first, values: vec![1.0; 2] }]).unwrap();
        assert_eq!(read(&mut residuals, BatchRows::List(&[u64::MAX])), [1.0, 1.0]);
    }
}
