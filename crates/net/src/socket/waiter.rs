//! Blocks a thread until a socket has an event or a shared-memory ring is ready.

use crate::shared::WatchedRings;
use crate::{Waiter, Waker, lock};
use mio::{Events, Poll, Token};
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Waits from one poll of the sockets to the next, while rings are ready all the time.
const ASK_EVERY: u32 = 32;

/// A connection, or another source of events, that is ready.
#[derive(Clone, Copy)]
pub(super) struct Ready {
    pub token: Token,
    pub source: Noticed,
    pub writable: bool,
    pub peer_ended: bool,
}

/// What made a connection ready.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Noticed {
    /// The system reported an event of its socket.
    Socket,
    /// The waiter found its ring ready.
    Memory,
}

/// Blocks on all connections of one node.
pub struct SocketWaiter {
    poll: Poll,
    events: Events,
    ready: Arc<Mutex<Vec<Ready>>>,
    waker: Arc<mio::Waker>,
    lines: WatchedRings,
    /// Number of waits so far.
    waits: u32,
}

impl SocketWaiter {
    /// A waiter that waits for events of `poll` and for rings of `lines`, and adds them to `ready`.
    pub(super) fn new(poll: Poll, ready: Arc<Mutex<Vec<Ready>>>, waker: Arc<mio::Waker>, lines: WatchedRings) -> Self {
        Self { poll, events: Events::with_capacity(256), ready, waker, lines, waits: 0 }
    }
}

impl Waiter for SocketWaiter {
    fn wait(&mut self, timeout: Option<Duration>) {
        let found = &self.ready;
        let in_memory = |token| {
            lock(found).push(Ready { token, source: Noticed::Memory, writable: false, peer_ended: false });
        };
        let any = match timeout {
            Some(Duration::ZERO) => self.lines.look(in_memory),
            _ => self.lines.look_before_sleep(in_memory),
        };
        self.waits += 1;
        if any && !self.waits.is_multiple_of(ASK_EVERY) {
            return;
        }
        if let Err(error) = self.poll.poll(&mut self.events, if any { Some(Duration::ZERO) } else { timeout }) {
            if error.kind() != ErrorKind::Interrupted {
                tracing::error!(%error, "cannot poll this node's sockets for events");
            }
            return;
        }
        if self.events.is_empty() {
            return;
        }
        let mut ready = lock(&self.ready);
        ready.extend(self.events.iter().map(|event| Ready {
            token: event.token(),
            source: Noticed::Socket,
            writable: event.is_writable(),
            peer_ended: event.is_read_closed(),
        }));
    }

    fn waker(&self) -> Waker {
        let waker = self.waker.clone();
        Waker(Arc::new(move || {
            waker.wake().ok();
        }))
    }
}
