//! A worker's place in a run: who it is, its tables, its clock, and how it leaves.

mod open;
mod state;

use crate::table::{Table, TargetNumber};
use crate::time_breakdown::TimeBreakdown;
use crate::update_log::UpdateLogs;
use crate::{Error, embedded};
use net::{Traffic, lock};
use node::RunFailure;
pub(crate) use open::{check_size, token};
pub(crate) use state::SessionState;
use state::TableLogs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use types::{Bandwidth, Clock, NodeId, Plan, RunSize, TableSpec};
use worker::{CodecUse, WorkerCounts};

/// A worker's place in a run. Threads of a program may share it.
///
/// Dropping it leaves the run as [`Session::close`] does, and logs what goes wrong; dropped by a
/// panic it leaves without a word, so that the others notice and end.
///
/// ```
/// use slackwater::{Keys, RunSize, Session, TableSpec};
///
/// let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
/// let table = session.table::<f32>(TableSpec::dense("weights", 3, 1))?;
/// for _ in 0..10 {
///     let weights = table.pull(&Keys::run(0..3))?.wait()?;     // as fresh as the table asks
///     let gradient: Vec<f32> = weights.values().iter().map(|weight| 0.1 * (1.0 - weight)).collect();
///     drop(table.push(&Keys::run(0..3), gradient)?);           // a failure would show at the clock
///     session.clock()?;
/// }
/// assert_eq!(session.now().0, 10);
/// session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
pub struct Session {
    shared: Arc<SessionState>,
    /// Threads of an embedded run, ended with its last session.
    _embedded: Option<Arc<embedded::EmbeddedThreads>>,
    closed: bool,
}

