//! The file format of recordings. A file begins with a header:
//!
//! | bytes | field |
//! | --- | --- |
//! | 0–7 | magic `SLKWREC` and a zero |
//! | 8–9, 10–11 | version of this format, version of the wire protocol |
//!
//! Then follow the entries:
//!
//! | bytes | field |
//! | --- | --- |
//! | 8 | length of the body |
//! | 1 | kind: 0 the recorded machine, 1 an input, 2 a frame that it sent, 3 the end |
//! | … | the body |
//! | 8 | checksum of kind and body |
//!
//! Integers are little-endian. A file without an end entry is the beginning of a recording: the
//! node was killed, or the recording was full. A file with a wrong checksum is refused.

use super::{MachineInput, RecordEntry, Recording, Subject};
use crate::NodeError;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::TryRecvError;
use std::thread::JoinHandle;
use store::FileModes;
use wire::{Field, Reader, WireError};
use worker::KeyListDictionary;
use xxhash_rust::xxh3::Xxh3;

const MAGIC: [u8; 8] = *b"SLKWREC\0";
/// The version of this format. Files of another version are refused.
const VERSION: u16 = 4;
/// Bytes of a file, at most. Recording stops there.
const FILE_BYTES: u64 = 16 << 30;
/// Bytes of an entry, at most. Programs hardly push more at once.
const ENTRY_BYTES: u64 = 8 << 30;

const BEGIN: u8 = 0;
const INPUT: u8 = 1;
const OUTPUT: u8 = 2;
const END: u8 = 3;

/// Why a file cannot be replayed. Messages continue a sentence that begins with the file's name.
///
/// ```
/// use node::{RecordingError, replay_from};
/// use update::Updaters;
///
/// let replayed = replay_from(&b"something else"[..], &Updaters::builtin());
/// let error = replayed.expect_err("no recording");
/// assert!(matches!(error, RecordingError::NotARecording));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The system cannot read the file.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// The file does not begin with the header of a recording.
    #[error("is no recording; give files that --record has made")]
    NotARecording,
    /// Another release made the recording.
    #[error(
        "has format version {file} and protocol version {wire}, and this release reads {VERSION} and {}; \
         use the release that made it",
        wire::VERSION
    )]
    Version {
        /// The version of the recording's format.
        file: u16,
        /// The version of the wire protocol of its frames.
        wire: u16,
    },
    /// The file's bytes are not those that were written.
    #[error("is damaged: {reason}, in the entry at byte {at}")]
    Damaged {
        /// Offset of the damaged entry, in bytes.
        at: u64,
        /// What is wrong, in words.
        reason: &'static str,
    },
}

impl NodeError {
    pub(crate) fn not_recorded(path: &Path, error: &std::io::Error) -> Self {
        let is_there = error.kind() == std::io::ErrorKind::AlreadyExists;
        let reason = if is_there { "it exists already".to_owned() } else { error.to_string() };
        Self::NotRecorded { path: path.display().to_string(), reason }
    }
}

fn check(kind: u8, body: &[u8]) -> u64 {
    let mut check = Xxh3::new();
    check.update(&[kind]);
    check.update(body);
    check.digest()
}

/// Starts a thread that writes the entries of `recording` into a new file, as they arrive.
pub(super) fn start(path: &Path, recording: Recording) -> std::io::Result<JoinHandle<()>> {
    let mut options = File::options();
    let mode = FileModes::from_environment().file();
    let file = options.read(true).write(true).create_new(true).mode(mode).open(path)?;
    let path = path.display().to_string();
    std::thread::Builder::new().name("recording".to_owned()).spawn(move || {
        let cut = &recording.shared.cut;
        if let Err(error) = write(&recording, BufWriter::with_capacity(1 << 20, file)) {
            cut.store(true, Ordering::Relaxed);
            tracing::error!(path, %error, "cannot write the recording; recording stops here, and the node runs on");
        }
    })
}

struct Writer<W> {
    to: W,
    written: u64,
}

impl<W: Write> Writer<W> {
    fn put(&mut self, kind: u8, body: &[u8]) -> std::io::Result<()> {
        self.written += 17 + body.len() as u64;
        if self.written > FILE_BYTES || body.len() as u64 > ENTRY_BYTES {
            return Err(std::io::Error::other(format!("it has grown to {FILE_BYTES} bytes")));
        }
        self.to.write_all(&(body.len() as u64).to_le_bytes())?;
        self.to.write_all(&[kind])?;
        self.to.write_all(body)?;
        self.to.write_all(&check(kind, body).to_le_bytes())
    }
}

