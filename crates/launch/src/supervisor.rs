//! Supervises the processes of a run on this host: starts them, forwards their output, passes
//! signals on to the workers, replaces lost processes if it may, and ends all of them.
//!
//! When the run cannot survive the loss of a process, the other processes get time to notice the
//! loss, report it and end. A process that has not ended by then is killed.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cause::{Cause, Loss, cause};
use crate::start::this_program;
use crate::{OutputTarget, PlannedProcess, Process, ProcessError, ProcessKind, SignalFlag, Start};

/// How often the supervisor checks its processes and signals.
const LOOK: Duration = Duration::from_millis(20);

/// The exit status of a process that the run has expelled (EX_TEMPFAIL of sysexits). Another
/// process may join in its place.
pub const EXPELLED_STATUS: u8 = 75;

/// The exit status of a process whose main thread has panicked.
const PANICKED_STATUS: i32 = 101;

/// The most processes that are replaced. If even more are lost, the cause is likely common to all.
const MOST_REPLACED: u32 = 64;

/// When the supervisor kills processes instead of waiting for them.
#[derive(Clone, Copy, Debug)]
pub struct EndPolicy {
    /// How many interrupts are passed on to the workers, which handle them. The next one kills all
    /// processes.
    pub interrupts: u32,
    /// How many orders to leave are passed on to the workers. The next one kills all processes.
    pub leave_orders: u32,
    /// The signal by which an order to leave is passed on.
    pub leave_by: Signal,
    /// How long the other processes may take to end after a loss that ends the run.
    pub after_a_loss: Duration,
}

/// The processes that replace lost ones, in a run that survives their loss.
#[derive(Clone, Debug)]
pub struct Replacements {
    /// Replaces a server.
    pub server: PlannedProcess,
    /// Replaces a worker; none if the program cannot use workers that join later.
    pub worker: Option<PlannedProcess>,
}

/// Why a run did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchFailure {
    /// A signal ended it.
    #[error("stopped by signal {signal}; every process of the run has been ended")]
    Stopped {
        /// The signal's number.
        signal: i32,
    },
    /// A process was lost or failed, and the run with it.
    #[error("the run failed: {what}{}", words.as_ref().map(|words| format!(", saying: {words}")).unwrap_or_default())]
    Lost {
        /// Which process, and how it ended.
        what: String,
        /// The last error that it printed.
        words: Option<String>,
    },
    /// A process cannot be started or waited for.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// The processes of a run. Dropping it kills those that still run.
#[derive(Debug)]
pub struct Supervisor {
    program: PathBuf,
    replacements: Option<Replacements>,
    /// Processes to kill: how long after the start, and the name.
    kills: Vec<(Duration, String)>,
    /// How many processes have been replaced.
    replaced: u32,
    /// When the coordinator ended with success: the run is over.
    over: Option<Instant>,
    running: Vec<Running>,
    /// Processes that have ended, until all of their output is forwarded.
    ended: Vec<Running>,
}

/// A process of the run.
#[derive(Debug)]
struct Running {
    kind: ProcessKind,
    coordinates: bool,
    process: Process,
    last_error: LastError,
    is_replacement: bool,
}

/// The last error that a process printed, found in its output while that is forwarded.
type LastError = Arc<Mutex<Option<String>>>;

impl Supervisor {
    /// Supervises processes of this program. Without `replacements`, the loss of any process ends
    /// the run.
    pub fn new(replacements: Option<Replacements>) -> Result<Self, ProcessError> {
        let program = this_program()?;
        Ok(Self {
            program,
            replacements,
            kills: Vec::new(),
            replaced: 0,
            over: None,
            running: Vec::new(),
            ended: Vec::new(),
        })
    }

    /// Kills the process of that name at this time after the start, to demonstrate that the run
    /// goes on.
    pub fn kill_after(&mut self, after: Duration, name: &str) {
        self.kills.push((after, name.to_owned()));
    }

    /// Starts a process of the run. Its output is forwarded.
    pub fn start(&mut self, planned: PlannedProcess) -> Result<(), ProcessError> {
        self.start_as(planned, false)
    }

    fn start_as(&mut self, planned: PlannedProcess, is_replacement: bool) -> Result<(), ProcessError> {
        let PlannedProcess { kind, coordinates, name, arguments } = planned;
        let last_error = LastError::default();
        // The standard output of workers has no prefix: one worker prints the result there, which
        // another program may read.
        let prefix = if kind == ProcessKind::Worker { String::new() } else { format!("{name} | ") };
        let process = Start::program(&name, &self.program)
            .args(arguments)
            .stdout(forward(io::stdout(), prefix, &last_error))
            .stderr(forward(io::stderr(), format!("{name} | "), &last_error))
            .own_session()
            .spawn()?;
        tracing::info!(process = process.id(), "started {name}");
        self.running.push(Running { kind, coordinates, process, last_error, is_replacement });
        Ok(())
    }

