//! Drives a worker's machine, which the program's threads share: a thread that waits also drives
//! the network.
//!
//! The driver owns the locks and the threads. [`WorkerShell`] owns the machine and its transport.

mod shell;
mod silence;
mod wait_log;

use crate::contact::REASON_CHARS;
use crate::record::Recorder;
use crate::wait::IdleTurns;
use crate::{JoinedRun, LeaveSignal, NodeError, WaitPolicy, WorkerHandle};
use net::{Traffic, Transport, Waiter, Waker, lock};
use shell::WorkerShell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store::AllowedLocations;
use worker::Worker;

/// Time from one run of the background thread to the next.
const LOOK: Duration = Duration::from_millis(5);
/// Longest time that the driving thread blocks on the network.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// Longest time that a thread sleeps while another one drives.
const LOOK_UP: Duration = Duration::from_millis(1);
/// How long a worker that is told to leave waits for others, in failure timeouts.
const LEAVING: u32 = 4;
/// How long a goodbye is repeated until it is answered, at most, and at most for the failure
/// timeout: the coordinator may have ended.
const GOODBYE: Duration = Duration::from_secs(2);
/// The same where another coordinator may have to be elected first, in failure timeouts. The
/// predecessor's leader lease takes two, finding the new coordinator takes one and a half, and the
/// new one must learn that this worker is not lost.
const LONG_GOODBYE: u32 = 7;

/// Settings of a worker's driver.
#[derive(Clone, Debug)]
pub struct DriverSettings {
    /// How its threads wait.
    pub wait: WaitPolicy,
    /// Silence after which the only coordinator of a run is lost.
    pub failure_timeout: Duration,
    /// Whether this worker was given several coordinators. If it was given one and there are
    /// others, that one says so.
    pub of_several: bool,
    /// How long to wait for a coordinator if there may be another one.
    pub unled: Duration,
    /// Whether all nodes of the run are threads of this process.
    pub embedded: bool,
    /// Tells the program to leave.
    pub leave: LeaveSignal,
    /// Where it may write checkpoints.
    pub locations: AllowedLocations,
}

/// Why a run is over for a worker that has not left. From then on every call that waits fails with
/// this error.
///
/// ```
/// use node::{NodeError, RunFailure};
///
/// let failure = RunFailure { error: NodeError::ToldToLeave, was_reported: false };
/// assert!(failure.error.to_string().starts_with("this node was told to leave"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFailure {
    /// The error that calls fail with.
    pub error: NodeError,
    /// Whether a call has failed with it, so that the program knows.
    pub was_reported: bool,
}

/// What ends a wait early, beside the end of the run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interruption {
    /// An interrupt of the program, or an order to leave that is older than the leaving time.
    Any,
    /// Only an order to leave that is older than the leaving time.
    WhenLeaving,
    /// Nothing does.
    Never,
}

/// A worker in a run.
pub struct Driver {
    shell: Mutex<WorkerShell>,
    /// Signalled when frames have arrived, and when a driving thread stops driving.
    changed: Condvar,
    /// The thread that holds it drives the network.
    waiter: Mutex<Box<dyn Waiter>>,
    waker: Waker,
    /// Number of program threads that wait.
    waiting: AtomicUsize,
    /// How many waits the program has begun.
    waits: AtomicU64,
    /// The number of waits when the background thread last looked, and since when it is the same.
    blocked: Mutex<(u64, Instant)>,
    settings: DriverSettings,
    interrupt: OnceLock<Interrupt>,
    background: Mutex<Option<JoinHandle<()>>>,
}

/// Whether the calling thread should stop waiting.
type Interrupt = Box<dyn Fn() -> bool + Send + Sync>;

impl Driver {
    /// Drives a worker that has joined. Fails if its recording cannot be written; that ends the
    /// run.
    pub fn start(
        joined: JoinedRun,
        transport: Box<dyn Transport>,
        waiter: Box<dyn Waiter>,
        settings: DriverSettings,
        recorder: Option<Recorder>,
    ) -> Result<Arc<Self>, NodeError> {
        let shell = WorkerShell::new(joined, transport, &settings, recorder)?;
        let name = format!("worker {}", shell.worker().id().0);
        let driver = Arc::new(Self {
            shell: Mutex::new(shell),
            changed: Condvar::new(),
            waker: waiter.waker(),
            waiter: Mutex::new(waiter),
            waiting: AtomicUsize::new(0),
            waits: AtomicU64::new(0),
            blocked: Mutex::new((0, Instant::now())),
            settings,
            interrupt: OnceLock::new(),
            background: Mutex::new(None),
        });
        let weak = Arc::downgrade(&driver);
        let background = std::thread::Builder::new().name(name).spawn(move || {
            while let Some(driver) = weak.upgrade() {
                if driver.look_after() {
                    break;
                }
                drop(driver);
                std::thread::park_timeout(LOOK);
            }
        });
        *lock(&driver.background) = background.ok();
        Ok(driver)
    }

