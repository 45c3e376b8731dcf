//! Data leases: input that workers take range by range, so that each example counts once whoever
//! comes and goes.

use crate::session::SessionState;
use crate::{Error, Session};
use lease::{LeaseId, LeaseOrder, WorkReport};
use net::lock;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use types::Span;
use wire::LeaseTerms;
use worker::LeaseGrant;

/// Leases that are asked for at a time, so that the next is there when one is done.
const AT_ONCE: u64 = 2;

/// Input that is leased: how it is cut, and how often it is read. Every worker must say the same.
///
/// ```
/// use slackwater::data_leases::LeasedInput;
///
/// let input = LeasedInput::new(100).epochs(3).shuffled(7).per_clock(8).named("day_0.tsv (100 ranges)", 0x5EED);
/// assert_eq!(input, LeasedInput::new(100).epochs(3).shuffled(7).per_clock(8).named("day_0.tsv (100 ranges)", 0x5EED));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedInput(LeaseTerms);

impl LeasedInput {
    /// Input in so many ranges, read once, in order, with one minibatch in a clock.
    #[must_use]
    pub fn new(ranges: u64) -> Self {
        let (epochs, shuffle, per_clock, fingerprint) = (1, None, 1, 0);
        Self(LeaseTerms { ranges, epochs, shuffle, per_clock, fingerprint, input: format!("{ranges} ranges") })
    }

    /// Read so often.
    #[must_use]
    pub fn epochs(mut self, epochs: u32) -> Self {
        self.0.epochs = epochs;
        self
    }

    /// With the ranges of each epoch in an order that the seed says.
    #[must_use]
    pub fn shuffled(mut self, seed: u64) -> Self {
        self.0.shuffle = Some(seed);
        self
    }

    /// With so many minibatches in a clock, for a worker of average speed. Shares are whole
    /// numbers: at 8, they follow speed to a sixteenth; at 1, they cannot follow it at all.
    #[must_use]
    pub fn per_clock(mut self, minibatches: u32) -> Self {
        self.0.per_clock = minibatches;
        self
    }

    /// In words, and with a number that is the same for all who cut and read alike: a worker with
    /// another is turned away, and told both in words.
    #[must_use]
    pub fn named(mut self, input: &str, fingerprint: u128) -> Self {
        (self.0.input, self.0.fingerprint) = (input.to_owned(), fingerprint);
        self
    }
}

/// A worker's leases of one data set. Made by [`Session::leases`].
///
/// Lease `epoch × ranges + range` is one range of the input in one epoch. A worker takes one,
/// pushes what it learns from its minibatches
/// ([`PushOptions::lease`](crate::table::PushOptions::lease)), and commits it. The leases of a
/// worker that is lost are given to others, which learn from them again; shards leave out what they
/// hold already. So every example counts once, if a lease is learnt from in the same way every
/// time: its minibatches must be cut from the lease alone, and each must push the same keys to the
/// same tables in the same order.
///
/// A worker for which nothing is left waits for what others hold, since that may come back.
/// Meanwhile it ends clocks as they do, so that nobody waits for it; when all is committed, every
/// worker is at the same clock.
///
/// ```
/// use slackwater::{Keys, RunSize, Session, TableSpec};
/// use slackwater::data_leases::LeasedInput;
/// use slackwater::table::PushOptions;
///
/// let sessions = Session::embedded(RunSize { servers: 2, workers: 2 })?;
/// std::thread::scope(|scope| {
///     for session in sessions {
///         scope.spawn(move || {
///             let counts = session.table::<f32>(TableSpec::dense("counts", 20, 1))?;
///             let mut leases = session.leases("train", &LeasedInput::new(20).epochs(3).shuffled(1).per_clock(4))?;
///             let mut in_clock = 0;
///             while let Some(lease) = leases.next_lease()? {
///                 let keys = counts.keys(&[lease.range()]);
///                 let learnt = PushOptions { lease: Some(&lease), ..PushOptions::default() };
///                 drop(counts.push_opts(&keys, vec![1.0], learnt)?);      // its only minibatch
///                 leases.commit(lease)?;
///                 in_clock += 1;
///                 if in_clock >= leases.share() {
///                     session.clock()?;
///                     in_clock = 0;
///                 }
///             }
///             session.barrier()?;
///             assert_eq!(counts.pull(&Keys::run(0..20))?.wait()?.values(), [3.0; 20]);    // each once an epoch
///             session.close()
///         });
///     }
/// });
/// # Ok::<(), slackwater::Error>(())
/// ```
pub struct DataLeases {
    shared: Arc<SessionState>,
    set: u32,
    order: LeaseOrder,
    taken: VecDeque<u64>,
    share: u32,
    over: bool,
    /// Time that the program itself had used up when it committed last.
    busy: Duration,
}

