//! A coordinator that leads: its machine, and the frames that it holds back.
//!
//! It saves every decision before a node learns of it (write-ahead): frames wait until the registry
//! has saved the memory that explains them. Only answers to heartbeats and to questions for the
//! status do not wait: the former say no more than that this coordinator leads, and no node acts on
//! the latter.
//!
//! A coordinator whose leader lease has ended drops its machine. The next leader continues from the
//! saved memory.

use crate::NodeError;
use crate::broken::BrokenConnections;
use crate::checkpoints::CheckpointPublisher;
use crate::coordinator::CoordinatorSettings;
use crate::record::{Recorder, Subject};
use crate::registry::RegistryClient;
use coordinator::{Coordinator, CoordinatorInput};
use net::{Transport, TransportEvent};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use types::limits::HELD_ANSWERS;
use types::{NodeId, Source, Span, Time};
use wire::{Control, Frame, Message, Outbox};

/// The coordinator while it leads.
pub(crate) struct LeadingCoordinator {
    term: u64,
    /// The end of its leader lease: from then on it must not act as the leader.
    pub until: Instant,
    machine: Coordinator,
    recorder: Option<Recorder>,
    /// The memory that the registry was last given.
    memory: Vec<u8>,
    /// The number of that memory.
    number: u64,
    /// The number of the last memory that is saved.
    saved: u64,
    /// Frames, each with the number of the memory that must be saved before it is sent.
    held: VecDeque<(u64, Frame)>,
    /// Nodes whose connections have broken. When the run is lost and all of them are gone, every
    /// node has heard of it.
    broken: BrokenConnections,
    /// Publishes checkpoints, if any are made. When the leader changes, the checkpoint under way is
    /// given up, and the new leader makes the next one.
    publisher: Option<CheckpointPublisher>,
    /// Set while it is unknown whether the saved run still exists or begins anew from a checkpoint.
    /// It begins anew if no node of the saved run calls before this instant.
    doubted: Option<Instant>,
    /// When the run ended, as this coordinator noticed.
    ending: Option<Instant>,
}

impl LeadingCoordinator {
    /// A machine for a run that has yet to begin.
    pub fn begin(settings: &CoordinatorSettings, recorder: Option<&mut Recorder>) -> Result<Coordinator, NodeError> {
        let CoordinatorSettings { size, membership, failure_timeout, ref job, ref resume, .. } = *settings;
        let failure_timeout = Span(failure_timeout.as_nanos() as u64);
        let limits = settings.limits();
        let mut machine = Coordinator::new(size, membership, failure_timeout).of_job(job).limited(limits);
        let recorder = recorder.map(|recorder| {
            recorder.begin(Subject::Coordinator { size, membership, failure_timeout, limits })?;
            Ok::<&Recorder, NodeError>(recorder)
        });
        let recorder = recorder.transpose()?;
        let locations = settings.locations();
        recorder.iter().for_each(|recorder| recorder.input(CoordinatorInput::Locations(locations.clone())));
        machine.set_locations(locations);
        if let Some(resume) = resume {
            tracing::info!(clock = resume.clock.0, shards = resume.shards, "resuming from {}", resume.name);
            let input = CoordinatorInput::Resume(Box::new(resume.clone()));
            recorder.into_iter().for_each(|recorder| recorder.input(input.clone()));
            machine.resume(resume.clone());
        }
        Ok(machine)
    }

