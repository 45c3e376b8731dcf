//! A worker's shell: the machine, its transport, and the duties of a node that the machine does not
//! have.
//!
//! It sends the machine's frames, passes arriving frames to the machine, sends heartbeats and
//! reports, and notices lost nodes. It never blocks: [`Driver`](super::Driver) locks it, and waits.

use super::silence::SilentNodes;
use super::wait_log::{WaitLog, Waiting};
use super::{DriverSettings, RunFailure};
use crate::checkpoints::{CheckpointWriter, WriterEvent, check_locations};
use crate::contact::{CoordinatorContact, say_failed};
use crate::record::{Recorder, Subject};
use crate::shell_control::ShellControl;
use crate::stopwatch::STOPWATCH;
use crate::{JoinedRun, LeaveSignal, NodeError, WorkerHandle};
use net::{Traffic, Transport, TransportEvent};
use std::time::{Duration, Instant};
use types::{Measured, NodeId, Source, Span, WorkerId};
use wire::{Control, Frame, Head, Message, NodeReport, Outbox};
use worker::{Notice, Worker, WorkerSettings};

pub(super) struct WorkerShell {
    worker: Worker,
    transport: Box<dyn Transport>,
    out: Outbox,
    recorder: Option<Recorder>,
    start: Instant,
    contact: CoordinatorContact,
    source: Source,
    /// How long a clock takes the program, without the time in which it waits for others.
    step: Measured,
    silent: SilentNodes,
    waits: WaitLog,
    /// Why the run is over for this worker, if it is.
    lost: Option<NodeError>,
    /// Whether a call of the program has failed with `lost`.
    failure_was_reported: bool,
    /// Whether the run goes on without servers that are lost.
    elastic: bool,
    /// For how long the program waits in one call. None if no thread of it waits.
    blocked: Option<Duration>,
    /// Whether the program has closed the worker.
    is_closed: bool,
    /// Whether the coordinator has answered the goodbye.
    has_left: bool,
    /// Writes the residuals of this worker's codecs.
    checkpoint_writer: CheckpointWriter,
    /// Location and name of the newest checkpoint.
    place: (String, String),
}

impl WorkerShell {
    /// The shell of a worker that has joined. Fails if its recording cannot be written; that ends
    /// the run.
    pub fn new(
        joined: JoinedRun,
        mut transport: Box<dyn Transport>,
        settings: &DriverSettings,
        mut recorder: Option<Recorder>,
    ) -> Result<Self, NodeError> {
        let rank = match joined.node {
            NodeId::Worker(rank) => WorkerId(rank),
            NodeId::Coordinator | NodeId::Server(_) => WorkerId(0),
        };
        if let Err(error) = check_locations(&settings.locations, &joined.locations) {
            tracing::warn!("this worker cannot take part in checkpoints if a codec keeps residuals: {error}");
        }
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
        let mut shell = Self {
            worker: Worker::new(rank, source, joined.plan, machine).starting(joined.clock, joined.barriers),
            transport,
            out: Outbox::new(),
            recorder,
            start: now,
            contact: CoordinatorContact::new(now, settings.failure_timeout, settings.of_several, settings.unled),
            source,
            step: Measured::default(),
            silent: SilentNodes::default(),
            waits: WaitLog::default(),
            lost: None,
            failure_was_reported: false,
            elastic: joined.serving_lease.is_some(),
            blocked: None,
            is_closed: false,
            has_left: false,
            checkpoint_writer: CheckpointWriter::new(settings.locations.clone()),
            place: Default::default(),
        };
        joined.early.into_iter().for_each(|frame| shell.take(TransportEvent::Frame(frame)));
        Ok(shell)
    }

    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    pub fn contact(&self) -> &CoordinatorContact {
        &self.contact
    }

