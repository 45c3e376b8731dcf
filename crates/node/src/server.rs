//! The thread that runs a server: an event loop that owns the machine and the sockets, and runs
//! each request to its end.

use crate::checkpoints::{CheckpointWriter, WriterEvent, check_locations};
use crate::contact::{CoordinatorContact, say_failed};
use crate::record::{Recorder, Subject};
use crate::shell_control::ShellControl;
use crate::stopwatch::STOPWATCH;
use crate::wait::IdleTurns;
use crate::{JoinRequest, LeaveSignal, NodeError, WaitPolicy, join};
use net::{Traffic, Transport, TransportEvent, Waiter};
use shard::{Server, ServerCounts, ServerInput};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::AllowedLocations;
use types::{NodeId, Time};
use update::Updaters;
use wire::{Control, Frame, Head, Message, NodeRole, Outbox, Pool};

/// Frames handled in one turn of the loop, before acknowledgements, answers and heartbeats are
/// sent. Each is a part of at most 1 MiB.
const TURN: usize = 64;
/// Long work takes at most this long in a turn without frames, and one piece in another turn.
const LONG_WORK: Duration = Duration::from_micros(200);
/// Time between two ticks of the machine.
const TICK: Duration = Duration::from_millis(100);
/// The same while the machine waits for a tick only.
const HURRIED_TICK: Duration = Duration::from_millis(1);

/// Settings of a server.
#[derive(Clone)]
pub struct ServerSettings {
    /// The address at which other nodes can call it. Empty if all nodes are in one process.
    pub address: String,
    /// A number that differs between nodes: it identifies this one until it has a name.
    pub token: u64,
    /// The number of the server that it asks to be. None asks for the first that is free.
    pub place: Option<u32>,
    /// The job that it was started for. Empty accepts any job.
    pub job: String,
    /// How long to wait for the run to begin.
    pub join_limit: Duration,
    /// Silence after which the only coordinator of a run is lost.
    pub failure_timeout: Duration,
    /// Whether it was given several coordinators. It waits for another one as long as for the run
    /// to begin.
    pub of_several: bool,
    /// How its thread waits.
    pub wait: WaitPolicy,
    /// The updaters it knows.
    pub registry: Updaters,
    /// The pool that received payloads are stored in.
    pub pool: Pool,
    /// Bytes of key lists that each shard remembers.
    pub list_bytes: usize,
    /// Receives a report with every heartbeat, and one at the end.
    pub on_report: Option<ReportCallback>,
    /// Tells it to hand over its shards and to leave.
    pub leave: LeaveSignal,
    /// Where it may write and read checkpoints.
    pub locations: AllowedLocations,
}

/// Receives a server's reports. The server's thread calls it, so it should return quickly.
pub type ReportCallback = Arc<dyn Fn(&ServerReport) + Send + Sync>;

impl ServerSettings {
    /// Settings of a server in one process with the built-in updaters, in any place, with time-outs
    /// of 30 seconds.
    #[must_use]
    pub fn new(token: u64) -> Self {
        Self {
            address: String::new(),
            token,
            place: None,
            job: String::new(),
            join_limit: Duration::from_secs(30),
            failure_timeout: Duration::from_secs(30),
            of_several: false,
            wait: WaitPolicy::BLOCKING,
            registry: Updaters::builtin(),
            pool: Pool::new(),
            list_bytes: shard::LIST_BYTES,
            on_report: None,
            leave: LeaveSignal::default(),
            locations: AllowedLocations::Any,
        }
    }
}

/// What a server has done so far.
///
/// ```
/// use node::ServerReport;
///
/// fn line(report: &ServerReport) -> String {
///     let ServerReport { node, counts, traffic, .. } = report;
///     format!("{node} applied {} parts of {} bytes", counts.shards.parts, traffic.bytes_in)
/// }
/// # use {shard::ServerCounts, net::Traffic, types::NodeId};
/// # let (counts, traffic) = (ServerCounts::default(), Traffic::default());
/// let report = ServerReport { node: NodeId::Server(0), counts, traffic, unsent_bytes: 0 };
/// assert_eq!(line(&report), "server 0 applied 0 parts of 0 bytes");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ServerReport {
    /// The server's name.
    pub node: NodeId,
    /// Counts of its machine.
    pub counts: ServerCounts,
    /// Counts of its transport.
    pub traffic: Traffic,
    /// Bytes that wait to be sent.
    pub unsent_bytes: usize,
}

