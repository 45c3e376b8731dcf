//! Child processes for Python's launchers: servers of a run, and the scripts of `python -m
//! slackwater.run`.

use crate::session::{LOOK, check_process, seconds};
use launch::{OutputTarget, Process, RunToken, Signal, Start};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The token of a run that a launcher starts, in a file that only this user can read. The file is
/// removed when this object is dropped.
#[pyclass(frozen, name = "RunToken", module = "slackwater")]
pub struct PyRunToken(RunToken);

#[pymethods]
impl PyRunToken {
    /// Makes a token and writes its file.
    #[new]
    fn new() -> PyResult<Self> {
        RunToken::create().map(Self).map_err(|error| PyOSError::new_err(error.to_string()))
    }

    /// The file.
    #[getter]
    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }
}

/// A child process in a session of its own, so that a terminal's Ctrl-C does not reach it. It is
/// killed when this object is dropped and, on Linux, when the thread that started it ends.
#[pyclass(frozen, name = "Process", module = "slackwater")]
pub struct ChildProcess {
    process: Mutex<Option<Process>>,
    launcher: u32,
}

impl ChildProcess {
    fn with<T>(&self, act: impl FnOnce(&mut Process) -> Result<T, launch::ProcessError>) -> PyResult<T> {
        check_process(self.launcher)?;
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let process = process.as_mut().ok_or_else(|| PyValueError::new_err("this process object is closed"))?;
        act(process).map_err(to_python)
    }
}

#[pymethods]
impl ChildProcess {
    /// Starts the command, with these variables added to this process's environment. It inherits
    /// this process's output.
    #[new]
    #[pyo3(signature = (name, command, environment, *, stdin=false))]
    fn new(
        name: &str,
        command: Vec<OsString>,
        environment: BTreeMap<OsString, OsString>,
        stdin: bool,
    ) -> PyResult<Self> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(PyValueError::new_err("the command is empty; it needs a program"));
        };
        let mut start = Start::program(name, program).args(arguments).own_session();
        start = environment.iter().fold(start, |start, (name, value)| start.env(name, value));
        start = if stdin { start.inherit_stdin() } else { start };
        let process = start.stdout(OutputTarget::Inherit).stderr(OutputTarget::Inherit).spawn().map_err(to_python)?;
        Ok(Self { process: Mutex::new(Some(process)), launcher: std::process::id() })
    }

    /// Its process id.
    #[getter]
    fn pid(&self) -> PyResult<u32> {
        self.with(|process| Ok(process.id()))
    }

    /// None while it runs; then its exit status, or minus the number of the signal that killed it.
    fn poll(&self) -> PyResult<Option<i32>> {
        let status = self.with(Process::try_wait)?;
        Ok(status.and_then(|status| status.code().or_else(|| status.signal().map(|signal| -signal))))
    }

    /// Sends the process a signal, by number. Does nothing if it has ended.
    fn signal(&self, number: i32) -> PyResult<()> {
        let no_such = || PyValueError::new_err(format!("there is no signal {number}"));
        let signal = Signal::from_named_raw(number).ok_or_else(no_such)?;
        self.with(|process| process.signal(signal))
    }

    /// Kills the process, unless it has ended.
    fn kill(&self) -> PyResult<()> {
        self.with(|process| {
            process.kill();
            Ok(())
        })
    }

    /// Waits `limit_seconds` for the process to end by itself, and then kills it.
    fn end(&self, py: Python<'_>, limit_seconds: f64) -> PyResult<()> {
        let begin = Instant::now();
        let limit = seconds(limit_seconds)?;
        while self.poll()?.is_none() && begin.elapsed() < limit {
            py.detach(|| std::thread::sleep(LOOK / 10));
            py.check_signals()?;
        }
        self.kill()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if self.launcher != std::process::id() {
            // A copy in a forked process must not kill the child of the original.
            std::mem::forget(self.process.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// Converts an error to an exception that includes its cause.
fn to_python(error: launch::ProcessError) -> PyErr {
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    PyOSError::new_err(format!("{error}{cause}"))
}
