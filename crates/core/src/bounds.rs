//! Bounds that both ends keep: a worker stays within them, and a shard refuses whoever does not.

/// Parts of reads that a worker has under way to one shard. The others wait in the worker.
pub const READS_AT_ONCE: usize = 256;

/// Reads of one worker that a shard holds back: all it may have under way, and one that asks for room.
pub(crate) const PARKED_READS: usize = READS_AT_ONCE + 1;

/// Pulls, push_pulls and scans that a worker may have open before another one must wait.
pub const OPEN_READS: usize = 4096;

/// Clocks of a `clock` table that a shard holds apart until the frontier passes them. A push in a later one waits in its
/// worker until the slowest have come nearer.
pub const HELD_CLOCKS: u64 = 128;

/// Pushes, ends of clocks and settings that a worker has under way before another must wait.
pub(crate) const UNACKNOWLEDGED_ITEMS: usize = 1 << 18;
