//! Bounds that both ends keep: a worker stays within them, and a shard refuses whoever does not; a
//! server stops answering within its lease, and nobody takes its place before that has ended.

use crate::Span;

/// Parts of reads that a worker has under way to one shard. The others wait in the worker.
pub const READS_AT_ONCE: usize = 256;

/// Reads of one worker that a shard holds back: all it may have under way, and one that asks for
/// room.
pub const PARKED_READS: usize = READS_AT_ONCE + 1;

/// Pulls, push_pulls and scans that a worker may have open before another one must wait.
pub const OPEN_READS: usize = 4096;

/// Clocks of a `clock` table that a shard holds apart until the frontier passes them. A push in a
/// later one waits in its worker until the slowest have come nearer.
pub const HELD_CLOCKS: u64 = 128;

/// Pushes, ends of clocks and settings that a worker has under way before another must wait.
pub const UNACKNOWLEDGED_ITEMS: usize = 1 << 18;

/// How long a serving lease is valid after the heartbeat that renewed it, by the server's own
/// clock.
///
/// ```
/// use types::{Span, promotion_delay, serving_lease};
///
/// // Clocks may run a fifth fast or slow: still nobody takes its place while it answers.
/// let failure_timeout = Span::from_secs(2);
/// let (slow_server, fast_coordinator) = (0.8, 1.2);
/// let answers_for = serving_lease(failure_timeout).as_secs_f64() / slow_server;
/// assert!(answers_for < promotion_delay(failure_timeout).as_secs_f64() / fast_coordinator);
/// ```
#[must_use]
pub fn serving_lease(failure_timeout: Span) -> Span {
    Span(failure_timeout.0 / 5 * 4)
}

/// For how long a server of an elastic run is not heard of before it is given up, by the
/// coordinator's clock.
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