    /// A machine that continues from the saved memory. If that belongs to a run that ended before
    /// this process started, a machine for a new run.
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
            tracing::warn!(
                "the registry holds the memory of an earlier run of this job, which has ended; a new run begins"
            );
            return Self::begin(settings, None);
        }
        let mut recalled = recalled.of_job(job).limited(settings.limits());
        recalled.set_locations(settings.locations());
        Ok(recalled)
    }

    /// Leads with this machine until the instant `until`, or longer if the leader lease is renewed.
    /// If the machine `is_doubted`, it is only kept if a node of its run calls.
    pub fn new(
        term: u64,
        until: Instant,
        (machine, is_doubted): (Coordinator, bool),
        recorder: Option<Recorder>,
        settings: &CoordinatorSettings,
    ) -> Result<Self, NodeError> {
        let broken = BrokenConnections::new(settings.membership, settings.failure_timeout);
        let doubted = is_doubted.then(|| Instant::now() + Duration::from_nanos(machine.finding().0));
        let mut leading = Self {
            term,
            until,
            machine,
            recorder,
            memory: Vec::new(),
            number: 0,
            saved: 0,
            held: VecDeque::new(),
            broken,
            publisher: None,
            doubted,
            ending: None,
        };
        leading.settle(settings)?;
        Ok(leading)
    }

    /// Decides which run it leads: begins anew from the checkpoint if no node of the saved run has
    /// called in time. Starts to publish checkpoints once that is decided.
    pub fn settle(&mut self, settings: &CoordinatorSettings) -> Result<(), NodeError> {
        if self.doubted.take_if(|until| Instant::now() >= *until).is_some() {
            tracing::warn!(
                "the registry holds the memory of this run, but none of its nodes has called for {:.1} s: \
                 it begins anew, from the checkpoint",
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

    /// Whether it is still undecided which run it leads.
    pub fn is_doubted(&self) -> bool {
        self.doubted.is_some()
    }

    /// Whether to handle a frame that arrived. Requests to join are dropped until it is decided
    /// which run this coordinator leads; nodes repeat them. A frame from a node of the saved run
    /// decides.
    fn admits(&mut self, frame: &Frame) -> bool {
        if self.doubted.is_none() {
            return true;
        }
        if self.machine.knows(frame) {
            self.doubted = None;
            let node = frame.head.from;
            tracing::warn!(
                %node,
                "the registry holds the memory of this run, and a node of it has called: \
                 it continues where it was, not from the checkpoint"
            );
            return true;
        }
        !matches!(frame.message, Message::Control(Control::Join { .. }))
    }

    /// Handles an event of the transport.
    pub fn take(&mut self, now: Time, event: TransportEvent, transport: &mut impl Transport) {
        match event {
            TransportEvent::Disconnected(node) => {
                self.broken.broke(Instant::now(), node, self.machine.address(node));
            }
            TransportEvent::Frame(frame) => {
                self.broken.heard(frame.head.from);
                if !self.is_overwhelmed_by(&frame) && self.admits(&frame) {
                    self.take_frame(now, frame, transport);
                }
            }
        }
    }

    /// Whether too many answers wait for the registry to handle this frame. Nodes repeat what is
    /// not answered.
    fn is_overwhelmed_by(&self, frame: &Frame) -> bool {
        self.held.len() >= HELD_ANSWERS && !matches!(frame.message, Message::Control(Control::Heartbeat { .. }))
    }

    fn take_frame(&mut self, now: Time, frame: Frame, transport: &mut impl Transport) {
        let peer = transport.binding_of(frame.head.from);
        let joins =
            if let Message::Control(Control::Join { token, .. }) = &frame.message { Some(*token) } else { None };
        self.tell(CoordinatorInput::Frame(now, Box::new(frame), peer), transport);
        // From now on the process speaks under the name that it was given.
        let joined = joins.and_then(|token| self.machine.by_token(token));
        joined.into_iter().for_each(|member| transport.know(&[member]));
    }

    /// The periodic duties: takes in ended processes, ticks the machine, drives the checkpoints and
    /// logs the machine's news.
    pub fn tick(&mut self, now: Time, transport: &mut impl Transport) {
        for node in self.broken.take_ended(Instant::now()) {
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

    /// Ends the run for this reason. Returns false if it has not begun.
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

    /// Holds frames back until the next memory is saved. Sends heartbeats and the status at once.
    fn hold(&mut self, mut out: Outbox, transport: &mut impl Transport) {
        for mut frame in out.drain() {
            self.recorder.iter().for_each(|recorder| recorder.output(&frame));
            frame.head.source = Source(self.term);
            let waits_not =
                matches!(frame.message, Message::Control(Control::Heartbeat { .. } | Control::Status { .. }));
            if waits_not && Instant::now() < self.until {
                transport.send(frame);
            } else {
                // If this turn changes the memory, it gets the next number.
                self.held.push_back((self.number + 1, frame));
            }
        }
    }

    /// Saves the memory if it has changed.
    pub fn save(&mut self, registry: &mut RegistryClient) {
        if !self.machine.take_touched() {
            debug_assert_eq!(self.machine.memory(), self.memory, "the memory changed without being touched");
            return;
        }
        let memory = self.machine.memory();
        if memory != self.memory {
            self.number += 1;
            registry.save(self.number, &memory);
            self.memory = memory;
        }
    }

    /// Takes in that the memory of this number is saved, and so are those before it.
    pub fn saved(&mut self, number: u64) {
        self.saved = self.saved.max(number);
    }

    /// Sends the frames whose memory is saved.
    pub fn send_released(&mut self, transport: &mut impl Transport) {
        let number = self.number;
        let saved = self.saved;
        while self.held.front().is_some_and(|(after, _)| (*after).min(number) <= saved) {
            self.held.pop_front().into_iter().for_each(|(_, frame)| transport.send(frame));
        }
    }

    /// Whether frames wait for a memory to be saved.
    pub fn waits(&self) -> bool {
        !self.held.is_empty()
    }

    /// All nodes of the run, also those that are still joining.
    pub fn everybody(&self) -> Vec<NodeId> {
        self.machine.everybody()
    }

    /// Which nodes a run that has not begun waits for, in words.
    pub fn missing(&self) -> Option<String> {
        let absent = || "a node left before all nodes had joined".to_owned();
        (!self.machine.has_begun()).then(|| self.machine.missing().unwrap_or_else(absent))
    }

    /// How the run has ended, once it has and all nodes had time to learn of it.
    pub fn ended(&mut self, settings: &CoordinatorSettings) -> Option<Result<(), NodeError>> {
        let lost = self.machine.lost();
        if !(self.machine.is_finished() || lost.is_some()) || self.saved < self.number {
            return None;
        }
        let ending = *self.ending.get_or_insert_with(Instant::now);
        let is_alone = || self.machine.everybody().iter().all(|node| self.broken.contains(*node));
        let stay = if lost.is_some() && !is_alone() { settings.linger } else { settings.farewell };
        let result = lost.map(|(node, reason)| NodeError::Lost { node, reason: reason.to_owned() });
        if ending.elapsed() < stay {
            return None;
        }
        let last_failed = self.publisher.take().and_then(|publisher| publisher.finish(&mut self.machine));
        let no_last = |reason| NodeError::Checkpoint {
            reason: format!(
                "every worker is done, but the last checkpoint could not be made: {reason}. \
                 Resume from the checkpoint before it"
            ),
        };
        Some(result.or(last_failed.map(no_last)).map_or(Ok(()), Err))
    }
}
