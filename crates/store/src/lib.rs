//! Checkpoints: writes and reads all that a run needs to resume after everything was lost. They are
//! kept in memory, in a folder, or in an object store.
//!
//! A checkpoint is a folder of [safetensors] files, one for each shard of each table and one for
//! the residuals of each worker, and a manifest that lists them with their lengths and checksums.
//! The manifest is written last, so a checkpoint exists whole or not at all. The checksums show
//! later damage. This crate does not talk to servers or workers: it writes the data that its caller
//! passes.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use store::{Manifest, Positions, RowNumbers, CheckpointShard, Store, TableEntry};
//!
//! let store = Store::open("memory:")?;
//! let writing = store.begin("clicks")?;
//! let shard = CheckpointShard {
//!     table: "weights".into(),
//!     index: 0,
//!     positions: Positions::Run { first: 0, count: 3 },
//!     stride: 1,
//!     rows: RowNumbers::F32([0.5, 1.0, 1.5][..].into()),
//!     metadata: b"the shard's metadata"[..].into(),
//! };
//! let written = writing.shard(&shard)?;
//! let spec = serde_json::json!({ "updater": "sum" });
//! let number = shard.rows.number();
//! let table = TableEntry { name: "weights".into(), spec, number, stride: 1, shards: vec![written] };
//! writing.publish(&Manifest { job: "clicks".into(), clock: 40, shards: 1, tables: vec![table], ..Manifest::default() })?;
//! store.prune(NonZeroUsize::MIN)?;
//!
//! let opened = store.newest(Some("clicks"))?;
//! assert_eq!(opened.manifest().clock, 40);
//! assert_eq!(opened.shard("weights", 0)?, shard);
//! # Ok::<(), store::StoreError>(())
//! ```
//!
//! [safetensors]: https://huggingface.co/docs/safetensors

mod allowed;
mod error;
mod fault;
mod location;
mod manifest;
mod name;
mod objects;
mod opened;
mod residuals;
#[cfg(feature = "s3")]
mod s3;
#[cfg(not(feature = "s3"))]
#[path = "no_s3.rs"]
mod s3;
mod shard;
mod store;
mod tensors;
mod writing;

pub use allowed::{AllowedLocations, absolute};
pub use error::{Problem, StoreError};
pub use location::{FileModes, StoreSettings};
pub use manifest::{Checksum, FileEntry, Manifest, ResidualsEntry, ShardEntry, TableEntry};
pub use name::{CheckpointName, NotAName};
pub use opened::Opened;
pub use residuals::{ResidualBytes, residuals_from_bytes};
pub use shard::{CheckpointShard, Positions, RowNumbers};
pub use store::{Listed, Pruned, Store};
pub use writing::Writing;
