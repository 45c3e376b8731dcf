//! What becomes of the output of a process: a thread reads each pipe, so that the process never
//! stalls on a full one.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// What is called with each line that a process writes, without its line feed.
pub type LineHandler = Box<dyn FnMut(&[u8]) + Send>;

/// Where the standard output or the standard error of a process goes.
pub enum OutputTarget {
    /// Where that of this process goes.
    Inherit,
    /// Nowhere.
    Discard,
    /// Into memory, readable at any time: see [`Process::stdout`](crate::Process::stdout).
    Capture,
    /// Into a file.
    File(File),
    /// To a function that is called with each line, without its line feed, on a thread of its own.
    Lines(LineHandler),
}

impl fmt::Debug for OutputTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inherit => "Inherit",
            Self::Discard => "Discard",
            Self::Capture => "Capture",
            Self::File(_) => "File",
            Self::Lines(_) => "Lines",
        })
    }
}

impl OutputTarget {
    /// What to give the process, and what then reads the pipe.
    pub(crate) fn split(self) -> (Stdio, Sink) {
        match self {
            Self::Inherit => (Stdio::inherit(), Sink::None),
            Self::Discard => (Stdio::null(), Sink::None),
            Self::File(file) => (file.into(), Sink::None),
            Self::Capture => (Stdio::piped(), Sink::Memory),
            Self::Lines(line) => (Stdio::piped(), Sink::Lines(line)),
        }
    }
}

/// Where a reader puts what it reads.
pub(crate) enum Sink {
    None,
    Memory,
    Lines(LineHandler),
}

/// A pipe of a process and the thread that reads it.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    captured: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Reading {
    /// Reads `pipe` to its end, on a thread.
    pub(crate) fn start(pipe: Option<impl Read + Send + 'static>, sink: Sink) -> Self {
        let captured = Arc::new(Mutex::new(Vec::new()));
        let to = captured.clone();
        let thread = match (pipe, sink) {
            (Some(pipe), Sink::Memory) => Some(std::thread::spawn(move || capture(pipe, &to))),
            (Some(pipe), Sink::Lines(mut line)) => Some(std::thread::spawn(move || each_line(pipe, &mut *line))),
            _ => None,
        };
        Self { captured, thread }
    }

    /// Everything captured so far.
    pub(crate) fn captured(&self) -> Vec<u8> {
        self.captured.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until everything was read: until nobody has the other end of the pipe any more.
    pub(crate) fn finish(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A reader panics only if its function does, and then there is nothing more to read.
            thread.join().ok();
        }
    }
}

fn capture(mut pipe: impl Read, to: &Mutex<Vec<u8>>) {
    let mut piece = [0; 4096];
    loop {
        match pipe.read(&mut piece) {
            Ok(length) if length > 0 => {
                to.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..length]);
            }
            _ => return,
        }
    }
}

fn each_line(pipe: impl Read, line: &mut dyn FnMut(&[u8])) {
    let mut pipe = BufReader::new(pipe);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match pipe.read_until(b'\n', &mut bytes) {
            Ok(length) if length > 0 => line(bytes.strip_suffix(b"\n").unwrap_or(&bytes)),
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_given_whole_and_the_last_needs_no_line_feed() {
        for (written, expected) in [("", &[][..]), ("a\nb\n", &["a", "b"]), ("a\n\nno end", &["a", "", "no end"])] {
            let mut lines = Vec::new();
            each_line(written.as_bytes(), &mut |line| lines.push(String::from_utf8(line.to_vec()).unwrap()));
            assert_eq!(lines, expected);
        }
    }
}
