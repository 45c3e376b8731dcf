//! A recording of everything a server or coordinator was told, and the proof that telling it again gives the same bytes.

use machine::{Coordinator, Outbox, Server, Size};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use types::{NodeId, Plan, Span, Time};
use update::Registry;
use wire::{Frame, Pool, encode};

/// A recording that nobody has taken further holds at most this much.
pub const RECORDING_BYTES: usize = 1 << 30;
/// What an entry costs beside its bytes.
const ENTRY_COST: usize = 128;

/// One thing a machine was told.
#[derive(Clone, Debug)]
enum Input {
    Frame(Time, Box<Frame>),
    Settle,
    Tick(Time),
}

/// What is recorded, with all that it was made from beside what it was told: the registry alone is code.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Server { node: NodeId, plan: Plan, list_bytes: usize },
    Coordinator { size: Size, patience: Span },
}

enum Entry {
    Begin(Subject),
    Input(Input),
    Output(Vec<u8>),
}

impl Entry {
    fn cost(&self) -> usize {
        let bytes = match self {
            Self::Input(Input::Frame(_, frame)) => frame.message.payloads().iter().map(|payload| payload.len()).sum(),
            Self::Output(bytes) => bytes.len(),
            Self::Begin(_) | Self::Input(_) => 0,
        };
        ENTRY_COST + bytes
    }
}

/// What the two ends know of each other.
#[derive(Default)]
struct Shared {
    /// Bytes put down and not taken yet.
    held: AtomicUsize,
    /// There was no room for something; nothing after it was put down either.
    cut: AtomicBool,
}

/// Takes down what a machine is told and says. Give it to [`crate::run_server`] or [`crate::run_coordinator`].
///
/// It never holds up what it records: when the recording is full it says so in the log and stops, and the replay says that
/// it covers the beginning only.
pub struct Recorder {
    entries: Sender<Entry>,
    shared: Arc<Shared>,
    most_bytes: usize,
}

/// Where a recording arrives.
pub struct Recording {
    entries: Receiver<Entry>,
    shared: Arc<Shared>,
}

/// What came of feeding a recording back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Inputs fed.
    pub inputs: usize,
    /// Frames that the machine said, in the recording and again.
    pub frames: usize,
    /// The first frame that differs, if one does.
    pub first_difference: Option<usize>,
    /// Whether the recording was full before the run was over, so that only its beginning was compared.
    pub cut: bool,
}

impl Recorder {
    /// A recorder and the recording it makes, of at most [`RECORDING_BYTES`].
    #[must_use]
    pub fn new() -> (Self, Recording) {
        Self::of_at_most(RECORDING_BYTES)
    }

    /// As [`Recorder::new`], of at most so many bytes.
    #[must_use]
    pub fn of_at_most(bytes: usize) -> (Self, Recording) {
        let (entries, received) = channel();
        let shared = Arc::new(Shared::default());
        let recording = Recording { entries: received, shared: shared.clone() };
        (Self { entries, shared, most_bytes: bytes }, recording)
    }

    fn put(&self, entry: Entry) {
        let Shared { held, cut } = &*self.shared;
        if cut.load(Ordering::Relaxed) {
            return;
        }
        let cost = entry.cost();
        if held.fetch_add(cost, Ordering::Relaxed) + cost > self.most_bytes {
            tracing::error!(bytes = self.most_bytes, "the recording is full; what comes now is not recorded");
            return cut.store(true, Ordering::Relaxed);
        }
        // Nobody keeping the recording is no reason to stop serving.
        self.entries.send(entry).ok();
    }

    pub(crate) fn begin(&mut self, subject: Subject) {
        self.put(Entry::Begin(subject));
    }

    pub(crate) fn input(&mut self, now: Time, frame: &Frame) {
        self.put(Entry::Input(Input::Frame(now, Box::new(frame.clone()))));
    }

    pub(crate) fn settle(&mut self) {
        self.put(Entry::Input(Input::Settle));
    }

    pub(crate) fn tick(&mut self, now: Time) {
        self.put(Entry::Input(Input::Tick(now)));
    }

    pub(crate) fn output(&mut self, frame: &Frame) {
        self.put(Entry::Output(bytes_of(frame)));
    }
}

fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes);
    frame.message.payloads().iter().for_each(|payload| bytes.extend_from_slice(payload.bytes()));
    bytes
}

enum Machine {
    Server(Box<Server>),
    Coordinator(Box<Coordinator>),
}

impl Machine {
    fn new(subject: Subject, registry: &Registry) -> Self {
        match subject {
            Subject::Server { node, plan, list_bytes } => {
                let server = Server::new(node, plan, registry.clone(), Pool::new()).list_bytes(list_bytes);
                Self::Server(Box::new(server))
            }
            Subject::Coordinator { size, patience } => Self::Coordinator(Box::new(Coordinator::new(size, patience))),
        }
    }

    fn feed(&mut self, input: Input, out: &mut Outbox) {
        match (self, input) {
            (Self::Server(server), Input::Frame(now, frame)) => server.handle(now, *frame, out),
            (Self::Server(server), Input::Settle) => server.settle(out),
            (Self::Server(server), Input::Tick(now)) => server.tick(now, out),
            (Self::Coordinator(coordinator), Input::Frame(now, frame)) => coordinator.handle(now, *frame, out),
            (Self::Coordinator(_), Input::Settle) => {}
            (Self::Coordinator(coordinator), Input::Tick(now)) => coordinator.tick(now, out),
        }
    }
}

/// Feeds a recording to a fresh machine of its kind, with the updaters of `registry`, and compares every byte it says. Takes
/// what is recorded as it comes, and returns when the recorded node has ended.
#[must_use]
pub fn replay(recording: Recording, registry: &Registry) -> Replayed {
    let mut machine = None;
    // Said again, and not yet found in the recording.
    let mut said = VecDeque::new();
    let mut replayed = Replayed { inputs: 0, frames: 0, first_difference: None, cut: false };
    let mut out = Outbox::new();
    let Recording { entries, shared } = recording;
    for entry in entries {
        shared.held.fetch_sub(entry.cost(), Ordering::Relaxed);
        match entry {
            Entry::Begin(subject) => machine = Some(Machine::new(subject, registry)),
            Entry::Output(bytes) => {
                if said.pop_front() != Some(bytes) {
                    replayed.first_difference.get_or_insert(replayed.frames);
                }
                replayed.frames += 1;
            }
            Entry::Input(input) => {
                let Some(machine) = &mut machine else { continue };
                replayed.inputs += 1;
                machine.feed(input, &mut out);
                said.extend(out.drain().map(|frame| bytes_of(&frame)));
            }
        }
    }
    replayed.cut = shared.cut.load(Ordering::Relaxed);
    // What was said to the last inputs may not have found room.
    if !replayed.cut && !said.is_empty() {
        replayed.first_difference.get_or_insert(replayed.frames);
    }
    replayed
}
