//! Errors of the core as exceptions, with the core's words.

use pyo3::exceptions::{PyConnectionError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use slackwater::cluster::NodeError;
use slackwater::table::TableFailure;
use std::sync::{Mutex, PoisonError};

pyo3::create_exception!(
    slackwater,
    SlackwaterError,
    PyRuntimeError,
    "Something that Slackwater was asked to do failed."
);
pyo3::create_exception!(slackwater, RunError, SlackwaterError, "The run is over for this process: start it again.");
pyo3::create_exception!(slackwater, TableError, SlackwaterError, "A table, its keys or a batch do not fit.");
pyo3::create_exception!(
    slackwater,
    RefusedError,
    SlackwaterError,
    "A server refused a push or pull; its rows are as they were."
);

/// What a signal handler raised while a call waited, until that call has returned.
static RAISED: PyOnceLock<Mutex<Option<PyErr>>> = PyOnceLock::new();

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    RAISED.get_or_init(py, || Mutex::new(None));
    module.add("SlackwaterError", py.get_type::<SlackwaterError>())?;
    module.add("RunError", py.get_type::<RunError>())?;
    module.add("TableError", py.get_type::<TableError>())?;
    module.add("RefusedError", py.get_type::<RefusedError>())
}

/// Whether a call that waits should stop, because a signal handler of Python raised something: what
/// Ctrl-C does. Only the main thread of a program runs handlers.
pub fn is_interrupted() -> bool {
    Python::attach(|py| match (py.check_signals(), RAISED.get(py)) {
        (Err(raised), Some(kept)) => {
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
            true
        }
        (result, _) => result.is_err(),
    })
}

/// The exception for an error of the core.
pub fn raise(py: Python<'_>, error: slackwater::Error) -> PyErr {
    use slackwater::Error;
    let text = error.to_string();
    match error {
        Error::Run(NodeError::Interrupted) => {
            let kept = RAISED.get(py).and_then(|kept| kept.lock().unwrap_or_else(PoisonError::into_inner).take());
            kept.unwrap_or_else(|| pyo3::exceptions::PyKeyboardInterrupt::new_err(()))
        }
        Error::Run(_) | Error::Batch(TableFailure::Left) => RunError::new_err(text),
        Error::Refused { .. } => RefusedError::new_err(text),
        Error::Spec(_) | Error::RunSize(_) => PyValueError::new_err(text),
        Error::Table { .. } | Error::Batch(_) | Error::Keys(_) | Error::Leases { .. } => TableError::new_err(text),
        Error::Address { .. } => PyConnectionError::new_err(text),
    }
}