    /// Waits until every process has ended. After a loss that ends the run, or after a signal,
    /// kills the processes that do not end in time.
    pub fn run(mut self, signals: &SignalFlag, mut policy: EndPolicy) -> Result<(), LaunchFailure> {
        let mut losses: Vec<Loss> = Vec::new();
        let mut first_loss: Option<Instant> = None;
        let begin = Instant::now();
        while !self.running.is_empty() {
            self.kill_due(begin.elapsed());
            for loss in self.reap()? {
                if !loss.is_replacement && !loss.is_survived {
                    first_loss.get_or_insert_with(Instant::now);
                }
                losses.push(loss);
            }
            if let Some(signal) = signals.take() {
                self.heed(signal, &mut policy)?;
            }
            if first_loss.is_some_and(|loss| loss.elapsed() > policy.after_a_loss) {
                self.end(|_| true);
            }
            if self.over.is_some_and(|over| over.elapsed() > policy.after_a_loss) {
                // These replacements started too late, and look for a run that is over.
                self.end(|running| running.is_replacement);
            }
            std::thread::sleep(LOOK);
        }
        let last_errors = self.finish_output();
        if self.over.is_some() {
            losses.retain(|loss| !loss.is_replacement);
        }
        match cause(&losses, &last_errors) {
            None => Ok(()),
            Some(Cause { what, words }) => Err(LaunchFailure::Lost { what, words }),
        }
    }

    /// Passes a signal on to the workers, or kills all processes.
    fn heed(&mut self, signal: Signal, policy: &mut EndPolicy) -> Result<(), LaunchFailure> {
        if signal == Signal::INT && policy.interrupts > 0 {
            policy.interrupts -= 1;
            self.tell_workers(Signal::INT);
        } else if [Signal::TERM, Signal::USR1].contains(&signal) && policy.leave_orders > 0 {
            policy.leave_orders -= 1;
            let number = signal.as_raw();
            eprintln!("launch | told to leave by signal {number}: the workers stop, and the servers end with the run");
            self.tell_workers(policy.leave_by);
        } else {
            self.kill_all();
            return Err(LaunchFailure::Stopped { signal: signal.as_raw() });
        }
        Ok(())
    }

    /// Moves processes that have ended from `running` to `ended`. Returns those that failed.
    fn reap(&mut self) -> Result<Vec<Loss>, ProcessError> {
        let mut ended = Vec::new();
        for mut running in std::mem::take(&mut self.running) {
            match running.process.try_wait()? {
                Some(status) => ended.push((running, status)),
                None => self.running.push(running),
            }
        }
        let mut losses = Vec::new();
        for (running, status) in ended {
            losses.extend(self.judge(&running, status)?);
            self.ended.push(running);
        }
        Ok(losses)
    }

    /// The loss that the end of a process means; none if the process succeeded or the run is over.
    fn judge(&mut self, running: &Running, status: ExitStatus) -> Result<Option<Loss>, ProcessError> {
        let Running { kind, coordinates, process, is_replacement, .. } = running;
        if status.success() {
            // Only the coordinator's end says that the run is over: a server or worker that ends
            // with success may have left.
            if *kind == ProcessKind::Coordinator {
                self.over.get_or_insert_with(Instant::now);
            }
            return Ok(None);
        }
        let role = if *coordinates && *kind == ProcessKind::Server { ", also the coordinator," } else { "" };
        let what = format!("{} (process {}){role} {}", process.name(), process.id(), in_words(status));
        eprintln!("launch | {what}");
        let by_signal = status.code().is_none();
        // A process that fails in any other way would fail again, so it is not replaced.
        let by_chance = by_signal
            || status.code() == Some(EXPELLED_STATUS.into())
            || *kind == ProcessKind::Server && status.code() == Some(PANICKED_STATUS);
        let is_survived = by_chance && self.does_without(*kind, process.name())?;
        if self.over.is_some() {
            return Ok(None);
        }
        let name = process.name().to_owned();
        let is_replacement = *is_replacement;
        Ok(Some(Loss { name, what, by_signal, coordinates: *coordinates, is_survived, is_replacement }))
    }

