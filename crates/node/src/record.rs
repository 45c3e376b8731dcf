//! A recording of everything a machine was told and said, and the proof that telling it again gives
//! the same bytes.

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
use wire::{Field, Frame};

/// A recording that nobody has taken further holds at most this much.
pub const RECORDING_BYTES: usize = 1 << 30;
/// What waits to be written to a file is at most this much.
const UNWRITTEN_BYTES: usize = 256 << 20;
/// A recorded node waits this long for its disk to make room. It must not be taken for lost
/// meanwhile.
const ROOM_WITHIN: Duration = Duration::from_secs(1);

/// What the two ends know of each other.
#[derive(Default)]
struct Shared {
    /// Bytes put down and not taken yet.
    held: AtomicUsize,
    /// There was no room for something; nothing after it was put down either.
    cut: AtomicBool,
}

/// Takes down what a machine is told and says. Give it to [`crate::run_server`],
/// [`crate::run_coordinator`] or [`crate::Driver::start`].
///
/// In memory it never holds up what it records. To a file it waits a second at most for the disk.
/// When there is no room it says so in the log and stops, and the replay says that it covers the
/// beginning only.
pub struct Recorder {
    sink: Sink,
    shared: Arc<Shared>,
    most_bytes: usize,
    room_within: Duration,
}

enum Sink {
    /// A folder where the file is made when the machine has a name.
    Folder(PathBuf),
    /// Somebody takes the entries: a recording in memory, or the thread that writes a file.
    Open { entries: Sender<RecordEntry>, writer: Option<JoinHandle<()>> },
    /// It has ended.
    Closed,
}

/// Where a recording in memory arrives.
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

    /// As [`Recorder::new`], of at most so many bytes.
    #[must_use]
    pub fn of_at_most(bytes: usize) -> (Self, Recording) {
        let (entries, received) = channel();
        let shared = Arc::new(Shared::default());
        let recording = Recording { entries: received, shared: shared.clone() };
        let sink = Sink::Open { entries, writer: None };
        (Self { sink, shared, most_bytes: bytes, room_within: Duration::ZERO }, recording)
    }

    /// A recorder that writes a file of its own into `folder`, which is made if it is not there:
    /// `server-0.recording` for server 0. Fails if the folder cannot be made.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Result<Self, NodeError> {
        let folder = folder.into();
        std::fs::create_dir_all(&folder).map_err(|error| NodeError::not_recorded(&folder, &error))?;
        let (sink, shared) = (Sink::Folder(folder), Arc::new(Shared::default()));
        Ok(Self { sink, shared, most_bytes: UNWRITTEN_BYTES, room_within: ROOM_WITHIN })
    }

    fn put(&self, entry: RecordEntry) {
        let Shared { held, cut } = &*self.shared;
        let Sink::Open { entries, .. } = &self.sink else { return };
        if cut.load(Ordering::Relaxed) {
            return;
        }
        let cost = entry.cost();
        if !self.has_room_for(cost) {
            tracing::error!(bytes = self.most_bytes, "the recording is full; what comes now is not recorded");
            return cut.store(true, Ordering::Relaxed);
        }
        held.fetch_add(cost, Ordering::Relaxed);
        // Nobody keeping the recording is no reason to stop serving.
        entries.send(entry).ok();
    }

    /// Whether so much more fits, or does so in time. What is too much by itself fits where nothing
    /// else waits.
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

    /// Begins. Fails if its file cannot be made, or is there already.
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
    /// Everything that was put down is in the file when the recorder is gone.
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
