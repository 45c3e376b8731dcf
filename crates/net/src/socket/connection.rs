//! One connection and where it stands.

use super::inbox::Inbox;
use super::send_queue::SendQueue;
use super::stream::ByteStream;
use crate::Traffic;
use types::NodeId;

/// Who made a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// This node called.
    Called,
    /// The peer did.
    Accepted,
}

pub(super) struct Connection {
    pub stream: ByteStream,
    /// Grows with every connection.
    pub serial: u64,
    pub origin: Origin,
    pub peer: Option<NodeId>,
    /// Whether the peer has ever spoken on it.
    pub heard: bool,
    pub inbox: Inbox,
    pub send_queue: SendQueue,
    pub queued_to_read: bool,
    pub queued_to_flush: bool,
    /// Its requests wait until it has read what it was sent.
    pub paused: bool,
}

impl Connection {
    /// One over which nothing has been said yet.
    pub fn new(stream: ByteStream, serial: u64, origin: Origin) -> Self {
        Self {
            stream,
            serial,
            origin,
            peer: None,
            heard: false,
            inbox: Inbox::new(),
            send_queue: SendQueue::default(),
            queued_to_read: false,
            queued_to_flush: false,
            paused: false,
        }
    }

    /// Adds what it has moved.
    pub fn count(&self, traffic: &mut Traffic) {
        let (bytes_in, bytes_out) = (self.inbox.bytes, self.send_queue.written);
        traffic.bytes_in += bytes_in;
        traffic.bytes_out += bytes_out;
        if matches!(self.stream, ByteStream::Shared(_)) {
            traffic.bytes_shared += bytes_in + bytes_out;
        }
    }
}
