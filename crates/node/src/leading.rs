//! A coordinator that leads: the machine, and the frames that it may send.
//!
//! It saves what it has decided before it tells anybody: frames wait until the memory that explains
//! them is saved. Only answers to heartbeats do not wait: they say nothing but that it leads. A
//! coordinator whose leader lease has ended is dropped with all that it knows, and the next leader
//! goes on from the saved memory.

use crate::NodeError;
use crate::checkpoints::CheckpointPublisher;
use crate::coordinator::CoordinatorSettings;
use crate::probe::Probes;
use crate::record::{Recorder, Subject};
use crate::registry::RegistryClient;
use coordinator::{Coordinator, CoordinatorInput};
use net::{Transport, TransportEvent};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use types::{NodeId, Source, Span, Time};
use wire::{Control, Frame, Message, Outbox};

/// The coordinator while it leads.
pub(crate) struct LeadingCoordinator {
    term: u64,
    /// It must not act as one that leads from then on.
    pub until: Instant,
    machine: Coordinator,
    recorder: Option<Recorder>,
    /// The memory that was last given to the registry, its number, and the last number that is
    /// saved.
    memory: Vec<u8>,
    number: u64,
    saved: u64,
    /// Frames, each with the number of the memory that must be saved before it is sent.
    held: VecDeque<(u64, Frame)>,
    probes: Probes,
    /// Publishes checkpoints, if any are made. One that was under way when the leader changed is
    /// given up, and the next is made.
    publisher: Option<CheckpointPublisher>,
    /// Until when somebody of the run that is remembered must call, where the run could also begin
    /// anew from a checkpoint.
    doubted: Option<Instant>,
    ending: Option<Instant>,
}

impl LeadingCoordinator {
    /// A machine for a run that has yet to begin.
    pub fn begin(settings: &CoordinatorSettings, recorder: Option<&mut Recorder>) -> Result<Coordinator, NodeError> {
        let CoordinatorSettings { size, membership, failure_timeout, ref job, ref resume, .. } = *settings;
        let failure_timeout = Span(failure_timeout.as_nanos() as u64);
        let mut machine = Coordinator::new(size, membership, failure_timeout).of_job(job);
        let recorder = recorder.map(|recorder| {
            recorder.begin(Subject::Coordinator { size, membership, failure_timeout })?;
            Ok::<&Recorder, NodeError>(recorder)
        });
        let recorder = recorder.transpose()?;
        if let Some(resume) = resume {
            tracing::info!(clock = resume.clock.0, shards = resume.shards, "resuming from {}", resume.name);
            let input = CoordinatorInput::Resume(Box::new(resume.clone()));
            recorder.into_iter().for_each(|recorder| recorder.input(input.clone()));
            machine.resume(resume.clone());
        }
        Ok(machine)
    }

    /// A machine that goes on from the saved memory, unless that is of a run that ended before this
    /// process was there.
    pub fn recall(
        settings: &CoordinatorSettings,
        now: Time,
        memory: &[u8],
        was_there: bool,
    ) -> Result<Coordinator, NodeError> {
        let CoordinatorSettings { size, membership, failure_timeout, ref job, .. } = *settings;
        let failure_timeout = Span(failure_timeout.as_nanos() as u64);
        let recalled = Coordinator::recall(now, memory, size, membership, failure_timeout);
        let recalled = recalled.map_err(|error| NodeError::Registry { reason: error.to_string() })?;
        if !was_there && (recalled.is_finished() || recalled.lost().is_some()) {
            tracing::warn!("the registry remembers a run of this job that has ended; this is a new one");
            return Self::begin(settings, None);
        }
        Ok(recalled.of_job(job))
    }

    /// Leads with this machine until then, or longer if that is put off. One that was recalled and
    /// is `doubted` is kept if somebody calls.
    pub fn new(
        term: u64,
        until: Instant,
        (machine, is_doubted): (Coordinator, bool),
        recorder: Option<Recorder>,
        settings: &CoordinatorSettings,
    ) -> Result<Self, NodeError> {
        let probes = Probes::within(settings.failure_timeout);
        let (memory, held, publisher, ending) = (Vec::new(), VecDeque::new(), None, None);
        let doubted = is_doubted.then(|| Instant::now() + Duration::from_nanos(machine.finding().0));
        let (number, saved) = (0, 0);
        let mut leading =
            Self { term, until, machine, recorder, memory, number, saved, held, probes, publisher, doubted, ending };
        leading.settle(settings)?;
        Ok(leading)
    }

    /// Begins anew if nobody has called of the run that is remembered, and publishes checkpoints
    /// once it is known which run it is.
    pub fn settle(&mut self, settings: &CoordinatorSettings) -> Result<(), NodeError> {
        if self.doubted.take_if(|until| Instant::now() >= *until).is_some() {
            tracing::warn!(
                "the registry remembers this run, and nobody of it has called for {:.1} s: it begins anew, from the checkpoint",
                self.machine.finding().as_secs_f64()
            );
            self.held.clear();
            self.machine = Self::begin(settings, None)?;
        }
        if let Some(checkpoints) =
            settings.checkpoints.as_ref().filter(|_| self.publisher.is_none() && self.doubted.is_none())
        {
            let publisher =
                CheckpointPublisher::start(checkpoints.clone(), settings.resume.as_ref(), !self.machine.has_begun());
            let no_thread = |error: std::io::Error| NodeError::NoThread {
                name: "checkpoints".to_owned(),
                reason: error.to_string(),
            };
            self.publisher = Some(publisher.map_err(no_thread)?);
        }
        Ok(())
    }

