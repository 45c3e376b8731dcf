//! The byte stream of a connection: a TCP socket, plain or with TLS, or memory shared with a
//! process of the same host.

use super::strangers::CallerAddress;
use super::tls::TlsStream;
use super::waiter::Noticed;
use crate::shared::{SharedStream, Watched};
use identity::{Credentials, PeerIdentity};
use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use socket2::{SockRef, TcpKeepalive};
use std::io::{IoSlice, IoSliceMut, Read, Result, Write};
use std::time::Duration;

/// TCP keepalive: idle time before the first probe, and time between probes.
const PROBE_AFTER: Duration = Duration::from_secs(2);
/// TCP keepalive: unanswered probes after which the connection counts as broken.
const PROBES: u32 = 3;

/// A byte stream to and from another process.
pub enum ByteStream {
    /// On any host, in an insecure run.
    Tcp(TcpStream),
    /// On any host.
    Tls(Box<TlsStream<TcpStream>>),
    /// On this host.
    Shared(SharedStream),
}

impl ByteStream {
    /// Connects through shared memory if `shared` finds a node of this host, otherwise over TCP.
    ///
    /// Looks for shared memory again after the TCP call. A node opens its Unix socket before its
    /// TCP listener, so one that starts between the first look and the TCP call is found by the
    /// second.
    pub fn dial(shared: impl Fn() -> Option<Self>, tcp: impl FnOnce() -> Result<Self>) -> Result<Self> {
        if let Some(stream) = shared() {
            return Ok(stream);
        }
        let stream = tcp()?;
        Ok(shared().unwrap_or(stream))
    }

    /// Makes a stream of a shared-memory connection that this node has accepted.
    pub fn accept_here(socket: UnixStream, credentials: Option<&Credentials>) -> Result<Self> {
        SharedStream::accept(socket, credentials).map(Self::Shared)
    }

    /// Sets the socket options that every connection needs.
    pub fn prepare(&self) {
        if let Some(stream) = self.tcp() {
            stream.set_nodelay(true).ok();
            // A peer whose host vanishes sends no close: keepalive ends its connection.
            let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_AFTER).with_retries(PROBES);
            SockRef::from(stream).set_tcp_keepalive(&probes).ok();
        }
    }

    /// The TCP socket, if it has one.
    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
            Self::Tls(stream) => Some(stream.socket()),
            Self::Shared(_) => None,
        }
    }

    /// The peer's address, or its process id on this host, for log lines.
    pub fn address(&self) -> String {
        match self {
            Self::Tcp(_) | Self::Tls(_) => {
                let address = self.tcp().and_then(|stream| stream.peer_addr().ok());
                address.map_or("unknown".to_owned(), |address| address.to_string())
            }
            Self::Shared(stream) => stream.peer(),
        }
    }

    /// Who is at the other end. `None` in an insecure run, and until the handshake has ended.
    pub fn peer(&self) -> Option<&PeerIdentity> {
        match self {
            Self::Tcp(_) => None,
            Self::Tls(stream) => stream.peer(),
            Self::Shared(stream) => stream.peer_identity(),
        }
    }

    /// Lets reads take in large pieces: the peer is a node of the run.
    pub fn read_far(&mut self) {
        if let Self::Tls(stream) = self {
            stream.read_far();
        }
    }

    /// Where the connection comes from, as far as connections are counted.
    pub fn caller(&self) -> CallerAddress {
        let address = self.tcp().and_then(|stream| stream.peer_addr().ok());
        address.map_or(CallerAddress::Here, CallerAddress::of)
    }

    /// Goes on with the handshake, if there is one. Returns whether it has ended.
    pub fn shake(&mut self) -> Result<bool> {
        match self {
            Self::Tcp(_) => Ok(true),
            Self::Tls(stream) => stream.shake(),
            Self::Shared(stream) => stream.advance(),
        }
    }

    /// Whether bytes that were written here have not reached the socket.
    pub fn has_unsent(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.has_unsent())
    }

    /// Takes in an event of this stream. Returns whether it may mean room to write: for shared
    /// memory every event may, for TCP only one that says so itself.
    pub fn hear(&mut self, noticed: Noticed, peer_ended: bool) -> bool {
        let Self::Shared(stream) = self else { return false };
        if noticed == Noticed::Socket {
            stream.hear(peer_ended);
        }
        true
    }

    /// Whether the peer of a shared-memory connection has ended. For TCP it is false: there a write
    /// fails.
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Shared(stream) if stream.has_ended())
    }

    /// The rings for a waiter to poll; none for TCP.
    pub fn watched(&self) -> Watched<'_> {
        match self {
            Self::Tcp(_) | Self::Tls(_) => Watched::NOTHING,
            Self::Shared(stream) => stream.watched(),
        }
    }
}

impl Read for ByteStream {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Tls(stream) => stream.read(into),
            Self::Shared(stream) => stream.read(into),
        }
    }

    fn read_vectored(&mut self, pieces: &mut [IoSliceMut<'_>]) -> Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read_vectored(pieces),
            Self::Tls(stream) => stream.read_vectored(pieces),
            Self::Shared(stream) => stream.read_vectored(pieces),
        }
    }
}

impl Write for ByteStream {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
            Self::Shared(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write_vectored(pieces),
            Self::Tls(stream) => stream.write_vectored(pieces),
            Self::Shared(stream) => stream.write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> Result<()> {
        match self {
            Self::Tcp(_) | Self::Shared(_) => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

impl Source for ByteStream {
    fn register(&mut self, registry: &Registry, token: Token, interests: Interest) -> Result<()> {
        match self {
            Self::Tcp(stream) => stream.register(registry, token, interests),
            Self::Tls(stream) => stream.socket_mut().register(registry, token, interests),
            Self::Shared(stream) => stream.register(registry, token, interests),
        }
    }

    fn reregister(&mut self, registry: &Registry, token: Token, interests: Interest) -> Result<()> {
        match self {
            Self::Tcp(stream) => stream.reregister(registry, token, interests),
            Self::Tls(stream) => stream.socket_mut().reregister(registry, token, interests),
            Self::Shared(stream) => stream.reregister(registry, token, interests),
        }
    }

    fn deregister(&mut self, registry: &Registry) -> Result<()> {
        match self {
            Self::Tcp(stream) => stream.deregister(registry),
            Self::Tls(stream) => stream.socket_mut().deregister(registry),
            Self::Shared(stream) => stream.deregister(registry),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{call, open};

    #[test]
    fn dial_shares_memory_with_a_node_that_starts_between_the_look_and_the_tcp_call() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = || call(address, None).unwrap().map(ByteStream::Shared);
        let mut door = None;
        let starting = ByteStream::dial(shared, || {
            door = Some(open(address).unwrap());
            TcpStream::connect(address).map(ByteStream::Tcp)
        });
        assert!(matches!(starting.unwrap(), ByteStream::Shared(_)));
        let started = ByteStream::dial(shared, || panic!("a node that shares memory is not called over TCP"));
        assert!(matches!(started.unwrap(), ByteStream::Shared(_)));
        drop(door);
        let without = ByteStream::dial(shared, || TcpStream::connect(address).map(ByteStream::Tcp));
        assert!(matches!(without.unwrap(), ByteStream::Tcp(_)));
    }
}
