//! [`Ticket`]: the future that an operation returns, and [`Rows`], the result of a read.

use crate::Error;
use crate::session::SessionState;
use crate::table::TargetNumber;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;
use types::{Clock, Placement, WorkerId};
use wire::FailedClock;
use worker::{ReadRows, TicketId, TicketOutcome};

/// An operation under way, such as a push or pull. [`Ticket::wait`] blocks until it is done.
/// Dropping the ticket does not block; the next [`crate::Session::clock`] then reports a failure.
///
/// ```
/// # use slackwater::{Keys, RunSize, Session, TableSpec};
/// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
/// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
/// let push = table.push(&Keys::run(0..1), vec![1.0])?;    // under way
/// let pull = table.pull(&Keys::run(0..1))?;               // under way, too
/// assert_eq!(pull.wait()?.values(), [1.0]);         // a worker reads what it wrote
/// push.wait()?;
/// # session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
#[must_use = "a ticket that is dropped is not waited for"]
pub struct Ticket<R: FromOutcome> {
    pub(crate) shared: Arc<SessionState>,
    pub(crate) id: TicketId,
    pub(crate) placement: Placement,
    /// Cleared once the outcome has been taken.
    open: bool,
    result: PhantomData<R>,
}

/// The result type of a ticket: `()` for a push, or [`Rows`]. A program never needs to implement
/// it.
///
/// ```
/// use slackwater::{Error, Keys, Ticket};
/// use slackwater::table::FromOutcome;
/// /// Waits for all tickets, of any result type.
/// fn all<R: FromOutcome>(tickets: Vec<Ticket<R>>) -> Result<Vec<R>, Error> {
///     tickets.into_iter().map(Ticket::wait).collect()
/// }
/// # use slackwater::{RunSize, Session, TableSpec};
/// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
/// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
/// all(vec![table.push(&Keys::run(0..1), vec![1.0])?, table.push(&Keys::run(0..1), vec![1.0])?])?;
/// assert_eq!(all(vec![table.pull(&Keys::run(0..1))?])?[0].values(), [2.0]);
/// # session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
pub trait FromOutcome: Sized {
    #[doc(hidden)]
    fn from_outcome(outcome: TicketOutcome, placement: Placement) -> Self;
    /// The worker whose clock marker released a parked read.
    #[doc(hidden)]
    fn released_by(&self) -> Option<WorkerId>;
}

impl FromOutcome for () {
    fn from_outcome(_: TicketOutcome, _: Placement) -> Self {}
    fn released_by(&self) -> Option<WorkerId> {
        None
    }
}

impl<R: FromOutcome> Ticket<R> {
    pub(crate) fn new(shared: Arc<SessionState>, id: TicketId, placement: Placement) -> Self {
        Self { shared, id, placement, open: true, result: PhantomData }
    }

    /// Blocks until the operation is done: for a push, until every part has been applied or is held
    /// for its clock; for a pull, until the rows have arrived. After a few seconds the log names
    /// the slower workers that it waits for; [`crate::Session::time_breakdown`] counts the time.
    /// Fails if a shard refused a part ([`Error::Refused`]), or if the run is lost
    /// ([`Error::Run`]).
    ///
    /// ```
    /// # use slackwater::{Error, Keys, RunSize, Session, TableSpec};
    /// # use slackwater::table::Refusal;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 2, 1))?;
    /// assert!(table.push(&Keys::run(0..2), vec![1.0, 2.0])?.wait().is_ok());
    /// let error = table.push(&Keys::run(0..2), vec![1.0, f32::NAN])?.wait().expect_err("one is not finite");
    /// assert!(matches!(error, Error::Refused { refusal: Refusal::NotFinite { .. }, .. }));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn wait(mut self) -> Result<R, Error> {
        let begin = Instant::now();
        let id = self.id;
        let outcome = self.shared.driver.wait_until(|worker| worker.take(id))?;
        self.open = false;
        let result = match outcome {
            Ok(outcome) => R::from_outcome(outcome, self.placement),
            Err((table, failure)) => return Err(self.shared.refused(table, &failure, 0)),
        };
        self.shared.account(result.released_by(), begin.elapsed());
        Ok(result)
    }

    /// Whether the operation is done or has failed, so that `wait` would return at once. Does not
    /// block.
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// let push = table.push(&Keys::run(0..1), vec![1.0])?;
    /// while !push.is_done() {
    ///     std::thread::yield_now();                         // or something more useful
    /// }
    /// push.wait()?;
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn is_done(&self) -> bool {
        let id = self.id;
        self.shared.driver.call(|worker| worker.is_finished(id))
    }
}

impl<R: FromOutcome> Drop for Ticket<R> {
    fn drop(&mut self) {
        if self.open {
            self.shared.driver.call(|worker| worker.detach(self.id));
        }
    }
}

