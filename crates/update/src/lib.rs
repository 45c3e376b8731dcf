//! What a shard does with a gradient.
//!
//! A [`Number`] is what tables hold, [`Slots`] name the rows of a slab that a batch touches, an
//! [`Updater`] changes and reads those rows, and [`Updaters`] makes one from a table's spec.
//! Nothing here does I/O or keeps time: what an update needs to know beside the rows arrives as an
//! [`UpdateStep`].
//!
//! `sum` and `assign` work in the table's own numbers. The others compute each number in f64 and
//! round once when they store it, so an f32 table and an f64 table run the same formula, and a
//! replay gives the same bits. A sum that grows past the largest number of its type stays there: a
//! finite gradient never leaves a row of theirs infinite.

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
pub use rows::{ABSENT, Slots};
pub use updater::{UpdateStep, Updater};
pub use updaters::{UnknownUpdater, Updaters, row_state_width};