/// What there is for a worker that asks for a lease.
///
/// ```
/// use slackwater::{RunSize, Session};
/// use slackwater::data_leases::{LeasedInput, NextLease};
/// use std::time::Duration;
///
/// let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
/// let mut leases = session.leases("train", &LeasedInput::new(1))?;
/// let NextLease::Lease(lease) = leases.next_within(Duration::from_secs(9))? else { panic!("there is one") };
/// // The only one, and this worker holds it itself.
/// assert!(matches!(leases.next_within(Duration::ZERO)?, NextLease::NoneYet));
/// leases.commit(lease)?;
/// assert!(matches!(leases.next_within(Duration::from_secs(9))?, NextLease::Over));
/// # session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
#[derive(Debug)]
pub enum NextLease {
    /// This one is to be learnt from.
    Lease(DataLease),
    /// Nothing is there yet: what is left, others hold, or the answer is under way.
    NoneYet,
    /// Every lease is committed, or all were [ended](DataLeases::end) early.
    Over,
}

/// One range of the input in one epoch, this worker's to learn from until it is committed. One that
/// is dropped instead stays this worker's until that leaves, and so long there is no end of the
/// data set.
#[derive(Debug)]
#[must_use = "others wait until it is committed"]
pub struct DataLease {
    id: LeaseId,
    order: LeaseOrder,
    examples: AtomicU64,
}

impl DataLease {
    /// `epoch × ranges + range`.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.id.number
    }

    /// Which pass over the input it is of, from 0.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.order.epoch(self.id.number)
    }

    /// Which range of the input it is, from 0.
    #[must_use]
    pub fn range(&self) -> u64 {
        self.order.range(self.id.number)
    }

    /// How many leases of the run come before it in the order of granting: about how far the run
    /// is.
    #[must_use]
    pub fn place(&self) -> u64 {
        self.order.place(self.id.number).0
    }

    pub(crate) fn id(&self) -> LeaseId {
        self.id
    }

    /// So many examples were learnt from.
    pub(crate) fn learnt_from(&self, examples: u64) {
        self.examples.fetch_add(examples, Ordering::Relaxed);
    }
}

impl Session {
    /// Leases a data set by name, together with all workers that name it. Blocks until the
    /// coordinator has answered. Fails if another worker leases other input by that name, or by
    /// other terms ([`Error::Leases`]), or if the run is lost ([`Error::Run`]).
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # use slackwater::data_leases::LeasedInput;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let leases = session.leases("train", &LeasedInput::new(10).named("a9a (10 ranges)", 7))?;
    /// assert_eq!(leases.share(), 1);
    /// let other = session.leases("train", &LeasedInput::new(10).named("a1a (10 ranges)", 8));
    /// assert!(other.err().expect("other files").to_string().contains("others read a9a (10 ranges)"));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn leases(&self, name: &str, LeasedInput(terms): &LeasedInput) -> Result<DataLeases, Error> {
        let shared = self.shared().clone();
        shared.driver.call(|worker| worker.open_leases(name, terms.clone()));
        let opened = shared.driver.wait_until(|worker| worker.leases(name).cloned())?;
        let set = opened.map_err(|problem| Error::Leases { problem })?;
        let order = LeaseOrder { ranges: terms.ranges, shuffle: terms.shuffle };
        let (taken, share, over, busy) = (VecDeque::new(), terms.per_clock, false, self.time_breakdown().compute());
        Ok(DataLeases { shared, set, order, taken, share, over, busy })
    }
}

