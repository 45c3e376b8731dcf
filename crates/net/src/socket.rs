//! Frames between processes, driven by readiness: the thread that owns the machine reads and writes
//! by itself.
//!
//! Nodes of one host talk through shared memory, others over TCP. Which it is is found out anew for
//! every connection by the one who calls; what frames look like, and what a broken connection
//! means, is the same for both.

mod addresses;
#[cfg(any(test, fuzzing))]
mod chunked;
mod connection;
mod inbox;
mod send_queue;
mod stream;
mod transport;
mod waiter;

use crate::shared::{WatchList, WatchedRings, open};
#[cfg(fuzzing)]
pub use chunked::ChunkedSocket;
#[cfg(fuzzing)]
pub use inbox::{CloseReason, Inbox};
use mio::net::TcpListener;
use mio::{Interest, Poll, Token};
use socket2::{Domain, Socket, Type};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
pub use transport::SocketTransport;
pub use waiter::SocketWaiter;
use wire::Pool;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const DOOR: Token = Token(2);
const FIRST_CONNECTION: usize = 3;
/// Callers that may wait to be let in.
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
    /// Through shared memory, wherever both ends can, and over TCP elsewhere.
    #[default]
    SharedMemory,
    /// Over TCP, as nodes of different hosts do.
    Tcp,
}

/// How a node uses its connections.
#[derive(Clone, Debug)]
pub struct SocketSettings {
    /// Whether a worker's requests wait while it does not read its answers. For those who answer,
    /// and to workers alone: two nodes that both did this would wait for each other for ever, as
    /// servers that backfill each other's replicas would.
    pub pauses: bool,
    /// Where received payloads are put.
    pub pool: Pool,
    /// How it talks to nodes of its own host.
    pub same_host: SameHost,
}

/// Listens at `address` (port 0 takes any free one). Returns the two halves and the address that
/// others can call.
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
    // The door is open before anybody can call over TCP, so that nobody of this host ever needs to.
    let mut door = (settings.same_host == SameHost::SharedMemory).then(|| open(address)).and_then(|door| {
        door.inspect_err(|error| tracing::warn!(%address, %error, "nodes of this host will have to use TCP")).ok()
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
    let transport = SocketTransport::new(poll.registry().try_clone()?, listener, door, watch, ready.clone(), settings);
    Ok((transport, SocketWaiter::new(poll, ready, waker, lines), address))
}
