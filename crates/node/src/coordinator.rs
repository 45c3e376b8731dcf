//! The thread that runs a coordinator (leader election): it campaigns in the registry, leads while
//! its leader lease is valid, and otherwise redirects nodes to the coordinator that leads.
//!
//! The only coordinator of a run uses a registry in its own process, which elects it at once and
//! for life.

use crate::contact::span;
use crate::leading::LeadingCoordinator;
use crate::record::Recorder;
use crate::registry::{CoordinatorRegistry, RegistryClient, RegistryEvent};
use crate::reminder::Reminder;
use crate::{CheckpointSettings, LeaveSignal, NodeError};
use coordinator::{LivenessLimits, Membership, Resume, RunSize};
use net::{Traffic, Transport, TransportEvent, Waiter};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use types::limits::FRAMES_PER_TURN;
use types::{NodeId, Time};
use wire::{Control, Frame, Head, Message};

/// Longest wait for an event before the loop runs again.
const LOOK: Duration = Duration::from_millis(50);
/// How often it reports what its transport has done.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// A leader lease is twice the failure timeout. A registry may round it up by this much.
const ROUNDED: Duration = Duration::from_secs(1);

const LED: &str = "this coordinator's leader lease has ended; it stops leading and campaigns again";
/// Why the run ends when its only coordinator is told to leave.
const ALONE: &str =
    "it was told to leave, and it is the only coordinator; run several with a registry, so that another takes over";

/// Settings of a coordinator.
#[derive(Clone, Debug)]
pub struct CoordinatorSettings {
    /// How many nodes the run has.
    pub size: RunSize,
    /// Whether the run is static or elastic.
    pub membership: Membership,
    /// How long it waits for the run to begin before it gives up.
    pub join_limit: Duration,
    /// Silence after which a node is lost.
    pub failure_timeout: Duration,
    /// For how long a worker may be in one clock without waiting for others, before it is given up.
    /// None for any time.
    pub clock_timeout: Option<Duration>,
    /// How long it stays after every node has said goodbye, to repeat its own goodbye: a broken
    /// connection may have lost it.
    pub farewell: Duration,
    /// How long it stays after a loss that ends the run, to tell every node that asks.
    pub linger: Duration,
    /// Where checkpoints are kept, if any are made.
    pub checkpoints: Option<CheckpointSettings>,
    /// The checkpoint that the run resumes from.
    pub resume: Option<Resume>,
    /// The job of the run. It turns away nodes that were started for another job. Empty admits
    /// nodes of every job.
    pub job: String,
    /// Tells it to leave. One of several coordinators lets another lead; the only one ends the run.
    pub leave: LeaveSignal,
    /// Receives a report about once a second, and one at the end.
    pub on_report: Option<CoordinatorReportCallback>,
}

/// What a coordinator's transport has done so far.
#[derive(Clone, Copy, Debug)]
pub struct CoordinatorReport {
    /// Counts of its transport.
    pub traffic: Traffic,
    /// Bytes that wait to be sent.
    pub unsent_bytes: usize,
}

/// Receives a coordinator's reports. The coordinator's thread calls it, so it should return
/// quickly.
#[derive(Clone)]
pub struct CoordinatorReportCallback(Arc<dyn Fn(&CoordinatorReport) + Send + Sync>);

impl CoordinatorReportCallback {
    /// A callback.
    pub fn new(callback: impl Fn(&CoordinatorReport) + Send + Sync + 'static) -> Self {
        Self(Arc::new(callback))
    }
}

impl fmt::Debug for CoordinatorReportCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CoordinatorReportCallback(..)")
    }
}

impl CoordinatorSettings {
    /// Settings of a static run of this size, with the default times.
    #[must_use]
    pub fn new(size: RunSize) -> Self {
        Self {
            size,
            membership: Membership::Static,
            join_limit: Duration::from_secs(30),
            failure_timeout: Duration::from_secs(30),
            clock_timeout: None,
            farewell: Duration::from_millis(200),
            linger: Duration::from_secs(3),
            checkpoints: None,
            resume: None,
            job: String::new(),
            leave: LeaveSignal::default(),
            on_report: None,
        }
    }

