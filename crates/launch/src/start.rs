//! How a process is started: its program, arguments, environment and output. On Linux, the kernel
//! kills the process when the thread that started it ends.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::{OutputTarget, Process, ProcessError};

/// A process to be started. By default its standard input is empty and its output discarded.
///
/// ```
/// use launch::{OutputTarget, Start};
///
/// let start = Start::program("greeter", "echo").args(["good", "day"]);
/// let mut process = start.stdout(OutputTarget::Capture).spawn()?;
/// assert!(process.wait()?.success());
/// assert_eq!(process.stdout(), "good day\n");
/// # Ok::<(), launch::ProcessError>(())
/// ```
#[derive(Debug)]
pub struct Start {
    name: String,
    command: Command,
    stdin: Stdio,
    stdout: OutputTarget,
    stderr: OutputTarget,
    has_own_session: bool,
}

impl Start {
    /// A process that runs `program` and is called `name` in messages.
    pub fn program(name: &str, program: impl AsRef<OsStr>) -> Self {
        Self::command(name, Command::new(program))
    }

    /// A process that runs this program again.
    pub fn this_program(name: &str) -> Result<Self, ProcessError> {
        Ok(Self::program(name, this_program()?))
    }

    /// A process that runs `command`, of which the arguments and the environment are used. This
    /// replaces its standard streams.
    pub fn command(name: &str, command: Command) -> Self {
        Self {
            name: name.to_owned(),
            command,
            stdin: Stdio::null(),
            stdout: OutputTarget::Discard,
            stderr: OutputTarget::Discard,
            has_own_session: false,
        }
    }

    /// Adds arguments.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Sets an environment variable of the process.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Gives the process the standard input of this process.
    pub fn inherit_stdin(mut self) -> Self {
        self.stdin = Stdio::inherit();
        self
    }

    /// Sets where the standard output goes.
    pub fn stdout(mut self, output: OutputTarget) -> Self {
        self.stdout = output;
        self
    }

    /// Sets where the standard error goes.
    pub fn stderr(mut self, output: OutputTarget) -> Self {
        self.stderr = output;
        self
    }

    /// Puts the process in a session of its own. A terminal's Ctrl-C then reaches the launcher
    /// only, which decides whether to pass it on.
    pub fn own_session(mut self) -> Self {
        self.has_own_session = true;
        self
    }

    /// Starts the process. On Linux the process is killed when the thread that calls this ends, so
    /// call it from a thread that outlives the process.
    pub fn spawn(self) -> Result<Process, ProcessError> {
        let Self { name, mut command, stdin, stdout, stderr, has_own_session } = self;
        let (stdout, stdout_sink) = stdout.split();
        let (stderr, stderr_sink) = stderr.split();
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        let launcher = rustix::process::getpid();
        let prepare = move || -> io::Result<()> {
            if has_own_session {
                rustix::process::setsid()?;
            }
            #[cfg(target_os = "linux")]
            {
                use rustix::process::{Signal, getppid, set_parent_process_death_signal};
                set_parent_process_death_signal(Some(Signal::KILL))?;
                if getppid() != Some(launcher) {
                    // The launcher ended before the kernel was told to watch it.
                    return Err(rustix::io::Errno::SRCH.into());
                }
            }
            #[cfg(not(target_os = "linux"))]
            let _ = launcher;
            Ok(())
        };
        // SAFETY: between fork and exec only async-signal-safe calls are allowed. `prepare` makes
        // system calls and returns their error numbers; it neither allocates nor takes a lock.
        unsafe { command.pre_exec(prepare) };
        match command.spawn() {
            Ok(child) => Ok(Process::new(name, child, stdout_sink, stderr_sink)),
            Err(source) => {
                let program = command.get_program().to_string_lossy().into_owned();
                Err(ProcessError::Start { name, program, source })
            }
        }
    }
}

/// The file of this program.
pub(crate) fn this_program() -> Result<std::path::PathBuf, ProcessError> {
    std::env::current_exe().map_err(|source| ProcessError::ThisProgram { source })
}
