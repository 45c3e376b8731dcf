//! Data leases: the allocator by which the coordinator grants ranges of the input to workers, and
//! its record of which are done.
//!
//! The input is cut into ranges. A lease is one range in one epoch, number
//! `epoch × ranges + index`: a worker is granted some, learns from them and commits them with the
//! clock that it ended. Every lease is committed exactly once. Those of a worker that is gone are
//! granted again, under the same numbers, before any that is new. Memory follows what is open,
//! never what is done: below the first lease that was never granted, whatever is neither held nor
//! given back is done.
//!
//! **Epochs** follow each other without a pause: the leases of an epoch are granted once all of the
//! one before are granted, so that nobody idles while the slowest end it. They overlap by no more
//! leases than workers hold, which is bounded ([`HELD_LEASES`]). A worker for whom nothing is left
//! waits while others hold leases, which may yet come back, and is told when the run is over.
//!
//! **Shares** follow measured speed: with each grant a worker hears how many minibatches to put
//! into a clock ([`WorkReport`]).

mod answer;
mod committed;
mod finished;
mod format;
mod order;
mod pace;
mod saved;
mod spans;
mod terms;
#[cfg(test)]
mod tests;

pub use answer::{CommitReceipt, CommitRefusal, GrantReply};
pub use finished::FinishedLeases;
pub use order::{LeaseOrder, OrderIndex};
pub use pace::{MOST_OF_AVERAGE, WorkReport};
pub use saved::SavedLeases;
pub use terms::{GrantTerms, GrantTermsError, ResumeError};

use pace::Pace;
use spans::Spans;
use std::collections::BTreeMap;
use types::{Clock, Source, Time};

/// Leases that one worker may hold. It commits some before it is granted more.
pub const HELD_LEASES: u64 = 1024;

/// Runs of leases whose clocks are told apart. When there are more, the earliest clocks are put
/// together, and which of those a lease was committed in is no longer known.
pub const CLOCK_RUNS: usize = 1 << 14;

/// A lease of one of the data sets of a run.
///
/// ```
/// use lease::LeaseId;
///
/// assert!(LeaseId { set: 0, number: 9 } < LeaseId { set: 1, number: 0 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    /// The number of the data set, as the coordinator has given it.
    pub set: u32,
    /// The number of the lease.
    pub number: u64,
}

/// Who has a lease, since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holding {
    source: Source,
    since: Time,
}

/// One worker.
#[derive(Clone, Debug, PartialEq)]
struct Worker {
    held: u64,
    pace: Pace,
}

/// Which lease is whose, and which are done.
///
/// ```
/// use lease::{GrantReply, LeaseAllocator, GrantTerms, WorkReport};
/// use types::{Clock, Source, Span, Time};
///
/// let mut allocator = LeaseAllocator::new(GrantTerms { ranges: 2, epochs: 1, shuffle: None, per_clock: 8 })?;
/// let (one, two) = (Source(1), Source(2));
/// assert_eq!(allocator.grant(Time(0), one, 1), GrantReply::Leases { leases: vec![0], share: 8 });
/// assert_eq!(allocator.grant(Time(0), two, 1), GrantReply::Leases { leases: vec![1], share: 8 });
/// allocator.expel(one);
/// let work = WorkReport { examples: 500, busy: Span::from_millis(3) };
/// assert_eq!(allocator.commit(two, &[1], Clock(0), work).fresh, 1);
/// assert_eq!(allocator.grant(Time(0), two, 1), GrantReply::Leases { leases: vec![0], share: 8 });
/// assert_eq!(allocator.commit(one, &[0], Clock(0), work).refused[0].to_string(),
///     "lease 0 is held by source 2 now; what this worker did of it does not count twice");
/// assert_eq!(allocator.commit(two, &[0], Clock(1), work).fresh, 1);
/// assert!(allocator.is_over());
/// # Ok::<(), lease::GrantTermsError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseAllocator {
    terms: GrantTerms,
    /// Leases of the run.
    leases: u64,
    /// The first place that was never granted. Below it, what is neither held nor given back is
    /// done.
    next: u64,
    /// Places to be granted again.
    returned: Spans<()>,
    held: Spans<Holding>,
    /// Places that are done, by the clock they were committed in, unless that is before
    /// `told_apart_from`.
    recent: Spans<Clock>,
    told_apart_from: Clock,
    workers: BTreeMap<Source, Worker>,
}