/// What a later operation can run after: a [`Ticket`] of any result type. A program never needs to
/// implement it.
///
/// ```
/// use slackwater::{Keys, Tickets};
/// use slackwater::table::{Prerequisite, PushOptions};
///
/// fn both(first: &impl Prerequisite, second: &impl Prerequisite) -> Tickets {
///     Tickets::none().and(first).and(second)
/// }
/// # use slackwater::{RunSize, Session, TableSpec};
/// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
/// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
/// let push = table.push(&Keys::run(0..1), vec![1.0])?;
/// let pull = table.pull(&Keys::run(0..1))?;
/// let after_both = PushOptions { after: both(&push, &pull), ..PushOptions::default() };
/// table.push_opts(&Keys::run(0..1), vec![1.0], after_both)?.wait()?;
/// assert!(push.is_done() && pull.is_done());
/// # session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
pub trait Prerequisite {
    #[doc(hidden)]
    fn id(&self) -> TicketId;
}

impl<R: FromOutcome> Prerequisite for Ticket<R> {
    fn id(&self) -> TicketId {
        self.id
    }
}

/// A list of tickets that an operation runs after: of any kind, done or not. The worker sends the
/// operation when the last ticket is done; a failed ticket counts as done.
///
/// ```
/// # use slackwater::{Keys, RunSize, Session, TableSpec, Tickets};
/// # use slackwater::table::PushOptions;
/// # let session = Session::embedded(RunSize { servers: 2, workers: 1 })?.remove(0);
/// let table = session.table::<f32>(TableSpec::dense("t", 2, 1))?;
/// let push = table.push(&Keys::run(0..1), vec![1.0])?;
/// let pull = table.pull(&Keys::run(1..2))?;
/// let after = Tickets::none().and(&push).and(&pull);
/// table.push_opts(&Keys::run(1..2), vec![2.0], PushOptions { after, ..PushOptions::default() })?.wait()?;
/// assert!(push.is_done() && pull.is_done());
/// assert_eq!(pull.wait()?.values(), [0.0]);
/// # session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tickets(pub(crate) Vec<TicketId>);

impl Tickets {
    /// The empty list: the operation is sent at once.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec, Tickets};
    /// # use slackwater::table::PushOptions;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// let at_once = PushOptions { after: Tickets::none(), ..PushOptions::default() };
    /// table.push_opts(&table.keys(&[0]), vec![1.0], at_once)?.wait()?;
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a ticket to the list. The caller keeps the ticket, and can wait for it.
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec, Tickets};
    /// # use slackwater::table::PullOptions;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// let push = table.push(&Keys::run(0..1), vec![1.0])?;
    /// let after = Tickets::none().and(&push);
    /// let rows = table.pull_opts(&Keys::run(0..1), PullOptions { after, ..PullOptions::default() })?.wait()?;
    /// assert!(push.is_done() && rows.values() == [1.0]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn and(mut self, ticket: &impl Prerequisite) -> Self {
        self.0.push(ticket.id());
        self
    }
}

/// The rows that a read returned, and which clocks they reflect. No method blocks.
///
/// ```
/// # use slackwater::{RunSize, Session, TableSpec};
/// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
/// let table = session.table::<f32>(TableSpec::sparse("t", 2).ordered())?;
/// table.push(&table.keys(&[3, 8]), vec![1.0, 2.0, 3.0, 4.0])?.wait()?;
/// session.clock()?;
/// let rows = table.scan(0..100)?.wait()?;
/// assert_eq!(rows.ids(), [3, 8]);
/// assert_eq!(rows.values(), [1.0, 2.0, 3.0, 4.0]);         // row by row
/// assert_eq!((rows.clock().0, rows.staleness()), (1, 0));  // every update of clock 0 is in
/// assert!(rows.failed_clocks().is_empty() && rows.cached_rows() == 0);
/// # session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rows<T> {
    values: Vec<T>,
    ids: Vec<u64>,
    rows: ReadFacts,
}

/// What a read reports beside its rows: see the methods of [`Rows`].
#[derive(Clone, Debug)]
struct ReadFacts {
    clock: Clock,
    reader: Clock,
    released_by: Option<WorkerId>,
    failed: Vec<FailedClock>,
    cached_rows: usize,
}

