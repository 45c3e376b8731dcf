//! Supervises the processes of a run on this host: starts them, forwards their output, replaces
//! lost ones, and ends all of them.
//!
//! When a process is lost that the run cannot do without, the others get time to notice and say so.
//! A process that is still there after that is killed.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::start::this_program;
use crate::{OutputTarget, PlannedProcess, Process, ProcessError, ProcessKind, SignalFlag, Start};

/// How often the processes are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// The exit status of a process that the run has expelled: another may join in its place
/// (EX_TEMPFAIL of sysexits).
pub const EXPELLED_STATUS: u8 = 75;

/// The exit status of a process whose main thread has panicked.
const PANICKED_STATUS: i32 = 101;

/// How many processes are replaced. If more are lost, something is wrong with all of them.
const MOST_REPLACED: u32 = 64;

/// When the processes are ended, rather than waited for.
#[derive(Clone, Copy, Debug)]
pub struct EndPolicy {
    /// How many interrupts are passed on to the workers, which heed them; the next one ends
    /// everybody.
    pub interrupts: u32,
    /// How many orders to leave are passed on to the workers, where they may leave; the next one
    /// ends everybody.
    pub leave_orders: u32,
    /// The signal by which an order to leave is passed on.
    pub leave_by: Signal,
    /// How long the others get after a loss that ends the run.
    pub after_a_loss: Duration,
}

/// What is started in the place of lost processes, in a run that survives their loss.
#[derive(Clone, Debug)]
pub struct Replacements {
    /// In the place of a server.
    pub server: PlannedProcess,
    /// In the place of a worker; none if the program goes with the workers that it began with.
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
    /// A process was lost or failed, and the others with it.
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

/// The processes of a run. Dropping it ends those that are still there.
#[derive(Debug)]
pub struct Supervisor {
    program: PathBuf,
    replacements: Option<Replacements>,
    /// Which processes are to be killed, and how long after the start.
    kills: Vec<(Duration, String)>,
    replaced: u32,
    /// When the coordinator had done what there was to do: the run is over.
    over: Option<Instant>,
    running: Vec<Running>,
    /// Processes that have ended, until all of their output was forwarded.
    ended: Vec<Running>,
}

/// A process of the run.
#[derive(Debug)]
struct Running {
    kind: ProcessKind,
    process: Process,
    last_error: LastError,
    is_replacement: bool,
}

/// The last error that a process printed, as its output tells while it is forwarded.
type LastError = Arc<Mutex<Option<String>>>;

/// A process that did not end well.
struct Loss {
    name: String,
    /// Which process, and how it ended.
    what: String,
    by_signal: bool,
    /// Whether it had taken another's place: then it may have come when the run was over, and does
    /// not matter if that went well.
    is_replacement: bool,
}

/// The loss that the others followed from, as far as can be told: of a process that was killed, or
/// that speaks of itself.
fn cause<'a>(losses: &'a [Loss], last_errors: &BTreeMap<String, String>) -> Option<&'a Loss> {
    let blames_another = |loss: &&Loss| {
        let words = last_errors.get(&loss.name).map_or("", String::as_str);
        words.contains("lost ") || words.contains("another worker could not go on")
    };
    let killed = losses.iter().find(|loss| loss.by_signal);
    killed.or_else(|| losses.iter().find(|loss| !blames_another(loss))).or(losses.first())
}