    pub fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }

    /// Bytes that wait to be sent.
    pub fn backlog(&self) -> usize {
        self.transport.backlog()
    }

    pub fn traffic(&self) -> Traffic {
        self.transport.traffic()
    }

    /// See [`Transport::glance`].
    pub fn glance(&mut self) -> bool {
        self.transport.glance()
    }

    /// Takes in how long a clock took the program.
    pub fn observe_step(&mut self, took: Duration) {
        self.step.observe(Span(took.as_nanos() as u64));
    }

    /// Why the run is over for this worker, if it is.
    pub fn failure(&self) -> Option<RunFailure> {
        self.lost.clone().map(|error| RunFailure { error, was_reported: self.failure_was_reported })
    }

    /// The error that a call fails with, if the run is over. It counts as reported to the program
    /// from then on.
    pub fn tell_failure(&mut self) -> Option<NodeError> {
        let lost = self.lost.clone()?;
        self.failure_was_reported = true;
        Some(lost)
    }

    /// Whether the coordinator has answered the goodbye.
    pub fn has_left(&self) -> bool {
        self.has_left
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Closes the worker for the program. Returns the recorder, which writes the rest of the
    /// recording when it is dropped.
    pub fn close(&mut self) -> Option<Recorder> {
        self.is_closed = true;
        self.recorder.take()
    }

    pub fn worker_handle(&mut self) -> WorkerHandle<'_> {
        let Self { worker, out, recorder, start, .. } = self;
        WorkerHandle { worker, start: *start, out, recorder: recorder.as_ref() }
    }

    /// Sends a control message of the shell to the coordinator.
    fn say(&mut self, control: Control) {
        let id = self.worker.id();
        let source = self.worker.plan().source(id).unwrap_or_default();
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

    /// Sends the machine's frames, and gives its residuals to the checkpoint writer.
    pub fn send(&mut self) {
        self.hand_on();
        if let Some(residuals) = self.worker.take_residuals() {
            self.checkpoint_writer.asked(residuals.checkpoint, &self.place.0, &self.place.1);
            self.checkpoint_writer.write_residuals(residuals);
        }
        self.transport.flush();
    }

    /// Handles all frames that have arrived. Returns whether any had.
    pub fn pump(&mut self) -> bool {
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
                if node == NodeId::Coordinator {
                    self.contact.disconnected(Instant::now(), &*self.transport);
                }
                self.silent.disconnected(node);
            }
            TransportEvent::Frame(frame) => {
                self.silent.heard(frame.head.from);
                if frame.head.from == NodeId::Coordinator {
                    if !self.contact.hears(Instant::now(), &frame, &mut *self.transport) {
                        return;
                    }
                    self.take_control(ShellControl::of(&frame));
                }
                self.worker_handle().handle(frame);
            }
        }
    }

    /// Does the shell's part of a control message from the coordinator.
    fn take_control(&mut self, control: Option<ShellControl<'_>>) {
        match control {
            Some(ShellControl::Lost { node, reason }) => {
                self.lost = Some(NodeError::lost(self.worker.id().into(), node, reason.to_owned()));
            }
            Some(ShellControl::Bye) => self.has_left = true,
            Some(ShellControl::Adopt { members }) => self.transport.know(members),
            Some(ShellControl::Checkpoint { number, location, name }) => {
                self.place = (location.to_owned(), name.to_owned());
                self.checkpoint_writer.said_of(number).into_iter().for_each(|control| self.say(control));
            }
            None
            | Some(
                ShellControl::Heartbeat
                | ShellControl::Follow { .. }
                | ShellControl::Welcome { .. }
                | ShellControl::JoinRefused { .. }
                | ShellControl::Begin { .. }
                | ShellControl::Restore { .. }
                | ShellControl::LeaveDeferred { .. },
            ) => {}
        }
    }

    /// Notes that the machine has sent a heartbeat to each server that it waits for.
    fn note_asked_servers(&mut self) {
        let now = Instant::now();
        let servers = self.worker.plan().servers().into_iter().map(NodeId::Server);
        servers.filter(|node| self.worker.waits_for(*node)).for_each(|node| self.silent.asked(now, node));
    }

    /// Logs which servers are silent. In a static run, a server that is silent for longer than the
    /// failure timeout is lost.
    fn check_silent(&mut self, failure_timeout: Duration) {
        let worker = &self.worker;
        let waits_for = |node| worker.waits_for(node);
        if let Some(error) = self.silent.check(Instant::now(), waits_for, failure_timeout, self.elastic) {
            self.lost.get_or_insert(error);
        }
    }

    /// In a static run, a worker that is told to leave ends the run, and tells the coordinator why.
    fn mind_leaving(&mut self, leave: &LeaveSignal) {
        if leave.is_asked() && !self.elastic && !self.has_left && self.lost.is_none() {
            let error = NodeError::ToldToLeave;
            self.worker_handle().fail(error.to_string());
            self.lost = Some(error);
        }
    }

    /// Sends the coordinator this worker's measurements.
    fn say_report(&mut self) {
        let report = Box::new(NodeReport {
            step: (self.step.count > 0).then_some(self.step),
            round_trip: self.contact.round_trip(),
            blocked: self.blocked.map(|blocked| Span(blocked.as_nanos() as u64)),
            silent_peers: self.worker.silent_servers(),
            timeouts: self.contact.timeouts(),
            ..NodeReport::default()
        });
        let head = Head {
            source: self.source,
            clock: self.worker.clock(),
            ..Head::plain(self.worker.id().into(), NodeId::Coordinator)
        };
        self.transport.send(Frame { head, message: Message::Control(Control::Report { report }) });
    }

    /// The periodic duties: checks for silent nodes, ticks the machine, sends heartbeats, and
    /// reconnects broken connections.
    pub fn keep_up(&mut self, failure_timeout: Duration, leave: &LeaveSignal, blocked: Option<Duration>) {
        self.blocked = blocked;
        self.transport.tick(Instant::now());
        self.mind_leaving(leave);
        if self.lost.is_none() && !self.has_left {
            self.lost = self.contact.mind(Instant::now(), &mut *self.transport).err();
        }
        for node in self.silent.take_due() {
            self.worker_handle().reconnected(node);
        }
        self.check_silent(failure_timeout);
        while let Some(event) = self.checkpoint_writer.next() {
            match event {
                WriterEvent::Answer { answer, .. } => self.say(answer),
                WriterEvent::Nothing | WriterEvent::Restored(_) | WriterEvent::NotRestored { .. } => {}
            }
        }
        self.worker_handle().tick();
        if self.contact.is_heartbeat_due(Instant::now()) && self.lost.is_none() {
            self.contact.asked(Instant::now());
            self.worker_handle().heartbeat();
            self.say_report();
            if self.contact.may_change() {
                // A new leader may have missed what this worker told its predecessor.
                self.worker_handle().reconnected(NodeId::Coordinator);
            }
            self.note_asked_servers();
        }
        self.send();
    }

    /// Logs what the machine has noticed.
    fn report(&mut self) {
        let now = Instant::now();
        for notice in self.worker_handle().take_notices() {
            let (waiting, on) = match &notice {
                Notice::Codec { table, pipeline, bytes_per_second } => {
                    let megabytes_per_second = bytes_per_second / 1_000_000;
                    tracing::warn!(
                        table,
                        megabytes_per_second,
                        "{pipeline} costs more time than it saves on this link; remove it from the table's codecs, \
                         or use auto"
                    );
                    continue;
                }
                Notice::Read { table, on } => (Waiting::Read { table }, on),
                Notice::Push { table, on } => (Waiting::Push { table }, on),
                Notice::Barrier { on } => (Waiting::Barrier, on),
                Notice::Leases { on } => (Waiting::Leases, on),
            };
            if let Some(line) = self.waits.line(now, waiting, on) {
                tracing::warn!("{line}");
            }
        }
    }
}
