//! The server machine and its shards. It does no I/O and has no clock and no randomness of its own.
//!
//! A [`Server`] holds the shards of one thread. A shard takes in parts of pushes (`intake`), stores
//! rows ([`rows`]), answers reads (`reads`) and sends changed rows to its followers (`follow`): the
//! next replica of its chain, workers' caches, and readers of the change feed.

mod changes;
mod checkpoint;
mod discarded;
mod follow;
mod identity;
mod input;
mod intake;
mod leases;
mod metadata;
mod reads;
mod residual_rows;
pub mod rows;
mod server;
mod shard;
#[cfg(test)]
mod testing;
mod view;

pub use checkpoint::{ImagePositions, ShardImage};
pub use discarded::Discarded;
pub use input::ServerInput;
pub use residual_rows::ResidualRows;
pub use rows::key_lists::LIST_BYTES;
pub use server::{Restored, Server, ServerCounts};
pub use shard::ShardCounts;
