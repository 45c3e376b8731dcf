//! Minibatches from a thread of its own: it reads ahead by a bounded number, into memory that is handed back.

use crate::source::Counters;
use crate::{DataError, Minibatch, Progress, Source};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

/// How many minibatches wait for the program at most.
pub const AHEAD: usize = 4;

/// The minibatches of a reader. Dropping this ends its thread.
pub struct Batches {
    /// None once everything has been received, or on the way to being dropped.
    full: Option<Receiver<Result<Minibatch, DataError>>>,
    empty: Sender<Minibatch>,
    thread: Option<JoinHandle<()>>,
    progress: Arc<Counters>,
}

/// A minibatch that goes back to be filled again when it is dropped.
#[derive(Debug)]
pub struct Loan {
    batch: Minibatch,
    home: Sender<Minibatch>,
}

impl Batches {
    pub(crate) fn start(source: Source) -> Result<Self, DataError> {
        let (full_sender, full) = sync_channel(AHEAD);
        let (empty, empty_receiver) = channel();
        let progress = source.counters();
        let thread = std::thread::Builder::new()
            .name("data".to_owned())
            .spawn(move || fill(source, &full_sender, &empty_receiver))
            .map_err(|error| DataError::Stopped { problem: error.to_string() })?;
        Ok(Self { full: Some(full), empty, thread: Some(thread), progress })
    }

    /// How far the thread has come; it is ahead of what was received.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress.read()
    }
}

fn fill(mut source: Source, full: &SyncSender<Result<Minibatch, DataError>>, empty: &Receiver<Minibatch>) {
    loop {
        let mut batch = empty.try_recv().unwrap_or_default();
        let result = match source.fill(&mut batch) {
            Ok(true) => Ok(batch),
            Ok(false) => return,
            Err(error) => Err(error),
        };
        // Nobody to receive: the program has dropped its end.
        if full.send(result).is_err() {
            return;
        }
    }
}

/// The minibatches in order. After an error there are no more.
impl Iterator for Batches {
    type Item = Result<Loan, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.full.as_ref()?.recv() {
            Ok(Ok(batch)) => Some(Ok(Loan { batch, home: self.empty.clone() })),
            Ok(Err(error)) => {
                self.full = None;
                Some(Err(error))
            }
            Err(_) => {
                self.full = None;
                let panicked = self.thread.take()?.join().err()?;
                let words = panicked.downcast_ref::<String>().map(String::as_str);
                let words = words.or_else(|| panicked.downcast_ref::<&str>().copied());
                Some(Err(DataError::Stopped { problem: words.unwrap_or("it panicked").to_owned() }))
            }
        }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.full = None;
        if let Some(thread) = self.thread.take() {
            // It notices at its next minibatch. If it panicked, it has said so.
            thread.join().ok();
        }
    }
}

impl Deref for Loan {
    type Target = Minibatch;

    fn deref(&self) -> &Minibatch {
        &self.batch
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // The thread may have ended: then the memory is freed here.
        self.home.send(std::mem::take(&mut self.batch)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;
    use crate::{Format, Labels, Reader, Settings};

    #[test]
    fn a_minibatch_that_was_lent_goes_home_and_its_memory_is_filled_again() {
        let folder = Folder::new("batches");
        let path = folder.path("rows");
        std::fs::write(&path, "1 3:1\n0 4:1\n").unwrap();
        let settings = Settings::new(Format::LibSvm, Labels::Binary);
        let source = Reader::open(&[path.to_str().unwrap()], settings).unwrap().source();

        let mut batch = Minibatch::new();
        (0..100_000).for_each(|key| batch.push(key, 1.0));
        batch.end_row(0.0);
        let memory = batch.keys().as_ptr();
        let (home, empty) = channel();
        drop(Loan { batch, home });
        let (full, filled) = sync_channel(AHEAD);
        fill(source, &full, &empty);
        let batch = filled.recv().unwrap().unwrap();
        assert_eq!(batch.keys(), [3, 4]);
        assert_eq!(batch.keys().as_ptr(), memory);
    }
}