impl DataLeases {
    /// The next lease to learn from, or none when every lease is committed. Blocks while others
    /// hold what is left; after a few seconds the log says who. Fails if the run is lost
    /// ([`Error::Run`]) or a commit was refused ([`Error::Leases`]).
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # use slackwater::data_leases::LeasedInput;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let mut leases = session.leases("train", &LeasedInput::new(2).epochs(2))?;
    /// let mut learnt = Vec::new();
    /// while let Some(lease) = leases.next_lease()? {
    ///     learnt.push((lease.epoch(), lease.range()));
    ///     leases.commit(lease)?;
    /// }
    /// assert_eq!(learnt, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn next_lease(&mut self) -> Result<Option<DataLease>, Error> {
        loop {
            match self.next_within(Duration::MAX)? {
                NextLease::Lease(lease) => return Ok(Some(lease)),
                NextLease::NoneYet => {}
                NextLease::Over => return Ok(None),
            }
        }
    }

    /// As [`DataLeases::next_lease`], and blocks no longer than `limit`. A worker that holds a
    /// lease can take the next one ahead of time with a limit of nothing, to read what it will
    /// learn from; to wait for it longer would be to wait for itself.
    pub fn next_within(&mut self, limit: Duration) -> Result<NextLease, Error> {
        let (set, driver) = (self.set, self.shared.driver.clone());
        self.check_commits()?;
        if self.taken.len() < AT_ONCE as usize && !self.over {
            // Ahead of time, so that they are there when they are needed.
            let grant = driver.call(|worker| {
                let grant = worker.take_leases(set);
                worker.ask_leases(set, AT_ONCE);
                grant
            });
            self.take(grant);
        }
        if self.taken.is_empty() && !self.over && !limit.is_zero() {
            let begin = Instant::now();
            let late = |grant: Option<LeaseGrant>| (grant.is_some() || begin.elapsed() >= limit).then_some(grant);
            let grant = driver.wait_until(|worker| late(worker.take_leases(set)));
            lock(&self.shared.times).barrier += begin.elapsed();
            self.take(grant?);
            driver.call(|worker| worker.ask_leases(set, AT_ONCE));
            self.check_commits()?;
        }
        Ok(match self.taken.pop_front().map(|number| LeaseId { set, number }) {
            Some(id) => NextLease::Lease(DataLease { id, order: self.order, examples: AtomicU64::new(0) }),
            None if self.over => NextLease::Over,
            None => NextLease::NoneYet,
        })
    }

    /// Whether some worker has [ended](Self::end) the data set before all of it was learnt from.
    /// Whoever finds that so ends it, too. Does not block.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # use slackwater::data_leases::LeasedInput;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let mut leases = session.leases("train", &LeasedInput::new(100))?;
    /// let lease = leases.next_lease()?.expect("the first");
    /// leases.commit(lease)?;
    /// assert!(!leases.is_ended());
    /// leases.end()?;                                  // that is enough
    /// assert!(leases.is_ended() && leases.next_lease()?.is_none());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.shared.driver.call(|worker| worker.leases_ended(self.set))
    }

    /// Ends the data set for all workers, wherever they are in it: nothing more is granted. What
    /// was pushed stays. Blocks until every worker that holds leases has ended it, too, or has
    /// committed them; then all are at the same clock. Fails if the run is lost ([`Error::Run`]) or
    /// a commit was refused ([`Error::Leases`]).
    pub fn end(&mut self) -> Result<(), Error> {
        let (set, driver) = (self.set, self.shared.driver.clone());
        if !self.over {
            // A commit that comes after would be refused.
            driver.wait_until(|worker| (worker.uncommitted(set) == 0).then_some(()))?;
            driver.call(|worker| worker.end_leases(set));
        }
        self.taken.clear();
        while !self.over {
            driver.call(|worker| worker.ask_leases(set, AT_ONCE));
            let grant = driver.wait_until(|worker| worker.take_leases(set))?;
            self.take(Some(grant));
            self.taken.clear();
        }
        self.check_commits()
    }

    fn take(&mut self, grant: Option<LeaseGrant>) {
        let Some(LeaseGrant { leases, share }) = grant else { return };
        self.over = leases.is_empty();
        if !self.over {
            self.share = share;
        }
        self.taken.extend(leases);
    }

    fn check_commits(&self) -> Result<(), Error> {
        let problems = self.shared.driver.call(|worker| worker.take_lease_problems());
        problems.into_iter().next().map_or(Ok(()), |problem| Err(Error::Leases { problem }))
    }

    /// How many minibatches to put into a clock, by how fast this worker has been: end the clock
    /// after so many.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # use slackwater::data_leases::LeasedInput;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// assert_eq!(session.leases("train", &LeasedInput::new(9).per_clock(8))?.share(), 8);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn share(&self) -> u32 {
        self.share
    }

    /// A lease is done: whatever there was to learn from it was pushed, in this clock or earlier.
    /// It is committed once all of that is acknowledged; this returns at once. To be said before
    /// the clock ends.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # use slackwater::data_leases::LeasedInput;
    /// # use slackwater::table::PushOptions;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// # let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// let mut leases = session.leases("train", &LeasedInput::new(1))?;
    /// let lease = leases.next_lease()?.expect("one range");
    /// let learnt = PushOptions { lease: Some(&lease), ..PushOptions::default() };
    /// drop(table.push_opts(&table.keys(&[0]), vec![1.0], learnt)?);
    /// leases.commit(lease)?;
    /// session.clock()?;
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn commit(&mut self, lease: DataLease) -> Result<(), Error> {
        let used = self.shared.time_breakdown().compute();
        let busy = used.saturating_sub(std::mem::replace(&mut self.busy, used));
        let work = WorkReport { examples: lease.examples.into_inner(), busy: Span(busy.as_nanos() as u64) };
        Ok(self.shared.driver.call(|worker| worker.commit_lease(lease.id, work))?)
    }
}
