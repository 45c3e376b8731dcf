//! The trait [`Updater`], and the [`UpdateStep`] that its methods get.

use crate::rows::{AHEAD, check_length, fetch, row, row_mut};
use crate::{ABSENT, Number, Slots};

/// What an update needs to know beside the rows.
///
/// ```
/// use types::UpdaterSpec;
/// use update::{Updaters, UpdateStep};
///
/// let sgd = Updaters::builtin().make::<f32>(&UpdaterSpec::Sgd { rate: 0.5 }).expect("a built-in one");
/// let mut row = [0.0];
/// sgd.update(&UpdateStep { rate: Some(0.1), examples: 32 }, 1, &mut row, &[1.0]);
/// assert_eq!(row, [-0.1]);                               // the rate of the step, not the spec's
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateStep {
    /// The learning rate to use instead of the spec's, if the program has changed it. Finite and
    /// not negative.
    pub rate: Option<f64>,
    /// t: how many examples this shard has seen, those of this update included.
    pub examples: u64,
}

/// The rule by which a shard applies gradients to rows.
///
/// A table's rows lie one after another in a slab, each `width` weights followed by the updater's
/// state. An updater holds only settings: the same rows, step and gradients must give the same
/// bits, on every replica and in every replay. [`Updaters`](crate::Updaters) shows how to add one.
///
/// ```
/// use update::{UpdateStep, Updater};
///
/// /// The mean of all pushed values; the state beside a weight counts them.
/// struct Mean;
/// impl Updater<f64> for Mean {
///     fn state(&self, width: usize) -> usize { width }
///     fn update(&self, _: &UpdateStep, width: usize, row: &mut [f64], gradient: &[f64]) {
///         let (weights, counts) = row.split_at_mut(width);
///         for ((weight, count), value) in weights.iter_mut().zip(counts).zip(gradient) {
///             *count += 1.0;
///             *weight += (value - *weight) / *count;
///         }
///     }
/// }
///
/// let mut row = [0.0, 0.0];
/// for value in [2.0, 4.0, 6.0] {
///     Mean.update(&UpdateStep::default(), 1, &mut row, &[value]);
/// }
/// assert_eq!(row[0], 4.0);
/// ```
pub trait Updater<T: Number>: Send + Sync {
    /// How many numbers of state a row has beside its `width` weights. They begin as zeros.
    fn state(&self, width: usize) -> usize;

    /// Applies a gradient to one row. `row` is `width` weights followed by state; `gradient` is
    /// `width` finite numbers.
    fn update(&self, step: &UpdateStep, width: usize, row: &mut [T], gradient: &[T]);

    /// Computes what a reader sees of `row`, which is weights and state. `out` is as wide as the
    /// table.
    fn read(&self, step: &UpdateStep, row: &[T], out: &mut [T]) {
        let _ = step;
        out.copy_from_slice(&row[..out.len()]);
    }

    /// Applies a batch to the rows that `slots` name; `gradients` has one row for each. The result
    /// equals `update` on each row in turn.
    ///
    /// # Panics
    /// If `gradients` is not one row for each slot, or a slot lies outside the slab.
    fn update_rows(&self, step: &UpdateStep, width: usize, slab: &mut [T], slots: Slots<'_>, gradients: &[T]) {
        check_length(slots, width, gradients.len());
        let stride = width + self.state(width);
        match slots {
            Slots::Run { first, count } => {
                let run = &mut slab[first * stride..(first + count) * stride];
                for (row, gradient) in run.chunks_exact_mut(stride).zip(gradients.chunks_exact(width)) {
                    self.update(step, width, row, gradient);
                }
            }
            Slots::List(list) => {
                for (list, gradients) in list.chunks(AHEAD).zip(gradients.chunks(AHEAD * width)) {
                    fetch(slab, stride, list);
                    for (&slot, gradient) in list.iter().zip(gradients.chunks_exact(width)) {
                        self.update(step, width, row_mut(slab, stride, slot), gradient);
                    }
                }
            }
        }
    }

    /// Fills `out` with what readers see of the rows that `slots` name. The result equals `read` on
    /// each row in turn, and zeros for absent rows.
    ///
    /// # Panics
    /// If `out` is not one row for each slot, or a slot that is not absent lies outside the slab.
    fn read_rows(&self, step: &UpdateStep, width: usize, slab: &[T], slots: Slots<'_>, out: &mut [T]) {
        check_length(slots, width, out.len());
        let stride = width + self.state(width);
        match slots {
            Slots::Run { first, count } => {
                let run = &slab[first * stride..(first + count) * stride];
                for (row, out) in run.chunks_exact(stride).zip(out.chunks_exact_mut(width)) {
                    self.read(step, row, out);
                }
            }
            Slots::List(list) => {
                for (list, out) in list.chunks(AHEAD).zip(out.chunks_mut(AHEAD * width)) {
                    fetch(slab, stride, list);
                    for (&slot, out) in list.iter().zip(out.chunks_exact_mut(width)) {
                        match slot {
                            ABSENT => out.fill(T::ZERO),
                            slot => self.read(step, row(slab, stride, slot), out),
                        }
                    }
                }
            }
        }
    }
}
