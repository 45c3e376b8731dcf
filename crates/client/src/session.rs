//! A worker's place in a run.

use crate::log::Logs;
use crate::meeting::{Meeting, Place};
use crate::table::{Table, TargetNumber};
use crate::{Connect, Error, Ledger, embedded};
use machine::{Failure, Size, WorkerCounts};
use net::{Traffic, lock};
use node::{Driver, DriverSettings, Wait, join};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use types::{Clock, NodeId, Placement, TableId, TableSpec, WorkerId};
use update::Registry;
use wire::{Member, Pool, Role};

/// Pushed bytes that may be unacknowledged before a push blocks.
const UNACKNOWLEDGED: usize = 256 << 20;

/// How many servers and workers a run has. Both must be at least one.
///
/// ```
/// use slackwater::{Session, Shape};
///
/// let sessions = Session::embedded(Shape { servers: 2, workers: 3 })?;
/// assert_eq!(sessions.len(), 3);
/// assert!(sessions.iter().all(|session| session.shape() == Shape { servers: 2, workers: 3 }));
/// assert!(Session::embedded(Shape { servers: 0, workers: 3 }).is_err());
/// # Ok::<(), slackwater::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Threads that hold shards.
    pub servers: u32,
    /// Programs that compute.
    pub workers: u32,
}

impl Shape {
    pub(crate) fn check(self) -> Result<Self, Error> {
        if self.servers == 0 || self.workers == 0 { Err(Error::Shape(self)) } else { Ok(self) }
    }
}

impl From<Shape> for Size {
    fn from(shape: Shape) -> Self {
        Self { servers: shape.servers, workers: shape.workers }
    }
}

pub(crate) struct Shared {
    pub driver: Arc<Driver>,
    /// Where values of the caller's are copied to.
    pub pool: Pool,
    shape: Shape,
    rank: WorkerId,
    members: Vec<Member>,
    opened: Instant,
    ledger: Mutex<Ledger>,
    /// The logs of every table, however often it was opened, and how to send them at the end of a clock.
    logs: Mutex<BTreeMap<TableId, TableLogs>>,
    turns: AtomicU64,
}

/// One table's logs, of whatever number type, and how to send them.
struct TableLogs {
    logs: Arc<dyn Any + Send + Sync>,
    absorb: Box<dyn Fn() -> Result<(), Error> + Send>,
}

impl Shared {
    pub fn refused(&self, table: TableId, failure: &Failure) -> Error {
        let named = |spec: &TableSpec| (spec.name.clone(), spec.shape.placement());
        let named = self.driver.call(|worker, _, _| worker.spec(table).map(named));
        let (table, placement) = named.unwrap_or_else(|| (format!("number {}", table.0), Placement::Ordered));
        Error::Refused { worker: self.rank, table, placement, refusal: failure.refusal.clone() }
    }

    /// Sends what the logs of every table hold.
    fn absorb_logs(&self) -> Result<(), Error> {
        lock(&self.logs).values().try_for_each(|table| (table.absorb)())
    }

    /// Fails if a push whose ticket was dropped was refused since this was last asked.
    fn unreported(&self) -> Result<(), Error> {
        match self.driver.call(|worker, _, _| worker.take_unreported()).first() {
            Some((table, failure)) => Err(self.refused(*table, failure)),
            None => Ok(()),
        }
    }

    pub fn account(&self, released_by: Option<WorkerId>, time: Duration) {
        let mut ledger = lock(&self.ledger);
        match released_by {
            Some(worker) => *ledger.bound.entry(worker).or_default() += time,
            None => ledger.network += time,
        }
    }

    /// Runs a push or a pull; blocks first while too much is under way.
    pub fn push<R>(
        &self,
        push: impl FnOnce(&mut machine::Worker, types::Time, &mut machine::Outbox) -> R,
    ) -> Result<R, Error> {
        let has_room = |worker: &machine::Worker| worker.unacknowledged_bytes() < UNACKNOWLEDGED && worker.may_read();
        let mut push = Some(push);
        let now = self.driver.call(|worker, now, out| {
            has_room(worker).then(|| push.take().map(|push| push(worker, now, out))).flatten()
        });
        if let Some(result) = now {
            return Ok(result);
        }
        let Some(push) = push else { unreachable!("a push that was not run is still there") };
        let begin = Instant::now();
        let result = self.driver.call_when(has_room, push)?;
        self.account(None, begin.elapsed());
        Ok(result)
    }
}

