//! The serving lease: a server acknowledges writes and answers bounded reads only while it is
//! valid.
//!
//! Each acknowledged heartbeat renews the lease, by the server's own clock. The coordinator waits
//! longer than the lease lasts before it promotes another replica, so the two never overlap.

use std::collections::VecDeque;
use types::{Span, Time};

/// How many heartbeats may be unacknowledged.
const HEARTBEATS: usize = 64;

/// Until when a server may answer for its shards.
pub(super) struct ServingLease {
    /// How long the lease is valid after the heartbeat that renewed it was sent.
    length: Span,
    /// When the lease ends. `None` before the first heartbeat was acknowledged: the server cannot
    /// know how long ago it was told to begin.
    until: Option<Time>,
    /// Unacknowledged heartbeats: their numbers, and when they were sent.
    asked: VecDeque<(u64, Time)>,
    /// Whether the lease was valid when it was last checked.
    holds: bool,
}

impl ServingLease {
    /// A lease of this length that is not valid yet.
    pub fn new(length: Span) -> Self {
        Self { length, until: None, asked: VecDeque::new(), holds: false }
    }

    /// Whether the lease was valid when [`look`](Self::look) last checked it.
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// Checks whether the lease is valid now. Returns that, if it has changed.
    pub fn look(&mut self, now: Time) -> Option<bool> {
        let holds = self.until.is_some_and(|until| now <= until);
        (std::mem::replace(&mut self.holds, holds) != holds).then_some(holds)
    }

    /// Notes that the heartbeat of this number is sent now, which asks to renew the lease.
    pub fn ask(&mut self, number: u64, now: Time) {
        self.asked.push_back((number, now));
        if self.asked.len() > HEARTBEATS {
            self.asked.pop_front();
        }
    }

    /// The heartbeat of this number was acknowledged: the lease lasts from when it was sent.
    pub fn acknowledged(&mut self, number: u64) {
        let asked = self.asked.iter().find(|(asked, _)| *asked == number);
        self.until = self.until.max(asked.map(|(_, sent)| *sent + self.length));
        self.asked.retain(|(asked, _)| *asked > number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn serving_lease_lasts_from_the_sending_of_the_last_acknowledged_heartbeat() {
        let mut lease = ServingLease::new(Span::from_secs(4));
        assert_eq!((lease.look(at(0)), lease.holds()), (None, false), "no heartbeat was acknowledged");
        lease.ask(1, at(1));
        lease.ask(2, at(3));
        lease.acknowledged(1);
        assert_eq!(lease.look(at(5)), Some(true));
        assert_eq!(lease.look(at(6)), Some(false), "it was sent at 1 and lasts 4");
        lease.acknowledged(2);
        assert_eq!((lease.look(at(7)), lease.look(at(7))), (Some(true), None), "a change is returned once");
        lease.acknowledged(1);
        lease.acknowledged(99);
        assert_eq!(lease.look(at(8)), Some(false), "late and unknown acknowledgements renew nothing");
    }

    #[test]
    fn serving_lease_forgets_the_oldest_unacknowledged_heartbeats() {
        let mut lease = ServingLease::new(Span::from_secs(4));
        for second in 0..2 * HEARTBEATS as u64 {
            lease.ask(second + 1, at(second));
        }
        assert_eq!(lease.asked.len(), HEARTBEATS);
        lease.acknowledged(1);
        assert_eq!(lease.look(at(1)), None);
    }
}