    /// Where the run reads and writes checkpoints.
    pub(crate) fn locations(&self) -> Vec<String> {
        let mut locations: Vec<String> =
            self.checkpoints.iter().map(|checkpoints| checkpoints.location.clone()).collect();
        locations.extend(self.resume.iter().map(|resume| resume.location.clone()));
        locations.dedup();
        locations
    }

    /// How long nodes may fail to do their part.
    pub(crate) fn limits(&self) -> LivenessLimits {
        let usual = LivenessLimits::of(span(self.failure_timeout));
        LivenessLimits {
            first_clock: usual.first_clock.map(|limit| limit.max(span(self.join_limit))),
            clock: self.clock_timeout.map(span),
            ..usual
        }
    }
}

/// Runs the only coordinator of a run until every node has left, or until a lost node ends the run.
/// Its memory ends with this process. To have another coordinator take over, run several with
/// [`run_candidate`].
pub fn run_coordinator(
    transport: impl Transport,
    waiter: impl Waiter,
    settings: CoordinatorSettings,
    recorder: Option<Recorder>,
) -> Result<(), NodeError> {
    let registry = RegistryClient::inline(&settings.job, settings.failure_timeout);
    Candidacy::new(settings, registry, recorder).run(transport, waiter)
}

/// Runs one of several coordinators until their run is over or lost. `registry` elects the one that
/// leads.
pub fn run_candidate(
    transport: impl Transport,
    waiter: impl Waiter,
    settings: CoordinatorSettings,
    registry: Box<dyn CoordinatorRegistry>,
) -> Result<(), NodeError> {
    let registry = RegistryClient::spawn(registry, waiter.waker(), settings.failure_timeout)?;
    Candidacy::new(settings, registry, None).run(transport, waiter)
}

/// A coordinator that stands for election. It leads, another one does, or none.
struct Candidacy {
    settings: CoordinatorSettings,
    registry: RegistryClient,
    /// Passed to the leading coordinator. Only the only coordinator of a run has a recorder.
    recorder: Option<Recorder>,
    /// The machine, while this coordinator leads.
    leading: Option<LeadingCoordinator>,
    /// The address of another coordinator that leads. Empty if none is known.
    leader: String,
    /// Whether the run existed while this coordinator was not leading. Then the memory in the
    /// registry belongs to this run, and not to one that ended before.
    was_there: bool,
    /// Since when it has followed other coordinators.
    follows: Option<Instant>,
    /// Whether it has led a run that it was sure of.
    led: bool,
    start: Instant,
    /// When the registry last answered.
    answered: Instant,
    /// The registry's error since then, if it does not answer.
    silence: Option<String>,
    silence_reminder: Reminder,
    missing_reminder: Reminder,
    /// Whether frames may be unread that have arrived.
    has_more: bool,
    /// When the machine last ticked.
    ticked: Option<Instant>,
}

/// How a coordinator ends.
type Ended = Result<(), NodeError>;

impl Candidacy {
    fn new(settings: CoordinatorSettings, registry: RegistryClient, recorder: Option<Recorder>) -> Self {
        let start = Instant::now();
        Self {
            settings,
            registry,
            recorder,
            leading: None,
            leader: String::new(),
            was_there: false,
            follows: None,
            led: false,
            start,
            answered: start,
            silence: None,
            silence_reminder: Reminder::default(),
            missing_reminder: Reminder::default(),
            has_more: false,
            ticked: None,
        }
    }

    fn run(mut self, mut transport: impl Transport, mut waiter: impl Waiter) -> Ended {
        let mut reported: Option<Instant> = None;
        loop {
            waiter.wait(Some(if self.has_more { Duration::ZERO } else { LOOK }));
            let now = self.now();
            let turned = self.turn(now, &mut transport);
            transport.flush();
            if turned.is_break() || reported.is_none_or(|reported| reported.elapsed() >= REPORT_EVERY) {
                reported = Some(Instant::now());
                let report = CoordinatorReport { traffic: transport.traffic(), unsent_bytes: transport.backlog() };
                self.settings.on_report.iter().for_each(|on_report| on_report.0(&report));
            }
            if let ControlFlow::Break(ended) = turned {
                return ended;
            }
        }
    }

