//! [`Session`]: a worker's membership in a run, with its rank, tables, clock, barriers and
//! counters, and how it leaves.

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

/// A worker's membership in a run. Threads of a program may share it.
///
/// Dropping a session leaves the run as [`Session::close`] does, and logs a failure. If a panic
/// drops it, the session tells the other nodes that its program panicked.
///
/// ```
/// use slackwater::{Keys, RunSize, Session, TableSpec};
///
/// let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
/// let table = session.table::<f32>(TableSpec::dense("weights", 3, 1))?;
/// for _ in 0..10 {
///     let weights = table.pull(&Keys::run(0..3))?.wait()?;     // as fresh as the table requires
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
    /// This worker's rank. The run's first n workers have 0 to n − 1, and later ones count on. No
    /// rank is used twice in a run.
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

    /// How many servers and workers the run had when this session began. In an elastic run the
    /// numbers may have changed since.
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
    /// rank, or meets other workers at barriers, must handle that case.
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

    /// Whether this worker is draining: it was told to leave in good order, by
    /// [`Connect::leave`](crate::Connect::leave), or by SIGTERM or SIGUSR1 under `slackwater
    /// worker`. Does not block.
    ///
    /// A program asks after each minibatch or lease. A draining worker finishes the work at hand
    /// and [closes](Self::close) its session; then no worker waits for it. Its calls that wait for
    /// other workers fail after a few seconds
    /// ([`NodeError::Leaving`](crate::cluster::NodeError::Leaving)). In a static run every call
    /// fails instead, and all nodes are told why.
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

    /// The failure of the run for this worker, if there is one, and whether a call has reported it.
    /// After a reported failure the program may begin another run without closing this session.
    /// Does not block.
    ///
    /// ```
    /// use slackwater::{RunSize, Session};
    ///
    /// let mut sessions = Session::embedded(RunSize { servers: 1, workers: 2 })?;
    /// assert_eq!(sessions[0].failure(), None);
    /// sessions.remove(1).abandon("its data is missing");
    /// let error = sessions[0].barrier().expect_err("the other worker has left");
    /// let failure = sessions[0].failure().expect("that ends the run");
    /// assert_eq!((failure.error.to_string(), failure.was_reported), (error.to_string(), true));
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn failure(&self) -> Option<RunFailure> {
        self.shared.driver.failure()
    }

    /// Fails with [`Error::Run`] if the run has failed for this worker, as every call that waits
    /// does, but does not wait.
    ///
    /// ```
    /// use slackwater::{RunSize, Session};
    ///
    /// let mut sessions = Session::embedded(RunSize { servers: 1, workers: 2 })?;
    /// sessions[0].check()?;
    /// sessions.remove(1).abandon("its data is missing");
    /// sessions[0].barrier().expect_err("the other worker has left");
    /// let error = sessions[0].check().expect_err("that ends the run");
    /// assert!(error.to_string().starts_with("lost worker 1: it could not go on: its data is missing"));
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        Ok(self.shared.driver.check()?)
    }

    /// Whether this is an elastic run, which nodes join and leave while it lasts
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

    /// The ranks of the live workers, by the plan that this worker knows. Other workers may know a
    /// newer plan. Does not block.
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

    /// The plan that this worker knows.
    pub(crate) fn plan(&self) -> Plan {
        self.shared.driver.call(|worker| worker.plan().clone())
    }

    /// Every node of the run except the coordinator, with its address. Addresses are empty in an
    /// embedded run.
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

    /// This worker's clock: how many units of work it has finished. It starts at 0. A worker that
    /// joins late, or in a resumed run, starts at the clock of the other workers.
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
    /// at the same points of the same program get the same numbers, and can use them in the names
    /// of new tables. Does not block.
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

    /// Time and bytes that codecs have taken and saved so far, for each table of this worker that
    /// has codecs; see [`CodecUse`]. Does not block.
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

    /// Limits what this worker sends to all servers together, from now on; `None` lifts the limit.
    /// Returns at once.
    ///
    /// Under a limit pushes wait for their turn: pushes of ended clocks go first, then those that
    /// change their rows most. A read that must reflect the worker's own pushes sends these at
    /// once, and later messages wait longer to make up for it.
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
    /// every server holds its shards of the table. Fails if the spec contradicts itself
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
            let kept = logs.clone();
            let spec = spec.clone();
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

    /// Ends this worker's clock: flushes what its threads pushed in it, and moves to the next
    /// clock.
    ///
    /// Does not wait for acknowledgements. It blocks only while an operation cannot be sent yet: it
    /// names tickets to run after, it pushes to a `clock` table in which some worker is very many
    /// clocks behind, or too many bytes are under way. Several threads may call it at the same
    /// time: each call ends one clock, which holds everything that its thread pushed and logged
    /// before.
    ///
    /// Fails if a push whose ticket was dropped was refused since the last clock
    /// ([`Error::Refused`], which names the first and counts the others). The clock has ended all
    /// the same. Fails if the run is lost ([`Error::Run`]).
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// drop(table.push(&Keys::run(0..1), vec![f32::NAN])?);
    /// table.push(&Keys::run(0..1), vec![1.0])?.wait()?;
    /// assert!(session.clock().is_err());         // reports the refused NaN
    /// assert!(session.clock().is_ok());          // once
    /// assert_eq!(session.now().0, 2);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn clock(&self) -> Result<(), Error> {
        self.shared.absorb_logs()?;
        // Check and end in one step: a push that another thread begins in between would be split
        // over two clocks.
        let may_end = |worker: &worker::Worker| worker.is_flushed() && worker.may_send();
        self.shared.call_when(may_end, |worker| worker.end_clock())?;
        self.shared.stepped();
        self.shared.unreported()
    }

    /// Blocks until every live worker has called `barrier` as often as this one. After a few
    /// seconds the log names the missing workers, and repeats that while the wait lasts. Fails if
    /// the run is lost.
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

    /// Arrives at the next barrier as [`Session::barrier`] does, and returns its number at once.
    /// [`Session::is_past_barrier`] tells when every live worker has arrived. For workers that must
    /// go on ending clocks meanwhile, so that no reader waits for them.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # let sessions = Session::embedded(RunSize { servers: 1, workers: 2 })?;
    /// let barrier = sessions[0].stand_at_barrier();
    /// assert!(!sessions[0].is_past_barrier(barrier));
    /// sessions[1].barrier()?;                             // the other worker arrives
    /// while !sessions[0].is_past_barrier(barrier) {
    ///     sessions[0].clock()?;
    /// }
    /// # for session in sessions { session.close()?; }
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn stand_at_barrier(&self) -> u64 {
        self.shared.driver.call(|worker| worker.barrier())
    }

    /// Whether every live worker has arrived at the barrier of that number, as far as this worker
    /// knows. Does not block.
    pub fn is_past_barrier(&self, number: u64) -> bool {
        self.shared.driver.catch_up();
        self.shared.driver.call(|worker| worker.barrier_passed(number))
    }

    /// How this worker has spent its time so far. Does not block.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// session.barrier()?;
    /// let times = session.time_breakdown();
    /// assert!(times.barrier <= times.total);
    /// assert!(times.slowest().is_none());       // there is no other worker
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn time_breakdown(&self) -> TimeBreakdown {
        self.shared.time_breakdown()
    }

    /// Sets a callback that can interrupt blocked calls, for example on Ctrl-C in a program of
    /// another language. A call that has blocked for a twentieth of a second asks `interrupt` now
    /// and then. If it returns true, the call fails with
    /// [`NodeError::Interrupted`](crate::cluster::NodeError::Interrupted); operations under way
    /// stay under way, and the run goes on. Only the first callback counts. Does not block.
    ///
    /// ```
    /// use slackwater::{Error, RunSize, Session};
    /// use slackwater::cluster::NodeError;
    ///
    /// let sessions = Session::embedded(RunSize { servers: 1, workers: 2 })?;
    /// sessions[0].interrupt_by(|| true);
    /// let error = sessions[0].barrier().expect_err("the other worker does not arrive");
    /// assert!(matches!(error, Error::Run(NodeError::Interrupted)));
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn interrupt_by(&self, interrupt: impl Fn() -> bool + Send + Sync + 'static) {
        self.shared.driver.interrupt_by(interrupt);
    }

    pub(crate) fn shared(&self) -> &Arc<SessionState> {
        &self.shared
    }

    /// Counters of this worker: parts pushed, rows read, and so on. Does not block.
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

    /// How many bytes of pushes are not acknowledged yet. Does not block.
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

    /// Bytes that this worker has sent and received so far. In an embedded run, about the bytes
    /// that TCP would have carried. Does not block.
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

    /// Reports that this worker cannot go on, and leaves. The run ends, with replicas, too. The
    /// other nodes are told this worker's rank and the reason. A worker that leaves by
    /// [`close`](Self::close), or drops its session, counts as finished instead. Does not block.
    ///
    /// ```
    /// use slackwater::{RunSize, Session};
    ///
    /// let mut sessions = Session::embedded(RunSize { servers: 1, workers: 2 })?;
    /// sessions.remove(1).abandon("its data is missing");
    /// let error = sessions[0].barrier().expect_err("the other worker has left");
    /// assert!(error.to_string().contains("lost worker 1: it could not go on: its data is missing"), "{error}");
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn abandon(mut self, reason: &str) {
        self.closed = true;
        self.shared.driver.abandon(reason);
    }

    /// Flushes, blocks until everything is acknowledged, and leaves the run; then no worker waits
    /// for this one. Fails if a push whose ticket was dropped was refused since the last clock, or
    /// if the run is lost. Tables and tickets of the session fail from then on.
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
            // Tell the other nodes, so that no worker waits for this one.
            self.shared.driver.abandon("it could not leave in good order");
        }
        left.and_then(|()| self.shared.unreported())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Tell the other nodes, so that this worker does not count as finished.
            if !self.closed {
                self.shared.driver.abandon("its program panicked");
            }
        } else if let Err(error) = self.leave() {
            tracing::warn!(%error, "the dropped session could not leave the run in good order");
        }
    }
}
