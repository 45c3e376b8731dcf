//! How a thread waits: it looks for a while, then sleeps.

use net::Waiter;
use std::time::Duration;

/// How long a thread looks for something to do before it sleeps. Looking answers sooner and keeps a core busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience {
    /// Keep looking for this long.
    pub spin: Duration,
}

impl Patience {
    /// Sleep at once.
    pub const BLOCKING: Self = Self { spin: Duration::ZERO };
    /// Practically never sleep.
    pub const SPINNING: Self = Self { spin: Duration::from_secs(3600) };

    /// Waits at most `limit` for a thread that has had nothing to do for `idle`: only looks while that is short.
    pub(crate) fn wait(self, waiter: &mut dyn Waiter, limit: Duration, idle: Duration) {
        let looks = idle < self.spin;
        waiter.wait(Some(if looks { Duration::ZERO } else { limit }));
    }
}
