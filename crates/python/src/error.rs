//! Errors of the client crate as Python exceptions, with the same messages.

use pyo3::exceptions::{PyConnectionError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use slackwater::cluster::NodeError;
use slackwater::table::TableFailure;
use std::sync::{Mutex, PoisonError};

pyo3::create_exception!(slackwater, SlackwaterError, PyRuntimeError, "The base class of Slackwater's own exceptions.");
pyo3::create_exception!(
    slackwater,
    RunError,
    SlackwaterError,
    "The run is over for this process, or it is in no run. Start the run again, or call ``init()``.\n\n\
     If a node was lost, ``node`` is its name, such as ``'worker 3'``, and ``reason`` says how it was lost. Otherwise \
     both are None."
);
pyo3::create_exception!(
    slackwater,
    TableError,
    SlackwaterError,
    "A table's settings, its keys, a batch or a data lease do not fit."
);
pyo3::create_exception!(
    slackwater,
    RefusedError,
    SlackwaterError,
    "A server refused a push or pull, and left its rows as they were."
);

/// The exception that a signal handler raised while a call waited, until that call returns it.
static RAISED: PyOnceLock<Mutex<Option<PyErr>>> = PyOnceLock::new();

/// Adds the exception types to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    RAISED.get_or_init(py, || Mutex::new(None));
    let run_error = py.get_type::<RunError>();
    run_error.setattr("node", py.None())?;
    run_error.setattr("reason", py.None())?;
    module.add("SlackwaterError", py.get_type::<SlackwaterError>())?;
    module.add("RunError", run_error)?;
    module.add("TableError", py.get_type::<TableError>())?;
    module.add("RefusedError", py.get_type::<RefusedError>())
}

/// Whether a waiting call should stop because a Python signal handler raised an exception, as
/// Ctrl-C does. Only a program's main thread runs handlers.
pub fn is_interrupted() -> bool {
    Python::attach(|py| match (py.check_signals(), RAISED.get(py)) {
        (Err(raised), Some(kept)) => {
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
            true
        }
        (result, _) => result.is_err(),
    })
}

/// The exception for the failure of a run.
fn run_error(py: Python<'_>, error: &NodeError) -> PyErr {
    let raised = RunError::new_err(error.to_string());
    if let NodeError::Lost { node, reason } | NodeError::GivenUp { node, reason } = error {
        let told = raised.value(py).setattr("node", node.to_string());
        if let Err(problem) = told.and_then(|()| raised.value(py).setattr("reason", reason)) {
            return problem;
        }
    }
    raised
}

/// Converts an error of the client crate to its exception.
pub fn raise(py: Python<'_>, error: slackwater::Error) -> PyErr {
    use slackwater::Error;
    let text = error.to_string();
    match error {
        Error::Run(NodeError::Interrupted) => {
            let kept = RAISED.get(py).and_then(|kept| kept.lock().unwrap_or_else(PoisonError::into_inner).take());
            kept.unwrap_or_else(|| pyo3::exceptions::PyKeyboardInterrupt::new_err(()))
        }
        Error::Run(error) => run_error(py, &error),
        Error::Batch(TableFailure::Left) => RunError::new_err(text),
        Error::Refused { .. } => RefusedError::new_err(text),
        Error::Spec(_) | Error::RunSize(_) => PyValueError::new_err(text),
        Error::Table { .. } | Error::Batch(_) | Error::Keys(_) | Error::Leases { .. } => TableError::new_err(text),
        Error::Address { .. } | Error::Access { .. } => PyConnectionError::new_err(text),
    }
}
