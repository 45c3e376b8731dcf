//! A coordinator's client of the registry: takes requests for the registry and delivers its events.
//!
//! Calls to a registry block, and may be answered late or never. So a thread of its own makes them,
//! and the coordinator's thread never waits. A registry in this process answers at once, and the
//! coordinator's thread calls it directly.

use super::{CampaignOutcome, Candidate, CoordinatorRegistry, InProcessLocation, RegistryError};
use crate::NodeError;
use crate::contact::{heartbeat_interval, span};
use net::Waker;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use types::Measured;

/// Time between two reports that the registry does not answer.
const TELL_AFTER: Duration = Duration::from_secs(3);
/// The leader lease of the only coordinator of a job: longer than any process lives.
const FOR_LIFE: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A request of the coordinator to the registry.
enum RegistryRequest {
    /// Save this memory, under this number. A later memory replaces an earlier one.
    Save(u64, Vec<u8>),
    /// Campaign again: the leader lease has ended.
    Campaign,
    /// Remove the memory: the run is over.
    Forget,
    /// Give up leading. The last request.
    Resign,
}

/// An event of the registry, for the coordinator.
pub(crate) enum RegistryEvent {
    /// This coordinator leads until `until`, and continues from this memory.
    Leading { term: u64, until: Instant, memory: Option<Vec<u8>> },
    /// There was a memory, and now there is none: the run is over.
    RunOver,
    /// The leader lease is renewed until this instant.
    Renewed(Instant),
    /// The memory of this number is saved, and so are those before it.
    Saved(u64),
    /// Another coordinator leads, at this address.
    Following(String),
    /// This coordinator leads no more, and no other is known to lead.
    LeaseEnded,
    /// The registry does not answer, in its own words.
    Unreachable(String),
    /// The registry cannot be used, and waiting does not help.
    Unusable(RegistryError),
}

/// Sends requests to the registry, and receives its events.
pub(crate) struct RegistryClient {
    execution: Execution,
    events: Receiver<RegistryEvent>,
}

/// Which thread calls the registry.
enum Execution {
    /// The coordinator's own. A request is done when the call returns.
    Inline(Box<RegistryCaller>),
    /// A thread for the registry.
    Thread { requests: Sender<RegistryRequest>, thread: Option<JoinHandle<()>> },
}

impl RegistryClient {
    /// Starts a thread that campaigns from now on. It uses `waker` when there is an event.
    pub fn spawn(
        registry: Box<dyn CoordinatorRegistry>,
        waker: Waker,
        failure_timeout: Duration,
    ) -> Result<Self, NodeError> {
        let (requests, received) = channel();
        let (caller, events) = RegistryCaller::new(registry, Some(waker), failure_timeout);
        let thread = std::thread::Builder::new().name("registry".to_owned()).spawn(move || caller.run(&received));
        let no_thread =
            |error: std::io::Error| NodeError::NoThread { name: "the registry".to_owned(), reason: error.to_string() };
        Ok(Self { execution: Execution::Thread { requests, thread: Some(thread.map_err(no_thread)?) }, events })
    }

    /// The client of a job's only coordinator, with a registry in this process.
    pub fn inline(job: &str, failure_timeout: Duration) -> Self {
        let candidate = Candidate { leader_lease: FOR_LIFE, ..Candidate::new(job, "") };
        let registry = Box::new(InProcessLocation::new().stand(candidate));
        let (caller, events) = RegistryCaller::new(registry, None, failure_timeout);
        Self { execution: Execution::Inline(Box::new(caller)), events }
    }

    /// Whether this is the only coordinator of its job.
    pub fn is_only_coordinator(&self) -> bool {
        matches!(self.execution, Execution::Inline(_))
    }

    /// Saves a memory. Each has a larger number than the one before.
    pub fn save(&mut self, number: u64, memory: &[u8]) {
        self.request(RegistryRequest::Save(number, memory.to_vec()));
    }

    /// Campaigns again.
    pub fn campaign(&mut self) {
        self.request(RegistryRequest::Campaign);
    }

    /// Removes the memory: the run is over, and no coordinator continues from it.
    pub fn forget(&mut self) {
        self.request(RegistryRequest::Forget);
    }

    /// Lets another coordinator lead, at once if the registry can be told.
    pub fn resign(&mut self) {
        self.request(RegistryRequest::Resign);
        if let Execution::Thread { thread, .. } = &mut self.execution {
            thread.take().into_iter().for_each(|thread| drop(thread.join()));
        }
    }

    fn request(&mut self, request: RegistryRequest) {
        match &mut self.execution {
            Execution::Inline(caller) => {
                if caller.accept(request).is_continue() {
                    caller.call_if_due();
                }
            }
            // A thread that has ended has sent the reason.
            Execution::Thread { requests, .. } => drop(requests.send(request)),
        }
    }

    /// The events since the last call.
    pub fn events(&mut self) -> Vec<RegistryEvent> {
        if let Execution::Inline(caller) = &mut self.execution {
            caller.call_if_due();
        }
        self.events.try_iter().collect()
    }
}

impl Drop for RegistryClient {
    fn drop(&mut self) {
        self.resign();
    }
}

/// Makes the blocking calls to the registry.
struct RegistryCaller {
    registry: Box<dyn CoordinatorRegistry>,
    events: Sender<RegistryEvent>,
    waker: Option<Waker>,
    /// Time from one renewal of the leader lease, or one campaign, to the next.
    every: Duration,
    /// How long the registry takes to answer.
    round_trip: Measured,
    /// Whether this coordinator leads.
    leads: bool,
    /// Whether the registry has held a memory of this run.
    has_seen_memory: bool,
    /// The memory that is yet to be saved, with its number.
    unsaved: Option<(u64, Vec<u8>)>,
    /// When it was last reported that the registry does not answer.
    told: Option<Instant>,
    /// When the registry is called next.
    next: Instant,
}

