//! Updaters: the rules by which a shard applies gradients to its rows.
//!
//! Tables hold [`Number`]s, and [`Slots`] name the rows of a slab that a batch touches. An
//! [`Updater`] changes and reads those rows, and [`Updaters`] makes one from a table's spec. This
//! crate does no I/O and keeps no time: an [`UpdateStep`] brings what an update needs to know
//! beside the rows.
//!
//! Guarantees:
//! - The same rows, steps and gradients give the same bits on every replica and in every replay.
//! - `sum` and `assign` work in the table's own numbers. All others compute each number in f64 and
//!   round once when they store it, so f32 and f64 tables follow the same formula.
//! - In those others, a sum that would grow past the largest number of its type stays at that
//!   number: a finite gradient never makes their rows infinite.

mod adagrad;
mod adam;
mod ftrl;
mod kernels;
mod momentum;
mod number;
mod proximal;
mod rows;
mod stateless;
#[cfg(test)]
mod testing;
mod updater;
mod updaters;

pub use kernels::{add_into, first_not_finite};
pub use number::Number;
pub use rows::{ABSENT, SLOT_INDEX, Slots};
pub use updater::{UpdateStep, Updater};
pub use updaters::{UnknownUpdater, Updaters, row_state_width};
