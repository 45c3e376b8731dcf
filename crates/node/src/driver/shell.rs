//! A worker's shell: the machine, its transport, and what a node does beside its machine.
//!
//! It sends the machine's frames, handles those that arrive, sends heartbeats and reports, and
//! notices lost nodes. It never blocks: [`Driver`](super::Driver) locks it, and waits.

use super::silence::SilentNodes;
use super::{DriverSettings, RunFailure};
use crate::checkpoints::{CheckpointWriter, WriterEvent};
use crate::contact::{CoordinatorContact, heartbeat_interval, say_failed};
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
    /// How long its clocks take it, without waiting for others.
    step: Measured,
    /// When the last heartbeat was sent.
    heartbeat: Instant,
    silent: SilentNodes,
    lost: Option<NodeError>,
    /// Whether the program was told of the loss, by a call that failed with it.
    failure_was_reported: bool,
    /// Whether the run goes on without servers that are lost.
    elastic: bool,
    /// Whether the program uses the worker no more.
    is_closed: bool,
    /// Whether the coordinator has answered the goodbye.
    has_left: bool,
    /// Writes what codecs have still to send, to the store and under the name of the last
    /// checkpoint.
    checkpoint_writer: CheckpointWriter,
    place: (String, String),
}

impl WorkerShell {
    /// The shell of a worker that has joined. Fails if it is to be recorded and cannot be; the run
    /// is then over for everybody.
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
            heartbeat: now,
            silent: SilentNodes::default(),
            lost: None,
            failure_was_reported: false,
            elastic: joined.serving_lease.is_some(),
            is_closed: false,
            has_left: false,
            checkpoint_writer: CheckpointWriter::default(),
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

    /// A clock took the program so long.
    pub fn observe_step(&mut self, took: Duration) {
        self.step.observe(Span(took.as_nanos() as u64));
    }

    /// Why the run is over for this worker, if it is.
    pub fn failure(&self) -> Option<RunFailure> {
        self.lost.clone().map(|error| RunFailure { error, was_reported: self.failure_was_reported })
    }

    /// What a call fails with if the run is over. The program knows from then on.
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

    /// The program uses the worker no more. Returns the recorder, which writes the rest when it is
    /// dropped.
    pub fn close(&mut self) -> Option<Recorder> {
        self.is_closed = true;
        self.recorder.take()
    }

    pub fn worker_handle(&mut self) -> WorkerHandle<'_> {
        let Self { worker, out, recorder, start, .. } = self;
        WorkerHandle { worker, start: *start, out, recorder: recorder.as_ref() }
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

    /// Sends what the machine has said.
    pub fn send(&mut self) {
        self.hand_on();
        if let Some(residuals) = self.worker.take_residuals() {
            self.checkpoint_writer.asked(residuals.checkpoint, &self.place.0, &self.place.1);
            self.checkpoint_writer.write_residuals(residuals);
        }
        self.transport.flush();
    }

    /// Handles everything that has arrived. Returns whether anything had.
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
            TransportEvent::Disconnected(node) => self.silent.disconnected(node),
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

    /// Does the shell's part of what the coordinator says.
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

    /// Asks the servers that this worker waits for whether they live: one that vanished without a
    /// word would be waited for for ever, since nothing tells a connection on which nothing comes
    /// from one on which nothing can.
    fn ask_servers(&mut self) {
        let now = Instant::now();
        let servers = self.worker.plan().servers().into_iter().map(NodeId::Server);
        for node in servers.filter(|node| self.worker.waits_for(*node)) {
            self.silent.asked(now, node);
            let head = Head::plain(self.worker.id().into(), node);
            self.transport.send(Frame { head, message: Message::Control(Control::Heartbeat) });
        }
    }

    /// Says which servers are silent, and gives up on one after as long as it takes to give up on
    /// anybody.
    fn check_silent(&mut self, failure_timeout: Duration) {
        let worker = &self.worker;
        if let Some(error) = self.silent.check(|node| worker.waits_for(node), failure_timeout, self.elastic) {
            self.lost.get_or_insert(error);
        }
    }

    /// Where the run ends with any of its nodes, one that is told to leave ends it, and says so.
    fn mind_leaving(&mut self, leave: &LeaveSignal) {
        if leave.is_asked() && !self.elastic && !self.has_left && self.lost.is_none() {
            let error = NodeError::ToldToLeave;
            self.worker_handle().fail(error.to_string());
            self.lost = Some(error);
        }
    }

    /// Says how this worker does.
    fn say_report(&mut self) {
        let step = (self.step.count > 0).then_some(self.step);
        let (round_trip, timeouts) = (self.contact.round_trip(), self.contact.timeouts());
        let report = Box::new(NodeReport { step, round_trip, timeouts, ..NodeReport::default() });
        let (source, clock) = (self.source, self.worker.clock());
        let head = Head { source, clock, ..Head::plain(self.worker.id().into(), NodeId::Coordinator) };
        self.transport.send(Frame { head, message: Message::Control(Control::Report { report }) });
    }

    /// Sends heartbeats, ticks the machine, and reconnects where a connection broke.
    pub fn keep_up(&mut self, failure_timeout: Duration, leave: &LeaveSignal) {
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
        if self.heartbeat.elapsed() >= heartbeat_interval(failure_timeout) && self.lost.is_none() {
            self.heartbeat = Instant::now();
            self.contact.asked(self.heartbeat);
            self.worker_handle().heartbeat();
            self.say_report();
            if self.contact.may_change() {
                // Whoever leads now may never have heard what was said to the one before.
                self.worker_handle().reconnected(NodeId::Coordinator);
            }
            self.ask_servers();
        }
        self.send();
    }

    fn report(&mut self) {
        let names = |on: &[WorkerId]| on.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        for notice in self.worker_handle().take_notices() {
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
