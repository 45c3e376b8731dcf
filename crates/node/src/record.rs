//! Recordings (record and replay): a recording holds all inputs and frames of a node's machine. A
//! replay feeds the inputs to a fresh machine and checks that it sends the same bytes.

mod entry;
mod file;
mod replay;

pub(crate) use entry::{MachineInput, RecordEntry, Subject};
pub use file::RecordingError;
pub use replay::{Replayed, replay, replay_file, replay_from};

use crate::NodeError;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store::FileModes;
use wire::{Field, Frame};

/// Bytes that a recording in memory holds at most, until a replay takes entries out of it.
pub const RECORDING_BYTES: usize = 1 << 30;
/// Bytes that may wait to be written to a recording's file.
const UNWRITTEN_BYTES: usize = 256 << 20;
/// How long a recorded node waits for its disk. Short, so that the node does not count as lost.
const ROOM_WITHIN: Duration = Duration::from_secs(1);

/// State that the recorder shares with the recording.
#[derive(Default)]
struct Shared {
    /// Bytes that are recorded and not yet taken out.
    held: AtomicUsize,
    /// Whether the recording stopped because an entry did not fit.
    cut: AtomicBool,
}

/// Records the inputs and frames of a machine. Give it to [`crate::run_server`],
/// [`crate::run_coordinator`] or [`crate::Driver::start`].
///
/// Recording to memory never delays the machine. Recording to a file waits for the disk, one second
/// at most. When there is no room, the recorder logs that and stops. The replay then says that it
/// covers only the beginning.
pub struct Recorder {
    sink: Sink,
    shared: Arc<Shared>,
    /// Bytes that may be held at most.
    most_bytes: usize,
    /// How long to wait for room.
    room_within: Duration,
}

enum Sink {
    /// A folder, in which the file is made when the machine has a name.
    Folder(PathBuf),
    /// A recording in memory, or the thread that writes a file, takes the entries.
    Open { entries: Sender<RecordEntry>, writer: Option<JoinHandle<()>> },
    /// The recording has ended.
    Closed,
}

/// A recording in memory. Give it to [`crate::replay`].
pub struct Recording {
    entries: Receiver<RecordEntry>,
    shared: Arc<Shared>,
}

impl Recorder {
    /// A recorder and the recording it makes, of at most [`RECORDING_BYTES`].
    #[must_use]
    pub fn new() -> (Self, Recording) {
        Self::of_at_most(RECORDING_BYTES)
    }

    /// As [`Recorder::new`], with a recording of at most `bytes`.
    #[must_use]
    pub fn of_at_most(bytes: usize) -> (Self, Recording) {
        let (entries, received) = channel();
        let shared = Arc::new(Shared::default());
        let recording = Recording { entries: received, shared: shared.clone() };
        let sink = Sink::Open { entries, writer: None };
        (Self { sink, shared, most_bytes: bytes, room_within: Duration::ZERO }, recording)
    }

    /// A recorder that writes a file into `folder`, named after the node: `server-0.recording` for
    /// server 0. Makes the folder if it does not exist, and fails if it cannot.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Result<Self, NodeError> {
        let folder = folder.into();
        FileModes::from_environment()
            .create_folder(&folder)
            .map_err(|error| NodeError::not_recorded(&folder, &error))?;
        Ok(Self {
            sink: Sink::Folder(folder),
            shared: Arc::new(Shared::default()),
            most_bytes: UNWRITTEN_BYTES,
            room_within: ROOM_WITHIN,
        })
    }

    fn put(&self, entry: RecordEntry) {
        let Shared { held, cut } = &*self.shared;
        let Sink::Open { entries, .. } = &self.sink else { return };
        if cut.load(Ordering::Relaxed) {
            return;
        }
        let cost = entry.cost();
        if !self.has_room_for(cost) {
            tracing::error!(
                bytes = self.most_bytes,
                "the recording is full, or its disk is too slow; recording stops here, and the node runs on"
            );
            return cut.store(true, Ordering::Relaxed);
        }
        held.fetch_add(cost, Ordering::Relaxed);
        // If the recording was dropped, the node runs on unrecorded.
        entries.send(entry).ok();
    }

    /// Whether an entry of `cost` bytes fits, at once or within the time to wait. An entry that is
    /// too large by itself is let into a file's queue when the queue is empty.
    fn has_room_for(&self, cost: usize) -> bool {
        let fits = || {
            let held = self.shared.held.load(Ordering::Relaxed);
            held + cost <= self.most_bytes || (held == 0 && self.room_within > Duration::ZERO)
        };
        let begin = Instant::now();
        while !fits() {
            if begin.elapsed() >= self.room_within || self.shared.cut.load(Ordering::Relaxed) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Begins the recording. Fails if its file cannot be made, or exists already.
    pub(crate) fn begin(&mut self, subject: Subject) -> Result<(), NodeError> {
        if let Sink::Folder(folder) = &self.sink {
            let path = folder.join(subject.file_name());
            let (entries, received) = channel();
            let recording = Recording { entries: received, shared: self.shared.clone() };
            let writer = file::start(&path, recording).map_err(|error| NodeError::not_recorded(&path, &error))?;
            self.sink = Sink::Open { entries, writer: Some(writer) };
        }
        self.put(RecordEntry::Begin(subject));
        Ok(())
    }

    pub(crate) fn input(&self, input: impl Into<MachineInput>) {
        self.put(RecordEntry::Input(input.into()));
    }

    pub(crate) fn output(&self, frame: &Frame) {
        self.put(RecordEntry::Output(bytes_of(frame)));
    }
}

impl Drop for Recorder {
    /// Waits until all recorded entries are in the file.
    fn drop(&mut self) {
        let Sink::Open { entries, writer } = std::mem::replace(&mut self.sink, Sink::Closed) else { return };
        drop(entries);
        writer.map(JoinHandle::join);
    }
}

fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.put(&mut bytes);
    bytes
}
