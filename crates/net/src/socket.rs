//! The transport between processes: non-blocking sockets, driven by readiness events. The thread
//! that owns the machine reads and writes the sockets itself.
//!
//! Nodes of one host talk through shared memory, others over TCP. The caller decides which, anew
//! for every connection. Frames and broken connections mean the same over both.

mod addresses;
#[cfg(any(test, fuzzing))]
mod chunked;
mod connection;
mod deadlines;
mod guard;
mod inbox;
mod limits;
mod log_budget;
mod promises;
mod send_queue;
mod strangers;
mod stream;
mod tls;
mod transport;
mod waiter;

use crate::shared::{WatchList, WatchedRings, open};
#[cfg(fuzzing)]
pub use chunked::ChunkedSocket;
pub use guard::Security;
#[cfg(fuzzing)]
pub use inbox::{CloseReason, Inbox};
pub use limits::Limits;
use mio::net::TcpListener;
use mio::{Interest, Poll, Token};
#[cfg(fuzzing)]
pub use promises::Promises;
use socket2::{Domain, Socket, Type};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
pub use tls::refused;
pub use transport::SocketTransport;
pub use waiter::SocketWaiter;
use wire::Pool;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const DOOR: Token = Token(2);
const FIRST_CONNECTION: usize = 3;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// How nodes of one host talk to each other.
///
/// ```
/// use net::SameHost;
///
/// assert_eq!(SameHost::default(), SameHost::SharedMemory);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameHost {
    /// Through shared memory if both ends can, otherwise over TCP.
    #[default]
    SharedMemory,
    /// Over TCP, as nodes of different hosts do.
    Tcp,
}

/// How a node uses its connections.
#[derive(Clone, Debug)]
pub struct SocketSettings {
    /// Whether this node stops reading a worker's requests while the worker does not read its
    /// answers (backpressure), and closes a connection for which too much waits. For servers and
    /// coordinators. They never pause each other: two servers that backfill each other's replicas
    /// would deadlock. A worker pauses peers without a place only: what waits for its servers is
    /// what its own program has pushed.
    pub pauses: bool,
    /// The pool that received payloads are stored in.
    pub pool: Pool,
    /// How the node talks to nodes of its own host.
    pub same_host: SameHost,
    /// How connections are secured.
    pub security: Security,
    /// How many connections there are, and how long peers may take.
    pub limits: Limits,
}

impl SocketSettings {
    /// Whether the node takes part in connections through shared memory.
    fn shares_memory(&self) -> bool {
        self.same_host == SameHost::SharedMemory
    }
}

/// Listens at `address` (port 0 takes any free one). Returns the transport, its waiter, and the
/// address that it listens at.
pub fn listen(
    address: SocketAddr,
    settings: SocketSettings,
) -> std::io::Result<(SocketTransport, SocketWaiter, SocketAddr)> {
    let poll = Poll::new()?;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    let address = socket.local_addr()?.as_socket().ok_or(ErrorKind::AddrNotAvailable)?;
    // The Unix socket listens before the TCP socket does, so that nodes of this host always find
    // it.
    let mut door = settings.shares_memory().then(|| open(address)).and_then(|door| {
        let no_door = "cannot listen for shared-memory connections; nodes of this host call over TCP, which is slower";
        door.inspect_err(|error| tracing::warn!(%address, %error, "{no_door}")).ok()
    });
    if let Some(door) = &mut door {
        poll.registry().register(door, DOOR, Interest::READABLE)?;
    }
    socket.listen(BACKLOG)?;
    let mut listener = TcpListener::from_std(socket.into());
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
    let ready = Arc::new(Mutex::new(Vec::new()));
    let watch = WatchList::default();
    let lines = WatchedRings::of(&watch);
    let registry = poll.registry().try_clone()?;
    let transport = SocketTransport::new(registry, listener, door, watch, (ready.clone(), waker.clone()), settings);
    Ok((transport, SocketWaiter::new(poll, ready, waker, lines), address))
}
