//! The thread that runs a coordinator: it stands for election, leads while it may, and tells
//! everybody where to go while another does. The only one of a run is elected by a registry of its
//! own process, at once and for life.

use crate::leading::LeadingCoordinator;
use crate::record::Recorder;
use crate::registry::{CoordinatorRegistry, RegistryClient, RegistryEvent};
use crate::{CheckpointSettings, LeaveSignal, NodeError};
use coordinator::{Membership, Resume, RunSize};
use net::{Transport, TransportEvent, Waiter};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use types::{NodeId, Time};
use wire::{Control, Frame, Head, Message};

/// How often it looks around.
const LOOK: Duration = Duration::from_millis(50);
/// How often people are told who is missing.
const SAY_AFTER: Duration = Duration::from_secs(5);
/// A leader lease is twice the failure timeout, and a registry may round it up by this.
const ROUNDED: Duration = Duration::from_secs(1);

const LED: &str = "this coordinator has led for as long as it may, and waits for the registry to let one lead again";
/// Why the run ends with a coordinator that is told to leave.
const ALONE: &str =
    "it was told to leave, and no other could lead; several coordinators with a registry take over from each other";

/// How a coordinator is run.
#[derive(Clone, Debug)]
pub struct CoordinatorSettings {
    /// How many nodes the run has.
    pub size: RunSize,
    /// Whether others may come later, and some may be lost.
    pub membership: Membership,
    /// It gives up if the run has not begun after this long.
    pub join_limit: Duration,
    /// A node that is silent for this long is lost.
    pub failure_timeout: Duration,
    /// When everybody has said goodbye it stays this long to repeat its own, which a broken
    /// connection may have lost.
    pub farewell: Duration,
    /// After a loss it stays this long to tell everybody who asks.
    pub linger: Duration,
    /// Where checkpoints are kept, if any are made.
    pub checkpoints: Option<CheckpointSettings>,
    /// The checkpoint that the run goes on from.
    pub resume: Option<Resume>,
    /// The job that it is for: who says that it is of another is turned away. Empty if that does
    /// not matter.
    pub job: String,
    /// Tells it to leave: one of several lets another lead, and the only one ends the run.
    pub leave: LeaveSignal,
}

impl CoordinatorSettings {
    /// For a run of this size, with the usual times.
    #[must_use]
    pub fn new(size: RunSize) -> Self {
        let usual = Duration::from_secs(30);
        let (farewell, linger) = (Duration::from_millis(200), Duration::from_secs(3));
        let membership = Membership::Static;
        let (checkpoints, resume, job, leave) = (None, None, String::new(), LeaveSignal::default());
        let (join_limit, failure_timeout) = (usual, usual);
        Self { size, membership, join_limit, failure_timeout, farewell, linger, checkpoints, resume, job, leave }
    }
}

/// Runs the only coordinator of a run until everybody has left, or until a node is lost. Its memory
/// ends with this process: whoever would have another take over runs several, with
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

/// Runs one of several coordinators until the run that they coordinate is over, or lost. `registry`
/// says which of them leads.
pub fn run_candidate(
    transport: impl Transport,
    waiter: impl Waiter,
    settings: CoordinatorSettings,
    registry: Box<dyn CoordinatorRegistry>,
) -> Result<(), NodeError> {
    let registry = RegistryClient::spawn(registry, waiter.waker(), settings.failure_timeout)?;
    Candidacy::new(settings, registry, None).run(transport, waiter)
}

/// A coordinator that stands for election: it leads, or another does, or nobody.
struct Candidacy {
    settings: CoordinatorSettings,
    registry: RegistryClient,
    /// Taken by whoever leads: one that has a recorder leads from its beginning to its end.
    recorder: Option<Recorder>,
    leading: Option<LeadingCoordinator>,
    /// The address of the coordinator that leads, if that is another.
    leader: String,
    /// Whether the run was there before this one led: then its memory is not of a run that ended
    /// before.
    was_there: bool,
    /// Since when it has followed anybody, and whether it has led, and knew which run.
    follows: Option<Instant>,
    led: bool,
    start: Instant,
    /// When the registry was last heard of, and what it said when it was not.
    answered: Instant,
    silence: Option<String>,
    /// When people were last told who is missing.
    said: Instant,
}

/// What ends a coordinator.
type Ended = Result<(), NodeError>;

impl Candidacy {
    fn new(settings: CoordinatorSettings, registry: RegistryClient, recorder: Option<Recorder>) -> Self {
        let start = Instant::now();
        let (leading, leader, was_there, follows, silence) = (None, String::new(), false, None, None);
        let (led, answered, said) = (false, start, start);
        Self { settings, registry, recorder, leading, leader, was_there, follows, led, start, answered, silence, said }
    }

