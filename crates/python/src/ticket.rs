//! Tickets for Python: pushes and pulls under way.

use crate::error;
use crate::memory::{Memory, Target};
use crate::session::check_process;
use pyo3::prelude::*;
use slackwater::Rows;
use slackwater::table::{FailedClock, FromOutcome};
use std::sync::{Mutex, PoisonError};

/// A failed clock: the clock, the rank of the worker, the row, and the reason.
type Failure = (u64, u32, Option<u64>, String);

/// A push or pull under way. `push_async`, `pull_async`, `push_pull_async` and `delete_async` of a
/// table return one at once.
///
/// >>> import numpy, slackwater
/// >>> run = slackwater.init()
/// >>> table = slackwater.Table("of tickets", rows=2, updater="sum", slack=0)
/// >>> push = table.push_async(numpy.ones(2, "float32"))
/// >>> pull = table.pull_async()        # both are under way
/// >>> push.wait()
/// >>> pull.wait().tolist(), pull.done(), pull.staleness
/// ([1.0, 1.0], True, 0)
/// >>> slackwater.shutdown()
#[pyclass(name = "Ticket", frozen, module = "slackwater")]
pub struct PyTicket {
    state: Mutex<State>,
    /// The Python object that a pull fills.
    out: Option<Py<PyAny>>,
    table: String,
    process: u32,
}

/// How far the operation is.
enum State {
    Push(slackwater::Ticket<()>),
    Pull(Box<dyn Pulling>),
    Done(Option<ReadInfo>),
    /// Another thread waits for it, or a wait has failed.
    Gone,
}

/// What a read reports beside its rows.
#[derive(Clone)]
pub struct ReadInfo {
    clock: u64,
    staleness: u64,
    failed: Vec<Failure>,
}

/// A pull of any number type.
pub trait Pulling: Send {
    fn is_done(&self) -> bool;
    fn wait(self: Box<Self>, table: &str) -> Result<ReadInfo, slackwater::Error>;
}

/// A pull that writes rows in place.
pub struct Direct<T>(pub slackwater::Ticket<Rows<T>>)
where
    Rows<T>: FromOutcome;

/// A pull whose rows come in the table's order, and are copied to the places of the caller's keys.
pub struct Scattered<T>
where
    Rows<T>: FromOutcome,
{
    pub ticket: slackwater::Ticket<Rows<T>>,
    pub places: Vec<u32>,
    pub width: usize,
    pub target: Target,
}

impl ReadInfo {
    fn of<T>(rows: &Rows<T>, table: &str) -> Self {
        let failed = |failed: &FailedClock| {
            let position = match &failed.refusal {
                slackwater::table::Refusal::NotFinite { position } => Some(position.0),
                _ => None,
            };
            let text = failed.refusal.describe(table, slackwater::policy::Placement::Ordered).to_string();
            (failed.clock.0, failed.worker.0, position, text)
        };
        let failed = rows.failed_clocks().iter().map(failed).collect();
        Self { clock: rows.clock().0, staleness: rows.staleness(), failed }
    }
}

impl<T: slackwater::table::TargetNumber> Pulling for Direct<T> {
    fn is_done(&self) -> bool {
        self.0.is_done()
    }
    fn wait(self: Box<Self>, table: &str) -> Result<ReadInfo, slackwater::Error> {
        Ok(ReadInfo::of(&self.0.wait()?, table))
    }
}

impl<T: slackwater::table::TargetNumber> Pulling for Scattered<T> {
    fn is_done(&self) -> bool {
        self.ticket.is_done()
    }
    fn wait(self: Box<Self>, table: &str) -> Result<ReadInfo, slackwater::Error> {
        let Self { ticket, places, width, target } = *self;
        let rows = ticket.wait()?;
        let memory: &Memory = target.0.get();
        // SAFETY: the table checked that the memory holds numbers of type `T`; only this pull
        // writes it.
        let out = unsafe { memory.numbers_mut::<T>() };
        for (row, place) in out.chunks_exact_mut(width).zip(&places) {
            row.copy_from_slice(&rows.values()[*place as usize * width..][..width]);
        }
        Ok(ReadInfo::of(&rows, table))
    }
}

impl PyTicket {
    pub fn push(ticket: slackwater::Ticket<()>, table: &str, process: u32) -> Self {
        Self { state: Mutex::new(State::Push(ticket)), out: None, table: table.to_owned(), process }
    }

    pub fn pull(pulling: Box<dyn Pulling>, out: Py<PyAny>, table: &str, process: u32) -> Self {
        Self { state: Mutex::new(State::Pull(pulling)), out: Some(out), table: table.to_owned(), process }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<R>(&self, what: impl FnOnce(&ReadInfo) -> R) -> PyResult<R> {
        match &*self.state() {
            State::Done(Some(read)) => Ok(what(read)),
            State::Done(None) => {
                Err(error::TableError::new_err("a push has no clock, staleness or failed clocks; only a pull has"))
            }
            _ => Err(error::TableError::new_err("the ticket is not done; wait() for it first")),
        }
    }
}

#[pymethods]
impl PyTicket {
    /// Whether the operation is done or has failed, so that `wait` would return at once.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        check_process(self.process)?;
        Ok(py.detach(|| match &*self.state() {
            State::Push(ticket) => ticket.is_done(),
            State::Pull(pulling) => pulling.is_done(),
            State::Done(_) | State::Gone => true,
        }))
    }

    /// Waits until the operation is done. Returns the array that a pull filled, or None for a push.
    /// Raises `RefusedError` if a server refused it, and `RunError` if the run is lost. Waiting
    /// again returns the same at once.
    fn wait(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        check_process(self.process)?;
        let state = std::mem::replace(&mut *self.state(), State::Gone);
        let done = match state {
            State::Push(ticket) => py.detach(|| ticket.wait()).map(|()| None),
            State::Pull(pulling) => py.detach(|| pulling.wait(&self.table)).map(Some),
            State::Done(read) => Ok(read),
            State::Gone => {
                let text = "an earlier wait for this ticket failed, or another thread waits for it";
                return Err(error::TableError::new_err(text));
            }
        };
        *self.state() = State::Done(done.map_err(|error| error::raise(py, error))?);
        Ok(self.out.as_ref().map(|out| out.clone_ref(py)))
    }

    /// The rows reflect every update of clocks below this one.
    #[getter]
    fn clock(&self) -> PyResult<u64> {
        self.read(|read| read.clock)
    }

    /// How many clocks the reader was ahead of the frontier that the rows reflect.
    #[getter]
    fn staleness(&self) -> PyResult<u64> {
        self.read(|read| read.staleness)
    }

    /// Clocks that failed for all workers alike, as tuples: clock, rank, row (if a number was not
    /// finite) and the reason.
    #[getter]
    fn failed_clocks(&self) -> PyResult<Vec<Failure>> {
        self.read(|read| read.failed.clone())
    }
}

impl Drop for PyTicket {
    fn drop(&mut self) {
        let state = std::mem::replace(self.state.get_mut().unwrap_or_else(PoisonError::into_inner), State::Gone);
        if self.process != std::process::id() {
            std::mem::forget(state);
        } else if matches!(state, State::Push(_) | State::Pull(_)) {
            // Dropping it locks the worker, which may be locked by a thread that waits for the
            // interpreter.
            Python::attach(|py| py.detach(|| drop(state)));
        }
    }
}
