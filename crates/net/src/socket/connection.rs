//! The state of one connection: its byte stream, its receiving and sending halves, and its peer.

use super::inbox::Inbox;
use super::send_queue::SendQueue;
use super::stream::ByteStream;
use crate::Traffic;
use types::NodeId;

/// Which end made a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// This node called the peer.
    Called,
    /// The peer called this node.
    Accepted,
}

pub(super) struct Connection {
    pub stream: ByteStream,
    /// A number that grows with every connection of this node: the larger one is newer.
    pub serial: u64,
    pub origin: Origin,
    /// The node at the other end: the one this node called, or the sender of the latest frame.
    pub peer: Option<NodeId>,
    /// Whether the guard has checked who is at the other end.
    pub is_checked: bool,
    /// Whether a frame has arrived on it.
    pub heard: bool,
    pub inbox: Inbox,
    pub send_queue: SendQueue,
    pub queued_to_read: bool,
    pub queued_to_flush: bool,
    /// Whether the peer's requests stay unread until the peer has read its answers.
    pub paused: bool,
}

impl Connection {
    /// A connection on which nothing was sent or received.
    pub fn new(stream: ByteStream, serial: u64, origin: Origin) -> Self {
        Self {
            stream,
            serial,
            origin,
            peer: None,
            is_checked: false,
            heard: false,
            inbox: Inbox::new(),
            send_queue: SendQueue::default(),
            queued_to_read: false,
            queued_to_flush: false,
            paused: false,
        }
    }

    /// Adds the bytes that it has moved to `traffic`.
    pub fn count(&self, traffic: &mut Traffic) {
        let bytes_in = self.inbox.bytes;
        let bytes_out = self.send_queue.written;
        traffic.bytes_in += bytes_in;
        traffic.bytes_out += bytes_out;
        if matches!(self.stream, ByteStream::Shared(_)) {
            traffic.bytes_shared += bytes_in + bytes_out;
        }
    }
}