    /// Sets the function that waiting threads call from time to time, without a lock: if it returns
    /// true, the wait fails with [`NodeError::Interrupted`]. Only the first call has an effect.
    pub fn interrupt_by(&self, interrupt: impl Fn() -> bool + Send + Sync + 'static) {
        self.interrupt.set(Box::new(interrupt)).ok();
    }

    /// Runs `call` on the machine and sends the machine's frames.
    pub fn call<R>(&self, call: impl FnOnce(&mut WorkerHandle<'_>) -> R) -> R {
        let mut shell = lock(&self.shell);
        let result = call(&mut shell.worker_handle());
        shell.send();
        let backlog = shell.backlog();
        drop(shell);
        if backlog > 0 {
            self.wake_background();
        }
        result
    }

    /// Whether the program may lend the memory that it pushes from. It may if all nodes are threads
    /// of this process and no recording keeps the values.
    pub fn lends(&self) -> bool {
        self.settings.embedded && !lock(&self.shell).is_recorded()
    }

    /// Handles the frames that have arrived, without waiting for more.
    pub fn catch_up(&self) {
        if let Ok(mut waiter) = self.waiter.try_lock() {
            waiter.wait(Some(Duration::ZERO));
        }
        if lock(&self.shell).pump() {
            self.changed.notify_all();
        }
    }

    fn wake_background(&self) {
        if self.waiting.load(Ordering::Relaxed) == 0
            && let Some(background) = &*lock(&self.background)
        {
            background.thread().unpark();
        }
    }

    /// Blocks until `done` returns a value, and drives the network meanwhile. Fails if the run is
    /// lost, the session is closed or the wait is interrupted.
    pub fn wait_until<R>(&self, mut done: impl FnMut(&mut WorkerHandle<'_>) -> Option<R>) -> Result<R, NodeError> {
        self.drive(Interruption::Any, |shell| done(&mut shell.worker_handle()))
    }

    /// As [`Driver::wait_until`], for an operation that must not stop half-way: the program's
    /// interrupt does not end it.
    pub fn see_through<R>(&self, mut done: impl FnMut(&mut WorkerHandle<'_>) -> Option<R>) -> Result<R, NodeError> {
        self.drive(Interruption::WhenLeaving, |shell| done(&mut shell.worker_handle()))
    }

    /// Blocks until the machine is `ready`, and drives the network meanwhile. Then runs `call`
    /// before another thread can change the machine. Fails without a call if the run is lost.
    pub fn call_when<R>(
        &self,
        mut ready: impl FnMut(&Worker) -> bool,
        call: impl FnOnce(&mut WorkerHandle<'_>) -> R,
    ) -> Result<R, NodeError> {
        let mut call = Some(call);
        self.drive(Interruption::Any, |shell| {
            let call = if ready(shell.worker()) { call.take() } else { None }?;
            let result = call(&mut shell.worker_handle());
            shell.send();
            Some(result)
        })
    }

    /// Drives the network until `done` returns a value, or until the wait is interrupted.
    fn drive<R>(
        &self,
        interruption: Interruption,
        mut done: impl FnMut(&mut WorkerShell) -> Option<R>,
    ) -> Result<R, NodeError> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.waits.fetch_add(1, Ordering::Relaxed);
        let result = self.drive_until(interruption, &mut done);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        // Another waiting thread may drive now.
        self.changed.notify_all();
        result
    }

    fn drive_until<R>(
        &self,
        interruption: Interruption,
        done: &mut impl FnMut(&mut WorkerShell) -> Option<R>,
    ) -> Result<R, NodeError> {
        let mut worked = Instant::now();
        let mut told: Option<Instant> = None;
        let mut turns = IdleTurns::default();
        let mut asked = Instant::now();
        loop {
            if interruption == Interruption::Any && asked.elapsed() >= LONGEST_WAIT {
                asked = Instant::now();
                // No lock is held here: `interrupt` may wait for a thread that waits for the lock
                // of the machine. (Python's interpreter lock is such a case.)
                if self.interrupt.get().is_some_and(|interrupt| interrupt()) {
                    return Err(NodeError::Interrupted);
                }
            }
            let mut shell = lock(&self.shell);
            if shell.pump() {
                self.changed.notify_all();
                worked = Instant::now();
            }
            if let Some(result) = done(&mut shell) {
                return Ok(result);
            }
            if let Some(lost) = shell.tell_failure() {
                return Err(lost);
            }
            if shell.is_closed() {
                return Err(NodeError::Closed);
            }
            if interruption != Interruption::Never && self.settings.leave.is_asked() {
                let told = *told.get_or_insert_with(Instant::now);
                if told.elapsed() > self.settings.failure_timeout * LEAVING {
                    return Err(NodeError::Leaving);
                }
            }
            match self.waiter.try_lock() {
                Ok(mut waiter) => {
                    let may_spin = self.settings.wait != WaitPolicy::BLOCKING;
                    let spins = may_spin && self.settings.wait.spins(worked.elapsed());
                    let glanced = spins && shell.glance();
                    drop(shell);
                    turns.wait(spins, glanced, &mut **waiter, LONGEST_WAIT);
                }
                Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => {
                    let waited = self.changed.wait_timeout(shell, LOOK_UP);
                    drop(waited.unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }

    /// For how long the program waits in one call: a thread of it waits, and none has begun another
    /// wait since. None if no thread waits.
    fn blocked(&self) -> Option<Duration> {
        let waits = self.waits.load(Ordering::Relaxed);
        let mut last = lock(&self.blocked);
        if last.0 != waits || self.waiting.load(Ordering::Relaxed) == 0 {
            *last = (waits, Instant::now());
        }
        (self.waiting.load(Ordering::Relaxed) > 0).then(|| last.1.elapsed())
    }

    /// One run of the background thread. Returns whether the thread is no longer needed.
    fn look_after(&self) -> bool {
        loop {
            let waiting = self.waiting.load(Ordering::Relaxed);
            if waiting == 0
                && let Ok(mut waiter) = self.waiter.try_lock()
            {
                let backlog = lock(&self.shell).backlog();
                waiter.wait(Some(if backlog > 0 { LOOK } else { Duration::ZERO }));
            }
            let mut shell = lock(&self.shell);
            if waiting == 0 && shell.pump() {
                self.changed.notify_all();
            }
            shell.keep_up(self.settings.failure_timeout, &self.settings.leave, self.blocked());
            if shell.is_closed() {
                return true;
            }
            if waiting > 0 || shell.backlog() == 0 {
                return false;
            }
        }
    }

    /// Takes in how long a clock took the program, without the time in which it waited for others.
    pub fn stepped(&self, took: Duration) {
        lock(&self.shell).observe_step(took);
    }

    /// Whether the program was told to leave.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.settings.leave.is_asked()
    }

    /// Why the run has failed for this worker, if it has.
    pub fn failure(&self) -> Option<RunFailure> {
        lock(&self.shell).failure()
    }

    /// Fails as every call that waits does, if the run has failed for this worker.
    pub fn check(&self) -> Result<(), NodeError> {
        lock(&self.shell).tell_failure().map_or(Ok(()), Err)
    }

    /// Counts of what the transport has moved.
    pub fn traffic(&self) -> Traffic {
        lock(&self.shell).traffic()
    }

    /// Shuts down: wakes the thread that blocks, and joins the background thread. A recording is
    /// complete when this returns.
    fn stop(&self) {
        let recorder = lock(&self.shell).close();
        drop(recorder);
        self.waker.wake();
        let background = lock(&self.background).take();
        if let Some(background) = background {
            background.thread().unpark();
            if background.thread().id() != std::thread::current().id() {
                background.join().ok();
            }
        }
    }

    /// Leaves the run: sends the codecs' residuals, waits until everything is acknowledged, says
    /// goodbye and waits for the answer.
    pub fn leave(&self) -> Result<(), NodeError> {
        // A worker that is told to leave does not wait for reads: the program takes no answers.
        let by_order = self.settings.leave.is_asked();
        let is_done = |worker: &Worker| if by_order { worker.is_settled() } else { worker.is_idle() };
        self.drive(Interruption::Never, |shell| is_done(shell.worker()).then_some(()))?;
        if self.call(|worker| worker.flush_residuals()) {
            self.drive(Interruption::Never, |shell| shell.worker().is_flushed().then_some(()))?;
            self.call(|worker| worker.end_clock());
            self.drive(Interruption::Never, |shell| is_done(shell.worker()).then_some(()))?;
        }
        let begin = Instant::now();
        let mut said: Option<Instant> = None;
        // The coordinator may have ended when every node has left, so a missing answer is no error.
        let (may_change, again) = {
            let shell = lock(&self.shell);
            (shell.contact().may_change(), shell.contact().late_after())
        };
        let failure_timeout = self.settings.failure_timeout;
        let limit = if may_change { failure_timeout * LONG_GOODBYE } else { failure_timeout.min(GOODBYE) };
        // The background thread notices if the coordinator ends meanwhile.
        let is_over = || {
            let shell = lock(&self.shell);
            shell.has_left() || shell.failure().is_some()
        };
        while !is_over() && begin.elapsed() < limit {
            if said.is_none_or(|said| said.elapsed() > again) {
                said = Some(Instant::now());
                self.call(|worker| worker.leave());
            }
            if let Ok(mut waiter) = self.waiter.try_lock() {
                waiter.wait(Some(LOOK));
            }
            lock(&self.shell).pump();
        }
        self.stop();
        Ok(())
    }

    /// Stops, and tells the coordinator that this worker cannot go on. The run ends, and all nodes
    /// learn the reason.
    pub fn abandon(&self, reason: &str) {
        // Enough to identify the error; this process logs the rest.
        let reason = reason.chars().take(REASON_CHARS).collect();
        self.call(|worker| worker.fail(reason));
        self.stop();
    }
}
