//! Data leases: workers take input range by range, so that each example counts once although
//! workers come and go.

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

/// How many leases a worker asks for at a time, so that the next is there when one is done.
const AT_ONCE: u64 = 2;

/// A leased input: how many ranges it has, and how often it is read. Every worker must describe it
/// alike.
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
    /// Input of `ranges` ranges, read once, in order, with one minibatch per clock.
    #[must_use]
    pub fn new(ranges: u64) -> Self {
        Self(LeaseTerms {
            ranges,
            epochs: 1,
            shuffle: None,
            per_clock: 1,
            fingerprint: 0,
            input: format!("{ranges} ranges"),
        })
    }

    /// Sets how many times the input is read. 1 unless set.
    #[must_use]
    pub fn epochs(mut self, epochs: u32) -> Self {
        self.0.epochs = epochs;
        self
    }

    /// Shuffles the ranges of each epoch by this seed. In order unless set.
    #[must_use]
    pub fn shuffled(mut self, seed: u64) -> Self {
        self.0.shuffle = Some(seed);
        self
    }

    /// Sets how many minibatches a worker of average speed puts into a clock. 1 unless set. A
    /// worker's [share](DataLeases::share) is a whole number: at 8 it follows the worker's speed to
    /// a sixteenth; at 1 it cannot follow it at all.
    #[must_use]
    pub fn per_clock(mut self, minibatches: u32) -> Self {
        self.0.per_clock = minibatches;
        self
    }

    /// Describes the input in words, and with a fingerprint that is equal for workers that cut and
    /// read alike. A worker with another fingerprint is turned away; the error shows both
    /// descriptions.
    #[must_use]
    pub fn named(mut self, input: &str, fingerprint: u128) -> Self {
        (self.0.input, self.0.fingerprint) = (input.to_owned(), fingerprint);
        self
    }
}

/// One worker's leases of one data set. Made by [`Session::leases`].
///
/// Lease `epoch × ranges + range` is one range of the input in one epoch. A worker takes a lease,
/// pushes the gradients of its minibatches
/// ([`PushOptions::lease`](crate::table::PushOptions::lease)), and commits it. If the worker is
/// lost, the coordinator gives its leases to other workers, which process them again; shards leave
/// out the parts that they hold already.
///
/// So every example counts once, provided that a lease is processed in the same way every time. Its
/// minibatches must depend on the lease alone, and each must push the same keys to the same tables
/// in the same order.
///
/// A worker without a lease waits while others hold leases, because those may come back. Meanwhile
/// it ends clocks as the others do, so that no worker waits for it. When all leases are committed,
/// every worker is at the same clock.
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
///                 drop(counts.push_opts(&keys, vec![1.0], learnt)?);      // the lease's only minibatch
///                 leases.commit(lease)?;
///                 in_clock += 1;
///                 if in_clock >= leases.share() {
///                     session.clock()?;
///                     in_clock = 0;
///                 }
///             }
///             session.barrier()?;
///             assert_eq!(counts.pull(&Keys::run(0..20))?.wait()?.values(), [3.0; 20]);    // each range once per epoch
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
    /// The program's computing time at its last commit.
    busy: Duration,
}

/// The answer to a worker that asks for a lease.
///
/// ```
/// use slackwater::{RunSize, Session};
/// use slackwater::data_leases::{LeasedInput, NextLease};
/// use std::time::Duration;
///
/// let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
/// let mut leases = session.leases("train", &LeasedInput::new(1))?;
/// let NextLease::Lease(lease) = leases.next_within(Duration::from_secs(9))? else { panic!("there is one") };
/// // There is one lease, and this worker holds it.
/// assert!(matches!(leases.next_within(Duration::ZERO)?, NextLease::NoneYet));
/// leases.commit(lease)?;
/// assert!(matches!(leases.next_within(Duration::from_secs(9))?, NextLease::Over));
/// # session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
#[derive(Debug)]
pub enum NextLease {
    /// The lease to process next.
    Lease(DataLease),
    /// No lease is available yet: other workers hold the rest, or the coordinator's answer is under
    /// way.
    NoneYet,
    /// Every lease is committed, or all were [ended](DataLeases::end) early.
    Over,
}

/// One range of the input in one epoch. It is this worker's until the worker commits it. A lease
/// that is dropped instead stays with this worker until it leaves the run, and the data set cannot
/// end before.
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

    /// The epoch that it belongs to, from 0.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.order.epoch(self.id.number)
    }

    /// The range of the input, from 0.
    #[must_use]
    pub fn range(&self) -> u64 {
        self.order.range(self.id.number)
    }

    /// How many leases come before this one in the order of granting. Tells about how far the run
    /// is.
    #[must_use]
    pub fn place(&self) -> u64 {
        self.order.place(self.id.number).0
    }

    pub(crate) fn id(&self) -> LeaseId {
        self.id
    }

    /// Counts examples of this lease that were pushed.
    pub(crate) fn learnt_from(&self, examples: u64) {
        self.examples.fetch_add(examples, Ordering::Relaxed);
    }
}

impl Session {
    /// Leases a data set by name, together with all workers that use the same name. Blocks until
    /// the coordinator has answered. Fails if another worker described the input of that name
    /// differently ([`Error::Leases`]), or if the run is lost ([`Error::Run`]).
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
        let busy = self.time_breakdown().compute();
        Ok(DataLeases { shared, set, order, taken: VecDeque::new(), share: terms.per_clock, over: false, busy })
    }
}

impl DataLeases {
    /// The next lease to process, or `None` when every lease is committed. Blocks while other
    /// workers hold the remaining leases; after a few seconds the log names them. Fails if the run
    /// is lost ([`Error::Run`]) or a commit was refused ([`Error::Leases`]).
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

    /// As [`DataLeases::next_lease`], and blocks at most for `limit`. A worker that holds a lease
    /// can take the next one ahead of time, to read its input early. It should pass a limit of
    /// zero: the remaining leases may be its own.
    pub fn next_within(&mut self, limit: Duration) -> Result<NextLease, Error> {
        let set = self.set;
        let driver = self.shared.driver.clone();
        self.check_commits()?;
        if self.taken.len() < AT_ONCE as usize && !self.over {
            // Ask ahead of time, so that the next leases are there when the program needs them.
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

    /// Whether a worker has [ended](Self::end) the data set before all of it was processed. A
    /// worker that sees this must end it too. Does not block.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # use slackwater::data_leases::LeasedInput;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let mut leases = session.leases("train", &LeasedInput::new(100))?;
    /// let lease = leases.next_lease()?.expect("the first");
    /// leases.commit(lease)?;
    /// assert!(!leases.is_ended());
    /// leases.end()?;                                  // enough was learnt
    /// assert!(leases.is_ended() && leases.next_lease()?.is_none());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.shared.driver.call(|worker| worker.leases_ended(self.set))
    }

    /// Ends the data set for all workers: the coordinator grants no more leases. Pushes that were
    /// made stay. Blocks until every worker that holds leases has committed them or has ended the
    /// data set too; then all are at the same clock. Fails if the run is lost ([`Error::Run`]) or a
    /// commit was refused ([`Error::Leases`]).
    pub fn end(&mut self) -> Result<(), Error> {
        let set = self.set;
        let driver = self.shared.driver.clone();
        if !self.over {
            // The coordinator refuses a commit that comes after the end.
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

    /// How many minibatches this worker should put into a clock, according to its measured speed.
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

    /// Commits a lease: the program has pushed everything for it, in this clock or earlier. Call it
    /// before the clock ends. Returns at once; the worker sends the commit when all those pushes
    /// are acknowledged.
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
