//! How a thread waits: it looks for a while, then sleeps.

use net::Waiter;
use std::time::Duration;

/// How long a thread looks for something to do before it sleeps. Looking answers sooner and keeps a core busy.
///
/// ```
/// use node::Wait;
/// use std::time::Duration;
///
/// let a_little = Wait { spin: Duration::from_micros(50) };
/// assert!(Wait::BLOCKING < a_little && a_little < Wait::SPINNING);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    /// Keep looking for this long.
    pub spin: Duration,
}

impl Wait {
    /// Sleep at once.
    pub const BLOCKING: Self = Self { spin: Duration::ZERO };
    /// Practically never sleep.
    pub const SPINNING: Self = Self { spin: Duration::from_secs(3600) };

    /// Whether a thread that has had nothing to do for `idle` goes on looking.
    pub(crate) fn looks(self, idle: Duration) -> bool {
        idle < self.spin
    }
}

/// A thread that looks asks the system this seldom for what it cannot see by itself: new connections, room to write.
const ASK_EVERY: u32 = 32;

/// Counts turns that found nothing.
#[derive(Default)]
pub(crate) struct Turns(u32);

impl Turns {
    /// Waits at most `limit`, or only looks.
    pub fn wait(&mut self, looks: bool, glanced: bool, waiter: &mut dyn Waiter, limit: Duration) {
        self.0 = self.0.wrapping_add(1);
        match (looks, glanced && !self.0.is_multiple_of(ASK_EVERY)) {
            (true, true) => std::hint::spin_loop(),
            (true, false) => waiter.wait(Some(Duration::ZERO)),
            (false, _) => waiter.wait(Some(limit)),
        }
    }
}
