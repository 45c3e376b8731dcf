//! Data leases: the allocator with which the coordinator grants ranges of the input to workers, and
//! its record of the leases that are done.
//!
//! The input is cut into ranges. A lease is one range in one epoch; its number is `epoch × ranges +
//! index`. The coordinator grants leases to a worker. The worker learns from them and commits them
//! with the clock that it ended.
//!
//! - **A lease is committed at most once.** A commit of a committed lease counts as repeated. A
//!   commit of an open lease by a worker that does not hold it is refused.
//! - **Leases of a lost worker are granted again**, under the same numbers, before any new lease.
//! - **Memory follows the open leases**, not the finished ones. Below the first lease that was
//!   never granted, every lease that is neither held nor given back is done.
//!
//! **Epochs** follow each other without a pause. The allocator grants leases of an epoch once all
//! of the epoch before are granted, so no worker idles while the slowest finish. Epochs overlap by
//! at most the leases that workers hold, which is bounded ([`HELD_LEASES`]). A worker that finds no
//! lease left waits while other workers hold some, because these may be given back. It is told when
//! the run is over.
//!
//! **Shares** follow measured speed ([`WorkReport`]): each grant tells the worker how many
//! minibatches to put into a clock.

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

/// The largest number of leases that one worker holds. It must commit some before it gets more.
pub const HELD_LEASES: u64 = 1024;

/// The largest number of runs of leases for which the allocator knows the clock of their commit.
/// When there are more, it settles the earlier clocks ([`LeaseAllocator::settle`]).
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
    /// The number of the data set, given by the coordinator.
    pub set: u32,
    /// The number of the lease.
    pub number: u64,
}

/// The worker that holds a lease, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holding {
    source: Source,
    since: Time,
}

/// What the allocator knows of one worker.
#[derive(Clone, Debug, PartialEq)]
struct Worker {
    /// The number of leases that it holds.
    held: u64,
    pace: Pace,
}

/// Records which worker holds each lease, and which leases are done.
///
/// ```
/// use lease::{GrantReply, LeaseAllocator, GrantTerms, WorkReport};
/// use types::{Clock, Source, Span, Time};
///
/// let mut allocator = LeaseAllocator::new(GrantTerms { ranges: 2, epochs: 1, shuffle: None, per_clock: 8 })?;
/// let one = Source(1);
/// let two = Source(2);
/// assert_eq!(allocator.grant(Time(0), one, 1), GrantReply::Leases { leases: vec![0], share: 8 });
/// assert_eq!(allocator.grant(Time(0), two, 1), GrantReply::Leases { leases: vec![1], share: 8 });
/// allocator.expel(one);
/// let work = WorkReport { examples: 500, busy: Span::from_millis(3) };
/// assert_eq!(allocator.commit(two, &[1], Clock(0), work).fresh, 1);
/// assert_eq!(allocator.grant(Time(0), two, 1), GrantReply::Leases { leases: vec![0], share: 8 });
/// assert_eq!(allocator.commit(one, &[0], Clock(0), work).refused[0].to_string(),
///     "lease 0 is held by source 2 now, so the commit of another worker is refused");
/// assert_eq!(allocator.commit(two, &[0], Clock(1), work).fresh, 1);
/// assert!(allocator.is_over());
/// # Ok::<(), lease::GrantTermsError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseAllocator {
    terms: GrantTerms,
    /// The number of leases in the run.
    leases: u64,
    /// The first place that was never granted. Below it, every place that is neither held nor
    /// returned is done.
    next: u64,
    /// Places that were given back, to be granted again.
    returned: Spans<()>,
    held: Spans<Holding>,
    /// Done places by the clock of their commit, for clocks from `settled` on.
    recent: Spans<Clock>,
    /// Clocks before this one are settled: `recent` has no entries for them.
    settled: Clock,
    workers: BTreeMap<Source, Worker>,
}

impl LeaseAllocator {
    /// The allocator of a run in which nothing is done yet.
    pub fn new(terms: GrantTerms) -> Result<Self, GrantTermsError> {
        Ok(Self {
            leases: terms.leases()?,
            terms,
            next: 0,
            returned: Spans::new(),
            held: Spans::new(),
            recent: Spans::new(),
            settled: Clock(0),
            workers: BTreeMap::new(),
        })
    }

    /// The allocator of a run that resumes another. It grants the leases that the other run had not
    /// finished first. The workers may be others, and there may be more epochs.
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

    /// The number of ranges and epochs, the order, and the share of an average worker.
    #[must_use]
    pub fn terms(&self) -> GrantTerms {
        self.terms
    }

    /// Grants a worker up to `wanted` leases, and at least one if any is left: first those that
    /// were given back, then new ones. Towards the end, a worker gets at most its share of the
    /// leases that are left.
    ///
    /// The caller must not call this for a worker that was [expelled](Self::expel): nothing would
    /// give its leases back.
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
        // `share` is at most `all_shares`, so `part` is at most `left` and fits u64.
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

    /// The answer to a worker when no lease is left to grant: wait for the leases that are held, or
    /// the run is over.
    pub fn left_as_it_is(&self, now: Time, source: Source) -> GrantReply {
        let oldest =
            self.held.iter().map(|(_, holding)| holding).min_by_key(|held| (held.source == source, held.since));
        oldest.map_or(GrantReply::Over, |Holding { source, since }| GrantReply::Wait {
            holder: source,
            held_for: now.since(since),
        })
    }

    /// Commits leases that a worker has finished. `clock` is the clock in which it finished the
    /// last of them; everything that it pushed for them is acknowledged. `work` is what it did
    /// since its last report, for these or other leases. Without leases, only `work` is counted.
    pub fn commit(&mut self, source: Source, leases: &[u64], clock: Clock, work: WorkReport) -> CommitReceipt {
        let mut receipt = CommitReceipt::default();
        // Leaves room for a next clock.
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
                    if clock >= self.settled {
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
            // A repeated report was counted before.
            if receipt.fresh > 0 || worker.pace.clock.is_none_or(|last| clock > last) {
                worker.pace.observe(clock, work);
                self.fit_share(source);
            }
        }
        receipt
    }

    /// Removes a worker that is lost or leaves. Its leases will be granted again, under the same
    /// numbers, before any new one. Returns how many these are.
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

    /// The number of minibatches that a worker puts into a clock.
    #[must_use]
    pub fn share(&self, source: Source) -> u32 {
        self.workers.get(&source).map_or(self.terms.per_clock, |worker| worker.pace.share)
    }

    /// The leases that a worker holds, in the order of granting. The coordinator sends them to a
    /// worker that may have missed an answer, which would otherwise hold leases without knowing.
    #[must_use]
    pub fn held_by(&self, source: Source) -> Vec<u64> {
        let order = self.terms.order();
        let places = self.held.iter().filter(|(_, holding)| holding.source == source).flat_map(|(places, _)| places);
        places.map(|place| order.lease(OrderIndex(place))).collect()
    }

    /// The number of leases that each worker holds.
    pub fn holders(&self) -> impl Iterator<Item = (Source, u64)> + '_ {
        self.workers.iter().map(|(source, worker)| (*source, worker.held))
    }

    /// The number of leases that are neither done nor held.
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
