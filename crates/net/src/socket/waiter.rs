//! Blocking until a socket or a ring has something.

use crate::shared::WatchedRings;
use crate::{Waiter, Waker, lock};
use mio::{Events, Poll, Token};
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// When rings are never empty, the system is still asked about everything else this often.
const ASK_EVERY: u32 = 32;

#[derive(Clone, Copy)]
pub(super) struct Ready {
    pub token: Token,
    pub source: Noticed,
    pub writable: bool,
    pub peer_ended: bool,
}

/// How it was noticed that something can be done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Noticed {
    /// The system said so of a socket.
    Socket,
    /// Shared memory was looked into.
    Memory,
}

/// Blocks on all connections of one node.
pub struct SocketWaiter {
    poll: Poll,
    events: Events,
    ready: Arc<Mutex<Vec<Ready>>>,
    waker: Arc<mio::Waker>,
    lines: WatchedRings,
    /// Counts waits.
    waits: u32,
}

impl SocketWaiter {
    /// Waits for what `poll` and `lines` tell of, and puts it into `ready`.
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
                tracing::error!(%error, "cannot wait for the network");
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
