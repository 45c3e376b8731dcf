//! What is committed: now, and as of a clock, which is what checkpoints and shards that forget have
//! to know.

use super::{CLOCK_RUNS, FinishedLeases, LeaseAllocator, OrderIndex};
use std::ops::Range;
use types::Clock;

impl LeaseAllocator {
    /// The leases that are committed.
    #[must_use]
    pub fn committed(&self) -> FinishedLeases {
        self.all_but_open(std::iter::empty())
    }

    /// The leases that were committed in clocks before `clock`: everything pushed of these is in a
    /// copy of a shard that was taken when its frontier reached `clock`, so a checkpoint may call
    /// them done. None if clocks so early are no longer told apart.
    #[must_use]
    pub fn committed_before(&self, clock: Clock) -> Option<FinishedLeases> {
        (clock >= self.told_apart_from).then(|| self.all_but_open(self.committed_since(clock)))
    }

    /// Every lease whose place is below is committed.
    #[must_use]
    pub fn through(&self) -> OrderIndex {
        let open = [self.held.first(), self.returned.first(), Some(self.next)];
        OrderIndex(open.into_iter().flatten().min().unwrap_or(self.next))
    }

    /// Every lease whose place is below was committed in a clock before `clock`. A shard whose
    /// frontier is at `clock` may forget its entries of these, and not of others that are
    /// committed: a checkpoint at a clock in between would name those as not done, and a run
    /// resumed from it would apply them again.
    #[must_use]
    pub fn through_before(&self, clock: Clock) -> Option<OrderIndex> {
        let later = self.committed_since(clock).next().map_or(self.next, |places| places.start);
        (clock >= self.told_apart_from).then(|| self.through().min(OrderIndex(later)))
    }

    /// Nobody will ask which leases were committed before a clock that is earlier than `clock`:
    /// what was told apart for them is forgotten, and the allocator is a few kilobytes again. The
    /// frontier, where no checkpoint of an earlier clock is under way.
    pub fn settle(&mut self, clock: Clock) {
        if clock > self.told_apart_from {
            self.told_apart_from = clock;
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

    /// Puts the earlier half of the clocks together when too many are told apart.
    pub(super) fn bound_recent(&mut self) {
        if self.recent.runs() > CLOCK_RUNS {
            let mut clocks: Vec<Clock> = self.recent.iter().map(|(_, clock)| clock).collect();
            clocks.sort_unstable();
            self.settle(clocks[clocks.len() / 2].next());
        }
    }
}
