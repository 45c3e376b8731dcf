//! One process that this program has started: its output, signals to it, and its end. Dropping it
//! kills the process.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::output::{Reading, Sink};

/// How often [`Process::wait_for`] checks whether the process has ended.
const LOOK: Duration = Duration::from_millis(5);

/// Why a process cannot be started, waited for or signalled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The system does not say which file this program is.
    #[error("cannot find this program's own file, to start it again")]
    ThisProgram {
        /// What the system says.
        source: io::Error,
    },
    /// The program cannot be started.
    #[error("cannot start {program} as {name}")]
    Start {
        /// The name of the process in messages.
        name: String,
        /// The program.
        program: String,
        /// What the system says.
        source: io::Error,
    },
    /// The system does not say whether the process has ended.
    #[error("cannot wait for {name} (process {id})")]
    Wait {
        /// The name of the process in messages.
        name: String,
        /// The process id.
        id: u32,
        /// What the system says.
        source: io::Error,
    },
    /// The signal cannot be sent.
    #[error("cannot send signal {signal} to process {id}")]
    Signal {
        /// The signal's number.
        signal: i32,
        /// The process id.
        id: u32,
        /// What the system says.
        source: io::Error,
    },
    /// The handler for signals to this process cannot be installed.
    #[error("cannot listen for signals")]
    Listen {
        /// What the system says.
        source: io::Error,
    },
}

/// A process that this program has started. Dropping it kills the process if it still runs.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdout: Reading,
    stderr: Reading,
}

impl Process {
    pub(crate) fn new(name: String, mut child: Child, stdout: Sink, stderr: Sink) -> Self {
        let stdout = Reading::start(child.stdout.take(), stdout);
        let stderr = Reading::start(child.stderr.take(), stderr);
        Self { name, child, stdout, stderr }
    }

    /// The process's name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The process's standard output so far, if it is captured.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.captured()).into_owned()
    }

    /// The process's standard error so far, if it is captured.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.captured()).into_owned()
    }

    /// The exit status; `None` while the process runs. Some of its output may not have been read
    /// yet: see [`Self::finish_output`].
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, ProcessError> {
        self.child.try_wait().map_err(|source| self.wait_error(source))
    }

    /// Waits until the process has ended and all of its output has been read.
    pub fn wait(&mut self) -> Result<ExitStatus, ProcessError> {
        let status = self.child.wait().map_err(|source| self.wait_error(source))?;
        self.finish_output();
        Ok(status)
    }

    /// As [`Self::wait`], for at most `limit`; `None` if the process still runs then.
    pub fn wait_for(&mut self, limit: Duration) -> Result<Option<ExitStatus>, ProcessError> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.try_wait()? {
                self.finish_output();
                return Ok(Some(status));
            }
            let left = limit.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(LOOK.min(left));
        }
    }

    /// Waits until all output has been read: until neither the process nor a descendant holds the
    /// other ends of the pipes.
    pub fn finish_output(&mut self) {
        self.stdout.finish();
        self.stderr.finish();
    }

    /// Sends a signal to the process. Does nothing if the process has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<(), ProcessError> {
        match self.try_wait()? {
            Some(_) => Ok(()),
            None => signal_process(self.id(), signal),
        }
    }

    /// Kills the process if it still runs, and waits until it has ended.
    pub fn kill(&mut self) {
        // Both fail only if the process has already ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Waits until the process ends by itself, for at most `limit`, and then kills it.
    pub fn end_within(&mut self, limit: Duration) {
        if !matches!(self.wait_for(limit), Ok(Some(_))) {
            self.kill();
        }
    }

    fn wait_error(&self, source: io::Error) -> ProcessError {
        ProcessError::Wait { name: self.name.clone(), id: self.child.id(), source }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to a process by its id. For a process that this program has started, use
/// [`Process::signal`], which knows whether it has ended.
pub fn signal_process(id: u32, signal: Signal) -> Result<(), ProcessError> {
    let error = |source| ProcessError::Signal { signal: signal.as_raw(), id, source };
    // 0 and negative numbers mean groups of processes, so they are refused.
    let process = i32::try_from(id).ok().and_then(Pid::from_raw);
    let process = process.ok_or_else(|| error(io::ErrorKind::InvalidInput.into()))?;
    kill_process(process, signal).map_err(|source| error(source.into()))
}