impl LeaseAllocator {
    /// Of a run in which nothing is done yet.
    pub fn new(terms: GrantTerms) -> Result<Self, GrantTermsError> {
        Ok(Self {
            leases: terms.leases()?,
            terms,
            next: 0,
            returned: Spans::new(),
            held: Spans::new(),
            recent: Spans::new(),
            told_apart_from: Clock(0),
            workers: BTreeMap::new(),
        })
    }

    /// Of a run that goes on where another stopped: what that had not done comes first, whoever
    /// held it. There may be other workers, and more epochs.
    ///
    /// ```
    /// use lease::{GrantReply, LeaseAllocator, GrantTerms, WorkReport};
    /// use types::{Clock, Source, Span, Time};
    ///
    /// let terms = GrantTerms { ranges: 4, epochs: 1, shuffle: None, per_clock: 8 };
    /// let mut before = LeaseAllocator::new(terms)?;
    /// before.grant(Time(0), Source(1), 3);
    /// before.commit(Source(1), &[1], Clock(0), WorkReport { examples: 9, busy: Span(9) });
    /// let mut after = LeaseAllocator::resume(terms, &before.committed())?;
    /// assert_eq!(after.grant(Time(0), Source(7), 9), GrantReply::Leases { leases: vec![0, 2, 3], share: 8 });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(terms: GrantTerms, done: &FinishedLeases) -> Result<Self, ResumeError> {
        let mut allocator = Self::new(terms).map_err(ResumeError::GrantTerms)?;
        if done.order() != terms.order() {
            return Err(ResumeError::OtherInput { was: done.order(), is: terms.order() });
        }
        if done.end() > allocator.leases {
            return Err(ResumeError::Beyond { begun: done.end(), leases: allocator.leases });
        }
        allocator.next = done.end();
        done.gaps().for_each(|gap| allocator.returned.insert(gap, ()));
        Ok(allocator)
    }

    /// What is leased, and how.
    #[must_use]
    pub fn terms(&self) -> GrantTerms {
        self.terms
    }

    /// Gives a worker that is in the run up to `wanted` leases, at least one where there is one:
    /// first those that came back, then new ones. Towards the end nobody gets more than its part of
    /// what is left.
    ///
    /// A worker that was [expelled](Self::expel) must not ask: nobody would take back what it is
    /// given.
    pub fn grant(&mut self, now: Time, source: Source, wanted: u64) -> GrantReply {
        let per_clock = self.terms.per_clock;
        self.workers.entry(source).or_insert_with(|| Worker { held: 0, pace: Pace::new(per_clock) });
        let all_shares: u64 = self.workers.values().map(|worker| u64::from(worker.pace.share)).sum();
        let left = self.left();
        let Some(worker) = self.workers.get_mut(&source) else { return GrantReply::Over };
        if left == 0 {
            return self.left_as_it_is(now, source);
        }
        let share = worker.pace.share;
        // The share is at most all of them, so neither is its part.
        let part = (u128::from(left) * u128::from(share)).div_ceil(u128::from(all_shares)) as u64;
        let room = HELD_LEASES.saturating_sub(worker.held);
        let mut open = wanted.clamp(1, part.max(1)).min(room);
        if open == 0 {
            return GrantReply::Full;
        }
        worker.held += open;
        let order = self.terms.order();
        let mut leases = Vec::with_capacity(open as usize);
        while open > 0 {
            let places = match self.returned.take_first(open) {
                Some((places, ())) => places,
                None => {
                    let fresh = self.next..self.next + open;
                    self.next = fresh.end;
                    fresh
                }
            };
            open -= places.end - places.start;
            leases.extend(places.clone().map(|place| order.lease(OrderIndex(place))));
            self.held.insert(places, Holding { source, since: now });
        }
        GrantReply::Leases { leases, share }
    }

    /// What there is to say to a worker that asks where nothing is granted any more: that others
    /// hold leases, or that it is over.
    pub fn left_as_it_is(&self, now: Time, source: Source) -> GrantReply {
        let oldest =
            self.held.iter().map(|(_, holding)| holding).min_by_key(|held| (held.source == source, held.since));
        oldest.map_or(GrantReply::Over, |Holding { source, since }| GrantReply::Wait {
            holder: source,
            held_for: now.since(since),
        })
    }

    /// A worker has done these leases, the last of it in `clock`, and everything that it pushed of
    /// them is acknowledged. `work` is what it did since it last said so, of these leases or of
    /// others that are still open; without leases, that alone is taken down.
    pub fn commit(&mut self, source: Source, leases: &[u64], clock: Clock, work: WorkReport) -> CommitReceipt {
        let mut receipt = CommitReceipt::default();
        // So that another clock follows it.
        let clock = clock.min(Clock(u64::MAX - 1));
        let order = self.terms.order();
        for &lease in leases {
            if lease >= self.leases {
                receipt.refused.push(CommitRefusal::Unknown { lease });
                continue;
            }
            let OrderIndex(place) = order.place(lease);
            match self.held.get(place) {
                Some(holding) if holding.source == source => {
                    self.held.take(place);
                    if clock >= self.told_apart_from {
                        self.recent.insert(place..place + 1, clock);
                    }
                    receipt.fresh += 1;
                }
                Some(Holding { source: holder, .. }) => {
                    receipt.refused.push(CommitRefusal::HeldByAnother { lease, holder })
                }
                None if place >= self.next || self.returned.get(place).is_some() => {
                    receipt.refused.push(CommitRefusal::NotGranted { lease });
                }
                None => receipt.repeated += 1,
            }
        }
        self.bound_recent();
        if let Some(worker) = self.workers.get_mut(&source) {
            worker.held -= receipt.fresh;
            // What is said again was counted before.
            if receipt.fresh > 0 || worker.pace.clock.is_none_or(|last| clock > last) {
                worker.pace.observe(clock, work);
                self.fit_share(source);
            }
        }
        receipt
    }

    /// A worker is gone, or leaves: what it holds is granted again, under the same numbers, before
    /// anything new. How many leases those are.
    pub fn expel(&mut self, source: Source) -> u64 {
        let back = self.held.drain_unless(|holding| holding.source != source);
        let count = back.iter().map(|places| places.end - places.start).sum();
        back.into_iter().for_each(|places| self.returned.insert(places, ()));
        self.workers.remove(&source);
        count
    }

    /// Whether every lease is committed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.next == self.leases && self.held.is_empty() && self.returned.is_empty()
    }

    /// Minibatches that a worker is to put into a clock.
    #[must_use]
    pub fn share(&self, source: Source) -> u32 {
        self.workers.get(&source).map_or(self.terms.per_clock, |worker| worker.pace.share)
    }

    /// The leases that a worker holds, in the order of granting: what to tell one that may have
    /// missed an answer, or it would hold leases for ever that it does not know of.
    #[must_use]
    pub fn held_by(&self, source: Source) -> Vec<u64> {
        let order = self.terms.order();
        let places = self.held.iter().filter(|(_, holding)| holding.source == source).flat_map(|(places, _)| places);
        places.map(|place| order.lease(OrderIndex(place))).collect()
    }

    /// Who holds how many leases.
    pub fn holders(&self) -> impl Iterator<Item = (Source, u64)> + '_ {
        self.workers.iter().map(|(source, worker)| (*source, worker.held))
    }

    /// Leases that are neither done nor held.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.returned.places() + (self.leases - self.next)
    }

    fn fit_share(&mut self, source: Source) {
        let per_clock = self.terms.per_clock;
        let Some(worker) = self.workers.get(&source) else { return };
        let rates = self.workers.values().filter_map(|worker| worker.pace.rate());
        let wanted = pace::wanted(per_clock, &worker.pace, rates);
        if let Some(worker) = self.workers.get_mut(&source) {
            worker.pace.fit(wanted, pace::most(per_clock));
        }
    }
}