/// Joins the run and serves until every worker has left, or until it is told to leave and other
/// servers hold its shards.
pub fn run_server(
    mut transport: impl Transport,
    mut waiter: impl Waiter,
    settings: ServerSettings,
    mut recorder: Option<Recorder>,
) -> Result<ServerReport, NodeError> {
    let request = JoinRequest { role: NodeRole::Server, place: settings.place, job: &settings.job };
    let address = &settings.address;
    let leave = &settings.leave;
    let joined = join(&mut transport, &mut waiter, request, address, settings.token, settings.join_limit, leave)?;
    let node = joined.node;
    if let Err(error) = check_locations(&settings.locations, &joined.locations) {
        // A server of the first plan ends the run, and is named as the cause. One that comes later
        // ends alone: the run goes on without it.
        if let NodeId::Server(index) = node
            && joined.plan.servers().contains(&index)
        {
            say_failed(&mut transport, (node, joined.source), &error);
        }
        return Err(error);
    }
    tracing::info!(%node, "serving");
    let start = Instant::now();
    let mut machine = Server::new(node, joined.plan.clone(), settings.registry, settings.pool)
        .list_bytes(settings.list_bytes)
        .leased(joined.serving_lease)
        .stopwatch(STOPWATCH);
    if let Some(recorder) = &mut recorder {
        let subject =
            Subject::Server { node, plan: joined.plan, list_bytes: settings.list_bytes, lease: joined.serving_lease };
        recorder.begin(subject).inspect_err(|error| say_failed(&mut transport, (node, joined.source), error))?;
    }
    let mut out = Outbox::new();
    let mut early = joined.early.into_iter();
    let mut ticked = start;
    let mut worked = start;
    // In an elastic run, the server may not serve before the coordinator has answered the first
    // heartbeat.
    let mut contact =
        CoordinatorContact::new(start, settings.failure_timeout, settings.of_several, settings.join_limit);
    let heartbeat_interval = contact.heartbeat_interval();
    let mut read = start;
    let mut more = false;
    let mut turns = IdleTurns::default();
    let mut checkpoint_writer = CheckpointWriter::new(settings.locations);
    // When it last told the coordinator that it wants to leave.
    let mut retiring: Option<Instant> = None;
    // Why the coordinator does not let it leave yet.
    let mut stays: Option<String> = None;
    loop {
        if more {
            waiter.wait(Some(Duration::ZERO));
        } else {
            let spins = settings.wait.spins(read - worked);
            let tick = if machine.hurries() { HURRIED_TICK } else { TICK };
            turns.wait(spins, spins && transport.glance(), &mut waiter, tick);
        }
        let mut busy = false;
        // Read the time once a turn, so that an idle turn costs next to nothing.
        read = Instant::now();
        let now = Time((read - start).as_nanos() as u64);
        let mut frames = 0;
        more = true;
        while frames < TURN {
            let Some(event) = early.next().map(TransportEvent::Frame).or_else(|| transport.next()) else {
                more = false;
                break;
            };
            frames += 1;
            let frame = match event {
                TransportEvent::Frame(frame) => frame,
                TransportEvent::Disconnected(NodeId::Coordinator) => {
                    contact.disconnected(read, &transport);
                    continue;
                }
                // The machine sends again what these nodes do not acknowledge.
                TransportEvent::Disconnected(NodeId::Server(_) | NodeId::Worker(_)) => continue,
            };
            if !contact.hears(read, &frame, &mut transport) {
                continue;
            }
            if frame.head.from == NodeId::Coordinator {
                match ShellControl::of(&frame) {
                    Some(ShellControl::Lost { node: lost, reason }) => {
                        return Err(NodeError::lost(node, lost, reason.to_owned()));
                    }
                    Some(ShellControl::Begin { .. }) => continue,
                    Some(ShellControl::LeaveDeferred { reason }) => {
                        if stays.as_deref() != Some(reason) {
                            tracing::warn!(%node, "this server was told to leave but has to stay for now: {reason}");
                            stays = Some(reason.to_owned());
                        }
                    }
                    Some(ShellControl::Adopt { members }) => transport.know(members),
                    Some(ShellControl::Checkpoint { number, location, name }) => {
                        let again = checkpoint_writer.asked(number, location, name);
                        again.into_iter().for_each(|control| say(&mut transport, node, control));
                    }
                    Some(ShellControl::Restore { table, spec, clock, location, name }) => {
                        if !machine.has_table(table) {
                            checkpoint_writer.restore((table, spec), clock, (location, name), machine.shards_of(spec));
                        }
                    }
                    None
                    | Some(
                        ShellControl::Heartbeat
                        | ShellControl::Bye
                        | ShellControl::Follow { .. }
                        | ShellControl::Welcome { .. }
                        | ShellControl::JoinRefused { .. },
                    ) => {}
                }
            }
            if let Some(recorder) = &recorder {
                recorder.input(ServerInput::Frame(now, Box::new(frame.clone())));
            }
            busy = true;
            machine.handle(now, frame, &mut out);
            forward(&mut out, &mut transport, recorder.as_ref());
        }
        let is_drained = !more;
        if busy {
            worked = read;
            if let Some(recorder) = &recorder {
                recorder.input(ServerInput::Settle);
            }
            machine.settle(&mut out);
            // Answers go out before the rest of the turn: a worker waits for them.
            forward(&mut out, &mut transport, recorder.as_ref());
            transport.flush();
        }
        if read - ticked >= if machine.hurries() { HURRIED_TICK } else { TICK } {
            ticked = read;
            transport.tick(read);
            if let Some(recorder) = &recorder {
                recorder.input(ServerInput::Tick(now));
            }
            machine.tick(now, &mut out);
        }
        checkpoint_writer.write(machine.take_images());
        while let Some(event) = checkpoint_writer.next() {
            match event {
                WriterEvent::Nothing => {}
                WriterEvent::Answer { answer, .. } => say(&mut transport, node, answer),
                WriterEvent::NotRestored { table, problem } => {
                    say(&mut transport, node, Control::TableAdded { table, problem: Some(problem) });
                }
                // A newer plan gives this server more shards of the table than were read. The
                // coordinator asks again.
                WriterEvent::Restored(restored)
                    if !machine.shards_of(&restored.spec).iter().all(|shard| restored.has(*shard)) => {}
                WriterEvent::Restored(restored) => {
                    if let Some(recorder) = &recorder {
                        recorder.input(ServerInput::Restore(now, restored.clone()));
                    }
                    machine.restore(now, *restored, &mut out);
                }
            }
        }
        let work_until = if busy { read } else { read + LONG_WORK };
        while machine.has_work() {
            if let Some(recorder) = &recorder {
                recorder.input(ServerInput::Work(now));
            }
            machine.work(now, &mut out);
            if Instant::now() >= work_until {
                break;
            }
        }
        more |= machine.has_work();
        checkpoint_writer.free(machine.take_discarded());
        forward(&mut out, &mut transport, recorder.as_ref());
        if contact.is_heartbeat_due(read) {
            contact.asked(read);
            if let Some(recorder) = &recorder {
                recorder.input(ServerInput::Heartbeat(now));
            }
            machine.heartbeat(now, &mut out);
            forward(&mut out, &mut transport, recorder.as_ref());
            let mut report = machine.report();
            report.round_trip = contact.round_trip();
            report.timeouts.extend(contact.timeouts());
            say(&mut transport, node, Control::Report { report: Box::new(report) });
            settings.on_report.iter().for_each(|on_report| on_report(&self::report(node, &machine, &transport)));
        }
        if settings.leave.is_asked()
            && !machine.is_finished()
            && retiring.is_none_or(|said| read - said >= heartbeat_interval)
        {
            if joined.serving_lease.is_none() {
                let error = NodeError::ToldToLeave;
                say_failed(&mut transport, (node, joined.source), &error);
                return Err(error);
            }
            if retiring.replace(read).is_none() {
                tracing::info!(%node, "this server was told to leave and hands over what it holds to other servers");
            }
            say(&mut transport, node, Control::Retire);
        }
        transport.flush();
        // When the run is over, wait until all copies for the last checkpoint are written.
        if machine.is_finished() && !machine.has_awaited_work() && checkpoint_writer.is_idle() {
            say_goodbye(&mut transport, &mut waiter, node, heartbeat_interval);
            let report = report(node, &machine, &transport);
            settings.on_report.iter().for_each(|on_report| on_report(&report));
            return Ok(report);
        }
        // While frames are unread, the coordinator's may be among them.
        if is_drained {
            contact.mind(read, &mut transport)?;
        }
    }
}

