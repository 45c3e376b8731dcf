//! The vocabulary of Slackwater as types: keys and ranges, clocks and time, node names, table specs
//! and the plan.
//!
//! This crate does no I/O, starts no threads and depends on no other crate. All other crates use
//! its types.

mod bandwidth;
mod bounds;
mod certificate_name;
mod clock;
mod codecs;
mod id;
mod key;
pub mod limits;
mod measured;
mod mix;
mod plan;
mod policy;
mod random;
mod refusal;
mod role;
mod run_size;
mod spec;
mod updater;

pub use bandwidth::{Bandwidth, BandwidthError};
pub use bounds::{
    HELD_CLOCKS, OPEN_READS, PARKED_READS, READS_AT_ONCE, UNACKNOWLEDGED_ITEMS, promotion_delay, serving_lease,
};
pub use certificate_name::{CertificateName, CertificateNameError};
pub use clock::{Clock, Span, Time};
pub use codecs::Codecs;
pub use id::{NodeId, PlanNumber, ShardId, Source, TableId, WorkerId};
pub use key::{Key, Placement, Position, PositionRange};
pub use measured::Measured;
pub use mix::{SplitMix64, mix};
pub use plan::{Chain, Placed, Plan};
pub use policy::{Combine, Consistency, Reduce};
pub use refusal::{RefusalReason, Refusals};
pub use role::{Binding, KeyFingerprint, Role};
pub use run_size::RunSize;
pub use spec::{CacheSpec, Initial, NumberType, PART_BYTES, SpecError, TableShape, TableSpec};
pub use updater::{Setting, UpdaterSpec};