/// A worker's place in a run. Threads of a program may share it.
///
/// Dropping it leaves the run as [`Session::close`] does, and logs what goes wrong; dropped by a panic it leaves without a word,
/// so that the others notice and end.
pub struct Session {
    shared: Arc<Shared>,
    /// Threads of an embedded run, ended with its last session.
    _embedded: Option<Arc<embedded::Threads>>,
    closed: bool,
}

impl Session {
    /// A whole run in this process: a session for each worker, by rank, to be moved into threads. Blocks until all have begun.
    /// Fails if there are no servers or no workers ([`Error::Shape`]).
    ///
    /// ```
    /// # use slackwater::{Session, Shape};
    /// for session in Session::embedded(Shape { servers: 2, workers: 4 })? {
    ///     std::thread::spawn(move || {
    ///         println!("worker {} of {}", session.rank(), session.shape().workers);
    ///         session.close()
    ///     });
    /// }
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn embedded(shape: Shape) -> Result<Vec<Self>, Error> {
        Self::embedded_with(shape, Registry::builtin(), Wait::BLOCKING)
    }

    /// As [`Session::embedded`], with updaters of the program's own and another way of waiting.
    ///
    /// ```
    /// use slackwater::{Wait, Registry, Session, Shape, Step, TableSpec, Updater, UpdaterSpec};
    ///
    /// struct Max;
    /// impl Updater<f32> for Max {
    ///     fn state(&self, _width: usize) -> usize { 0 }
    ///     fn update(&self, _: &Step, _width: usize, row: &mut [f32], gradient: &[f32]) {
    ///         row.iter_mut().zip(gradient).for_each(|(w, g)| *w = w.max(*g));
    ///     }
    /// }
    ///
    /// let mut registry = Registry::builtin();
    /// registry.register::<f32>("max", |_settings| Box::new(Max));
    /// let shape = Shape { servers: 1, workers: 1 };
    /// let session = Session::embedded_with(shape, registry, Wait::BLOCKING)?.remove(0);
    /// let max = UpdaterSpec::Custom { name: "max".into(), settings: vec![] };
    /// let table = session.table::<f32>(TableSpec::dense("highest", 1, 1).updater(max))?;
    /// let rows = table.push_pull(&table.keys(&[0]), vec![3.0])?.wait()?;
    /// assert_eq!(rows.values(), [3.0]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn embedded_with(shape: Shape, registry: Registry, wait: Wait) -> Result<Vec<Self>, Error> {
        embedded::start(shape.check()?, registry, wait)
    }

    /// Joins a run of several processes as a worker. Blocks until everybody has joined, at most `connect.join_limit`. Fails
    /// if an address is none or cannot be used ([`Error::Address`]), or if the coordinator is not there, has no room, or not
    /// everybody comes ([`Error::Run`]).
    ///
    /// ```
    /// use slackwater::{Connect, Serve, Session, Shape, TableSpec};
    ///
    /// // A server with the coordinator, which would be a process of its own.
    /// let meet = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
    /// let connect = Connect::to(&meet.to_string());
    /// let serve = Serve { coordinate: Some(Shape { servers: 1, workers: 1 }), ..Serve::new(connect.clone()) };
    /// let server = std::thread::spawn(move || serve.run());
    ///
    /// let session = Session::connect(&connect)?;
    /// let table = session.table::<f64>(TableSpec::dense("t", 2, 1).number(slackwater::NumberType::F64))?;
    /// assert_eq!(table.push_pull_range(0..2, vec![1.0, 2.0])?.wait()?.values(), [1.0, 2.0]);
    /// session.close()?;
    /// assert_eq!(server.join().expect("no panic")?.len(), 1);
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn connect(connect: &Connect) -> Result<Self, Error> {
        let pool = Pool::new();
        let meeting = Meeting::of(connect)?;
        let Place { mut transport, mut waiter, address } = meeting.open(connect, 0, false, &pool)?;
        let joined =
            join(&mut transport, &mut waiter, (Role::Worker, connect.place), &address, token(), connect.join_limit)?;
        let settings = DriverSettings { wait: connect.wait, patience: connect.patience };
        Ok(Self::begin(joined, Box::new(transport), Box::new(waiter), settings, None))
    }

    pub(crate) fn begin(
        joined: node::Joined,
        transport: Box<dyn net::Transport>,
        waiter: Box<dyn net::Waiter>,
        settings: DriverSettings,
        embedded: Option<Arc<embedded::Threads>>,
    ) -> Self {
        let shape = Shape { servers: joined.plan.servers, workers: joined.plan.workers.len() as u32 };
        let rank = match joined.node {
            NodeId::Worker(rank) => WorkerId(rank),
            _ => WorkerId(0),
        };
        let members = joined.members.clone();
        let driver = Driver::start(joined, transport, waiter, settings);
        let shared = Arc::new(Shared {
            driver,
            pool: Pool::new(),
            shape,
            rank,
            members,
            opened: Instant::now(),
            ledger: Mutex::new(Ledger::default()),
            logs: Mutex::new(BTreeMap::new()),
            turns: AtomicU64::new(0),
        });
        Self { shared, _embedded: embedded, closed: false }
    }

    /// This worker's rank: 0 to n − 1. Another worker never has the same.
    ///
    /// ```
    /// # use slackwater::{Session, Shape};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    /// assert_eq!(session.rank(), 0);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.shared.rank.0
    }

    /// How many servers and workers the run has.
    ///
    /// ```
    /// # use slackwater::{Session, Shape};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    /// assert_eq!(session.shape(), Shape { servers: 1, workers: 1 });
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shared.shape
    }

    /// Every node of the run but the coordinator, and where it listens; addresses are empty in one process.
    ///
    /// ```
    /// # use slackwater::{Session, Shape};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    /// let nodes: Vec<String> = session.members().map(|(node, _)| node.to_string()).collect();
    /// assert_eq!(nodes, ["server 0", "worker 0"]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn members(&self) -> impl Iterator<Item = (NodeId, &str)> {
        self.shared.members.iter().map(|member| (member.node, member.address.as_str()))
    }

    /// This worker's clock: how many units of work it has finished. It starts at 0.
    ///
    /// ```
    /// # use slackwater::{Session, Shape};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    /// session.clock()?;
    /// session.clock()?;
    /// assert_eq!(session.now().0, 2);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn now(&self) -> Clock {
        self.shared.driver.call(|worker, _, _| worker.clock())
    }

    /// How often this was called before on this session. Workers that call it at the same points of the same program get the
    /// same numbers, with which they can name tables that nobody has used before. Never blocks.
    ///
    /// ```
    /// use slackwater::{Session, Shape, TableSpec};
    ///
    /// let sessions = Session::embedded(Shape { servers: 1, workers: 2 })?;
    /// let specs: Vec<TableSpec> =
    ///     sessions.iter().map(|session| TableSpec::dense(&format!("votes {}", session.turn()), 1, 1)).collect();
    /// assert_eq!(specs[0], specs[1]);
    /// assert_eq!(sessions[0].turn(), 1);
    /// # for session in sessions { session.close()?; }
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn turn(&self) -> u64 {
        self.shared.turns.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a table, or finds it if another worker has made it with the same spec. Blocks until every server holds its part
    /// of it. Fails if the spec does not hold together ([`Error::Spec`]), if it differs from another worker's or `T` is not its
    /// number type ([`Error::Table`]), or if the run is lost ([`Error::Run`]).
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
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
        spec.check()?;
        if spec.number != T::TYPE {
            let problem = format!("table '{}' holds {}, not {}; write .number(…)", spec.name, spec.number, T::TYPE);
            return Err(Error::Table { problem });
        }
        let name = spec.name.clone();
        self.shared.driver.call(|worker, _, out| worker.make_table(spec.clone(), out));
        let made = self.shared.driver.wait_until(|worker| worker.table(&name).cloned())?;
        let id = made.map_err(|problem| Error::Table { problem })?;
        let spec = Arc::new(spec);
        let mut all = lock(&self.shared.logs);
        let known = all.get(&id).and_then(|known| known.logs.clone().downcast::<Logs<T>>().ok());
        let logs = known.unwrap_or_else(|| {
            let logs = Arc::new(Logs::<T>::new());
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

    /// Ends this worker's clock: what its threads pushed in it is flushed, and it is at the next one. Does not wait for
    /// acknowledgements; blocks only while tasks wait before they can be sent: for others, or, in a `clock` table, for workers
    /// that are very many clocks behind. Threads may call it at once: each
    /// call ends one clock, which holds all that its thread pushed and noted before.
    ///
    /// Fails if a push whose ticket was dropped was refused since the last clock ([`Error::Refused`]; the clock has ended all the
    /// same), or if the run is lost ([`Error::Run`]).
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// drop(table.push_range(0..1, vec![f32::NAN])?);
    /// table.push_range(0..1, vec![1.0])?.wait()?;
    /// assert!(session.clock().is_err());         // somebody should know of the NaN
    /// assert!(session.clock().is_ok());          // and now does
    /// assert_eq!(session.now().0, 2);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn clock(&self) -> Result<(), Error> {
        self.shared.absorb_logs()?;
        // As one step: a push that another thread begins between the two would be divided.
        self.shared.driver.call_when(machine::Worker::is_flushed, machine::Worker::end_clock)?;
        self.shared.unreported()
    }

    /// Blocks until every live worker stands at its barrier of the same count. After a few seconds the log says who is
    /// missing, and again while it lasts. Fails if the run is lost.
    ///
    /// ```
    /// # use slackwater::{Session, Shape};
    /// std::thread::scope(|scope| {
    ///     for session in Session::embedded(Shape { servers: 1, workers: 3 })? {
    ///         scope.spawn(move || session.barrier().and_then(|()| session.close()));
    ///     }
    ///     Ok::<(), slackwater::Error>(())
    /// })?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn barrier(&self) -> Result<(), Error> {
        let begin = Instant::now();
        let number = self.shared.driver.call(|worker, _, out| worker.barrier(out));
        self.shared.driver.wait_until(|worker| worker.barrier_passed(number).then_some(()))?;
        lock(&self.shared.ledger).barrier += begin.elapsed();
        Ok(())
    }

    /// Where this worker's time went so far. Does not block.
    ///
    /// ```
    /// # use slackwater::{Session, Shape};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    /// session.barrier()?;
    /// let ledger = session.ledger();
    /// assert!(ledger.barrier <= ledger.total);
    /// assert!(ledger.slowest().is_none());       // nobody else is here to be waited for
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        let mut ledger = lock(&self.shared.ledger).clone();
        ledger.total = self.shared.opened.elapsed();
        ledger
    }

    /// What this worker's machine has done so far. Does not block.
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// table.push_range(0..1, vec![1.0])?.wait()?;
    /// table.pull_range(0..1)?.wait()?;
    /// assert_eq!((session.counts().parts, session.counts().rows_read), (1, 1));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn counts(&self) -> WorkerCounts {
        self.shared.driver.call(|worker, _, _| worker.counts().clone())
    }

    /// Bytes of pushes that are not acknowledged yet. Does not block.
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// table.push_range(0..1, vec![1.0])?.wait()?;
    /// assert_eq!(session.unacknowledged_bytes(), 0);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn unacknowledged_bytes(&self) -> usize {
        self.shared.driver.call(|worker, _, _| worker.unacknowledged_bytes())
    }

    /// What this worker has sent and received so far; in one process, about what it would have been over TCP. Does not block.
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1000, 1))?;
    /// table.push_range(0..1000, vec![1.0; 1000])?.wait()?;
    /// assert!(session.traffic().bytes_out > 4 * 1000);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.shared.driver.traffic()
    }

    /// Leaves as one that cannot go on: the run ends for everybody, and they are told who it was and why. Whoever leaves by
    /// [`close`](Self::close) or by dropping its session is taken for one that has finished. Does not block.
    ///
    /// ```
    /// use slackwater::{Session, Shape};
    ///
    /// let mut sessions = Session::embedded(Shape { servers: 1, workers: 2 })?;
    /// sessions.remove(1).abandon("its data is missing");
    /// let error = sessions[0].barrier().expect_err("nobody else will come to it");
    /// assert!(error.to_string().contains("lost worker 1: it could not go on: its data is missing"), "{error}");
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn abandon(mut self, reason: &str) {
        self.closed = true;
        self.shared.driver.abandon(reason);
    }

    /// Flushes, blocks until everything is acknowledged, and leaves the run: nobody waits for this worker any more. Fails if
    /// a push whose ticket was dropped was refused since the last clock, or if the run is lost. Tables and tickets of the session
    /// fail from then on.
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// session.close()?;
    /// assert!(table.push_range(0..1, vec![1.0]).is_err());
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

/// Distinct for every node that is started anywhere: the time, the process and a count.
pub(crate) fn token() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    RandomState::new().hash_one((std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
}