impl RegistryCaller {
    fn new(
        registry: Box<dyn CoordinatorRegistry>,
        waker: Option<Waker>,
        failure_timeout: Duration,
    ) -> (Self, Receiver<RegistryEvent>) {
        let (events, received) = channel();
        let caller = Self {
            registry,
            events,
            waker,
            every: heartbeat_interval(failure_timeout),
            round_trip: Measured::default(),
            leads: false,
            has_seen_memory: false,
            unsaved: None,
            told: None,
            next: Instant::now(),
        };
        (caller, received)
    }

    /// The loop of the registry's thread.
    fn run(mut self, requests: &Receiver<RegistryRequest>) {
        loop {
            match requests.recv_timeout(self.next.saturating_duration_since(Instant::now())) {
                // Of several memories that wait, only the last is saved.
                Ok(first) => {
                    for request in std::iter::once(first).chain(requests.try_iter()) {
                        if self.accept(request).is_break() {
                            return;
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return drop(self.registry.resign()),
            }
            self.call_if_due();
        }
    }

    /// Accepts a request. Breaks after the last one, which resigns.
    fn accept(&mut self, request: RegistryRequest) -> ControlFlow<()> {
        match request {
            RegistryRequest::Save(number, memory) => self.unsaved = Some((number, memory)),
            RegistryRequest::Campaign => {
                self.leads = false;
                self.unsaved = None;
                self.next = Instant::now();
            }
            RegistryRequest::Forget => self.forget(),
            RegistryRequest::Resign => {
                // On failure the leader lease ends by itself.
                self.registry.resign().ok();
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Renews or campaigns if that is due, and saves what is unsaved.
    fn call_if_due(&mut self) {
        let now = Instant::now();
        let is_due = now >= self.next;
        let called = if is_due { self.renew_or_campaign(now) } else { Ok(()) };
        match called.and_then(|()| self.save()) {
            Ok(()) if is_due => {
                self.round_trip.observe(span(now.elapsed()));
                self.next = now + self.every;
            }
            Ok(()) => {}
            Err(error) => {
                self.report(error);
                // Repeat a failed call after the time in which an answer would be late.
                let again = self.round_trip.limit(span(self.every / 5), span(self.every));
                self.next = Instant::now() + Duration::from_nanos(again.0);
            }
        }
    }

    fn renew_or_campaign(&mut self, now: Instant) -> Result<(), RegistryError> {
        if self.leads {
            let until = self.registry.renew(now)?;
            self.send_answer(RegistryEvent::Renewed(until));
            return Ok(());
        }
        let event = match self.registry.campaign(now)? {
            CampaignOutcome::Leading { term, until } => {
                let memory = self.registry.load()?;
                self.leads = true;
                self.unsaved = None;
                if memory.is_none() && self.has_seen_memory {
                    RegistryEvent::RunOver
                } else {
                    RegistryEvent::Leading { term, until, memory }
                }
            }
            CampaignOutcome::Following { leader } => {
                // A follower that has seen a memory knows that the run is over when there is none.
                self.has_seen_memory = self.has_seen_memory || self.registry.load()?.is_some();
                RegistryEvent::Following(leader)
            }
        };
        self.send_answer(event);
        Ok(())
    }

    fn forget(&mut self) {
        self.unsaved = None;
        if let Err(error) = self.registry.forget(Instant::now()) {
            tracing::warn!(
                "cannot remove the memory of this run, which is over, from the registry: {error}; \
                 a later run of this job ignores it"
            );
        }
    }

    fn save(&mut self) -> Result<(), RegistryError> {
        if let Some((number, memory)) = self.unsaved.as_ref().filter(|_| self.leads) {
            let number = *number;
            self.registry.save(Instant::now(), memory)?;
            self.unsaved = None;
            self.has_seen_memory = true;
            self.send_answer(RegistryEvent::Saved(number));
        }
        Ok(())
    }

    fn report(&mut self, error: RegistryError) {
        match error {
            RegistryError::NotLeading { leader } => {
                self.leads = false;
                self.unsaved = None;
                match leader {
                    Some(leader) => self.send_answer(RegistryEvent::Following(leader)),
                    // Not always an answer of the registry: the caller's clock may show it.
                    None => self.send(RegistryEvent::LeaseEnded),
                }
            }
            // Repeat after a refusal and a failed handshake, too: etcd's operator may remove the
            // cause.
            error @ (RegistryError::Unreachable { .. } | RegistryError::Refused { .. } | RegistryError::Tls { .. }) => {
                if self.told.is_none_or(|told| told.elapsed() > TELL_AFTER) {
                    self.told = Some(Instant::now());
                    self.send(RegistryEvent::Unreachable(error.to_string()));
                }
            }
            error @ (RegistryError::NotEtcd { .. }
            | RegistryError::OtherJob { .. }
            | RegistryError::OtherVersion { .. }
            | RegistryError::Damaged { .. }
            | RegistryError::TooLarge { .. }) => self.send(RegistryEvent::Unusable(error)),
        }
    }

    /// Sends an event that an answer of the registry has caused.
    fn send_answer(&mut self, event: RegistryEvent) {
        if self.told.take().is_some() {
            tracing::warn!("the registry answers again");
        }
        self.send(event);
    }

    fn send(&self, event: RegistryEvent) {
        // If the coordinator no longer receives, it has told this thread to end.
        self.events.send(event).ok();
        self.waker.iter().for_each(Waker::wake);
    }
}
