//! Replays a recording: gives a fresh machine the same inputs, and compares every byte that it
//! sends with the recording.

use super::file::Entries;
use super::{MachineInput, RecordEntry, Recording, RecordingError, Subject, bytes_of};
use coordinator::Coordinator;
use shard::Server;
use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::Ordering;
use update::Updaters;
use wire::{Outbox, Pool};
use worker::{Worker, WorkerInput, WorkerReply};

/// The outcome of a replay.
///
/// ```
/// use node::Replayed;
///
/// let replayed = Replayed { inputs: 10, frames: 7, first_difference: None, cut: false };
/// // The whole recording was replayed, and every byte agrees.
/// assert!(replayed.first_difference.is_none() && !replayed.cut);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Inputs that the machine was given.
    pub inputs: usize,
    /// Recorded frames that were compared.
    pub frames: usize,
    /// The index of the first frame that differs, if one does.
    pub first_difference: Option<usize>,
    /// Whether the recording ends before the run did, so that only its beginning was replayed.
    pub cut: bool,
}

enum Machine {
    Server(Box<Server>),
    Coordinator(Box<Coordinator>),
    Worker(Box<Worker>),
}

impl Machine {
    fn new(subject: Subject, registry: &Updaters) -> Self {
        match subject {
            Subject::Server { node, plan, list_bytes, lease } => {
                let server =
                    Server::new(node, plan, registry.clone(), Pool::new()).list_bytes(list_bytes).leased(lease);
                Self::Server(Box::new(server))
            }
            Subject::Coordinator { size, membership, failure_timeout, limits } => {
                Self::Coordinator(Box::new(Coordinator::new(size, membership, failure_timeout).limited(limits)))
            }
            Subject::Worker { id, source, plan, clock, barriers, settings } => {
                let worker = Worker::new(id, source, plan, settings).starting(clock, barriers);
                Self::Worker(Box::new(worker))
            }
        }
    }

    fn feed(&mut self, input: MachineInput, out: &mut Outbox) {
        match (self, input) {
            (Self::Server(server), MachineInput::Server(input)) => {
                input.apply(server, out);
                // A replay writes no checkpoints.
                server.take_images();
                server.take_discarded();
            }
            (Self::Coordinator(coordinator), MachineInput::Coordinator(input)) => input.apply(coordinator, out),
            (Self::Worker(worker), MachineInput::Worker(input)) => feed_worker(worker, input, out),
            (Self::Server(_) | Self::Coordinator(_) | Self::Worker(_), _) => {
                unreachable!("a recording holds inputs of the machine that it begins with")
            }
        }
    }
}

/// Gives a worker an input. An input that the worker refused in the run is refused again; only the
/// program was told, so the result does not matter.
fn feed_worker(worker: &mut Worker, input: WorkerInput, out: &mut Outbox) {
    if let Ok(WorkerReply::Ticket(ticket)) = input.apply(worker, out) {
        // No program takes the result.
        worker.detach(ticket);
    }
    worker.take_unreported();
    worker.take_notices();
}

struct Replay<'a> {
    registry: &'a Updaters,
    machine: Option<Machine>,
    /// Frames that the machine has sent in the replay and that are not yet compared.
    said: VecDeque<Vec<u8>>,
    out: Outbox,
    replayed: Replayed,
}

impl<'a> Replay<'a> {
    fn new(registry: &'a Updaters) -> Self {
        let replayed = Replayed { inputs: 0, frames: 0, first_difference: None, cut: false };
        Self { registry, machine: None, said: VecDeque::new(), out: Outbox::new(), replayed }
    }

    fn take(&mut self, entry: RecordEntry) {
        match entry {
            RecordEntry::Begin(subject) => self.machine = Some(Machine::new(subject, self.registry)),
            RecordEntry::Output(bytes) => {
                if self.said.pop_front() != Some(bytes) {
                    self.replayed.first_difference.get_or_insert(self.replayed.frames);
                }
                self.replayed.frames += 1;
            }
            RecordEntry::Input(input) => {
                let Some(machine) = &mut self.machine else { return };
                self.replayed.inputs += 1;
                machine.feed(input, &mut self.out);
                self.said.extend(self.out.drain().map(|frame| bytes_of(&frame)));
            }
        }
    }

    fn finish(mut self, cut: bool) -> Replayed {
        self.replayed.cut = cut;
        // A recording that was cut may lack the frames that followed its last inputs.
        if !cut && !self.said.is_empty() {
            self.replayed.first_difference.get_or_insert(self.replayed.frames);
        }
        self.replayed
    }
}

/// Replays a recording on a fresh machine with the updaters of `registry`, and compares every byte
/// that it sends. Takes entries as they are recorded, and returns when the recorded node has ended.
#[must_use]
pub fn replay(recording: Recording, registry: &Updaters) -> Replayed {
    let mut replay = Replay::new(registry);
    let Recording { entries, shared } = recording;
    for entry in entries {
        shared.held.fetch_sub(entry.cost(), Ordering::Relaxed);
        replay.take(entry);
    }
    replay.finish(shared.cut.load(Ordering::Relaxed))
}

/// As [`replay`], from a file. Fails if the file is no recording, or damaged.
///
/// ```
/// use node::{RecordingError, replay_file};
/// use std::path::Path;
/// use update::Updaters;
///
/// let replayed = replay_file(Path::new("there is no such file"), &Updaters::builtin());
/// let error = replayed.expect_err("nothing to read");
/// assert!(matches!(error, RecordingError::Unreadable(_)));
/// ```
pub fn replay_file(path: &Path, registry: &Updaters) -> Result<Replayed, RecordingError> {
    replay_from(File::open(path)?, registry)
}

/// As [`replay_file`], from any reader.
///
/// ```
/// use node::{RecordingError, replay_from};
/// use update::Updaters;
///
/// let replayed = replay_from(&b"GET / HTTP/1.1"[..], &Updaters::builtin());
/// let error = replayed.expect_err("no recording");
/// assert!(matches!(error, RecordingError::NotARecording));
/// ```
pub fn replay_from(from: impl Read, registry: &Updaters) -> Result<Replayed, RecordingError> {
    let mut entries = Entries::open(from)?;
    let mut replay = Replay::new(registry);
    while let Some(entry) = entries.next()? {
        replay.take(entry);
    }
    Ok(replay.finish(!entries.ended))
}
