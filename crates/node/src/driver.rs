//! A worker's machine, shared by the program's threads: whoever waits drives it.

use crate::checkpoints::{Finished, Scribe};
use crate::contact::{Contact, beat_every};
use crate::record::{Recorder, Subject};
use crate::stopwatch::STOPWATCH;
use crate::wait::Turns;
use crate::{Calls, Joined, Leave, NodeError, Wait};
use machine::{Notice, Outbox, Worker, WorkerSettings};
use net::{Traffic, Transport, TransportEvent, Waiter, Waker, lock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use types::{Measured, NodeId, Source, Span, WorkerId};
use wire::{Control, Frame, Head, Message, Report};

/// The background thread looks after the network this often while the program computes.
const LOOK: Duration = Duration::from_millis(5);
/// A thread that drives looks around at least this often.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// A thread that waits while another drives looks up at least this often.
const LOOK_UP: Duration = Duration::from_millis(1);
/// One that is told to leave waits for others so many times as long as a node may be silent, and no longer.
const LEAVING: u32 = 4;
/// A goodbye is repeated until it is answered, for as long as a node may be silent, but not longer than this: everybody may be gone already.
const GOODBYE: Duration = Duration::from_secs(2);
/// And for so many times as long as a node may be silent, where another coordinator may have to be elected first, which has to know that
/// this worker is not lost: its predecessor's lease is two, and finding it takes one and a half.
const LONG_GOODBYE: u32 = 7;
/// A node that does not answer is named after this long, and again each time it has passed.
const TELL_AFTER: Duration = Duration::from_secs(3);
/// A broken connection is tried again after this long.
const RETRY: Duration = Duration::from_millis(50);
/// How much of a reason the others are told.
const REASON: usize = 500;

/// How a worker's shell behaves.
#[derive(Clone, Debug)]
pub struct DriverSettings {
    /// How its threads wait.
    pub wait: Wait,
    /// A coordinator that is silent for this long is lost.
    pub patience: Duration,
    /// Whether several coordinators were named. There may be others even so, and the only one that was named says so.
    pub of_several: bool,
    /// How long one that answers is waited for, where there may be another.
    pub unled: Duration,
    /// Whether everybody is a thread of this process.
    pub embedded: bool,
    /// Tells the program to leave.
    pub leave: Leave,
}

struct State {
    worker: Worker,
    transport: Box<dyn Transport>,
    out: Outbox,
    recorder: Option<Recorder>,
    start: Instant,
    contact: Contact,
    source: Source,
    /// How long its clocks take it, without waiting for others.
    step: Measured,
    beat: Instant,
    retry_at: BTreeMap<NodeId, Instant>,
    /// Nodes that were asked for a sign of life, or that a connection broke to, and that have not been heard since; and when
    /// people were last told.
    silent: BTreeMap<NodeId, (Instant, Instant)>,
    lost: Option<NodeError>,
    /// Whether the program was told of the loss, by a call that failed with it.
    told_of_loss: bool,
    /// Whether servers that are lost are done without.
    open: bool,
    farewell: bool,
    said_goodbye: bool,
    /// Writes what codecs have still to send, to the store and under the name of the last checkpoint.
    scribe: Scribe,
    place: (String, String),
}

/// That a run is over for a worker, though it has not left: every call that waits fails from then on.
///
/// ```
/// use node::{Loss, NodeError};
///
/// let loss = Loss { error: NodeError::ToldToLeave, was_told: false };
/// assert!(loss.error.to_string().starts_with("this node was told to leave"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// What calls fail with.
    pub error: NodeError,
    /// Whether one has failed with it: then the program knows.
    pub was_told: bool,
}

/// How long a thread waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Until it is interrupted, or for a while after the worker is told to leave.
    WhoeverWaits,
    /// For a while after the worker is told to leave.
    UnlessLeaving,
    /// As long as it takes.
    Endless,
}

