//! Servers, and optionally the coordinator, as threads of a Python process.

use crate::error;
use crate::session::{LOOK, check_process, connect_to, seconds};
use pyo3::prelude::*;
use slackwater::cluster::{LeaveSignal, Membership};
use slackwater::{RunSize, Serve};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many shards of each table a server has in an elastic run: the default of `slackwater
/// server`.
const SHARDS_PER_SERVER: u32 = 8;

/// How long servers may take to leave after they are told to.
const GOODBYE: Duration = Duration::from_secs(5);

/// Servers of a run of several processes, as threads of this process, and its coordinator if
/// `coordinate` gives the run's size.
#[pyclass(name = "Server", frozen, module = "slackwater")]
pub struct PyServer {
    thread: Mutex<Option<Serving>>,
    leave: LeaveSignal,
    process: u32,
}

type Serving = JoinHandle<Result<(), slackwater::Error>>;

impl PyServer {
    /// Takes the thread if it has ended and its result was not taken before.
    fn ended(&self) -> Option<Serving> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.as_ref().is_some_and(JoinHandle::is_finished) { thread.take() } else { None }
    }

    /// Waits until the thread has ended, at most for [`GOODBYE`].
    fn wait_for_end(&self, py: Python<'_>) -> PyResult<()> {
        let begin = Instant::now();
        while self.ended().is_none() && !self.was_joined() && begin.elapsed() < GOODBYE {
            py.detach(|| std::thread::sleep(LOOK / 10));
            py.check_signals()?;
        }
        Ok(())
    }

    /// Whether the thread was joined, so that its result is known.
    fn was_joined(&self) -> bool {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

#[pymethods]
impl PyServer {
    /// Starts serving and returns at once.
    #[new]
    #[pyo3(signature = (coordinator, threads, coordinate, replicas, join_limit, failure_timeout, shared_memory, place=None, clock_timeout=None, token_file=None, insecure=false))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn new(
        coordinator: &str,
        threads: u32,
        coordinate: Option<(u32, u32)>,
        replicas: Option<u32>,
        join_limit: f64,
        failure_timeout: f64,
        shared_memory: bool,
        place: Option<u32>,
        clock_timeout: Option<f64>,
        token_file: Option<PathBuf>,
        insecure: bool,
    ) -> PyResult<Self> {
        let access = (token_file, insecure);
        let connect = connect_to(coordinator, place, join_limit, failure_timeout, shared_memory, access)?;
        let leave = connect.leave.clone();
        let serve = Serve {
            threads,
            coordinate: coordinate.map(|(servers, workers)| RunSize { servers, workers }),
            membership: replicas.map_or(Membership::Static, |replicas| Membership::Elastic {
                replicas,
                shards_per_server: SHARDS_PER_SERVER,
            }),
            clock_timeout: clock_timeout.map(seconds).transpose()?,
            ..Serve::new(connect)
        };
        let thread = std::thread::Builder::new().name("slackwater server".into()).spawn(move || serve.run().map(drop));
        Ok(Self { thread: Mutex::new(Some(thread?)), leave, process: std::process::id() })
    }

    /// Waits until every worker has left. Raises what serving raised. Ctrl-C ends the wait at once
    /// and tells the servers to leave. They leave while the program goes on; the program may wait
    /// again. Server threads do not keep the process from ending.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.process)?;
        loop {
            match self.ended().map(JoinHandle::join) {
                Some(Ok(result)) => return result.map_err(|error| error::raise(py, error)),
                Some(Err(panic)) => std::panic::resume_unwind(panic),
                None if self.was_joined() => return Ok(()),
                None => py.detach(|| std::thread::sleep(LOOK / 10)),
            }
            py.check_signals().inspect_err(|_| self.leave.ask())?;
        }
    }

    /// Waits until serving has ended, for at most a few seconds, and tells no server to leave: for
    /// a run that has failed, whose coordinator tells the other nodes why. Does not report how
    /// serving went.
    fn see_out(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.process)?;
        self.wait_for_end(py)
    }

    /// Tells the servers to leave and waits a few seconds, so that their addresses are free again.
    /// Does not report how serving went: for a run that is lost or never began.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.process)?;
        self.leave.ask();
        self.wait_for_end(py)
    }
}
