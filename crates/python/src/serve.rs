//! Servers, and the coordinator, as threads of this process.

use crate::error;
use crate::session::{check_process, interruptible, seconds};
use pyo3::prelude::*;
use slackwater::{Connect, Membership, SameHost, Serve, Shape};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

/// Into how many slices tables are cut for each server where servers may be lost: as the command does.
const SLICES: u32 = 8;

/// Servers of a run of several processes that are threads of this one, and its coordinator if a shape is given.
#[pyclass(frozen, module = "slackwater")]
pub struct Server {
    thread: Mutex<Option<JoinHandle<Result<(), slackwater::Error>>>>,
    process: u32,
}

#[pymethods]
impl Server {
    /// Starts serving and returns at once.
    #[new]
    #[pyo3(signature = (meet, threads, coordinate, copies, join_limit, patience, shared_memory, place=None))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn new(
        meet: &str,
        threads: u32,
        coordinate: Option<(u32, u32)>,
        copies: Option<u32>,
        join_limit: f64,
        patience: f64,
        shared_memory: bool,
        place: Option<u32>,
    ) -> PyResult<Self> {
        let connect = Connect {
            place,
            join_limit: seconds(join_limit)?,
            patience: seconds(patience)?,
            same_host: if shared_memory { SameHost::SharedMemory } else { SameHost::Tcp },
            ..Connect::to(meet)
        };
        let serve = Serve {
            threads,
            coordinate: coordinate.map(|(servers, workers)| Shape { servers, workers }),
            membership: copies.map_or(Membership::Fixed, |copies| Membership::Open { copies, slices: SLICES }),
            ..Serve::new(connect)
        };
        let thread = std::thread::Builder::new().name("slackwater server".into()).spawn(move || serve.run().map(drop));
        Ok(Self { thread: Mutex::new(Some(thread?)), process: std::process::id() })
    }

    /// Waits until every worker has left. Fails as serving did.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.process)?;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return Ok(()) };
        match interruptible(py, move || thread.join(), || {})? {
            Ok(result) => result.map_err(|error| error::raise(py, error)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
