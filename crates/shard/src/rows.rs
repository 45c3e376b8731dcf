//! The rows of one shard: where they lie, how they are found, and what an update does to them.

mod index;
mod initial;
pub(crate) mod key_lists;
pub(crate) mod pending_rows;
pub(crate) mod resolve;
pub(crate) mod row_state;
mod slab;
pub(crate) mod slot_set;
mod spread;

pub use index::Index;
pub(crate) use slab::{Resolved, Rows, RowsError};