impl<T> Rows<T> {
    /// The values, row after row in the order of the keys.
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 2, 1))?;
    /// table.push(&Keys::run(0..2), vec![1.0, 2.0])?.wait()?;
    /// assert_eq!(table.pull(&Keys::run(0..2))?.wait()?.values(), [1.0, 2.0]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The values' memory, for example to reuse it in the next pull: see
    /// [`PullOptions::into`](crate::table::PullOptions::into).
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 2, 1))?;
    /// table.push(&Keys::run(0..2), vec![1.0, 2.0])?.wait()?;
    /// let values: Vec<f32> = table.pull(&Keys::run(0..2))?.wait()?.into_values();
    /// assert_eq!(values, [1.0, 2.0]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn into_values(self) -> Vec<T> {
        self.values
    }

    /// The ids of the rows, for a scan and for row state. Empty for other pulls, whose keys the
    /// caller has.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1).ordered())?;
    /// table.push(&table.keys(&[3, 8]), vec![1.0, 2.0])?.wait()?;
    /// assert_eq!(table.scan(0..5)?.wait()?.ids(), [3]);
    /// assert!(table.pull(&table.keys(&[3]))?.wait()?.ids().is_empty());   // the caller has them
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// The rows reflect every update of clocks below this one.
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 2, 1))?;
    /// table.push(&Keys::run(0..2), vec![1.0, 2.0])?.wait()?;
    /// assert_eq!(table.pull(&Keys::run(0..2))?.wait()?.clock().0, 0);
    /// session.clock()?;
    /// assert_eq!(table.pull(&Keys::run(0..2))?.wait()?.clock().0, 1);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.rows.clock
    }

    /// How many clocks the reader was ahead of the frontier that the rows reflect.
    ///
    /// ```
    /// use slackwater::{Consistency, Keys, RunSize, Session, TableSpec};
    ///
    /// let sessions = Session::embedded(RunSize { servers: 1, workers: 2 })?;
    /// let spec = TableSpec::dense("t", 1, 1).consistency(Consistency::slack(1));
    /// let table = sessions[0].table::<f32>(spec)?;
    /// sessions[0].clock()?;                                  // worker 1 is still in clock 0
    /// assert_eq!(table.pull(&Keys::run(0..1))?.wait()?.staleness(), 1);
    /// # for session in sessions { session.close()?; }
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn staleness(&self) -> u64 {
        self.rows.reader.0.saturating_sub(self.rows.clock.0)
    }

    /// The worker whose clock released this read, if it was parked until the table's slack allowed
    /// it.
    ///
    /// ```
    /// use slackwater::{Keys, RunSize, Session, TableSpec};
    /// use slackwater::cluster::WorkerId;
    ///
    /// let mut sessions = Session::embedded(RunSize { servers: 1, workers: 2 })?;
    /// let slow = sessions.remove(1);
    /// let fast = sessions.remove(0);
    /// let table = fast.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// fast.clock()?;
    /// let read = table.pull(&Keys::run(0..1))?;                    // parked until worker 1 has ended clock 0
    /// slow.clock()?;
    /// assert!(matches!(read.wait()?.waited_for(), Some(WorkerId(1)) | None));    // none, if worker 1 was faster
    /// # slow.close()?;
    /// # fast.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn waited_for(&self) -> Option<WorkerId> {
        self.rows.released_by
    }

    /// Recent clocks that failed for all workers alike, because a shard refused one worker's push.
    ///
    /// ```
    /// use slackwater::{Keys, RunSize, Session, TableSpec};
    /// use slackwater::policy::{Combine, Reduce};
    ///
    /// let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1).combine(Combine::Clock(Reduce::Sum)))?;
    /// assert!(table.push(&Keys::run(0..1), vec![f32::NAN])?.wait().is_err());
    /// session.clock()?;
    /// let rows = table.pull(&Keys::run(0..1))?.wait()?;
    /// assert_eq!((rows.values(), rows.failed_clocks()[0].clock.0), (&[0.0][..], 0));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn failed_clocks(&self) -> &[FailedClock] {
        &self.rows.failed
    }

    /// How many of the rows came from this worker's cache.
    ///
    /// ```
    /// # use slackwater::{Consistency, Keys, RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 2, 1).consistency(Consistency::slack(1)).cached(2))?;
    /// assert_eq!(table.pull(&Keys::run(0..2))?.wait()?.cached_rows(), 0);
    /// assert_eq!(table.pull(&Keys::run(0..2))?.wait()?.cached_rows(), 2);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn cached_rows(&self) -> usize {
        self.rows.cached_rows
    }
}

impl<T: TargetNumber> FromOutcome for Rows<T> {
    fn from_outcome(outcome: TicketOutcome, placement: Placement) -> Self {
        let TicketOutcome::Rows(rows) = outcome else { unreachable!("a pull brings rows") };
        let ReadRows { values, positions, clock, reader, released_by, failed, cached_rows, active: _, page: _ } = rows;
        let ids = positions.into_iter().map(|position| placement.key(types::Position(position)).0).collect();
        let rows = ReadFacts { clock, reader, released_by, failed, cached_rows };
        Self { values: T::from_target(values), ids, rows }
    }
    fn released_by(&self) -> Option<WorkerId> {
        self.rows.released_by
    }
}
