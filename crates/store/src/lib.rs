//! Checkpoints: what a run needs to go on after everything was lost, in memory, in a folder, or in an object store.
//!
//! A checkpoint is a folder of [safetensors] files, one for each slice of each table, and a manifest that names them with their
//! lengths and checksums. The manifest is written last, so that a checkpoint is there whole or not at all, and what was damaged
//! since is noticed. This crate knows nothing of shards and workers: what it is given is data.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use store::{Manifest, Positions, Rows, Slice, Store, TableEntry};
//!
//! let store = Store::open("memory:")?;
//! let writing = store.begin("clicks")?;
//! let slice = Slice {
//!     table: "weights".into(),
//!     slice: 0,
//!     positions: Positions::Run { first: 0, count: 3 },
//!     stride: 1,
//!     rows: Rows::F32([0.5, 1.0, 1.5][..].into()),
//!     ledger: b"what the shard knew"[..].into(),
//! };
//! let written = writing.slice(&slice)?;
//! let (spec, number) = (serde_json::json!({ "updater": "sum" }), slice.rows.number());
//! let table = TableEntry { name: "weights".into(), spec, number, stride: 1, slices: vec![written] };
//! writing.publish(&Manifest { job: "clicks".into(), clock: 40, slices: 1, tables: vec![table], ..Manifest::default() })?;
//! store.prune(NonZeroUsize::MIN)?;
//!
//! let opened = store.newest(Some("clicks"))?;
//! assert_eq!(opened.manifest().clock, 40);
//! assert_eq!(opened.slice("weights", 0)?, slice);
//! # Ok::<(), store::StoreError>(())
//! ```
//!
//! [safetensors]: https://huggingface.co/docs/safetensors

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
mod slice;
mod store;
mod tensors;
mod writing;

pub use error::{Problem, StoreError};
pub use location::Settings;
pub use manifest::{Checksum, FileEntry, Manifest, ResidualsEntry, SliceEntry, TableEntry};
pub use name::{CheckpointName, NotAName};
pub use opened::Opened;
pub use residuals::{Residuals, residuals_from_bytes};
pub use slice::{Positions, Rows, Slice};
pub use store::{Listed, Pruned, Store};
pub use writing::Writing;