impl Session {
    /// This worker's rank: 0 to n − 1 for those of the beginning, and then on. Another worker of
    /// the run never has the same.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// assert_eq!(session.rank(), 0);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.shared.rank.0
    }

    /// How many servers and workers the run had when this session began. In an elastic run some may
    /// have come or gone since.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// assert_eq!(session.size(), RunSize { servers: 1, workers: 1 });
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn size(&self) -> RunSize {
        self.shared.size
    }

    /// Whether this worker joined while the run was under way. A program that splits its work by
    /// rank, or waits for the others at barriers, may not be made for that.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// assert!(!session.joined_late());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn joined_late(&self) -> bool {
        self.shared.joined_late
    }

    /// Whether this worker is draining: it was told to leave in good order
    /// ([`Connect::leave`](crate::Connect::leave), SIGTERM or SIGUSR1 where the program is run by
    /// `slackwater worker`). A program asks after each minibatch, or lease. If so, it finishes what
    /// it is at and [closes](Self::close) its session: nobody waits for it from then on. Calls that
    /// wait for others fail after a few seconds
    /// ([`NodeError::Leaving`](crate::cluster::NodeError::Leaving)). Where the run ends with any of
    /// its nodes, every call fails instead, and everybody is told why. Does not block.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// for _minibatch in 0..3 {
    ///     if session.is_draining() {
    ///         break;
    ///     }
    ///     session.clock()?;
    /// }
    /// assert_eq!(session.now().0, 3);
    /// session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.shared.driver.is_leaving()
    }

    /// Why the run has failed for this worker, if it has, and whether a call has reported that. A
    /// program that was told may begin another run, and need not close this session. Does not
    /// block.
    ///
    /// ```
    /// use slackwater::{RunSize, Session};
    ///
    /// let mut sessions = Session::embedded(RunSize { servers: 1, workers: 2 })?;
    /// assert_eq!(sessions[0].failure(), None);
    /// sessions.remove(1).abandon("its data is missing");
    /// let error = sessions[0].barrier().expect_err("nobody else will come to it");
    /// let failure = sessions[0].failure().expect("that ends the run");
    /// assert_eq!((failure.error.to_string(), failure.was_reported), (error.to_string(), true));
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn failure(&self) -> Option<RunFailure> {
        self.shared.driver.failure()
    }

    /// Whether nodes may come and go in this run while it lasts
    /// ([`Membership::Elastic`](crate::cluster::Membership)).
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// assert!(!session.is_elastic());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn is_elastic(&self) -> bool {
        self.shared.open
    }

    /// The ranks of the workers that take part, by the plan that this one goes by: others may go by
    /// the next one already. Does not block.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # let sessions = Session::embedded(RunSize { servers: 1, workers: 3 })?;
    /// assert_eq!(sessions[2].live_ranks(), [0, 1, 2]);
    /// # for session in sessions { session.close()?; }
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn live_ranks(&self) -> Vec<u32> {
        self.plan().live_workers().map(|(rank, _)| rank.0).collect()
    }

    pub(crate) fn plan(&self) -> Plan {
        self.shared.driver.call(|worker| worker.plan().clone())
    }

    /// Every node of the run but the coordinator, and where it listens; addresses are empty in one
    /// process.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let nodes: Vec<String> = session.members().map(|(node, _)| node.to_string()).collect();
    /// assert_eq!(nodes, ["server 0", "worker 0"]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn members(&self) -> impl Iterator<Item = (NodeId, &str)> {
        self.shared.members.iter().map(|member| (member.node, member.address.as_str()))
    }

    /// This worker's clock: how many units of work it has finished. It starts at 0 or, in a run
    /// that was under way or is resumed, where the others are.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// session.clock()?;
    /// session.clock()?;
    /// assert_eq!(session.now().0, 2);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn now(&self) -> Clock {
        self.shared.driver.call(|worker| worker.clock())
    }

    /// A number that this session has not returned before: 0, 1, 2 and so on. Workers that call it
    /// at the same points of the same program get the same numbers, with which they can name tables
    /// that nobody has used before. Never blocks.
    ///
    /// ```
    /// use slackwater::{RunSize, Session, TableSpec};
    ///
    /// let sessions = Session::embedded(RunSize { servers: 1, workers: 2 })?;
    /// let specs: Vec<TableSpec> =
    ///     sessions.iter().map(|session| TableSpec::dense(&format!("votes {}", session.unique_number()), 1, 1)).collect();
    /// assert_eq!(specs[0], specs[1]);
    /// assert_eq!(sessions[0].unique_number(), 1);
    /// # for session in sessions { session.close()?; }
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn unique_number(&self) -> u64 {
        self.shared.unique_numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// What the codecs of this worker's tables have cost and gained so far, of those tables that
    /// have any; see [`CodecUse`]. Does not block.
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec};
    /// # use slackwater::policy::Codecs;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let layer = session.table::<f32>(TableSpec::dense("layer", 100, 64).codecs(Codecs::up(["bf16"])))?;
    /// layer.push(&Keys::run(0..100), vec![0.5; 6400])?.wait()?;
    /// assert_eq!(session.codecs()[0].upward.ratio(), Some(2.0));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn codecs(&self) -> Vec<CodecUse> {
        self.shared.driver.call(|worker| worker.codecs())
    }

    /// Sends no more than this to all servers together, from now on; `None` lifts the limit.
    /// Returns at once. Pushes then wait for their turn: those of clocks that have ended go first,
    /// of the others those that change their rows most. A read that must hold the worker's own
    /// pushes sends them at once, and what follows pays for it.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// session.limit_bandwidth("100mbit".parse().ok());
    /// session.limit_bandwidth(None);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn limit_bandwidth(&self, bandwidth: Option<Bandwidth>) {
        self.shared.driver.call(|worker| worker.limit(bandwidth));
    }

    /// Makes a table, or finds it if another worker has made it with the same spec. Blocks until
    /// every server holds its part of it. Fails if the spec does not hold together
    /// ([`Error::Spec`]), if it differs from another worker's or `T` is not its number type
    /// ([`Error::Table`]), or if the run is lost ([`Error::Run`]).
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let spec = TableSpec::dense("weights", 10, 2);
    /// let table = session.table::<f32>(spec.clone())?;
    /// assert_eq!(table.spec().name, "weights");
    /// assert!(session.table::<f32>(spec.clone()).is_ok());                       // the same again
    /// assert!(session.table::<i64>(spec.clone()).is_err());                      // it holds f32
    /// assert!(session.table::<f32>(TableSpec::dense("weights", 99, 2)).is_err()); // it has 10 rows
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn table<T: TargetNumber>(&self, spec: TableSpec) -> Result<Table<T>, Error> {
        if let Some(warning) = codec::check_spec(&spec)?.warning {
            tracing::warn!(table = spec.name, "{warning}");
        }
        if spec.number != T::TYPE {
            let problem = format!("table '{}' holds {}, not {}; write .number(…)", spec.name, spec.number, T::TYPE);
            return Err(Error::Table { problem });
        }
        let name = spec.name.clone();
        self.shared.driver.call(|worker| worker.make_table(spec.clone()));
        let made = self.shared.driver.wait_until(|worker| worker.table(&name).cloned())?;
        let id = made.map_err(|problem| Error::Table { problem })?;
        let spec = Arc::new(spec);
        let mut all = lock(&self.shared.logs);
        let known = all.get(&id).and_then(|known| known.logs.clone().downcast::<UpdateLogs<T>>().ok());
        let logs = known.unwrap_or_else(|| {
            let logs = Arc::new(UpdateLogs::<T>::new());
            let weak = Arc::downgrade(&self.shared);
            let (kept, spec) = (logs.clone(), spec.clone());
            let absorb = move || match weak.upgrade() {
                Some(shared) => Table { shared, id, spec: spec.clone(), logs: kept.clone() }.absorb_logs(),
                None => Ok(()),
            };
            all.insert(id, TableLogs { logs: logs.clone(), absorb: Box::new(absorb) });
            logs
        });
        drop(all);
        let table = Table { shared: self.shared.clone(), id, spec, logs };
        Ok(table)
    }

    /// Ends this worker's clock: what its threads pushed in it is flushed, and it is at the next
    /// one. Does not wait for acknowledgements; blocks only while tasks wait before they can be
    /// sent: for others, or, in a `clock` table, for workers that are very many clocks behind; and
    /// while too much is under way. Threads may call it at once: each call ends one clock, which
    /// holds all that its thread pushed and noted before.
    ///
    /// Fails if a push whose ticket was dropped was refused since the last clock
    /// ([`Error::Refused`], which names the first and counts the others; the clock has ended all
    /// the same), or if the run is lost ([`Error::Run`]).
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// drop(table.push(&Keys::run(0..1), vec![f32::NAN])?);
    /// table.push(&Keys::run(0..1), vec![1.0])?.wait()?;
    /// assert!(session.clock().is_err());         // somebody should know of the NaN
    /// assert!(session.clock().is_ok());          // and now does
    /// assert_eq!(session.now().0, 2);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn clock(&self) -> Result<(), Error> {
        self.shared.absorb_logs()?;
        // As one step: a push that another thread begins between the two would be divided.
        let may_end = |worker: &worker::Worker| worker.is_flushed() && worker.may_send();
        self.shared.call_when(may_end, |worker| worker.end_clock())?;
        self.shared.stepped();
        self.shared.unreported()
    }

    /// Blocks until every live worker stands at its barrier of the same count. After a few seconds
    /// the log says who is missing, and again while it lasts. Fails if the run is lost.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// std::thread::scope(|scope| {
    ///     for session in Session::embedded(RunSize { servers: 1, workers: 3 })? {
    ///         scope.spawn(move || session.barrier().and_then(|()| session.close()));
    ///     }
    ///     Ok::<(), slackwater::Error>(())
    /// })?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn barrier(&self) -> Result<(), Error> {
        let begin = Instant::now();
        let number = self.shared.driver.call(|worker| worker.barrier());
        self.shared.driver.wait_until(|worker| worker.barrier_passed(number).then_some(()))?;
        lock(&self.shared.times).barrier += begin.elapsed();
        Ok(())
    }

    /// Stands at the next barrier as [`Session::barrier`] does, and goes on at once;
    /// [`Session::is_past_barrier`] tells when every live worker stands at it. For those that must
    /// not keep others waiting meanwhile, by clocks that they do not end.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # let sessions = Session::embedded(RunSize { servers: 1, workers: 2 })?;
    /// let barrier = sessions[0].stand_at_barrier();
    /// assert!(!sessions[0].is_past_barrier(barrier));
    /// sessions[1].barrier()?;                             // the other comes
    /// while !sessions[0].is_past_barrier(barrier) {
    ///     sessions[0].clock()?;
    /// }
    /// # for session in sessions { session.close()?; }
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn stand_at_barrier(&self) -> u64 {
        self.shared.driver.call(|worker| worker.barrier())
    }

    /// Whether every live worker stands at the barrier of that number, as far as has been heard.
    /// Does not block.
    pub fn is_past_barrier(&self, number: u64) -> bool {
        self.shared.driver.catch_up();
        self.shared.driver.call(|worker| worker.barrier_passed(number))
    }

    /// Where this worker's time went so far. Does not block.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// session.barrier()?;
    /// let times = session.time_breakdown();
    /// assert!(times.barrier <= times.total);
    /// assert!(times.slowest().is_none());       // nobody else is here to be waited for
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn time_breakdown(&self) -> TimeBreakdown {
        self.shared.time_breakdown()
    }

    /// Has calls that block ask `interrupt` now and then whether they should go on waiting: those
    /// that have waited for a twentieth of a second, and what a program in another language does on
    /// Ctrl-C, for instance. If it says no the call fails with
    /// [`NodeError::Interrupted`](crate::cluster::NodeError::Interrupted); what was under way still
    /// is, and the run goes on. Set once; later ones are ignored. Does not block.
    ///
    /// ```
    /// use slackwater::{Error, RunSize, Session};
    /// use slackwater::cluster::NodeError;
    ///
    /// let sessions = Session::embedded(RunSize { servers: 1, workers: 2 })?;
    /// sessions[0].interrupt_by(|| true);
    /// let error = sessions[0].barrier().expect_err("the other does not come to it");
    /// assert!(matches!(error, Error::Run(NodeError::Interrupted)));
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn interrupt_by(&self, interrupt: impl Fn() -> bool + Send + Sync + 'static) {
        self.shared.driver.interrupt_by(interrupt);
    }

    pub(crate) fn shared(&self) -> &Arc<SessionState> {
        &self.shared
    }

    /// What this worker's machine has done so far. Does not block.
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// table.push(&Keys::run(0..1), vec![1.0])?.wait()?;
    /// table.pull(&Keys::run(0..1))?.wait()?;
    /// assert_eq!((session.counts().parts, session.counts().rows_read), (1, 1));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn counts(&self) -> WorkerCounts {
        self.shared.driver.call(|worker| worker.counts().clone())
    }

    /// Bytes of pushes that are not acknowledged yet. Does not block.
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// table.push(&Keys::run(0..1), vec![1.0])?.wait()?;
    /// assert_eq!(session.unacknowledged_bytes(), 0);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn unacknowledged_bytes(&self) -> usize {
        self.shared.driver.call(|worker| worker.unacknowledged_bytes())
    }

    /// What this worker has sent and received so far; in one process, about what it would have been
    /// over TCP. Does not block.
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1000, 1))?;
    /// table.push(&Keys::run(0..1000), vec![1.0; 1000])?.wait()?;
    /// assert!(session.traffic().bytes_out > 4 * 1000);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.shared.driver.traffic()
    }

    /// Leaves as one that cannot go on: the run ends for everybody, and they are told who it was
    /// and why. Whoever leaves by [`close`](Self::close) or by dropping its session is taken for
    /// one that has finished. Does not block.
    ///
    /// ```
    /// use slackwater::{RunSize, Session};
    ///
    /// let mut sessions = Session::embedded(RunSize { servers: 1, workers: 2 })?;
    /// sessions.remove(1).abandon("its data is missing");
    /// let error = sessions[0].barrier().expect_err("nobody else will come to it");
    /// assert!(error.to_string().contains("lost worker 1: it could not go on: its data is missing"), "{error}");
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn abandon(mut self, reason: &str) {
        self.closed = true;
        self.shared.driver.abandon(reason);
    }

    /// Flushes, blocks until everything is acknowledged, and leaves the run: nobody waits for this
    /// worker any more. Fails if a push whose ticket was dropped was refused since the last clock,
    /// or if the run is lost. Tables and tickets of the session fail from then on.
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec};
    /// let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// session.close()?;
    /// assert!(table.push(&Keys::run(0..1), vec![1.0]).is_err());
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn close(mut self) -> Result<(), Error> {
        self.leave()
    }

    fn leave(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        let absorbed = self.shared.absorb_logs();
        let left = absorbed.and_then(|()| Ok(self.shared.driver.leave()?));
        if left.is_err() {
            // Others must not wait for a worker that cannot say goodbye.
            self.shared.driver.abandon("it could not leave in good order");
        }
        left.and_then(|()| self.shared.unreported())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Others must not take a worker that fell over for one that finished.
            if !self.closed {
                self.shared.driver.abandon("its program panicked");
            }
        } else if let Err(error) = self.leave() {
            tracing::warn!(%error, "left without a goodbye");
        }
    }
}
