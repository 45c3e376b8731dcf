//! The rows of one shard: where they lie, how they are found, and what an update does to them.

mod index;
mod initial;
mod slab;
mod spread;

pub use index::Index;
pub use slab::{Resolved, Rows, RowsError};
