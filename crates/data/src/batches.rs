//! Read-ahead: a thread fills minibatches, and prepares a value from each, while the program
//! learns. At most [`AHEAD`] wait, and the program hands their memory back to be filled again.

use crate::source::Counters;
use crate::{BatchSource, DataError, Minibatch, ReadProgress};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

/// At most so many minibatches wait for the program.
pub const AHEAD: usize = 4;

/// The minibatches of a reader, each with the value that was prepared from it. Dropping this ends
/// the reader's thread.
pub struct Batches<P = ()> {
    /// None after the last minibatch or an error, and while this is dropped.
    full: Option<Receiver<Result<Filled<P>, DataError>>>,
    empty: Sender<Filled<P>>,
    thread: Option<JoinHandle<()>>,
    progress: Arc<Counters>,
}

/// A minibatch and the value that was prepared from it.
type Filled<P> = (Minibatch, P);

/// A minibatch that is lent to the program: when it is dropped, it goes back to the reader to be
/// filled again.
#[derive(Debug)]
pub struct Loan<P: Default = ()> {
    filled: Filled<P>,
    home: Sender<Filled<P>>,
}

impl<P: Default + Send + 'static> Batches<P> {
    pub(crate) fn start(
        source: BatchSource,
        prepare: impl FnMut(&Minibatch, &mut P) + Send + 'static,
    ) -> Result<Self, DataError> {
        let (full_sender, full) = sync_channel(AHEAD);
        let (empty, empty_receiver) = channel();
        let progress = source.counters();
        let thread = std::thread::Builder::new()
            .name("data".to_owned())
            .spawn(move || fill(source, prepare, &full_sender, &empty_receiver))
            .map_err(|error| DataError::Stopped { problem: error.to_string() })?;
        Ok(Self { full: Some(full), empty, thread: Some(thread), progress })
    }

    /// How far the thread has read. It is ahead of the minibatches that the program has received.
    #[must_use]
    pub fn progress(&self) -> ReadProgress {
        self.progress.read()
    }
}

fn fill<P: Default>(
    mut source: BatchSource,
    mut prepare: impl FnMut(&Minibatch, &mut P),
    full: &SyncSender<Result<Filled<P>, DataError>>,
    empty: &Receiver<Filled<P>>,
) {
    loop {
        let (mut batch, mut prepared) = empty.try_recv().unwrap_or_default();
        let result = match source.fill(&mut batch) {
            Ok(true) => {
                prepare(&batch, &mut prepared);
                Ok((batch, prepared))
            }
            Ok(false) => return,
            Err(error) => Err(error),
        };
        // The program has dropped its end.
        if full.send(result).is_err() {
            return;
        }
    }
}

/// The minibatches in order. After an error there are no more.
impl<P: Default> Iterator for Batches<P> {
    type Item = Result<Loan<P>, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.full.as_ref()?.recv() {
            Ok(Ok(filled)) => Some(Ok(Loan { filled, home: self.empty.clone() })),
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

impl<P> Drop for Batches<P> {
    fn drop(&mut self) {
        self.full = None;
        if let Some(thread) = self.thread.take() {
            // The thread notices at its next minibatch. If it panicked, its message was printed
            // then.
            thread.join().ok();
        }
    }
}

impl<P: Default> Loan<P> {
    /// The value that was prepared from it.
    #[must_use]
    pub fn prepared(&self) -> &P {
        &self.filled.1
    }
}

impl<P: Default> Deref for Loan<P> {
    type Target = Minibatch;

    fn deref(&self) -> &Minibatch {
        &self.filled.0
    }
}

impl<P: Default> Drop for Loan<P> {
    fn drop(&mut self) {
        // If the thread has ended, the memory is freed here.
        self.home.send(std::mem::take(&mut self.filled)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;
    use crate::{DataReader, Format, Labels, ReaderSettings};

    #[test]
    fn a_dropped_loan_returns_its_memory_to_be_filled_again() {
        let folder = Folder::new("batches");
        let path = folder.path("rows");
        std::fs::write(&path, "1 3:1\n0 4:1\n").unwrap();
        let settings = ReaderSettings::new(Format::LibSvm, Labels::Binary);
        let source = DataReader::open(&[path.to_str().unwrap()], settings).unwrap().source();

        let mut batch = Minibatch::new();
        (0..100_000).for_each(|key| batch.push(key, 1.0));
        batch.end_row(0.0);
        let memory = batch.keys().as_ptr();
        let (home, empty) = channel();
        drop(Loan { filled: (batch, vec![7]), home });
        let (full, filled) = sync_channel(AHEAD);
        fill(source, |batch: &Minibatch, sizes: &mut Vec<usize>| sizes.push(batch.rows()), &full, &empty);
        let (batch, sizes) = filled.recv().unwrap().unwrap();
        assert_eq!((batch.keys(), &sizes[..]), (&[3, 4][..], &[7, 2][..]));
        assert_eq!(batch.keys().as_ptr(), memory);
    }
}
