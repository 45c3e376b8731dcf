//! The connections that are served at a time: a bounded number of threads, and which of their
//! connections gives way to a new one.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The connections of one server.
pub(super) struct Connections {
    most: usize,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Default)]
struct State {
    /// Connections whose threads run.
    count: usize,
    next: u64,
    /// Connections that may be closed for another, oldest first.
    waiting: VecDeque<(u64, TcpStream)>,
}

/// The place of one connection. It is free again when this is dropped.
pub(super) struct Place {
    number: u64,
    shared: Arc<Shared>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connections {
    /// At most `most` at a time.
    pub fn new(most: usize) -> Self {
        Self { most, shared: Arc::default() }
    }

    /// Gives a connection a place. If there is none, closes the oldest connection that was not
    /// admitted yet, and waits until a thread has ended.
    pub fn enter(&self, stream: &TcpStream) -> io::Result<Place> {
        let stream = stream.try_clone()?;
        let mut state = self.shared.lock();
        while state.count >= self.most {
            if let Some((_, oldest)) = state.waiting.pop_front() {
                oldest.shutdown(Shutdown::Both).ok();
            }
            state = self.shared.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let number = state.next;
        state.next += 1;
        state.count += 1;
        state.waiting.push_back((number, stream));
        Ok(Place { number, shared: self.shared.clone() })
    }
}

impl Place {
    /// From now on the connection is not closed for another.
    pub fn admit(&self) {
        self.shared.lock().waiting.retain(|(number, _)| *number != self.number);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admit();
        self.shared.lock().count -= 1;
        self.shared.left.notify_all();
    }
}
