//! Frames over TCP, driven by readiness: the thread that owns the machine reads and writes the sockets itself.

mod addresses;
mod inbox;
mod outbox;

use crate::{Event, Traffic, Transport, Waiter, Waker, lock};
use addresses::{Addresses, Way};
#[cfg(fuzzing)]
pub use inbox::{Ended, Inbox};
#[cfg(not(fuzzing))]
use inbox::{Ended, Inbox};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Registry, Token};
use outbox::Outbox;
use socket2::{SockRef, TcpKeepalive};
use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use types::NodeId;
use wire::{Frame, Member, Pool};

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST_CONNECTION: usize = 2;
/// A peer that is sent this much without reading it gets no more of its requests served until it has read some.
const PAUSE_ABOVE: usize = 4 << 20;
/// Connections up to which reading them all is cheaper than asking which can be read.
const GLANCE_AT: usize = 3;
/// Queued bytes that are written at once rather than with the next flush.
const WRITE_ABOVE: usize = 256 << 10;
/// A connection on which nothing moves is asked for a sign of life after this long, and as often.
const PROBE_AFTER: Duration = Duration::from_secs(2);
/// So many signs of life must fail to come before the connection counts as broken.
const PROBES: u32 = 3;

/// How a node uses TCP.
#[derive(Clone, Debug)]
pub struct TcpSettings {
    /// Whether a peer's requests wait while it does not read its answers. For those who answer: two nodes that both did
    /// this could wait for each other.
    pub pauses: bool,
    /// Where received payloads are put.
    pub pool: Pool,
}

/// Listens at `address` (port 0 takes any free one). Returns the two halves and the address that others can call.
pub fn listen(address: SocketAddr, settings: TcpSettings) -> std::io::Result<(TcpTransport, TcpWaiter, SocketAddr)> {
    let poll = Poll::new()?;
    let mut listener = TcpListener::bind(address)?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
    let address = listener.local_addr()?;
    let ready = Arc::new(Mutex::new(Vec::new()));
    let transport = TcpTransport {
        registry: poll.registry().try_clone()?,
        listener,
        ready: ready.clone(),
        settings,
        connections: Vec::new(),
        free: Vec::new(),
        serials: 0,
        by_node: BTreeMap::new(),
        addresses: Addresses::new(),
        readable: VecDeque::new(),
        unflushed: Vec::new(),
        disconnected: VecDeque::new(),
        turned_away: false,
        traffic: Traffic::default(),
    };
    Ok((transport, TcpWaiter { poll, events: Events::with_capacity(256), ready, waker }, address))
}

#[derive(Clone, Copy)]
struct Ready {
    token: Token,
    writable: bool,
    peer_ended: bool,
}

/// Who made a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// This node called.
    Called,
    /// The peer did.
    Accepted,
}

struct Connection {
    stream: TcpStream,
    /// Grows with every connection.
    serial: u64,
    origin: Origin,
    peer: Option<NodeId>,
    /// Whether the peer has ever spoken on it.
    heard: bool,
    inbox: Inbox,
    outbox: Outbox,
    queued_to_read: bool,
    queued_to_flush: bool,
    /// Its requests wait until it has read what it was sent.
    paused: bool,
}

/// One node's connections.
pub struct TcpTransport {
    registry: Registry,
    listener: TcpListener,
    ready: Arc<Mutex<Vec<Ready>>>,
    settings: TcpSettings,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Connections so far.
    serials: u64,
    /// The connection that a node last used.
    by_node: BTreeMap<NodeId, usize>,
    addresses: Addresses,
    readable: VecDeque<usize>,
    unflushed: Vec<usize>,
    disconnected: VecDeque<NodeId>,
    /// A connection could not be accepted.
    turned_away: bool,
    traffic: Traffic,
}

impl TcpTransport {
    /// `node` listens at these addresses, to be tried in turn.
    pub fn know_at(&mut self, node: NodeId, addresses: Vec<SocketAddr>) {
        self.addresses.know_at(node, addresses);
    }

    /// Connects to `node` at `address` without waiting for it.
    fn dial(&mut self, node: NodeId, address: SocketAddr) -> std::io::Result<usize> {
        let stream = TcpStream::connect(address)?;
        let index = self.add(stream, Origin::Called)?;
        if let Some(connection) = &mut self.connections[index] {
            connection.peer = Some(node);
        }
        self.by_node.insert(node, index);
        Ok(index)
    }

