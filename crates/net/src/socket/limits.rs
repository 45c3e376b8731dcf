//! The limits of one node's connections. The defaults are those of `types::limits`.

use std::time::Duration;
use types::{Span, limits};

/// How many connections a node has, how long peers may take, and how much may wait for them.
///
/// ```
/// use net::Limits;
///
/// let limits = Limits { strangers: 16, ..Limits::default() };
/// assert!(limits.strangers < limits.connections);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections in all.
    pub connections: usize,
    /// Connections of peers without a place in the run. A new one closes the oldest.
    pub strangers: usize,
    /// The same from one address.
    pub strangers_per_address: usize,
    /// Connections of peers with one key.
    pub connections_per_key: usize,
    /// From the acceptance of a connection to the end of its first frame.
    pub handshake_timeout: Duration,
    /// From the header of a frame to its last byte, beside the time at 64 KiB per second.
    pub frame_timeout: Duration,
    /// How long a peer without a place may say nothing, or leave its answers unread.
    pub idle_timeout: Duration,
    /// Memory for frames of which the header has arrived and the rest has not.
    pub promised_bytes: usize,
    /// Bytes that may wait for a peer of a server or coordinator.
    pub outbox_bytes: usize,
    /// The same for a peer without a place, of any node.
    pub stranger_outbox_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let duration = |span: Span| Duration::from_nanos(span.0);
        Self {
            connections: limits::CONNECTIONS,
            strangers: limits::STRANGERS,
            strangers_per_address: limits::STRANGERS_PER_ADDRESS,
            connections_per_key: limits::CONNECTIONS_PER_KEY,
            handshake_timeout: duration(limits::HANDSHAKE_TIMEOUT),
            frame_timeout: duration(limits::FRAME_TIMEOUT),
            idle_timeout: duration(limits::IDLE_TIMEOUT),
            promised_bytes: limits::PROMISED_BYTES,
            outbox_bytes: limits::OUTBOX_BYTES,
            stranger_outbox_bytes: limits::STRANGER_OUTBOX_BYTES,
        }
    }
}
