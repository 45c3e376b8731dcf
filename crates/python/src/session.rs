//! Sessions for Python: a worker's membership in a run.

use crate::error;
use crate::feed::{PyFeed, follow_options};
use crate::leases::{PyDataLeases, PyLeaseTerms};
use crate::table::{PyTable, PyTableSpec};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use slackwater::cluster::{RunFailure, SameHost};
use slackwater::security::Access;
use slackwater::{Connect, RunSize};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often a thread that waits for another thread checks for Python signals.
pub const LOOK: Duration = Duration::from_millis(50);

/// A worker's membership in a run: rank, clock, barriers, tables.
#[pyclass(name = "Session", frozen, module = "slackwater")]
pub struct PySession {
    session: Mutex<Option<Arc<slackwater::Session>>>,
    rank: u32,
    workers: u32,
    servers: u32,
    /// The process that made the session: its threads do not survive a fork.
    process: u32,
}

/// Fails in a process that was forked after the session had begun.
pub fn check_process(process: u32) -> PyResult<()> {
    if process == std::process::id() {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(
        "this process was forked after slackwater.init(), and has none of its threads; call init() in each process \
         after it has started (multiprocessing: use the 'spawn' start method)",
    ))
}

/// Runs `work` in a new thread while this one checks for signals. If a signal handler raises, calls
/// `stop` and raises that when `work` has ended.
fn interruptible<R: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> R + Send + 'static,
    stop: impl Fn(),
) -> PyResult<R> {
    let worker = std::thread::spawn(work);
    let mut raised = None;
    while !worker.is_finished() {
        py.detach(|| std::thread::sleep(if raised.is_some() { LOOK } else { LOOK / 10 }));
        if let Err(error) = py.check_signals() {
            stop();
            raised = Some(error);
        }
    }
    match (raised, worker.join()) {
        (Some(error), _) => Err(error),
        (None, Ok(result)) => Ok(result),
        (None, Err(panic)) => std::panic::resume_unwind(panic),
    }
}

/// Converts Python's arguments to [`Connect`].
pub fn connect_to(
    coordinator: &str,
    place: Option<u32>,
    join_limit: f64,
    failure_timeout: f64,
    shared_memory: bool,
    (token_file, insecure): (Option<PathBuf>, bool),
) -> PyResult<Connect> {
    let access = match token_file {
        Some(path) => Access::TokenFile(path),
        None if insecure => Access::Insecure,
        None => Access::FromEnvironment,
    };
    Ok(Connect {
        access,
        place,
        join_limit: seconds(join_limit)?,
        failure_timeout: seconds(failure_timeout)?,
        same_host: if shared_memory { SameHost::SharedMemory } else { SameHost::Tcp },
        ..Connect::to(coordinator)
    })
}

impl PySession {
    fn new(session: slackwater::Session) -> Self {
        session.interrupt_by(error::is_interrupted);
        let (rank, RunSize { servers, workers }) = (session.rank(), session.size());
        let process = std::process::id();
        Self { session: Mutex::new(Some(Arc::new(session))), rank, workers, servers, process }
    }

    /// The session. Fails if it was closed, or after a fork.
    fn open(&self) -> PyResult<Arc<slackwater::Session>> {
        check_process(self.process)?;
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).clone();
        session
            .ok_or_else(|| error::RunError::new_err("the session is closed; call slackwater.init() to begin another"))
    }

    /// Takes the session, unless another thread uses it.
    fn take(&self) -> Option<slackwater::Session> {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        session.and_then(Arc::into_inner)
    }

    /// Why the run has failed, if it has. Releases the interpreter, because a thread that waits for
    /// it may hold the worker's lock.
    fn failure(&self, py: Python<'_>) -> Option<RunFailure> {
        let session = self.open().ok()?;
        py.detach(move || session.failure())
    }

    fn call(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&slackwater::Session) -> Result<(), slackwater::Error> + Send,
    ) -> PyResult<()> {
        let session = self.open()?;
        py.detach(|| call(&session)).map_err(|error| error::raise(py, error))
    }
}

#[pymethods]
impl PySession {
    /// Starts a whole run in this process. Returns a session for each worker.
    #[staticmethod]
    fn embedded(py: Python<'_>, servers: u32, workers: u32) -> PyResult<Vec<Self>> {
        let begun = py.detach(|| slackwater::Session::embedded(RunSize { servers, workers }));
        Ok(begun.map_err(|error| error::raise(py, error))?.into_iter().map(Self::new).collect())
    }