    fn add(&mut self, mut stream: TcpStream, origin: Origin) -> std::io::Result<usize> {
        stream.set_nodelay(true).ok();
        // A peer that vanishes without a word must not hold its place for ever.
        let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_AFTER).with_retries(PROBES);
        SockRef::from(&stream).set_tcp_keepalive(&probes).ok();
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.registry.register(&mut stream, Token(index + FIRST_CONNECTION), interest)?;
        self.serials += 1;
        self.connections[index] = Some(Connection {
            stream,
            serial: self.serials,
            origin,
            peer: None,
            heard: false,
            inbox: Inbox::new(),
            outbox: Outbox::default(),
            queued_to_read: false,
            queued_to_flush: false,
            paused: false,
        });
        Ok(index)
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, address)) => match self.add(stream, Origin::Accepted) {
                    Ok(index) => {
                        tracing::debug!(%address, index, "accepted a connection");
                        self.queue_read(index);
                    }
                    Err(error) => tracing::warn!(%address, %error, "cannot take a connection"),
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    // Out of file descriptors, most likely: those who are connected are still served, and whoever waits
                    // at the door is asked in when one of them leaves.
                    tracing::warn!(%error, "cannot accept a connection");
                    self.turned_away = true;
                    return;
                }
            }
        }
    }

    fn queue_read(&mut self, index: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(index) {
            connection.inbox.may_have_more = true;
            if !std::mem::replace(&mut connection.queued_to_read, true) {
                self.readable.push_back(index);
            }
        }
    }

    fn take_ready(&mut self) {
        let ready = std::mem::take(&mut *lock(&self.ready));
        for Ready { token, writable, peer_ended } in ready {
            match token {
                LISTENER => self.accept(),
                WAKER => {}
                Token(token) => {
                    let index = token - FIRST_CONNECTION;
                    if writable {
                        self.flush_one(index);
                    }
                    if let Some(Some(connection)) = self.connections.get_mut(index) {
                        connection.inbox.peer_ended |= peer_ended;
                    }
                    self.queue_read(index);
                }
            }
        }
    }

    fn flush_one(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        if connection.outbox.waiting > 0 && connection.outbox.flush(&mut connection.stream).is_err() {
            return self.close(index);
        }
        if connection.paused && connection.outbox.waiting < PAUSE_ABOVE / 2 {
            connection.paused = false;
            self.queue_read(index);
        }
    }

    fn close(&mut self, index: usize) {
        let Some(mut connection) = self.connections[index].take() else { return };
        self.traffic.bytes_in += connection.inbox.bytes;
        self.traffic.bytes_out += connection.outbox.written;
        self.registry.deregister(&mut connection.stream).ok();
        self.free.push(index);
        let peer = connection.peer;
        if let Some(peer) = peer.filter(|_| connection.origin == Origin::Called && !connection.heard) {
            self.addresses.failed(peer);
        }
        drop(connection);
        if std::mem::take(&mut self.turned_away) {
            self.accept();
        }
        let Some(peer) = peer else { return };
        tracing::debug!(%peer, "connection closed");
        // Reported even where a newer connection is in use: what was sent on this one may be lost.
        self.disconnected.push_back(peer);
        if self.by_node.get(&peer) == Some(&index) {
            self.by_node.remove(&peer);
        }
    }

    /// A node calls only when it has no connection left, so one that calls anew has given up those it used before; what
    /// is still under way on them it will send again. One that this node made and that the peer has not used may be on its
    /// way while the peer's own is: both stay, or each end would close the other's.
    fn close_replaced(&mut self, peer: NodeId, by: usize) {
        let Some(newer) = self.connections[by].as_ref().map(|connection| connection.serial) else { return };
        for index in 0..self.connections.len() {
            let is_replaced = |old: &Connection| old.peer == Some(peer) && old.heard && old.serial < newer;
            if self.connections[index].as_ref().is_some_and(is_replaced) {
                tracing::debug!(%peer, "called anew; its older connection is closed");
                self.close(index);
            }
        }
    }

    fn receive(&mut self, index: usize) -> Option<Event> {
        let connection = self.connections.get_mut(index)?.as_mut()?;
        connection.queued_to_read = false;
        if self.settings.pauses && connection.outbox.waiting > PAUSE_ABOVE {
            connection.paused = true;
            return None;
        }
        match connection.inbox.next(&mut connection.stream, &self.settings.pool) {
            Ok(Some(frame)) => {
                connection.queued_to_read = true;
                self.readable.push_back(index);
                self.traffic.frames_in += 1;
                let (from, origin) = (frame.head.from, connection.origin);
                connection.heard = true;
                if connection.peer != Some(from) {
                    let before = connection.peer.replace(from);
                    // The name it had before the coordinator gave it one must not lead here for ever.
                    if let Some(before) = before.filter(|before| self.by_node.get(before) == Some(&index)) {
                        self.by_node.remove(&before);
                    }
                    if origin == Origin::Accepted {
                        self.close_replaced(from, index);
                    }
                    self.by_node.insert(from, index);
                }
                Some(Event::Frame(frame))
            }
            Ok(None) => None,
            Err(ended) => {
                if let Ended::Refused(error) = ended {
                    self.traffic.refused += 1;
                    let address = connection.stream.peer_addr().map_or("unknown".to_owned(), |a| a.to_string());
                    let peer = connection.peer.map_or("unknown".to_owned(), |peer| peer.to_string());
                    tracing::warn!(%address, peer, %error, "closed a connection");
                }
                self.close(index);
                None
            }
        }
    }
}

