//! One process that was started here: its output, signals to it, and its end.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::output::{Reading, Sink};

/// How often a process that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Why a process cannot be started, waited for or signalled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The system does not say which file this program is.
    #[error("cannot find this program's own file")]
    ThisProgram {
        /// What the system says.
        source: io::Error,
    },
    /// The program cannot be started.
    #[error("cannot start {program} as {name}")]
    Start {
        /// What the process would be called.
        name: String,
        /// What it would run.
        program: String,
        /// What the system says.
        source: io::Error,
    },
    /// The system does not say whether the process has ended.
    #[error("cannot wait for {name} (process {id})")]
    Wait {
        /// What the process is called.
        name: String,
        /// Its process id.
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
    /// This process cannot be told of its own signals.
    #[error("cannot listen for signals")]
    Listen {
        /// What the system says.
        source: io::Error,
    },
}

/// A process that was started here. Dropping it kills the process if it is still there.
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

    /// What it is called in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to its standard output so far, if that is captured.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.captured()).into_owned()
    }

    /// What it has written to its standard error so far, if that is captured.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.captured()).into_owned()
    }

    /// How it ended, if it has. Some of its output may still be on its way: see
    /// [`Self::finish_output`].
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, ProcessError> {
        self.child.try_wait().map_err(|source| self.wait_error(source))
    }

    /// Waits until it has ended and all of its output was read.
    pub fn wait(&mut self) -> Result<ExitStatus, ProcessError> {
        let status = self.child.wait().map_err(|source| self.wait_error(source))?;
        self.finish_output();
        Ok(status)
    }

    /// The same for at most so long; `None` if it has not ended by then.
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

    /// Waits until all output was read: until neither the process nor a descendant holds the other
    /// ends of its pipes.
    pub fn finish_output(&mut self) {
        self.stdout.finish();
        self.stderr.finish();
    }

    /// Sends it a signal. Nothing happens if it has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<(), ProcessError> {
        match self.try_wait()? {
            Some(_) => Ok(()),
            None => signal_process(self.id(), signal),
        }
    }

    /// Kills it if it has not ended, and waits until it has.
    pub fn kill(&mut self) {
        // Both fail only if it has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Gives it so long to end by itself, and then kills it.
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

/// Sends a signal to a process by its id. For a process that was started here, use
/// [`Process::signal`], which knows if it has ended.
pub fn signal_process(id: u32, signal: Signal) -> Result<(), ProcessError> {
    let error = |source| ProcessError::Signal { signal: signal.as_raw(), id, source };
    // 0 and negative numbers are groups of processes.
    let process = i32::try_from(id).ok().and_then(Pid::from_raw);
    let process = process.ok_or_else(|| error(io::ErrorKind::InvalidInput.into()))?;
    kill_process(process, signal).map_err(|source| error(source.into()))
}
