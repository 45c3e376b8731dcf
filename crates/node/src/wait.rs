//! How a thread waits: spin, then sleep.

use net::Waiter;
use std::time::Duration;

/// How long a thread spins before it sleeps. Spinning shortens latency and keeps a core busy.
///
/// ```
/// use node::WaitPolicy;
/// use std::time::Duration;
///
/// let a_little = WaitPolicy { spin: Duration::from_micros(50) };
/// assert!(WaitPolicy::BLOCKING < a_little && a_little < WaitPolicy::SPINNING);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitPolicy {
    /// Spin for this long.
    pub spin: Duration,
}

impl WaitPolicy {
    /// Sleep at once.
    pub const BLOCKING: Self = Self { spin: Duration::ZERO };
    /// Practically never sleep.
    pub const SPINNING: Self = Self { spin: Duration::from_secs(3600) };

    /// Whether a thread that has been idle for `idle` keeps spinning.
    pub(crate) fn spins(self, idle: Duration) -> bool {
        idle < self.spin
    }
}

/// Turns of a spinning thread from one poll of the system to the next. The poll shows what the
/// thread cannot see by itself: new connections, and room to write.
const ASK_EVERY: u32 = 32;

/// Counts the turns of an idle thread, and waits once a turn.
#[derive(Default)]
pub(crate) struct IdleTurns(u32);

impl IdleTurns {
    /// Spins once, or sleeps at most `limit`.
    pub fn wait(&mut self, spins: bool, glanced: bool, waiter: &mut dyn Waiter, limit: Duration) {
        self.0 = self.0.wrapping_add(1);
        match (spins, glanced && !self.0.is_multiple_of(ASK_EVERY)) {
            (true, true) => std::hint::spin_loop(),
            (true, false) => waiter.wait(Some(Duration::ZERO)),
            (false, _) => waiter.wait(Some(limit)),
        }
    }
}
