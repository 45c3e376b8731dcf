//! Bounds that both ends of a connection know. A worker stays within them, and a shard refuses a
//! worker that exceeds them.
//!
//! Also the two times of a serving lease: a server stops serving after [`serving_lease`], and the
//! coordinator promotes another replica only after the longer [`promotion_delay`].

use crate::Span;

/// The largest number of parts of reads that a worker has under way to one shard. Further parts
/// wait in the worker.
pub const READS_AT_ONCE: usize = 256;

/// The largest number of reads of one worker that a shard parks: all that it may have under way,
/// and one that asks for room for a push.
pub const PARKED_READS: usize = READS_AT_ONCE + 1;

/// The largest number of pulls, push_pulls and scans that a worker has open. Further ones wait.
pub const OPEN_READS: usize = 4096;

/// The largest number of clocks of a `clock` table that a shard holds until the frontier passes
/// them. A push in a later clock waits in its worker until the frontier has moved.
pub const HELD_CLOCKS: u64 = 128;

/// The largest number of stream items (pushes, clock markers, settings) that a worker has
/// unacknowledged. Further ones wait.
pub const UNACKNOWLEDGED_ITEMS: usize = 1 << 18;

/// How long a serving lease is valid after the heartbeat that renewed it, by the server's own
/// clock: 4/5 of the failure timeout.
///
/// ```
/// use types::{Span, promotion_delay, serving_lease};
///
/// // Even if clocks run a fifth fast or slow, the lease ends before another replica is promoted.
/// let failure_timeout = Span::from_secs(2);
/// let slow_server = 0.8;
/// let fast_coordinator = 1.2;
/// let answers_for = serving_lease(failure_timeout).as_secs_f64() / slow_server;
/// assert!(answers_for < promotion_delay(failure_timeout).as_secs_f64() / fast_coordinator);
/// ```
#[must_use]
pub fn serving_lease(failure_timeout: Span) -> Span {
    Span(failure_timeout.0 / 5 * 4)
}

/// How long a server of an elastic run may be silent before the coordinator replaces it, by the
/// coordinator's clock: 5/4 of the failure timeout.
///
/// ```
/// use types::Span;
///
/// assert_eq!(types::promotion_delay(Span::from_secs(2)), Span::from_millis(2500));
/// ```
#[must_use]
pub fn promotion_delay(failure_timeout: Span) -> Span {
    Span(failure_timeout.0 / 4 * 5)
}
