//! The words of Slackwater as types: keys and ranges, clocks and time, node names, table specs and the plan.
//!
//! Nothing here does I/O, allocates threads or depends on another crate. Every other crate speaks in these terms.

mod bandwidth;
mod clock;
mod codecs;
mod id;
mod key;
mod measured;
mod plan;
mod policy;
mod random;
mod spec;
mod updater;

pub use bandwidth::{Bandwidth, BandwidthError};
pub use clock::{Clock, Span, Time};
pub use codecs::Codecs;
pub use id::{NodeId, PlanNumber, ShardId, Source, TableId, WorkerId};
pub use key::{Key, Placement, Position, PositionRange};
pub use measured::Measured;
pub use plan::{Chain, Placed, Plan};
pub use policy::{Combine, Consistency, Reduce};
pub use random::Random;
pub use spec::{CacheSpec, Initial, NumberType, PART_BYTES, Shape, SpecError, TableSpec};
pub use updater::{Setting, UpdaterSpec};
