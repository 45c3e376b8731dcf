//! Where the output of a process goes: to a file, into memory, line by line to a function, or
//! nowhere. A thread reads each pipe, so the process never stalls because a pipe is full.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The function that is called with each line that a process writes, without its line feed.
pub type LineHandler = Box<dyn FnMut(&[u8]) + Send>;

/// Where the standard output or the standard error of a process goes.
pub enum OutputTarget {
    /// To the same place as the output of this process.
    Inherit,
    /// Nowhere.
    Discard,
    /// Into memory, readable at any time: see [`Process::stdout`](crate::Process::stdout).
    Capture,
    /// Into a file.
    File(File),
    /// To a function, which a separate thread calls with each line.
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
    /// The process's end of the output, and where a reader puts what it reads from the pipe.
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

/// Where the thread that reads a pipe puts what it reads.
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
    /// Starts a thread that reads `pipe` to its end.
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

    /// Waits until the pipe has been read to its end: until no process holds its other end.
    pub(crate) fn finish(&mut self) {
        if let Some(thread) = self.thread.take() {
            // The thread panics only if the line handler does. Then the rest of the output is lost.
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
    fn line_handler_gets_whole_lines_even_without_a_last_line_feed() {
        for (written, expected) in [("", &[][..]), ("a\nb\n", &["a", "b"]), ("a\n\nno end", &["a", "", "no end"])] {
            let mut lines = Vec::new();
            each_line(written.as_bytes(), &mut |line| lines.push(String::from_utf8(line.to_vec()).unwrap()));
            assert_eq!(lines, expected);
        }
    }
}
