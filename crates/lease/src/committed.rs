//! Which leases are committed, and the first place whose lease is not: now, and as of the clocks
//! before a given one. Checkpoints save the leases committed before their clock. Shards forget the
//! applied parts of leases below the first place not committed before their frontier.
//!
//! In which clock a lease was committed is forgotten for earlier clocks, to bound memory: these are
//! settled, and questions about them have no answer.

use super::{CLOCK_RUNS, FinishedLeases, LeaseAllocator, OrderIndex};
use std::ops::Range;
use types::Clock;

impl LeaseAllocator {
    /// The leases that are committed.
    #[must_use]
    pub fn committed(&self) -> FinishedLeases {
        self.all_but_open(std::iter::empty())
    }

    /// The leases that were committed in clocks before `clock`, which a checkpoint at `clock` may
    /// call done. A shard is saved when its frontier reaches `clock`, so the checkpoint holds
    /// everything pushed for them. Returns `None` if earlier clocks are [settled](Self::settle).
    #[must_use]
    pub fn committed_before(&self, clock: Clock) -> Option<FinishedLeases> {
        (clock >= self.settled).then(|| self.all_but_open(self.committed_since(clock)))
    }

    /// The first place whose lease is not committed.
    #[must_use]
    pub fn through(&self) -> OrderIndex {
        let open = [self.held.first(), self.returned.first(), Some(self.next)];
        OrderIndex(open.into_iter().flatten().min().unwrap_or(self.next))
    }

    /// The first place whose lease was not committed in a clock before `clock`. A shard whose
    /// frontier has reached `clock` may forget the applied parts of all leases below that place. It
    /// must keep those of leases committed later: a checkpoint taken before such a commit does not
    /// call the lease done, and a run that resumes from it grants the lease again. Returns `None`
    /// if earlier clocks are [settled](Self::settle).
    #[must_use]
    pub fn through_before(&self, clock: Clock) -> Option<OrderIndex> {
        let later = self.committed_since(clock).next().map_or(self.next, |places| places.start);
        (clock >= self.settled).then(|| self.through().min(OrderIndex(later)))
    }

    /// Forgets in which clocks before `clock` leases were committed, to save memory. The caller
    /// passes the frontier, or the clock of a checkpoint under way if that is earlier.
    pub fn settle(&mut self, clock: Clock) {
        if clock > self.settled {
            self.settled = clock;
            self.recent.drain_unless(|committed| *committed >= clock);
        }
    }

    fn committed_since(&self, clock: Clock) -> impl Iterator<Item = Range<u64>> + '_ {
        self.recent.iter().filter(move |(_, committed)| *committed >= clock).map(|(places, _)| places)
    }

    fn all_but_open(&self, besides: impl Iterator<Item = Range<u64>>) -> FinishedLeases {
        let returned = self.returned.iter().map(|(places, ())| places);
        let mut open: Vec<_> = self.held.iter().map(|(places, _)| places).chain(returned).chain(besides).collect();
        open.sort_unstable_by_key(|places| places.start);
        FinishedLeases::all_but(self.terms.order(), self.next, open)
    }

    /// Settles the earlier half of the clocks when there are more than [`CLOCK_RUNS`] runs.
    pub(super) fn bound_recent(&mut self) {
        if self.recent.runs() > CLOCK_RUNS {
            let mut clocks: Vec<Clock> = self.recent.iter().map(|(_, clock)| clock).collect();
            clocks.sort_unstable();
            self.settle(clocks[clocks.len() / 2].next());
        }
    }
}