/// A worker in a run.
pub struct Driver {
    state: Mutex<State>,
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
    /// Drives the worker that has joined. Fails if it is to be recorded and cannot be; the run is then over for everybody.
    pub fn start(
        joined: Joined,
        mut transport: Box<dyn Transport>,
        waiter: Box<dyn Waiter>,
        settings: DriverSettings,
        mut recorder: Option<Recorder>,
    ) -> Result<Arc<Self>, NodeError> {
        let rank = match joined.node {
            NodeId::Worker(rank) => WorkerId(rank),
            _ => WorkerId(0),
        };
        let now = Instant::now();
        let source = joined.source;
        let machine = WorkerSettings { stopwatch: STOPWATCH, ..WorkerSettings::default() };
        if let Some(recorder) = &mut recorder {
            let subject = Subject::Worker {
                id: rank,
                source,
                plan: joined.plan.clone(),
                clock: joined.clock,
                barriers: joined.barriers,
                settings: machine,
            };
            recorder.begin(subject).inspect_err(|error| say_failed(&mut *transport, (joined.node, source), error))?;
        }
        let open = joined.lease.is_some();
        let mut state = State {
            worker: Worker::new(rank, source, joined.plan, machine).starting(joined.clock, joined.barriers),
            transport,
            out: Outbox::new(),
            recorder,
            start: now,
            contact: Contact::new(now, settings.patience, settings.of_several, settings.unled),
            source,
            step: Measured::default(),
            beat: now,
            retry_at: BTreeMap::new(),
            silent: BTreeMap::new(),
            lost: None,
            told_of_loss: false,
            open,
            farewell: false,
            said_goodbye: false,
            scribe: Scribe::default(),
            place: Default::default(),
        };
        joined.early.into_iter().for_each(|frame| state.take(TransportEvent::Frame(frame)));
        let driver = Arc::new(Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            waker: waiter.waker(),
            waiter: Mutex::new(waiter),
            waiting: AtomicUsize::new(0),
            settings,
            interrupt: OnceLock::new(),
            background: Mutex::new(None),
        });
        let weak = Arc::downgrade(&driver);
        let background = std::thread::Builder::new().name(format!("worker {}", rank.0)).spawn(move || {
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

    /// Has threads that wait ask `interrupt` now and then whether they should go on waiting, holding no lock. Set once.
    pub fn interrupt_by(&self, interrupt: impl Fn() -> bool + Send + Sync + 'static) {
        self.interrupt.set(Box::new(interrupt)).ok();
    }

    /// Runs `call` on the machine and sends what it says.
    pub fn call<R>(&self, call: impl FnOnce(&mut Calls<'_>) -> R) -> R {
        let mut state = lock(&self.state);
        let result = call(&mut state.calls());
        state.send();
        let backlog = state.transport.backlog();
        drop(state);
        if backlog > 0 {
            self.wake_background();
        }
        result
    }

    /// Whether what is pushed is used and then let go within this process, and may therefore be lent: nobody else keeps it, neither a
    /// connection nor a recording.
    pub fn lends(&self) -> bool {
        self.settings.embedded && lock(&self.state).recorder.is_none()
    }

    /// Handles what has arrived, without waiting for more.
    pub fn catch_up(&self) {
        if let Ok(mut waiter) = self.waiter.try_lock() {
            waiter.wait(Some(Duration::ZERO));
        }
        if lock(&self.state).pump() {
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

    /// Blocks until `done` gives something, driving the network meanwhile. Fails if the run is lost.
    pub fn wait_until<R>(&self, mut done: impl FnMut(&mut Calls<'_>) -> Option<R>) -> Result<R, NodeError> {
        self.drive(Patience::WhoeverWaits, |state| done(&mut state.calls()))
    }

    /// As [`Driver::wait_until`], for something that was begun and must not be left half done: nobody interrupts it.
    pub fn see_through<R>(&self, mut done: impl FnMut(&mut Calls<'_>) -> Option<R>) -> Result<R, NodeError> {
        self.drive(Patience::UnlessLeaving, |state| done(&mut state.calls()))
    }

    /// Blocks until the machine is `ready`, driving the network meanwhile, and then runs `call` on it before any other thread
    /// can change that. Fails, without a call, if the run is lost.
    pub fn call_when<R>(
        &self,
        mut ready: impl FnMut(&Worker) -> bool,
        call: impl FnOnce(&mut Calls<'_>) -> R,
    ) -> Result<R, NodeError> {
        let mut call = Some(call);
        self.drive(Patience::WhoeverWaits, |state| {
            let call = if ready(&state.worker) { call.take() } else { None }?;
            let result = call(&mut state.calls());
            state.send();
            Some(result)
        })
    }

    /// Drives until it is `done`, or until its patience is over.
    fn drive<R>(&self, patience: Patience, mut done: impl FnMut(&mut State) -> Option<R>) -> Result<R, NodeError> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let result = self.drive_until(patience, &mut done);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        // Another thread may want the driving seat.
        self.changed.notify_all();
        result
    }

    fn drive_until<R>(
        &self,
        patience: Patience,
        done: &mut impl FnMut(&mut State) -> Option<R>,
    ) -> Result<R, NodeError> {
        let mut worked = Instant::now();
        let mut told: Option<Instant> = None;
        let mut turns = Turns::default();
        let mut asked = Instant::now();
        loop {
            if patience == Patience::WhoeverWaits && asked.elapsed() >= LONGEST_WAIT {
                asked = Instant::now();
                // Before anything is locked: whoever answers may wait for a thread that waits for the machine.
                if self.interrupt.get().is_some_and(|interrupt| interrupt()) {
                    return Err(NodeError::Interrupted);
                }
            }
            let mut state = lock(&self.state);
            if state.pump() {
                self.changed.notify_all();
                worked = Instant::now();
            }
            if let Some(result) = done(&mut state) {
                return Ok(result);
            }
            if let Some(lost) = state.lost.clone() {
                state.told_of_loss = true;
                return Err(lost);
            }
            if state.farewell {
                return Err(NodeError::Closed);
            }
            if patience != Patience::Endless && self.settings.leave.is_asked() {
                let told = *told.get_or_insert_with(Instant::now);
                if told.elapsed() > self.settings.patience * LEAVING {
                    return Err(NodeError::Leaving);
                }
            }
            match self.waiter.try_lock() {
                Ok(mut waiter) => {
                    let spins = self.settings.wait != Wait::BLOCKING;
                    let looks = spins && self.settings.wait.looks(worked.elapsed());
                    let glanced = looks && state.transport.glance();
                    drop(state);
                    turns.wait(looks, glanced, &mut **waiter, LONGEST_WAIT);
                }
                Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => {
                    let waited = self.changed.wait_timeout(state, LOOK_UP);
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
                let backlog = lock(&self.state).transport.backlog();
                waiter.wait(Some(if backlog > 0 { LOOK } else { Duration::ZERO }));
            }
            let mut state = lock(&self.state);
            if waiting == 0 && state.pump() {
                self.changed.notify_all();
            }
            state.keep_up(self.settings.patience, &self.settings.leave);
            if state.farewell {
                return true;
            }
            if waiting > 0 || state.transport.backlog() == 0 {
                return false;
            }
        }
    }

    /// The program has ended a clock that took it so long, without the time in which it waited for others.
    pub fn stepped(&self, took: Duration) {
        lock(&self.state).step.observe(Span(took.as_nanos() as u64));
    }

    /// Whether the program was told to leave.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.settings.leave.is_asked()
    }

    /// Why the run is over for this worker, if it is.
    pub fn loss(&self) -> Option<Loss> {
        let state = lock(&self.state);
        state.lost.clone().map(|error| Loss { error, was_told: state.told_of_loss })
    }

    /// What the transport has moved.
    pub fn traffic(&self) -> Traffic {
        lock(&self.state).transport.traffic()
    }

    /// Breaks nothing, but ends whatever blocks: for shutting down. A recording is whole when this returns.
    fn stop(&self) {
        let recorder = {
            let mut state = lock(&self.state);
            state.farewell = true;
            state.recorder.take()
        };
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

    /// Sends what codecs have kept back, says goodbye once everything is acknowledged, and waits for the answer.
    pub fn leave(&self) -> Result<(), NodeError> {
        // Reads that nobody will take the answer of are not waited for by one that is told to leave.
        let by_order = self.settings.leave.is_asked();
        let is_done = |worker: &Worker| if by_order { worker.is_settled() } else { worker.is_idle() };
        self.drive(Patience::Endless, |state| is_done(&state.worker).then_some(()))?;
        if self.call(|worker| worker.pay()) {
            self.drive(Patience::Endless, |state| state.worker.is_flushed().then_some(()))?;
            self.call(|worker| worker.end_clock());
            self.drive(Patience::Endless, |state| is_done(&state.worker).then_some(()))?;
        }
        let begin = Instant::now();
        let mut said: Option<Instant> = None;
        // The coordinator may be gone already once everybody has left, so its answer is not insisted on.
        let (may_change, again) = {
            let state = lock(&self.state);
            (state.contact.may_change(), state.contact.late_after())
        };
        let patience = self.settings.patience;
        let limit = if may_change { patience * LONG_GOODBYE } else { patience.min(GOODBYE) };
        while !lock(&self.state).said_goodbye && begin.elapsed() < limit {
            if said.is_none_or(|said| said.elapsed() > again) {
                said = Some(Instant::now());
                self.call(|worker| worker.leave());
            }
            if let Ok(mut waiter) = self.waiter.try_lock() {
                waiter.wait(Some(LOOK));
            }
            lock(&self.state).pump();
        }
        self.stop();
        Ok(())
    }

    /// Stops, and tells the coordinator that this worker cannot go on: so the run ends, and everybody hears why.
    pub fn abandon(&self, reason: &str) {
        // Enough to know what to look for; the rest is in this process's own words.
        let reason = reason.chars().take(REASON).collect();
        self.call(|worker| worker.fail(reason));
        self.stop();
    }
}

impl State {
    fn calls(&mut self) -> Calls<'_> {
        let Self { worker, out, recorder, start, .. } = self;
        Calls { worker, start: *start, out, recorder: recorder.as_ref() }
    }

    /// Says something to the coordinator that is the shell's to say.
    fn say(&mut self, control: Control) {
        let (id, plan) = (self.worker.id(), self.worker.plan());
        let source = plan.source(id).unwrap_or_default();
        let head = Head { source, clock: self.worker.clock(), ..Head::plain(id.into(), NodeId::Coordinator) };
        self.transport.send(Frame { head, message: Message::Control(control) });
    }

    fn hand_on(&mut self) {
        for frame in self.out.drain() {
            if let Some(recorder) = &self.recorder {
                recorder.output(&frame);
            }
            self.transport.send(frame);
        }
    }

    fn send(&mut self) {
        self.hand_on();
        if let Some(owed) = self.worker.take_owed() {
            self.scribe.asked(owed.checkpoint, &self.place.0, &self.place.1);
            self.scribe.write_owed(owed);
        }
        self.transport.flush();
    }

    /// Handles everything that has arrived. Returns whether anything had.
    fn pump(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.transport.next() {
            any = true;
            self.take(event);
            self.hand_on();
        }
        self.send();
        if any {
            self.report();
        }
        any
    }

    fn take(&mut self, event: TransportEvent) {
        match event {
            TransportEvent::Disconnected(node) => {
                let now = Instant::now();
                self.retry_at.entry(node).or_insert_with(|| now + RETRY);
                self.silent.entry(node).or_insert((now, now));
            }
            TransportEvent::Frame(frame) => {
                if !self.silent.is_empty() {
                    self.silent.remove(&frame.head.from);
                }
                if frame.head.from == NodeId::Coordinator {
                    if !self.contact.hears(Instant::now(), &frame, &mut *self.transport) {
                        return;
                    }
                    match &frame.message {
                        Message::Control(Control::Lost { node, reason }) => {
                            self.lost = Some(NodeError::lost(self.worker.id().into(), *node, reason.clone()));
                        }
                        Message::Control(Control::Bye) => self.said_goodbye = true,
                        Message::Control(Control::Adopt { members, .. }) => self.transport.know(members),
                        Message::Control(Control::Checkpoint { number, location, name, .. }) => {
                            self.place = (location.clone(), name.clone());
                            self.scribe.said_of(*number).into_iter().for_each(|control| self.say(control));
                        }
                        _ => {}
                    }
                }
                self.calls().handle(frame);
            }
        }
    }

    /// Asks the servers that this worker waits for whether they live: one that vanished without a word would be waited for
    /// for ever, since nothing tells a connection on which nothing comes from one on which nothing can.
    fn ask_servers(&mut self) {
        let now = Instant::now();
        let servers = self.worker.plan().servers().into_iter().map(NodeId::Server);
        for node in servers.filter(|node| self.worker.waits_for(*node)) {
            self.silent.entry(node).or_insert((now, now));
            let head = Head::plain(self.worker.id().into(), node);
            self.transport.send(Frame { head, message: Message::Control(Control::Beat) });
        }
    }

    /// Says which servers are silent, and gives up on one after as long as it takes to give up on anybody.
    fn mind_silent(&mut self, patience: Duration) {
        let worker = &self.worker;
        self.silent.retain(|node, _| worker.waits_for(*node));
        for (node, (since, told)) in &mut self.silent {
            let seconds = since.elapsed().as_secs_f64();
            if since.elapsed() > patience && !self.open {
                let reason = format!("this worker has heard nothing from it for {seconds:.1} s");
                self.lost.get_or_insert(NodeError::Lost { node: *node, reason });
            } else if told.elapsed() > TELL_AFTER {
                *told = Instant::now();
                tracing::warn!(%node, seconds, "does not answer; still trying");
            }
        }
    }

    /// Where the run ends with any of its nodes, one that is told to leave ends it, and says so.
    fn mind_leaving(&mut self, leave: &Leave) {
        if leave.is_asked() && !self.open && !self.said_goodbye && self.lost.is_none() {
            let error = NodeError::ToldToLeave;
            self.calls().fail(error.to_string());
            self.lost = Some(error);
        }
    }

    /// Says how this worker does.
    fn say_report(&mut self) {
        let step = (self.step.count > 0).then_some(self.step);
        let (round_trip, timeouts) = (self.contact.round_trip(), self.contact.timeouts());
        let report = Box::new(Report { step, round_trip, timeouts, ..Report::default() });
        let (source, clock) = (self.source, self.worker.clock());
        let head = Head { source, clock, ..Head::plain(self.worker.id().into(), NodeId::Coordinator) };
        self.transport.send(Frame { head, message: Message::Control(Control::Report { report }) });
    }

    /// Beats, ticks, and calls again where a connection broke.
    fn keep_up(&mut self, patience: Duration, leave: &Leave) {
        self.mind_leaving(leave);
        if self.lost.is_none() && !self.said_goodbye {
            self.lost = self.contact.mind(Instant::now(), &mut *self.transport).err();
        }
        let due: Vec<NodeId> = self.retry_at.iter().filter(|(_, at)| **at <= Instant::now()).map(|(n, _)| *n).collect();
        for node in due {
            self.retry_at.remove(&node);
            self.calls().reconnected(node);
        }
        self.mind_silent(patience);
        while let Some(finished) = self.scribe.next() {
            if let Finished::Say(control @ (Control::Owes { .. } | Control::Unwritten { .. })) = finished {
                self.say(control);
            }
        }
        self.calls().tick();
        if self.beat.elapsed() >= beat_every(patience) && self.lost.is_none() {
            self.beat = Instant::now();
            self.contact.asked(self.beat);
            self.calls().beat();
            self.say_report();
            if self.contact.may_change() {
                // Whoever leads now may never have heard what was said to the one before.
                self.calls().reconnected(NodeId::Coordinator);
            }
            self.ask_servers();
        }
        self.send();
    }

    fn report(&mut self) {
        let names = |on: &[WorkerId]| on.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        for notice in self.calls().take_notices() {
            match notice {
                Notice::Read { table, on } if on.is_empty() => {
                    tracing::warn!(table, "a read waits for this worker's own pushes to arrive");
                }
                Notice::Read { table, on } => tracing::warn!(table, on = names(&on), "a read waits for slower workers"),
                Notice::Push { table, on } => {
                    tracing::warn!(table, on = names(&on), "a push waits for workers that are many clocks behind");
                }
                Notice::Codec { table, pipeline, bytes_per_second } => {
                    let megabytes_per_second = bytes_per_second / 1_000_000;
                    tracing::warn!(
                        table,
                        megabytes_per_second,
                        "{pipeline} costs more time than it saves on this link; leave it out, or let auto choose"
                    );
                }
                Notice::Barrier { on } => tracing::warn!(on = names(&on), "the barrier waits"),
                Notice::Leases { on } => {
                    tracing::info!(on = names(&on), "no lease is left; waiting for others to end theirs")
                }
            }
        }
    }
}

/// Tells the coordinator that a node which has joined cannot go on, so that nobody waits for it.
pub(crate) fn say_failed(transport: &mut dyn Transport, (node, source): (NodeId, Source), error: &NodeError) {
    let head = Head { source, ..Head::plain(node, NodeId::Coordinator) };
    let reason = error.to_string().chars().take(REASON).collect();
    transport.send(Frame { head, message: Message::Control(Control::Fail { reason }) });
    transport.flush();
}
