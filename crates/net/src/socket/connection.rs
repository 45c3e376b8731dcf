//! The state of one connection: its byte stream, its receiving and sending halves, and its peer.

use super::deadlines::Deadline;
use super::inbox::Inbox;
use super::promises::Promises;
use super::send_queue::SendQueue;
use super::stream::ByteStream;
use crate::Traffic;
use types::{KeyFingerprint, NodeId, limits};

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
    /// Whether the peer called this node and has not shown that it has a place in the run.
    pub is_stranger: bool,
    /// The key of the peer, if the connection is counted among those with that key.
    pub counted_key: Option<KeyFingerprint>,
    pub deadline: Deadline,
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
    pub fn new(stream: ByteStream, serial: u64, origin: Origin, promises: Promises) -> Self {
        Self {
            stream,
            serial,
            origin,
            peer: None,
            is_checked: false,
            is_stranger: false,
            counted_key: None,
            deadline: Deadline::default(),
            heard: false,
            inbox: Inbox::new(promises),
            send_queue: SendQueue::default(),
            queued_to_read: false,
            queued_to_flush: false,
            paused: false,
        }
    }

    /// Whether the peer sends requests, which can wait while it does not read its answers. Servers
    /// and coordinators with a place do not pause each other.
    pub fn asks(&self) -> bool {
        self.is_stranger || !matches!(self.peer, Some(NodeId::Server(_) | NodeId::Coordinator))
    }

    /// Backpressure: while more than this many bytes of answers wait for the peer, its requests
    /// stay unread. Reading resumes at half of it.
    pub fn pause_above(&self) -> usize {
        if self.is_stranger { limits::STRANGER_PAUSE_BYTES } else { limits::PAUSE_BYTES }
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
