//! How a session begins: in one process, or among several.

use super::{Session, SessionState};
use crate::addresses::{CoordinatorAddress, Endpoint};
use crate::{Connect, Error, embedded};
use node::{DriverSettings, JoinRequest, Recorder, WaitPolicy, join};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use types::RunSize;
use update::Updaters;
use wire::{NodeRole, Pool};

/// Refuses a run without servers or without workers.
pub(crate) fn check_size(size: RunSize) -> Result<RunSize, Error> {
    if size.is_possible() { Ok(size) } else { Err(Error::RunSize(size)) }
}

impl Session {
    /// A whole run in this process: a session for each worker, by rank, to be moved into threads.
    /// Blocks until all have begun. Fails if there are no servers or no workers
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

    /// As [`Session::embedded`], with updaters of the program's own and another way of waiting.
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

    /// As [`Session::embedded_with`], and everything that the coordinator, each server and each
    /// worker is told and says is recorded, in a file each of `folder`, which is made if it is not
    /// there: `worker-0.recording` and so on. They are whole when the last session is gone;
    /// `slackwater replay` feeds them back. Fails if the folder cannot be written or holds such
    /// recordings already ([`Error::Run`]).
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
    /// # std::fs::remove_dir_all(folder).expect("it is there");
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

    /// Joins a run of several processes as a worker. Blocks until everybody has joined, at most
    /// `connect.join_limit`. Fails if an address is none or cannot be used ([`Error::Address`]), or
    /// if the coordinator is not there, has no room, or not everybody comes ([`Error::Run`]).
    ///
    /// ```
    /// use slackwater::{Connect, Keys, RunSize, Serve, Session, TableSpec};
    ///
    /// // A server with the coordinator, which would be a process of its own.
    /// let coordinator = slackwater::cluster::free_address().expect("a free port");
    /// let connect = Connect::to(&coordinator.to_string());
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
        let Endpoint { mut transport, mut waiter, address } = coordinator.listen_as_node(connect, 0, false, &pool)?;
        let (wanted, limit) =
            (JoinRequest { role: NodeRole::Worker, place: connect.place, job: &connect.job }, connect.join_limit);
        let joined = join(&mut transport, &mut waiter, wanted, &address, token(), limit, &connect.leave)?;
        let (of_several, unled) = (coordinator.is_of_several(), connect.join_limit);
        let (wait, failure_timeout, leave) = (connect.wait, connect.failure_timeout, connect.leave.clone());
        let settings = DriverSettings { wait, failure_timeout, of_several, unled, embedded: false, leave };
        Self::begin(joined, Box::new(transport), Box::new(waiter), settings, recorder, None)
    }

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

/// Distinct for every node that is started anywhere: the time, the process and a count.
pub(crate) fn token() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    RandomState::new().hash_one((std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
}