    /// One turn of the loop. Reads a bounded number of frames, so that their answers go out before
    /// more are made. Reads everything that has arrived before it judges who is silent, unless more
    /// arrives than it can read: this process may not have run for a while.
    fn turn(&mut self, now: Time, transport: &mut impl Transport) -> ControlFlow<Ended> {
        self.take_registry_events()?;
        if self.leading.as_ref().is_some_and(|leading| Instant::now() >= leading.until) {
            self.lead_no_more();
            self.registry.campaign();
        }
        self.has_more = true;
        for _ in 0..FRAMES_PER_TURN {
            let Some(event) = transport.next() else {
                self.has_more = false;
                break;
            };
            match (&mut self.leading, event) {
                (Some(leading), event) => leading.take(now, event, transport),
                (None, TransportEvent::Frame(frame)) => {
                    let head = Head::plain(NodeId::Coordinator, frame.head.from);
                    let message = Message::Control(Control::Follow { leader: self.leader.clone() });
                    transport.send(Frame { head, message });
                }
                (None, TransportEvent::Disconnected(_)) => {}
            }
        }
        if let Some(leading) = &mut self.leading {
            if let Err(error) = leading.settle(&self.settings) {
                return ControlFlow::Break(Err(error));
            }
            if !self.has_more || self.ticked.is_none_or(|ticked| ticked.elapsed() >= LOOK) {
                self.ticked = Some(Instant::now());
                leading.tick(now, transport);
            }
        }
        transport.tick(Instant::now());
        if self.settings.leave.is_asked() {
            self.leave(transport)?;
        }
        if let Some(leading) = &mut self.leading {
            leading.save(&mut self.registry);
        }
        // By now a registry in this process has saved the memory.
        self.take_registry_events()?;
        if let Some(leading) = &mut self.leading {
            leading.send_released(transport);
            if let Some(ended) = leading.ended(&self.settings) {
                // The run is over. Coordinators that follow end, too, when they find no memory.
                self.registry.forget();
                return ControlFlow::Break(ended);
            }
            let Some(missing) = leading.missing() else { return self.mind_the_registry() };
            if self.missing_reminder.is_due(self.start.elapsed()) {
                tracing::info!(seconds = self.start.elapsed().as_secs(), "{missing}");
            }
            if self.start.elapsed() > self.settings.join_limit {
                let seconds = self.settings.join_limit.as_secs();
                return ControlFlow::Break(Err(NodeError::NotBegun { seconds, reason: missing }));
            }
        }
        self.mind_the_registry()
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    /// Fails if the registry has not answered for longer than the join limit.
    fn mind_the_registry(&mut self) -> ControlFlow<Ended> {
        let limit = self.settings.join_limit;
        match self.silence.take_if(|_| self.answered.elapsed() > limit) {
            Some(reason) => ControlFlow::Break(Err(NodeError::Registry { reason })),
            None => ControlFlow::Continue(()),
        }
    }

    /// Handles the registry's events.
    fn take_registry_events(&mut self) -> ControlFlow<Ended> {
        for event in self.registry.events() {
            if !matches!(event, RegistryEvent::Unreachable(_) | RegistryEvent::LeaseEnded) {
                self.answered = Instant::now();
                self.silence = None;
                self.silence_reminder = Reminder::default();
            }
            match event {
                RegistryEvent::Leading { term, until, memory } => match self.lead(term, until, memory) {
                    Ok(leading) => self.leading = Some(leading),
                    Err(error) => return ControlFlow::Break(Err(error)),
                },
                RegistryEvent::RunOver => {
                    tracing::warn!(
                        "the run is over: the coordinator that led has removed its memory from the registry"
                    );
                    return ControlFlow::Break(Ok(()));
                }
                RegistryEvent::Renewed(until) => self.leading.iter_mut().for_each(|leading| leading.until = until),
                RegistryEvent::Saved(number) => self.leading.iter_mut().for_each(|leading| leading.saved(number)),
                RegistryEvent::Following(other) => {
                    if self.leading.take().is_some() || !self.was_there || self.leader != other {
                        tracing::warn!(leader = other, "this coordinator follows; another leads");
                    }
                    self.leader = other;
                    self.was_there = true;
                    self.follows.get_or_insert_with(Instant::now);
                }
                RegistryEvent::LeaseEnded if self.leading.is_some() => self.lead_no_more(),
                RegistryEvent::LeaseEnded => {}
                RegistryEvent::Unreachable(reason) => {
                    let waits = match &self.leading {
                        Some(leading) if !leading.waits() => "the run goes on while nothing changes",
                        None if !self.leader.is_empty() => "this coordinator could not take over",
                        _ => "the run waits",
                    };
                    if self.silence.is_none() || self.silence_reminder.is_due(self.answered.elapsed()) {
                        tracing::warn!("{waits}: {reason}");
                    }
                    self.silence = Some(reason);
                }
                RegistryEvent::Unusable(error) => {
                    return ControlFlow::Break(Err(NodeError::Registry { reason: error.to_string() }));
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Leads from now on. Continues from the saved memory, unless that belongs to a run that ended
    /// before this process started.
    fn lead(&mut self, term: u64, until: Instant, memory: Option<Vec<u8>>) -> Result<LeadingCoordinator, NodeError> {
        if self.registry.is_only_coordinator() {
            let machine = LeadingCoordinator::begin(&self.settings, self.recorder.as_mut())?;
            // A term of 0 tells nodes that there is no other coordinator.
            return LeadingCoordinator::new(0, until, (machine, false), self.recorder.take(), &self.settings);
        }
        let machine = match memory {
            Some(memory) => LeadingCoordinator::recall(&self.settings, self.now(), &memory, self.was_there)?,
            None => LeadingCoordinator::begin(&self.settings, None)?,
        };
        tracing::warn!(term, begun = machine.has_begun(), "this coordinator leads");
        // A coordinator that was started to resume from a checkpoint expects that no node of the
        // run is left, but some may be. If it has followed for longer than a leader lease lasts, it
        // has seen the lease renewed: the run was alive. A leader that it followed for less may
        // have been dead all the time.
        let longest = self.settings.failure_timeout.saturating_mul(3).saturating_add(ROUNDED);
        let saw_it_alive = self.follows.is_some_and(|since| since.elapsed() > longest);
        let is_doubted = machine.has_begun() && self.settings.resume.is_some() && !(self.led || saw_it_alive);
        LeadingCoordinator::new(term, until, (machine, is_doubted), None, &self.settings)
    }

    fn lead_no_more(&mut self) {
        self.led |= self.leading.take().is_some_and(|leading| !leading.is_doubted());
        self.was_there |= self.led;
        self.leader = String::new();
        tracing::warn!("{LED}");
    }

    /// Leaves: one of several coordinators lets another lead, the only one ends the run.
    fn leave(&mut self, transport: &mut impl Transport) -> ControlFlow<Ended> {
        if self.registry.is_only_coordinator() {
            let left = self.leading.as_mut().is_some_and(|leading| leading.give_up(ALONE, transport));
            return if left { ControlFlow::Continue(()) } else { ControlFlow::Break(Err(NodeError::LeftEarly)) };
        }
        // Nodes that are redirected now need not wait until this coordinator is silent.
        for node in self.leading.iter().flat_map(LeadingCoordinator::everybody) {
            let message = Message::Control(Control::Follow { leader: String::new() });
            transport.send(Frame { head: Head::plain(NodeId::Coordinator, node), message });
        }
        let led = self.leading.is_some();
        tracing::warn!(led, "this coordinator was told to leave and resigns; another may lead");
        // Resigns before the nodes receive the redirection.
        self.registry.resign();
        ControlFlow::Break(Ok(()))
    }
}

#[cfg(test)]
mod tests;