impl Supervisor {
    /// Supervises processes of this program. Without `replacements`, the loss of any process ends
    /// the run.
    pub fn new(replacements: Option<Replacements>) -> Result<Self, ProcessError> {
        let program = this_program()?;
        let (kills, running, ended) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { program, replacements, kills, replaced: 0, over: None, running, ended })
    }

    /// Kills the process of that name so long after the start: a demonstration of what becomes of
    /// the run.
    pub fn kill_after(&mut self, after: Duration, name: &str) {
        self.kills.push((after, name.to_owned()));
    }

    /// Starts a process of the run. Its output is forwarded.
    pub fn start(&mut self, planned: PlannedProcess) -> Result<(), ProcessError> {
        self.start_as(planned, false)
    }

    fn start_as(&mut self, planned: PlannedProcess, is_replacement: bool) -> Result<(), ProcessError> {
        let PlannedProcess { kind, name, arguments } = planned;
        let last_error = LastError::default();
        // What a worker prints is the result, which another program may want to read as it is. Only
        // one of them does.
        let prefix = if kind == ProcessKind::Worker { String::new() } else { format!("{name} | ") };
        let process = Start::program(&name, &self.program)
            .args(arguments)
            .stdout(forward(io::stdout(), prefix, &last_error))
            .stderr(forward(io::stderr(), format!("{name} | "), &last_error))
            .own_session()
            .spawn()?;
        tracing::info!(process = process.id(), "started {name}");
        self.running.push(Running { kind, process, last_error, is_replacement });
        Ok(())
    }

    /// Waits until every process has ended; after a loss that ends the run, or a signal, not for
    /// ever.
    pub fn run(mut self, signals: &SignalFlag, mut policy: EndPolicy) -> Result<(), LaunchFailure> {
        let mut losses: Vec<Loss> = Vec::new();
        let mut first_loss: Option<Instant> = None;
        let begin = Instant::now();
        while !self.running.is_empty() {
            self.kill_due(begin.elapsed());
            for loss in self.reap()? {
                if !loss.is_replacement {
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
                // They came too late, and look for a run that is no more.
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
            Some(Loss { name, what, .. }) => {
                Err(LaunchFailure::Lost { what: what.clone(), words: last_errors.get(name).cloned() })
            }
        }
    }

    /// Passes a signal on, or ends everybody.
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

    /// Takes out the processes that have ended. Returns those that did not end well and that the
    /// run cannot do without.
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

    /// What the end of a process means: a loss, unless it ended well or the run goes on without it.
    fn judge(&mut self, running: &Running, status: ExitStatus) -> Result<Option<Loss>, ProcessError> {
        let Running { kind, process, is_replacement, .. } = running;
        if status.success() {
            // A worker may just have left.
            if *kind == ProcessKind::Coordinator {
                self.over.get_or_insert_with(Instant::now);
            }
            return Ok(None);
        }
        let what = format!("{} (process {}) {}", process.name(), process.id(), in_words(status));
        eprintln!("launch | {what}");
        let by_signal = status.code().is_none();
        // One that fails by itself would do so again.
        let by_chance = by_signal
            || status.code() == Some(EXPELLED_STATUS.into())
            || *kind == ProcessKind::Server && status.code() == Some(PANICKED_STATUS);
        if by_chance && self.does_without(*kind, process.name())? || self.over.is_some() {
            return Ok(None);
        }
        Ok(Some(Loss { name: process.name().to_owned(), what, by_signal, is_replacement: *is_replacement }))
    }

    /// Whether the run goes on without a process that was lost: mostly another takes its place.
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
                "launch | {MOST_REPLACED} processes have been replaced, and no more are: something is wrong with all of them"
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

    /// Kills the processes that are to be killed by now.
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
            // Fails only if it has ended already.
            running.process.signal(signal).ok();
        }
    }

    /// Says which processes are still there, of those that are chosen, and kills them.
    fn end(&mut self, is_chosen: impl Fn(&Running) -> bool) {
        let (chosen, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.running).into_iter().partition(is_chosen);
        self.running = others;
        for mut running in chosen {
            let (name, id) = (running.process.name(), running.process.id());
            eprintln!("launch | {name} (process {id}) is still there, and is ended");
            running.process.kill();
            self.ended.push(running);
        }
    }

    fn kill_all(&mut self) {
        self.running.iter_mut().for_each(|running| running.process.kill());
        self.ended.append(&mut self.running);
    }

    /// Waits until everything that the processes wrote was forwarded. Returns the last error of
    /// each.
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

/// Forwards lines, each in one piece behind its prefix, and notes the last error among them.
fn forward(mut to: impl Write + Send + 'static, prefix: String, last_error: &LastError) -> OutputTarget {
    let last_error = last_error.clone();
    OutputTarget::Lines(Box::new(move |line| {
        if let Some(words) = error_in(line) {
            *last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(words);
        }
        let whole = [prefix.as_bytes(), line, b"\n"].concat();
        // Whoever read it may have heard enough; the process is still listened to, so that it does
        // not stall.
        to.write_all(&whole).and_then(|()| to.flush()).ok();
    }))
}

/// The words of a line that tells of an error.
fn error_in(line: &[u8]) -> Option<String> {
    let words = line.strip_prefix(b"error: ")?;
    Some(String::from_utf8_lossy(words.trim_ascii()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_lines_keep_their_prefix_and_the_last_error_is_noted() {
        let (mut to, from) = std::os::unix::net::UnixStream::pair().map(|(a, b)| (Some(a), b)).unwrap();
        let last_error = LastError::default();
        let OutputTarget::Lines(mut line) = forward(to.take().unwrap(), "w | ".to_owned(), &last_error) else {
            panic!("lines are forwarded one by one")
        };
        for words in ["error: a", "error: b ", "", "no error: c"] {
            line(words.as_bytes());
        }
        drop(line);
        let forwarded = io::read_to_string(from).unwrap();
        assert_eq!(forwarded, "w | error: a\nw | error: b \nw | \nw | no error: c\n");
        assert_eq!(last_error.lock().unwrap().as_deref(), Some("b"));
    }

    #[test]
    fn cause_is_the_process_that_was_killed_or_speaks_of_itself() {
        let loss = |name: &str, by_signal| {
            let (name, what, is_replacement) = (name.to_owned(), String::new(), false);
            Loss { name, what, by_signal, is_replacement }
        };
        let words = |words: &[(&str, &str)]| {
            words.iter().map(|(name, said)| ((*name).to_owned(), (*said).to_owned())).collect()
        };
        let losses = [loss("a", false), loss("b", false), loss("c", true)];
        let found = |losses, said: &[(&str, &str)]| cause(losses, &words(said)).map(|loss| loss.name.clone());
        assert_eq!(found(&losses[..0], &[]), None);
        assert_eq!(found(&losses, &[]).as_deref(), Some("c"));
        assert_eq!(found(&losses[..2], &[("a", "lost b: it could not go on"), ("b", "no file")]).as_deref(), Some("b"));
        assert_eq!(found(&losses[..2], &[("a", "lost x"), ("b", "lost x")]).as_deref(), Some("a"));
    }
}