fn report(node: NodeId, machine: &Server, transport: &impl Transport) -> ServerReport {
    ServerReport { node, counts: machine.counts(), traffic: transport.traffic(), unsent_bytes: transport.backlog() }
}

/// Sends a control message of the shell to the coordinator.
fn say(transport: &mut impl Transport, node: NodeId, control: Control) {
    transport.send(Frame { head: Head::plain(node, NodeId::Coordinator), message: Message::Control(control) });
}

/// Repeats a goodbye until the coordinator answers it, at most for `limit`.
fn say_goodbye(transport: &mut impl Transport, waiter: &mut impl Waiter, node: NodeId, limit: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < limit {
        let head = Head::plain(node, NodeId::Coordinator);
        transport.send(Frame { head, message: Message::Control(Control::Bye) });
        transport.flush();
        waiter.wait(Some(limit / 10));
        while let Some(event) = transport.next() {
            if matches!(event, TransportEvent::Frame(Frame { message: Message::Control(Control::Bye), .. })) {
                return;
            }
        }
    }
}

fn forward(out: &mut Outbox, transport: &mut impl Transport, recorder: Option<&Recorder>) {
    for frame in out.drain() {
        if let Some(recorder) = recorder {
            recorder.output(&frame);
        }
        transport.send(frame);
    }
}

#[cfg(test)]
mod tests;