    /// Whether the run goes on without a lost process. Starts a replacement if there is one.
    fn does_without(&mut self, kind: ProcessKind, name: &str) -> Result<bool, ProcessError> {
        let Some(replacements) = self.replacements.as_ref().filter(|_| kind != ProcessKind::Coordinator) else {
            return Ok(false);
        };
        let is_worker = kind == ProcessKind::Worker;
        let goes_on = !is_worker || self.running.iter().any(|other| other.kind == ProcessKind::Worker);
        let replacement = if is_worker { replacements.worker.clone() } else { Some(replacements.server.clone()) };
        let Some(replacement) = replacement else { return Ok(goes_on) };
        if self.over.is_some() || !goes_on {
            return Ok(self.over.is_some());
        }
        if self.replaced == MOST_REPLACED {
            eprintln!(
                "launch | {MOST_REPLACED} processes have been replaced, and no more are: look for a common cause in their errors"
            );
            return Ok(is_worker);
        }
        self.replaced += 1;
        eprintln!("launch | another is started in its place, {} of {MOST_REPLACED} at most", self.replaced);
        let first = name.rsplit(" in place of ").next().unwrap_or(name);
        let name = format!("{} in place of {first}", kind.word());
        self.start_as(PlannedProcess { name, ..replacement }, true)?;
        Ok(true)
    }

    /// Kills the processes whose time has come.
    fn kill_due(&mut self, elapsed: Duration) {
        let (due, later) = std::mem::take(&mut self.kills).into_iter().partition(|(after, _)| *after <= elapsed);
        self.kills = later;
        for (_, name) in due {
            for running in self.running.iter_mut().filter(|running| running.process.name() == name) {
                eprintln!("demo | {name} (process {}) is killed", running.process.id());
                running.process.kill();
            }
        }
    }

    /// Passes a signal on to the workers; the servers end with the run.
    fn tell_workers(&mut self, signal: Signal) {
        for running in self.running.iter_mut().filter(|running| running.kind == ProcessKind::Worker) {
            // Fails only if the process has already ended.
            running.process.signal(signal).ok();
        }
    }

    /// Kills the chosen processes, and prints which ones they are.
    fn end(&mut self, is_chosen: impl Fn(&Running) -> bool) {
        let (chosen, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.running).into_iter().partition(is_chosen);
        self.running = others;
        for mut running in chosen {
            let name = running.process.name();
            let id = running.process.id();
            eprintln!("launch | {name} (process {id}) has not ended in time, and is killed");
            running.process.kill();
            self.ended.push(running);
        }
    }

    fn kill_all(&mut self) {
        self.running.iter_mut().for_each(|running| running.process.kill());
        self.ended.append(&mut self.running);
    }

    /// Waits until all output of the processes is forwarded. Returns the last error of each.
    fn finish_output(&mut self) -> BTreeMap<String, String> {
        let mut last_errors = BTreeMap::new();
        for mut running in self.ended.drain(..) {
            running.process.finish_output();
            let last_error = running.last_error.lock().unwrap_or_else(PoisonError::into_inner).take();
            last_errors.extend(last_error.map(|words| (running.process.name().to_owned(), words)));
        }
        last_errors
    }
}

fn in_words(status: ExitStatus) -> String {
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("died: signal {signal}");
    }
    status.code().map_or("died".to_owned(), |code| format!("failed: exit status {code}"))
}

/// Forwards lines, each in one write with its prefix, and notes the last error among them.
fn forward(mut to: impl Write + Send + 'static, prefix: String, last_error: &LastError) -> OutputTarget {
    let last_error = last_error.clone();
    OutputTarget::Lines(Box::new(move |line| {
        if let Some(words) = error_in(line) {
            *last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(words);
        }
        let whole = [prefix.as_bytes(), line, b"\n"].concat();
        // If the reader has closed the pipe, the write fails. The process's output is still read,
        // so that the process does not stall.
        to.write_all(&whole).and_then(|()| to.flush()).ok();
    }))
}

/// The error that a line reports, if it reports one.
fn error_in(line: &[u8]) -> Option<String> {
    let words = line.strip_prefix(b"error: ")?;
    Some(String::from_utf8_lossy(words.trim_ascii()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forward_prefixes_lines_and_notes_the_last_error() {
        let (mut to, from) = std::os::unix::net::UnixStream::pair().map(|(a, b)| (Some(a), b)).unwrap();
        let last_error = LastError::default();
        let OutputTarget::Lines(mut line) = forward(to.take().unwrap(), "w | ".to_owned(), &last_error) else {
            panic!("output is forwarded line by line")
        };
        for words in ["error: a", "error: b ", "", "no error: c"] {
            line(words.as_bytes());
        }
        drop(line);
        let forwarded = io::read_to_string(from).unwrap();
        assert_eq!(forwarded, "w | error: a\nw | error: b \nw | \nw | no error: c\n");
        assert_eq!(last_error.lock().unwrap().as_deref(), Some("b"));
    }
}