    /// Whether it is not known yet which run it leads.
    pub fn is_doubted(&self) -> bool {
        self.doubted.is_some()
    }

    /// Whether something that arrived is to be taken. While nobody has called of the run that is
    /// remembered, others who would join wait: they ask again, of that run or of the one that
    /// begins anew.
    fn admits(&mut self, frame: &Frame) -> bool {
        if self.doubted.is_none() {
            return true;
        }
        if self.machine.knows(frame) {
            self.doubted = None;
            let node = frame.head.from;
            tracing::warn!(%node, "the registry remembers this run, and a node of it has called: it is taken up where it was, and not from the checkpoint");
            return true;
        }
        !matches!(frame.message, Message::Control(Control::Join { .. }))
    }

    /// Takes what arrived.
    pub fn take(&mut self, now: Time, event: TransportEvent, transport: &mut impl Transport) {
        match event {
            // A broken connection is not a dead node: it has until the end of the failure timeout
            // to call again. But one whose process has ended need not be waited for.
            TransportEvent::Disconnected(node) => {
                if let Some(address) = self.machine.address(node) {
                    self.probes.ask(node, address);
                }
            }
            TransportEvent::Frame(frame) if !self.admits(&frame) => {}
            TransportEvent::Frame(frame) => self.tell(CoordinatorInput::Frame(now, Box::new(frame)), transport),
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time, transport: &mut impl Transport) {
        for node in self.probes.ended().collect::<Vec<_>>() {
            self.tell(CoordinatorInput::Gone(node), transport);
        }
        self.tell(CoordinatorInput::Tick(now), transport);
        let mut out = Outbox::new();
        if let Some(publisher) = &mut self.publisher {
            let told = publisher.turn(now, &mut self.machine, &mut out);
            self.recorder.iter().for_each(|recorder| told.iter().cloned().for_each(|input| recorder.input(input)));
        }
        self.hold(out, transport);
        for news in self.machine.take_events() {
            tracing::warn!(node = %news.node, "{}", news.what);
        }
    }

    /// The run ends for that reason, if it had begun: otherwise returns false.
    pub fn give_up(&mut self, reason: &str, transport: &mut impl Transport) -> bool {
        if self.machine.lost().is_none() && !self.machine.is_finished() {
            if !self.machine.has_begun() {
                return false;
            }
            self.tell(CoordinatorInput::GiveUp(reason.to_owned()), transport);
        }
        true
    }

    fn tell(&mut self, input: CoordinatorInput, transport: &mut impl Transport) {
        self.recorder.iter().for_each(|recorder| recorder.input(input.clone()));
        let mut out = Outbox::new();
        input.apply(&mut self.machine, &mut out);
        self.hold(out, transport);
    }

    /// Holds frames until the next memory is saved; heartbeats are sent at once.
    fn hold(&mut self, mut out: Outbox, transport: &mut impl Transport) {
        for mut frame in out.drain() {
            self.recorder.iter().for_each(|recorder| recorder.output(&frame));
            frame.head.source = Source(self.term);
            if matches!(frame.message, Message::Control(Control::Heartbeat)) && Instant::now() < self.until {
                transport.send(frame);
            } else {
                // If this turn changes the memory, the changed memory gets the next number.
                self.held.push_back((self.number + 1, frame));
            }
        }
    }

    /// Saves the memory if it has changed.
    pub fn save(&mut self, registry: &mut RegistryClient) {
        if !self.machine.take_touched() {
            debug_assert_eq!(self.machine.memory(), self.memory, "a memory that is another says so");
            return;
        }
        let memory = self.machine.memory();
        if memory != self.memory {
            self.number += 1;
            registry.save(self.number, &memory);
            self.memory = memory;
        }
    }

    /// The memory of this number is saved, and so are those before it.
    pub fn saved(&mut self, number: u64) {
        self.saved = self.saved.max(number);
    }

    /// Sends the frames whose memory is saved.
    pub fn send_released(&mut self, transport: &mut impl Transport) {
        let (number, saved) = (self.number, self.saved);
        while self.held.front().is_some_and(|(after, _)| (*after).min(number) <= saved) {
            self.held.pop_front().into_iter().for_each(|(_, frame)| transport.send(frame));
        }
    }

    /// Whether frames wait for a memory to be saved.
    pub fn waits(&self) -> bool {
        !self.held.is_empty()
    }

    /// Everybody who is there, or is about to be.
    pub fn everybody(&self) -> Vec<NodeId> {
        self.machine.everybody()
    }

    /// Whom a run that has not begun waits for.
    pub fn missing(&self) -> Option<String> {
        let absent = || "a node went away before the others had come".to_owned();
        (!self.machine.has_begun()).then(|| self.machine.missing().unwrap_or_else(absent))
    }

    /// How the run has ended, if it has and everybody had time to hear of it.
    pub fn ended(&mut self, settings: &CoordinatorSettings) -> Option<Result<(), NodeError>> {
        let lost = self.machine.lost();
        if !(self.machine.is_finished() || lost.is_some()) || self.saved < self.number {
            return None;
        }
        let ending = *self.ending.get_or_insert_with(Instant::now);
        let stay = if lost.is_some() { settings.linger } else { settings.farewell };
        let result = lost.map(|(node, reason)| NodeError::Lost { node, reason: reason.to_owned() });
        if ending.elapsed() < stay {
            return None;
        }
        self.publisher.take().into_iter().for_each(|publisher| publisher.finish(&mut self.machine));
        Some(result.map_or(Ok(()), Err))
    }
}
