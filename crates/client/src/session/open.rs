//! How a session begins: in an embedded run, or by joining a run of several processes.

use super::{Session, SessionState};
use crate::addresses::{CoordinatorAddress, Endpoint};
use crate::{Connect, Error, embedded};
use node::{DriverSettings, JoinRequest, Recorder, WaitPolicy, join};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use types::{Role, RunSize};
use update::Updaters;
use wire::{NodeRole, Pool};

/// Refuses a run without servers or without workers.
pub(crate) fn check_size(size: RunSize) -> Result<RunSize, Error> {
    if size.is_possible() { Ok(size) } else { Err(Error::RunSize(size)) }
}

impl Session {
    /// Starts a whole run in this process. Returns a session for each worker, by rank, to be moved
    /// into threads. Blocks until all nodes have begun. Fails if there are no servers or no workers
    /// ([`Error::RunSize`]).
    ///
    /// ```
    /// # use slackwater::{RunSize, Session};
    /// assert!(Session::embedded(RunSize { servers: 0, workers: 4 }).is_err());
    /// for session in Session::embedded(RunSize { servers: 2, workers: 4 })? {
    ///     std::thread::spawn(move || {
    ///         println!("worker {} of {}", session.rank(), session.size().workers);
    ///         session.close()
    ///     });
    /// }
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn embedded(size: RunSize) -> Result<Vec<Self>, Error> {
        Self::embedded_with(size, Updaters::builtin(), WaitPolicy::BLOCKING)
    }

