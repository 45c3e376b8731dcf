//! The server machine and its shards: no I/O, no clock and no randomness of its own.
//!
//! A [`Server`] holds the shards of one thread. A shard takes parts of pushes in (`intake`), keeps
//! rows ([`rows`]), answers reads (`reads`) and sends changed rows to its followers (`follow`): the
//! next replica of its chain, and the workers' caches.

mod changes;
mod checkpoint;
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
mod view;

pub use checkpoint::{ImagePositions, ShardImage};
pub use input::ServerInput;
pub use residual_rows::ResidualRows;
pub use rows::key_lists::LIST_BYTES;
pub use server::{Restored, Server, ServerCounts};
pub use shard::ShardCounts;