    fn run(mut self, mut transport: impl Transport, mut waiter: impl Waiter) -> Ended {
        loop {
            waiter.wait(Some(LOOK));
            if let ControlFlow::Break(ended) = self.turn(&mut transport) {
                transport.flush();
                return ended;
            }
            transport.flush();
        }
    }

    fn turn(&mut self, transport: &mut impl Transport) -> ControlFlow<Ended> {
        self.take_registry_events()?;
        if self.leading.as_ref().is_some_and(|leading| Instant::now() >= leading.until) {
            self.lead_no_more();
            self.registry.campaign();
        }
        let now = self.now();
        while let Some(event) = transport.next() {
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
            leading.tick(now, transport);
        }
        if self.settings.leave.is_asked() {
            self.leave(transport)?;
        }
        if let Some(leading) = &mut self.leading {
            leading.save(&mut self.registry);
        }
        // A registry in this process has saved the memory by now.
        self.take_registry_events()?;
        if let Some(leading) = &mut self.leading {
            leading.send_released(transport);
            if let Some(ended) = leading.ended(&self.settings) {
                // Nobody goes on from it; those who follow end, too, when they find it gone.
                self.registry.forget();
                return ControlFlow::Break(ended);
            }
            let Some(missing) = leading.missing() else { return self.mind_the_registry() };
            if self.said.elapsed() > SAY_AFTER {
                self.said = Instant::now();
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

    /// Gives up a registry that was not heard of for as long as nodes wait for the run to begin.
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
                (self.answered, self.silence) = (Instant::now(), None);
            }
            match event {
                RegistryEvent::Leading { term, until, memory } => match self.lead(term, until, memory) {
                    Ok(leading) => self.leading = Some(leading),
                    Err(error) => return ControlFlow::Break(Err(error)),
                },
                RegistryEvent::RunOver => {
                    tracing::warn!("the run is over: whoever led has removed its memory");
                    return ControlFlow::Break(Ok(()));
                }
                RegistryEvent::Renewed(until) => self.leading.iter_mut().for_each(|leading| leading.until = until),
                RegistryEvent::Saved(number) => self.leading.iter_mut().for_each(|leading| leading.saved(number)),
                RegistryEvent::Following(other) => {
                    if self.leading.take().is_some() || !self.was_there || self.leader != other {
                        tracing::warn!(leader = other, "this coordinator follows; another leads");
                    }
                    (self.leader, self.was_there) = (other, true);
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
                    tracing::warn!("{waits}: {reason}");
                    self.silence = Some(reason);
                }
                RegistryEvent::Unusable(error) => {
                    return ControlFlow::Break(Err(NodeError::Registry { reason: error.to_string() }));
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Leads from now on, and goes on from what was saved, unless that is of a run that ended
    /// before this process was there.
    fn lead(&mut self, term: u64, until: Instant, memory: Option<Vec<u8>>) -> Result<LeadingCoordinator, NodeError> {
        if self.registry.is_only_coordinator() {
            let machine = LeadingCoordinator::begin(&self.settings, self.recorder.as_mut())?;
            // A term of 0 says that there never is another.
            return LeadingCoordinator::new(0, until, (machine, false), self.recorder.take(), &self.settings);
        }
        let machine = match memory {
            Some(memory) => LeadingCoordinator::recall(&self.settings, self.now(), &memory, self.was_there)?,
            None => LeadingCoordinator::begin(&self.settings, None)?,
        };
        tracing::warn!(term, begun = machine.has_begun(), "this coordinator leads");
        // Whoever resumes expects that nobody is left; but somebody may be. One that has followed
        // for longer than a lease lasts has seen it renewed: the run was alive. But a leader that
        // it followed for less may have been dead all the while.
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

    /// One of several lets another lead, and the only one ends the run.
    fn leave(&mut self, transport: &mut impl Transport) -> ControlFlow<Ended> {
        if self.registry.is_only_coordinator() {
            let left = self.leading.as_mut().is_some_and(|leading| leading.give_up(ALONE, transport));
            return if left { ControlFlow::Continue(()) } else { ControlFlow::Break(Err(NodeError::LeftEarly)) };
        }
        // Whoever is told to go elsewhere need not wait until this one is silent.
        for node in self.leading.iter().flat_map(LeadingCoordinator::everybody) {
            let message = Message::Control(Control::Follow { leader: String::new() });
            transport.send(Frame { head: Head::plain(NodeId::Coordinator, node), message });
        }
        let led = self.leading.is_some();
        tracing::warn!(led, "this coordinator was told to leave, and does; another may lead");
        // Before they hear of it.
        self.registry.resign();
        ControlFlow::Break(Ok(()))
    }
}
