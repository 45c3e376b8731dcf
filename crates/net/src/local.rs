//! The transport between threads of one process: moves frames from mailbox to mailbox, without
//! encoding or copying them.

use crate::{Traffic, Transport, TransportEvent, Waiter, Waker, lock};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use types::NodeId;
use wire::{Frame, HEADER_BYTES, Member};

/// The mailboxes of the nodes of one process.
#[derive(Clone, Default)]
pub struct Exchange {
    boxes: Arc<Mutex<BTreeMap<NodeId, Arc<Mailbox>>>>,
}

#[derive(Default)]
struct Mailbox {
    state: Mutex<MailboxState>,
    arrival: Condvar,
}

#[derive(Default)]
struct MailboxState {
    frames: VecDeque<Frame>,
    waiting: bool,
    woken: bool,
    closed: bool,
}

impl Exchange {
    /// An exchange without nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a mailbox for `node`, and returns its transport and its waiter.
    #[must_use]
    pub fn join(&self, node: NodeId) -> (LocalTransport, LocalWaiter) {
        let mailbox = Arc::new(Mailbox::default());
        lock(&self.boxes).insert(node, mailbox.clone());
        let transport = LocalTransport {
            exchange: self.clone(),
            node,
            mailbox: mailbox.clone(),
            routes: BTreeMap::new(),
            inbox: VecDeque::new(),
            traffic: Traffic::default(),
        };
        (transport, LocalWaiter { mailbox })
    }
}

/// One node's end of an [`Exchange`].
pub struct LocalTransport {
    exchange: Exchange,
    node: NodeId,
    mailbox: Arc<Mailbox>,
    /// Cached mailboxes of the nodes that this node has sent to.
    routes: BTreeMap<NodeId, Arc<Mailbox>>,
    /// Frames taken from the mailbox, all at a time.
    inbox: VecDeque<Frame>,
    traffic: Traffic,
}

/// Bytes that the frame would take on a wire. Payloads count exactly, the rest is an estimate.
fn wire_bytes(frame: &Frame) -> u64 {
    let [positions, values] = frame.message.payloads();
    (HEADER_BYTES + 40 + positions.len() + values.len()) as u64
}

impl Transport for LocalTransport {
    fn send(&mut self, frame: Frame) {
        let to = frame.head.to;
        let known = self.routes.get(&to).filter(|mailbox| !lock(&mailbox.state).closed).cloned();
        let Some(mailbox) = known.or_else(|| lock(&self.exchange.boxes).get(&to).cloned()) else { return };
        self.traffic.bytes_out += wire_bytes(&frame);
        self.traffic.frames_out += 1;
        let mut state = lock(&mailbox.state);
        if state.closed {
            return;
        }
        state.frames.push_back(frame);
        let wake = std::mem::take(&mut state.waiting);
        drop(state);
        if wake {
            mailbox.arrival.notify_all();
        }
        self.routes.insert(to, mailbox);
    }

    fn flush(&mut self) {}

    fn next(&mut self) -> Option<TransportEvent> {
        if self.inbox.is_empty() {
            std::mem::swap(&mut self.inbox, &mut lock(&self.mailbox.state).frames);
        }
        let frame = self.inbox.pop_front()?;
        self.traffic.bytes_in += wire_bytes(&frame);
        self.traffic.frames_in += 1;
        Some(TransportEvent::Frame(frame))
    }

    fn know(&mut self, _: &[Member]) {}

    fn rename(&mut self, node: NodeId) {
        let mut boxes = lock(&self.exchange.boxes);
        boxes.insert(node, self.mailbox.clone());
        self.node = node;
    }

    fn backlog(&self) -> usize {
        0
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }
}

impl Drop for LocalTransport {
    fn drop(&mut self) {
        let mut state = lock(&self.mailbox.state);
        state.closed = true;
        // Other nodes may keep the mailbox alive. Dropping its frames returns the payload memory
        // that their senders have lent.
        let unread = std::mem::take(&mut state.frames);
        drop(state);
        drop(unread);
        lock(&self.exchange.boxes).retain(|_, mailbox| !Arc::ptr_eq(mailbox, &self.mailbox));
    }
}

/// Blocks on one node's mailbox.
pub struct LocalWaiter {
    mailbox: Arc<Mailbox>,
}

impl Waiter for LocalWaiter {
    fn wait(&mut self, timeout: Option<Duration>) {
        let mut state = lock(&self.mailbox.state);
        if state.frames.is_empty() && !state.woken && timeout != Some(Duration::ZERO) {
            state.waiting = true;
            let idle = |state: &mut MailboxState| state.frames.is_empty() && !state.woken;
            let arrival = &self.mailbox.arrival;
            state = match timeout {
                Some(timeout) => {
                    let waited = arrival.wait_timeout_while(state, timeout, idle);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => arrival.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner),
            };
        }
        state.waiting = false;
        state.woken = false;
    }

    fn waker(&self) -> Waker {
        let mailbox = self.mailbox.clone();
        Waker(Arc::new(move || {
            lock(&mailbox.state).woken = true;
            mailbox.arrival.notify_all();
        }))
    }
}