fn write(recording: &Recording, mut to: impl Write) -> std::io::Result<()> {
    to.write_all(&MAGIC)?;
    to.write_all(&VERSION.to_le_bytes())?;
    to.write_all(&wire::VERSION.to_le_bytes())?;
    let mut writer = Writer { to, written: 12 };
    let mut lists = KeyListDictionary::default();
    let mut body = Vec::new();
    loop {
        let entry = match recording.entries.try_recv() {
            Ok(entry) => entry,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                // Flush while there is nothing else to do, for the case that the process is killed.
                writer.to.flush()?;
                match recording.entries.recv() {
                    Ok(entry) => entry,
                    Err(_) => break,
                }
            }
        };
        body.clear();
        match &entry {
            RecordEntry::Begin(subject) => {
                subject.put(&mut body);
                writer.put(BEGIN, &body)?;
            }
            RecordEntry::Input(input) => {
                input.put(&mut lists, &mut body);
                writer.put(INPUT, &body)?;
            }
            RecordEntry::Output(bytes) => writer.put(OUTPUT, bytes)?,
        }
        recording.shared.held.fetch_sub(entry.cost(), Ordering::Relaxed);
    }
    if !recording.shared.cut.load(Ordering::Relaxed) {
        writer.put(END, &[])?;
    }
    writer.to.flush()
}

/// Reads the entries of a file, one after the other.
pub(super) struct Entries<R> {
    from: BufReader<R>,
    at: u64,
    subject: Option<Subject>,
    lists: KeyListDictionary,
    body: Vec<u8>,
    /// Whether the end entry has been read.
    pub ended: bool,
}

impl<R: Read> Entries<R> {
    pub fn open(from: R) -> Result<Self, RecordingError> {
        let mut from = BufReader::with_capacity(1 << 20, from);
        let mut front = [0; 12];
        let read = fill(&mut from, &mut front)?;
        if read < front.len() || front[..8] != MAGIC {
            return Err(RecordingError::NotARecording);
        }
        let file = u16::from_le_bytes([front[8], front[9]]);
        let wire = u16::from_le_bytes([front[10], front[11]]);
        if (file, wire) != (VERSION, wire::VERSION) {
            return Err(RecordingError::Version { file, wire });
        }
        Ok(Self {
            from,
            at: front.len() as u64,
            subject: None,
            lists: KeyListDictionary::default(),
            body: Vec::new(),
            ended: false,
        })
    }

    fn damaged(&self, reason: &'static str) -> RecordingError {
        RecordingError::Damaged { at: self.at, reason }
    }

    /// The next entry. None after the last one, or if the file ends within an entry.
    pub fn next(&mut self) -> Result<Option<RecordEntry>, RecordingError> {
        let mut front = [0; 9];
        match fill(&mut self.from, &mut front)? {
            9 => {}
            0 if self.ended => return Ok(None),
            _ if self.ended => return Err(self.damaged("bytes follow the end")),
            _ => return Ok(None),
        }
        if self.ended {
            return Err(self.damaged("bytes follow the end"));
        }
        let [length @ .., kind] = front;
        let length = u64::from_le_bytes(length);
        if length > ENTRY_BYTES {
            return Err(self.damaged("its length is beyond the limit"));
        }
        // Memory grows with the bytes that are read, so a wrong length costs nothing.
        self.body.clear();
        let read = (&mut self.from).take(length).read_to_end(&mut self.body)? as u64;
        let mut sum = [0; 8];
        if read < length || fill(&mut self.from, &mut sum)? < sum.len() {
            return Ok(None);
        }
        if check(kind, &self.body) != u64::from_le_bytes(sum) {
            return Err(self.damaged("its checksum does not match"));
        }
        let entry = self.parse(kind)?;
        self.at += 17 + length;
        if entry.is_none() {
            self.ended = true;
            return self.next();
        }
        Ok(entry)
    }

    fn parse(&mut self, kind: u8) -> Result<Option<RecordEntry>, RecordingError> {
        let body = std::mem::take(&mut self.body);
        let mut input = Reader(&body);
        let entry = match (kind, &self.subject) {
            (BEGIN, None) => Subject::get(&mut input).map(|subject| {
                self.subject = Some(subject.clone());
                Some(RecordEntry::Begin(subject))
            }),
            (INPUT, Some(subject)) => {
                MachineInput::get(subject, &mut input, &mut self.lists).map(|input| Some(RecordEntry::Input(input)))
            }
            (OUTPUT, Some(_)) => return Ok(Some(RecordEntry::Output(body))),
            (END, Some(_)) => Ok(None),
            _ => Err(WireError::Malformed("an entry of an unknown kind, or out of place")),
        };
        match entry {
            Ok(entry) if input.0.is_empty() => {
                self.body = body;
                Ok(entry)
            }
            Ok(_) => Err(self.damaged("bytes are left over")),
            Err(WireError::Malformed(reason)) => Err(self.damaged(reason)),
            Err(_) => Err(self.damaged("its frame cannot be read")),
        }
    }
}

/// Reads until `bytes` is full or the input ends. Returns the number of bytes read.
fn fill(from: &mut impl Read, bytes: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match from.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