impl Transport for TcpTransport {
    fn send(&mut self, frame: Frame) {
        let to = frame.head.to;
        let index = match self.by_node.get(&to) {
            Some(index) => *index,
            None => {
                let address = match self.addresses.way(to) {
                    Way::At(address) => address,
                    Way::NotYet => return self.disconnected.push_back(to),
                    Way::Unknown => return,
                };
                match self.dial(to, address) {
                    Ok(index) => index,
                    Err(error) => {
                        tracing::debug!(%to, %address, %error, "cannot connect");
                        self.addresses.failed(to);
                        return self.disconnected.push_back(to);
                    }
                }
            }
        };
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        connection.outbox.push(&frame);
        self.traffic.frames_out += 1;
        if connection.outbox.waiting > WRITE_ABOVE {
            self.flush_one(index);
        } else if !std::mem::replace(&mut connection.queued_to_flush, true) {
            self.unflushed.push(index);
        }
    }

    fn flush(&mut self) {
        for index in std::mem::take(&mut self.unflushed) {
            if let Some(Some(connection)) = self.connections.get_mut(index) {
                connection.queued_to_flush = false;
            }
            self.flush_one(index);
        }
    }

    fn next(&mut self) -> Option<Event> {
        self.take_ready();
        loop {
            if let Some(node) = self.disconnected.pop_front() {
                return Some(Event::Disconnected(node));
            }
            let index = self.readable.pop_front()?;
            if let Some(event) = self.receive(index) {
                return Some(event);
            }
        }
    }

    fn glance(&mut self) -> bool {
        let few = self.connections.len() <= GLANCE_AT;
        if few {
            (0..self.connections.len()).for_each(|index| self.queue_read(index));
        }
        few
    }

    fn know(&mut self, members: &[Member]) {
        members.iter().for_each(|member| self.addresses.know(member.node, &member.address));
    }

    fn rename(&mut self, _: NodeId) {}

    fn backlog(&self) -> usize {
        self.connections.iter().flatten().map(|connection| connection.outbox.waiting).sum()
    }

    fn traffic(&self) -> Traffic {
        let mut traffic = self.traffic;
        for connection in self.connections.iter().flatten() {
            traffic.bytes_in += connection.inbox.bytes;
            traffic.bytes_out += connection.outbox.written;
        }
        traffic
    }
}

/// Blocks on all connections of one node.
pub struct TcpWaiter {
    poll: Poll,
    events: Events,
    ready: Arc<Mutex<Vec<Ready>>>,
    waker: Arc<mio::Waker>,
}

impl Waiter for TcpWaiter {
    fn wait(&mut self, timeout: Option<Duration>) {
        if let Err(error) = self.poll.poll(&mut self.events, timeout) {
            if error.kind() != ErrorKind::Interrupted {
                tracing::error!(%error, "cannot wait for the network");
            }
            return;
        }
        if self.events.is_empty() {
            return;
        }
        let mut ready = lock(&self.ready);
        ready.extend(self.events.iter().map(|event| Ready {
            token: event.token(),
            writable: event.is_writable(),
            peer_ended: event.is_read_closed(),
        }));
    }

    fn waker(&self) -> Waker {
        let waker = self.waker.clone();
        Waker(Arc::new(move || {
            waker.wake().ok();
        }))
    }
}