    /// As [`Session::embedded`], with custom updaters and another wait policy.
    ///
    /// ```
    /// use slackwater::{RunSize, Session, TableSpec, UpdaterSpec};
    /// use slackwater::cluster::WaitPolicy;
    /// use slackwater::updaters::{UpdateStep, Updater, Updaters};
    ///
    /// struct Max;
    /// impl Updater<f32> for Max {
    ///     fn state(&self, _width: usize) -> usize { 0 }
    ///     fn update(&self, _: &UpdateStep, _width: usize, row: &mut [f32], gradient: &[f32]) {
    ///         row.iter_mut().zip(gradient).for_each(|(w, g)| *w = w.max(*g));
    ///     }
    /// }
    ///
    /// let mut registry = Updaters::builtin();
    /// registry.register::<f32>("max", |_settings| Box::new(Max));
    /// let size = RunSize { servers: 1, workers: 1 };
    /// let session = Session::embedded_with(size, registry, WaitPolicy::BLOCKING)?.remove(0);
    /// let max = UpdaterSpec::Custom { name: "max".into(), settings: vec![] };
    /// let table = session.table::<f32>(TableSpec::dense("highest", 1, 1).updater(max))?;
    /// let rows = table.push_pull(&table.keys(&[0]), vec![3.0])?.wait()?;
    /// assert_eq!(rows.values(), [3.0]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn embedded_with(size: RunSize, registry: Updaters, wait: WaitPolicy) -> Result<Vec<Self>, Error> {
        embedded::start(check_size(size)?, registry, wait, None)
    }

    /// As [`Session::embedded_with`], and records all inputs and frames of every node in `folder`,
    /// a file per node: `worker-0.recording` and so on. Makes the folder if it does not exist. The
    /// files are complete when the last session is dropped; `slackwater replay` replays them. Fails
    /// if the folder cannot be written or already holds such recordings ([`Error::Run`]).
    ///
    /// ```
    /// use slackwater::{Keys, RunSize, Session, TableSpec};
    /// use slackwater::cluster::WaitPolicy;
    /// use slackwater::recording::replay_file;
    /// use slackwater::updaters::Updaters;
    ///
    /// let folder = std::env::temp_dir().join(format!("slackwater-recorded-{}", std::process::id()));
    /// let size = RunSize { servers: 1, workers: 1 };
    /// let session = Session::embedded_recorded(size, Updaters::builtin(), WaitPolicy::BLOCKING, &folder)?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 2, 1))?;
    /// table.push(&Keys::run(0..2), vec![1.0, 2.0])?.wait()?;
    /// session.close()?;
    /// let replayed = replay_file(&folder.join("worker-0.recording"), &Updaters::builtin()).expect("a recording");
    /// assert!(replayed.inputs > 0 && replayed.frames > 0);
    /// assert_eq!(replayed.first_difference, None);
    /// # std::fs::remove_dir_all(folder).expect("the folder exists");
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn embedded_recorded(
        size: RunSize,
        registry: Updaters,
        wait: WaitPolicy,
        folder: &Path,
    ) -> Result<Vec<Self>, Error> {
        embedded::start(check_size(size)?, registry, wait, Some(folder))
    }

    /// Joins a run of several processes as a worker. Blocks until all nodes have joined, at most
    /// `connect.join_limit`. Fails if an address is malformed or cannot be used
    /// ([`Error::Address`]). Fails with [`Error::Run`] if the coordinator does not answer or has no
    /// place left, or if nodes are missing at the limit.
    ///
    /// ```
    /// use slackwater::security::{Access, JobToken};
    /// use slackwater::{Connect, Keys, RunSize, Serve, Session, TableSpec};
    ///
    /// // A server with the coordinator; usually a process of its own.
    /// let coordinator = slackwater::cluster::free_address().expect("a free port");
    /// let access = Access::Job(JobToken::create()?);    // every process of a run has the same token
    /// let connect = Connect { access, ..Connect::to(&coordinator.to_string()) };
    /// let serve = Serve { coordinate: Some(RunSize { servers: 1, workers: 1 }), ..Serve::new(connect.clone()) };
    /// let server = std::thread::spawn(move || serve.run());
    ///
    /// let session = Session::connect(&connect)?;
    /// let table = session.table::<f64>(TableSpec::dense("t", 2, 1).number(slackwater::policy::NumberType::F64))?;
    /// assert_eq!(table.push_pull(&Keys::run(0..2), vec![1.0, 2.0])?.wait()?.values(), [1.0, 2.0]);
    /// session.close()?;
    /// assert_eq!(server.join().expect("no panic")?.len(), 1);
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn connect(connect: &Connect) -> Result<Self, Error> {
        let pool = Pool::new();
        let recorder = connect.record.as_ref().map(Recorder::in_folder).transpose()?;
        let coordinator = CoordinatorAddress::resolve(connect)?;
        let Endpoint { mut transport, mut waiter, address } =
            coordinator.listen_as_node(connect, 0, Role::Worker, &pool)?;
        let wanted = JoinRequest { role: NodeRole::Worker, place: connect.place, job: &connect.job };
        let limit = connect.join_limit;
        let joined = join(&mut transport, &mut waiter, wanted, &address, token(), limit, &connect.leave)?;
        let settings = DriverSettings {
            wait: connect.wait,
            failure_timeout: connect.failure_timeout,
            of_several: coordinator.is_of_several(),
            unled: connect.join_limit,
            embedded: false,
            leave: connect.leave.clone(),
            locations: crate::locations::allowed(connect, &[]),
        };
        Self::begin(joined, Box::new(transport), Box::new(waiter), settings, recorder, None)
    }

    /// Begins the session of a worker that has joined.
    pub(crate) fn begin(
        joined: node::JoinedRun,
        transport: Box<dyn net::Transport>,
        waiter: Box<dyn net::Waiter>,
        settings: DriverSettings,
        recorder: Option<Recorder>,
        embedded: Option<Arc<embedded::EmbeddedThreads>>,
    ) -> Result<Self, Error> {
        let shared = Arc::new(SessionState::start(joined, transport, waiter, settings, recorder)?);
        Ok(Self { shared, _embedded: embedded, closed: false })
    }
}

/// A number that differs for every node: a hash, with random keys, of the process id and a count.
pub(crate) fn token() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    RandomState::new().hash_one((std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
}
