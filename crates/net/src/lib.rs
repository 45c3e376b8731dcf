//! Transports: how frames get from one node to another: in one process, through shared memory on
//! one host, or over TCP.
//!
//! A node has a [`Transport`], which sends and receives without ever blocking, and a [`Waiter`],
//! which blocks until the transport may have something. The two are apart so that several threads
//! of a worker can send while one of them waits. One conformance suite holds for all transports.

mod free;
mod local;
mod lock;
mod shared;
mod socket;

#[cfg(fuzzing)]
#[doc(hidden)]
pub use socket::{ChunkedSocket, CloseReason, Inbox};

/// One end of a connection through shared memory, for tests that stand between two nodes.
#[doc(hidden)]
pub use shared::{SharedStream, call as call_shared, open as open_shared};

pub use free::free_address;
pub use local::{Exchange, LocalTransport, LocalWaiter};
pub use lock::lock;
pub use socket::{SameHost, SocketSettings, SocketTransport, SocketWaiter, listen};

use std::time::Duration;
use types::NodeId;
use wire::{Frame, Member};

/// What a transport has to report.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every event is a frame, and it is moved on at once")]
pub enum TransportEvent {
    /// A frame arrived.
    Frame(Frame),
    /// The connection to a node is gone; frames under way may be lost.
    Disconnected(NodeId),
}

/// Moves frames. Nothing here blocks.
pub trait Transport: Send {
    /// Queues a frame for `frame.head.to`. If there is no way to that node, the frame is lost, as
    /// it would be on a connection that breaks: machines send again what matters.
    fn send(&mut self, frame: Frame);
    /// Hands queued frames on as far as that goes at once.
    fn flush(&mut self);
    /// The next thing that happened, if anything did.
    fn next(&mut self) -> Option<TransportEvent>;
    /// Looks for arrivals without asking the system who has any. Says no where that would be the
    /// dearer way.
    fn glance(&mut self) -> bool {
        false
    }
    /// Where nodes listen.
    fn know(&mut self, members: &[Member]);
    /// Hangs up on `node` and calls it elsewhere from now on: at `address`, if that is one of those
    /// that were said to be its own, or else at the next of them. Where it has only one, nothing
    /// changes.
    fn call_elsewhere(&mut self, node: NodeId, address: &str) {
        let _ = (node, address);
    }
    /// Why nothing will ever come of calling the coordinator, in words: what answers there speaks
    /// another language, or another version.
    fn incompatible(&self) -> Option<String> {
        None
    }
    /// From now on this node is known by another name.
    fn rename(&mut self, node: NodeId);
    /// Bytes that were queued and could not be handed on yet.
    fn backlog(&self) -> usize;
    /// Bytes and frames so far.
    fn traffic(&self) -> Traffic;
}

/// Blocks until there may be something to do.
pub trait Waiter: Send {
    /// Returns when the transport may have something, when a [`Waker`] is used, or after `timeout`.
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

/// What a transport has moved.
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
    /// Connections closed because of what came over them.
    pub refused: u64,
}
