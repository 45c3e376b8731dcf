//! Transports: they move frames from one node to another, between threads of one process, through
//! shared memory on one host, or over TCP.
//!
//! A node has a [`Transport`], which sends and receives without ever blocking, and a [`Waiter`],
//! which blocks until the transport may have an event. They are two objects so that several threads
//! of a worker can send while one of them waits. All transports pass one conformance suite.

mod free;
mod local;
mod lock;
mod refusal;
mod shared;
mod socket;

#[cfg(fuzzing)]
#[doc(hidden)]
pub use socket::{ChunkedSocket, CloseReason, Inbox, Promises};

/// One end of a shared-memory connection, for tests that put a proxy between two nodes.
#[doc(hidden)]
pub use shared::{SharedStream, call as call_shared, open as open_shared};

pub use free::free_address;
pub use local::{Exchange, LocalTransport, LocalWaiter};
pub use lock::lock;
pub use socket::{Limits, SameHost, Security, SocketSettings, SocketTransport, SocketWaiter, listen};

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use types::{Binding, NodeId, Refusals};
use wire::{Frame, Member};

/// An event that a transport reports.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every event is a frame, and it is moved on at once")]
pub enum TransportEvent {
    /// A frame arrived.
    Frame(Frame),
    /// The connection to a node has closed; frames in flight may be lost.
    Disconnected(NodeId),
}

/// Sends and receives a node's frames. No method blocks.
pub trait Transport: Send {
    /// Queues a frame for `frame.head.to`. If the transport knows no way to that node, it drops the
    /// frame, as a connection that breaks would: machines resend what matters.
    fn send(&mut self, frame: Frame);
    /// Writes queued frames, as many as go out without blocking.
    fn flush(&mut self);
    /// The next event, if there is one.
    fn next(&mut self) -> Option<TransportEvent>;
    /// Time has passed: closes connections whose peers take too long. Call it a few times a second,
    /// after reading what has arrived.
    fn tick(&mut self, now: Instant) {
        let _ = now;
    }
    /// Prepares to read every connection without asking the system which have data. Returns false,
    /// and does nothing, if there are so many connections that asking is cheaper.
    fn glance(&mut self) -> bool {
        false
    }
    /// Learns the addresses at which nodes listen.
    fn know(&mut self, members: &[Member]);
    /// Closes the connection to `node` and calls it at another of its known addresses from now on:
    /// at `address` if that is one of them, otherwise at the next one. Does nothing if it has no
    /// other address.
    fn call_elsewhere(&mut self, node: NodeId, address: &str) {
        let _ = (node, address);
    }
    /// The addresses at which `node` listens, as far as they are known.
    fn addresses(&self, node: NodeId) -> Vec<SocketAddr> {
        let _ = node;
        Vec::new()
    }
    /// Why this node can never talk to the coordinator, in words: the process at its address speaks
    /// another protocol, or another version of this one.
    fn incompatible(&self) -> Option<String> {
        None
    }
    /// Who is at the other end of the connection that this node's frames last came on; `None` in an
    /// insecure run.
    fn binding_of(&self, node: NodeId) -> Option<Binding> {
        let _ = node;
        None
    }
    /// Changes this node's own name.
    fn rename(&mut self, node: NodeId);
    /// Bytes that are queued and not yet written.
    fn backlog(&self) -> usize;
    /// Bytes and frames moved so far.
    fn traffic(&self) -> Traffic;
}

/// Blocks until the transport may have an event.
pub trait Waiter: Send {
    /// Returns when the transport may have an event, when a [`Waker`] is used, or after `timeout`.
    fn wait(&mut self, timeout: Option<Duration>);
    /// A handle that ends a wait early.
    fn waker(&self) -> Waker;
}

/// Ends a wait early, from any thread.
#[derive(Clone)]
pub struct Waker(std::sync::Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// Ends the wait under way, or the next one.
    pub fn wake(&self) {
        (self.0)();
    }
}

/// Counts of what a transport has moved.
///
/// ```
/// use net::Traffic;
///
/// let traffic = Traffic { bytes_out: 300, bytes_in: 100, bytes_shared: 400, ..Traffic::default() };
/// assert_eq!(traffic.bytes_shared, traffic.bytes_out + traffic.bytes_in);    // all of it within one host
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent, headers included.
    pub bytes_out: u64,
    /// Bytes received, headers included.
    pub bytes_in: u64,
    /// Of the bytes sent and received, those that went through shared memory.
    pub bytes_shared: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Frames handed to the machine whose sender has shown no certificate: all of them in an
    /// insecure run, none in a secured one.
    pub unauthenticated: u64,
    /// Connections that were refused, or closed for what the peer did, by reason.
    pub refused: Refusals,
}
