//! What follows a shard's changes: the next replica of the chain, new replicas that are backfilled,
//! workers that subscribed to rows, and readers of deltas.

pub(crate) mod backfill;
pub(crate) mod deltas;
pub(crate) mod refresh;
pub(crate) mod replica;
pub(crate) mod subscribers;
