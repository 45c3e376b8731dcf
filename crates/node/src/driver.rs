//! A worker's machine, shared by the program's threads: a thread that waits drives the network.
//!
//! The driver has the locks and the threads; [`WorkerShell`] has the machine, its transport, and
//! all that is done to them.

mod shell;
mod silence;

use crate::contact::REASON_CHARS;
use crate::record::Recorder;
use crate::wait::IdleTurns;
use crate::{JoinedRun, LeaveSignal, NodeError, WaitPolicy, WorkerHandle};
use net::{Traffic, Transport, Waiter, Waker, lock};
use shell::WorkerShell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker::Worker;

/// The background thread looks after the network this often while the program computes.
const LOOK: Duration = Duration::from_millis(5);
/// A thread that drives looks around at least this often.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// A thread that waits while another drives looks up at least this often.
const LOOK_UP: Duration = Duration::from_millis(1);
/// One that is told to leave waits for others so many times as long as a node may be silent, and no
/// longer.
const LEAVING: u32 = 4;
/// A goodbye is repeated until it is answered, for as long as a node may be silent, but not longer
/// than this: everybody may be gone already.
const GOODBYE: Duration = Duration::from_secs(2);
/// And for so many times as long as a node may be silent, where another coordinator may have to be
/// elected first, which has to know that this worker is not lost: its predecessor's lease is two,
/// and finding it takes one and a half.
const LONG_GOODBYE: u32 = 7;

/// How a worker's shell behaves.
#[derive(Clone, Debug)]
pub struct DriverSettings {
    /// How its threads wait.
    pub wait: WaitPolicy,
    /// A coordinator that is silent for this long is lost.
    pub failure_timeout: Duration,
    /// Whether several coordinators were named. There may be others even so, and the only one that
    /// was named says so.
    pub of_several: bool,
    /// How long one that answers is waited for, where there may be another.
    pub unled: Duration,
    /// Whether everybody is a thread of this process.
    pub embedded: bool,
    /// Tells the program to leave.
    pub leave: LeaveSignal,
}

/// Why a run is over for a worker that has not left: every call that waits fails with it from then
/// on.
///
/// ```
/// use node::{NodeError, RunFailure};
///
/// let failure = RunFailure { error: NodeError::ToldToLeave, was_reported: false };
/// assert!(failure.error.to_string().starts_with("this node was told to leave"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFailure {
    /// What calls fail with.
    pub error: NodeError,
    /// Whether a call has failed with it: then the program knows.
    pub was_reported: bool,
}

/// What ends a wait early, beside the end of the run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interruption {
    /// The program interrupts it, or the worker was told to leave a while ago.
    Any,
    /// The worker was told to leave a while ago.
    WhenLeaving,
    /// Nothing.
    Never,
}

/// A worker in a run.
pub struct Driver {
    shell: Mutex<WorkerShell>,
    /// Something arrived, or the driving seat is free.
    changed: Condvar,
    waiter: Mutex<Box<dyn Waiter>>,
    waker: Waker,
    /// Program threads that wait.
    waiting: AtomicUsize,
    settings: DriverSettings,
    interrupt: OnceLock<Interrupt>,
    background: Mutex<Option<JoinHandle<()>>>,
}

/// Says whether the thread that asks should stop waiting.
type Interrupt = Box<dyn Fn() -> bool + Send + Sync>;

impl Driver {
    /// Drives the worker that has joined. Fails if it is to be recorded and cannot be; the run is
    /// then over for everybody.
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

    /// Has threads that wait ask `interrupt` now and then whether they should go on waiting,
    /// holding no lock. Set once.
    pub fn interrupt_by(&self, interrupt: impl Fn() -> bool + Send + Sync + 'static) {
        self.interrupt.set(Box::new(interrupt)).ok();
    }

    /// Runs `call` on the machine and sends what it says.
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

    /// Whether what is pushed is used and then let go within this process, and may therefore be
    /// lent: nobody else keeps it, neither a connection nor a recording.
    pub fn lends(&self) -> bool {
        self.settings.embedded && !lock(&self.shell).is_recorded()
    }

    /// Handles what has arrived, without waiting for more.
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

    /// Blocks until `done` gives something, driving the network meanwhile. Fails if the run is
    /// lost.
    pub fn wait_until<R>(&self, mut done: impl FnMut(&mut WorkerHandle<'_>) -> Option<R>) -> Result<R, NodeError> {
        self.drive(Interruption::Any, |shell| done(&mut shell.worker_handle()))
    }

    /// As [`Driver::wait_until`], for something that was begun and must not be left half done:
    /// nobody interrupts it.
    pub fn see_through<R>(&self, mut done: impl FnMut(&mut WorkerHandle<'_>) -> Option<R>) -> Result<R, NodeError> {
        self.drive(Interruption::WhenLeaving, |shell| done(&mut shell.worker_handle()))
    }

    /// Blocks until the machine is `ready`, driving the network meanwhile, and then runs `call` on
    /// it before any other thread can change that. Fails, without a call, if the run is lost.
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

    /// Drives until it is `done`, or until it is interrupted.
    fn drive<R>(
        &self,
        interruption: Interruption,
        mut done: impl FnMut(&mut WorkerShell) -> Option<R>,
    ) -> Result<R, NodeError> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let result = self.drive_until(interruption, &mut done);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        // Another thread may want the driving seat.
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
                // Before anything is locked: whoever answers may wait for a thread that waits for
                // the machine.
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

    /// What the background thread does each time. Returns whether it is no longer needed.
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
            shell.keep_up(self.settings.failure_timeout, &self.settings.leave);
            if shell.is_closed() {
                return true;
            }
            if waiting > 0 || shell.backlog() == 0 {
                return false;
            }
        }
    }

    /// The program has ended a clock that took it so long, without the time in which it waited for
    /// others.
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

    /// What the transport has moved.
    pub fn traffic(&self) -> Traffic {
        lock(&self.shell).traffic()
    }

    /// Breaks nothing, but ends whatever blocks: for shutting down. A recording is whole when this
    /// returns.
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

    /// Sends what codecs have kept back, says goodbye once everything is acknowledged, and waits
    /// for the answer.
    pub fn leave(&self) -> Result<(), NodeError> {
        // Reads that nobody will take the answer of are not waited for by one that is told to
        // leave.
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
        // The coordinator may be gone already once everybody has left, so its answer is not
        // insisted on.
        let (may_change, again) = {
            let shell = lock(&self.shell);
            (shell.contact().may_change(), shell.contact().late_after())
        };
        let failure_timeout = self.settings.failure_timeout;
        let limit = if may_change { failure_timeout * LONG_GOODBYE } else { failure_timeout.min(GOODBYE) };
        while !lock(&self.shell).has_left() && begin.elapsed() < limit {
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

    /// Stops, and tells the coordinator that this worker cannot go on: so the run ends, and
    /// everybody hears why.
    pub fn abandon(&self, reason: &str) {
        // Enough to know what to look for; the rest is in this process's own words.
        let reason = reason.chars().take(REASON_CHARS).collect();
        self.call(|worker| worker.fail(reason));
        self.stop();
    }
}