    /// Joins the run whose coordinator is at `coordinator`, as worker `place` if that is given.
    #[staticmethod]
    #[pyo3(signature = (coordinator, place, join_limit, failure_timeout, shared_memory, token_file=None, insecure=false))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn connect(
        py: Python<'_>,
        coordinator: &str,
        place: Option<u32>,
        join_limit: f64,
        failure_timeout: f64,
        shared_memory: bool,
        token_file: Option<PathBuf>,
        insecure: bool,
    ) -> PyResult<Self> {
        let access = (token_file, insecure);
        let connect = connect_to(coordinator, place, join_limit, failure_timeout, shared_memory, access)?;
        let leave = connect.leave.clone();
        let joined = interruptible(py, move || slackwater::Session::connect(&connect), || leave.ask())?;
        joined.map(Self::new).map_err(|error| error::raise(py, error))
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    #[getter]
    fn workers(&self) -> u32 {
        self.workers
    }

    #[getter]
    fn servers(&self) -> u32 {
        self.servers
    }

    /// Whether the session still has to be closed: no call has closed it, and this process began
    /// it.
    #[getter]
    fn is_held(&self) -> bool {
        self.process == std::process::id() && self.session.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether the session can be used: it is not closed, and the run is not lost.
    #[getter]
    fn is_open(&self, py: Python<'_>) -> bool {
        self.is_held() && self.failure(py).is_none()
    }

    /// Whether the run has failed and a call has raised that.
    #[getter]
    fn failure_was_reported(&self, py: Python<'_>) -> bool {
        self.failure(py).is_some_and(|failure| failure.was_reported)
    }

    /// Raises why the run has failed, if it has.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, slackwater::Session::check)
    }

    /// Whether this worker joined while the run was under way.
    #[getter]
    fn joined_late(&self) -> PyResult<bool> {
        Ok(self.open()?.joined_late())
    }

    /// Whether this is an elastic run, which workers may join while it lasts.
    #[getter]
    fn others_may_come(&self) -> PyResult<bool> {
        Ok(self.open()?.is_elastic())
    }

    fn live_ranks(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let session = self.open()?;
        Ok(py.detach(|| session.live_ranks()))
    }

    fn unique_number(&self) -> PyResult<u64> {
        Ok(self.open()?.unique_number())
    }

    fn now(&self, py: Python<'_>) -> PyResult<u64> {
        let session = self.open()?;
        Ok(py.detach(|| session.now().0))
    }

    fn clock(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, slackwater::Session::clock)
    }

    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, slackwater::Session::barrier)
    }

    /// Arrives at the next barrier and returns its number at once.
    fn stand_at_barrier(&self, py: Python<'_>) -> PyResult<u64> {
        let session = self.open()?;
        Ok(py.detach(|| session.stand_at_barrier()))
    }

    /// Whether every live worker has arrived at that barrier.
    fn is_past_barrier(&self, py: Python<'_>, number: u64) -> PyResult<bool> {
        let session = self.open()?;
        Ok(py.detach(|| session.is_past_barrier(number)))
    }

    fn table(&self, py: Python<'_>, spec: PyTableSpec) -> PyResult<PyTable> {
        let session = self.open()?;
        PyTable::open(py, &session, spec, self.process)
    }

    /// Opens the change feed of a table.
    fn follow(&self, py: Python<'_>, table: &Bound<'_, PyTable>, rows: bool, clock: Option<u64>) -> PyResult<PyFeed> {
        check_process(self.process)?;
        let session = self.open()?;
        let followed = table.get();
        py.detach(|| followed.follow(&session, follow_options(rows, clock))).map_err(|error| error::raise(py, error))
    }

    /// Leases a data set by name, together with all workers that use the same name.
    fn leases(&self, py: Python<'_>, terms: PyLeaseTerms) -> PyResult<PyDataLeases> {
        let session = self.open()?;
        PyDataLeases::open(py, &session, terms, self.process)
    }

    /// Leaves in good order. Does nothing if the session is closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.process != std::process::id() {
            return Ok(());
        }
        let Some(session) = self.take() else { return Ok(()) };
        py.detach(|| session.close()).map_err(|error| error::raise(py, error))
    }

    /// Leaves because this worker cannot go on: the other nodes are told the reason.
    fn abandon(&self, py: Python<'_>, reason: &str) {
        // A forked process must not drop the session: that would wait for threads that it does not
        // have.
        if self.process != std::process::id() {
            return;
        }
        if let Some(session) = self.take() {
            py.detach(|| session.abandon(reason));
        }
    }
}

impl Drop for PySession {
    fn drop(&mut self) {
        let session = self.session.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.process != std::process::id() {
            // The session's threads run in the parent process, so this one cannot leave the run.
            std::mem::forget(session);
        } else if session.is_some() {
            Python::attach(|py| py.detach(|| drop(session)));
        }
    }
}

/// Converts seconds from Python.
pub fn seconds(number: f64) -> PyResult<Duration> {
    let problem = |_| {
        pyo3::exceptions::PyValueError::new_err(format!(
            "cannot wait {number} s; give a finite number of seconds, not negative"
        ))
    };
    Duration::try_from_secs_f64(number).map_err(problem)
}
