//! The socket transport: makes, accepts, reads, writes and closes one node's connections.
//!
//! A node has one connection to each peer, or two for a while when both call at once. A node that
//! calls again replaces its older connection. The transport reports every connection that closes.

mod admission;

use super::addresses::{Addresses, NodeAddress};
use super::connection::{Connection, Origin};
use super::deadlines::Looks;
use super::guard::{Guard, Verdict, is_provisional};
use super::inbox::CloseReason;
use super::log_budget::LogBudget;
use super::promises::Promises;
use super::strangers::Strangers;
use super::stream::ByteStream;
use super::waiter::Ready;
use super::{DOOR, FIRST_CONNECTION, LISTENER, SocketSettings, WAKER};
use crate::refusal::Refusal;
use crate::shared::{Door, WatchList, call};
use crate::{Traffic, Transport, TransportEvent, lock};
use mio::net::{TcpListener, TcpStream};
use mio::{Registry, Token};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use types::{Binding, KeyFingerprint, NodeId, RefusalReason};
use wire::{Control, Frame, Head, Member, Message, WireError};

/// Most TCP connections for which reading them all is cheaper than asking the system which have
/// data.
const GLANCE_AT: usize = 3;
/// Most connections of any kind for which that holds: polling shared memory costs next to nothing.
const GLANCE_AT_SHARED: usize = 32;
/// Queued bytes above which a connection is flushed at once.
const WRITE_ABOVE: usize = 256 << 10;
/// Frames after which callers that wait are accepted, even if more frames have arrived.
const ACCEPT_AFTER: u32 = 32;

/// One node's connections.
pub struct SocketTransport {
    registry: Registry,
    listener: TcpListener,
    /// The Unix socket at which nodes of this host call. None if they use TCP.
    door: Option<Door>,
    /// Rings for the waiter to poll.
    watch: WatchList,
    ready: Arc<Mutex<Vec<Ready>>>,
    /// Ends the wait of this node's own waiter.
    waker: Arc<mio::Waker>,
    settings: SocketSettings,
    /// Indices into it are stable, and reused after a connection closes.
    connections: Vec<Option<Connection>>,
    /// Unused indices of `connections`.
    free: Vec<usize>,
    /// Number of connections so far.
    serials: u64,
    /// The connection that each node used last.
    by_node: BTreeMap<NodeId, usize>,
    addresses: Addresses,
    guard: Guard,
    /// The connections of peers that have no place in the run, as far as is known.
    strangers: Strangers,
    /// The number of connections of peers with each key.
    by_key: BTreeMap<KeyFingerprint, usize>,
    /// The memory that frames may take before they have arrived.
    promises: Promises,
    looks: Looks,
    /// Nodes that did not answer through shared memory: the next call to them is over TCP.
    over_tcp_next: BTreeSet<NodeId>,
    readable: VecDeque<usize>,
    unflushed: Vec<usize>,
    disconnected: VecDeque<NodeId>,
    /// Whether a connection could not be accepted. Accepting resumes when another one closes.
    turned_away: bool,
    /// Whether callers may wait to be accepted, and the frames received since the last were.
    may_accept: bool,
    frames_since_accept: u32,
    /// Why this node can never talk to the coordinator.
    incompatible: Option<String>,
    refusal_log: LogBudget,
    /// Bounds the log lines about frames that cannot be sent.
    unsendable_log: LogBudget,
    traffic: Traffic,
}

impl SocketTransport {
    /// A transport that accepts connections at `listener` and at `door`. The waiter reports events
    /// through `ready`.
    pub(super) fn new(
        registry: Registry,
        listener: TcpListener,
        door: Option<Door>,
        watch: WatchList,
        (ready, waker): (Arc<Mutex<Vec<Ready>>>, Arc<mio::Waker>),
        settings: SocketSettings,
    ) -> Self {
        let guard = Guard::new(settings.security.clone());
        Self {
            registry,
            guard,
            listener,
            door,
            watch,
            ready,
            waker,
            strangers: Strangers::default(),
            by_key: BTreeMap::new(),
            promises: Promises::new(settings.limits.promised_bytes),
            looks: Looks::default(),
            settings,
            connections: Vec::new(),
            free: Vec::new(),
            serials: 0,
            by_node: BTreeMap::new(),
            addresses: Addresses::new(),
            over_tcp_next: BTreeSet::new(),
            readable: VecDeque::new(),
            unflushed: Vec::new(),
            disconnected: VecDeque::new(),
            turned_away: false,
            may_accept: false,
            frames_since_accept: 0,
            incompatible: None,
            refusal_log: LogBudget::default(),
            unsendable_log: LogBudget::default(),
            traffic: Traffic::default(),
        }
    }

    /// Learns that `node` listens at these addresses, to be tried in turn.
    pub fn know_at(&mut self, node: NodeId, addresses: Vec<SocketAddr>) {
        self.addresses.know_at(node, addresses);
    }

    /// Starts to connect to `node` at `address`. Does not wait until the connection is established.
    fn dial(&mut self, node: NodeId, address: SocketAddr) -> std::io::Result<usize> {
        let over_tcp = || TcpStream::connect(address).and_then(|stream| self.guard.call(stream));
        let dialled = ByteStream::dial(|| self.call_here(node, address), over_tcp);
        self.over_tcp_next.remove(&node);
        let stream = dialled?;
        let index = self.add(stream, Origin::Called)?;
        if let Some(connection) = &mut self.connections[index] {
            connection.peer = Some(node);
        }
        self.by_node.insert(node, index);
        Ok(index)
    }

    /// A connection through shared memory, if `node` is on this host and accepts one.
    fn call_here(&self, node: NodeId, address: SocketAddr) -> Option<ByteStream> {
        if !self.settings.shares_memory() || self.over_tcp_next.contains(&node) {
            return None;
        }
        match call(address, self.guard.credentials()) {
            Ok(stream) => stream.map(ByteStream::Shared),
            Err(error) => {
                tracing::debug!(%node, %address, %error, "cannot call a node through shared memory; calling over TCP");
                None
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
        for Ready { token, source, writable, peer_ended } in ready {
            match token {
                LISTENER | DOOR => self.may_accept = true,
                WAKER => {}
                Token(token) => {
                    let index = token - FIRST_CONNECTION;
                    let mut may_write = writable;
                    if let Some(Some(connection)) = self.connections.get_mut(index) {
                        connection.inbox.peer_ended |= peer_ended;
                        may_write |= connection.stream.hear(source, peer_ended);
                    }
                    if may_write {
                        self.flush_one(index);
                    }
                    self.queue_read(index);
                }
            }
        }
    }

    fn flush_one(&mut self, index: usize) {
        if !self.is_ready(index) {
            return;
        }
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        if connection.send_queue.waiting > 0 || connection.stream.has_unsent() {
            let flushed = connection.send_queue.flush(&mut connection.stream);
            if let Err(error) = flushed.and_then(|()| connection.stream.flush()) {
                if error.kind() == ErrorKind::InvalidData {
                    self.refuse(index, &Refusal::of(&error, RefusalReason::BadFrame));
                }
                return self.close(index);
            }
            connection.stream.watched().wants_room(connection.send_queue.waiting > 0);
        }
        if connection.paused && connection.send_queue.waiting < connection.pause_above() / 2 {
            connection.paused = false;
            connection.stream.watched().pause(false);
            self.queue_read(index);
        }
    }

    /// Sends a heartbeat to a peer that speaks another version of the protocol, or TLS. Every
    /// release can read the version in a header, so the peer learns of the mismatch, too. A peer
    /// that speaks TLS learns that this node does not.
    fn answer_in_own_version(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        if connection.origin == Origin::Accepted {
            let head = Head::plain(NodeId::Coordinator, NodeId::Coordinator);
            let heartbeat = Frame { head, message: Message::Control(Control::Heartbeat { heard: 0 }) };
            connection.send_queue.push(&heartbeat).ok();
            connection.send_queue.flush(&mut connection.stream).ok();
        }
    }

    fn note_incompatible(&mut self, index: usize, error: &dyn std::fmt::Display) {
        let Some(Some(connection)) = self.connections.get(index) else { return };
        if connection.origin == Origin::Called && connection.peer == Some(NodeId::Coordinator) {
            self.incompatible = Some(format!("at {}: {error}", connection.stream.address()));
        }
    }

    /// Counts and logs a connection that is about to be closed for what its peer did.
    fn refuse(&mut self, index: usize, refusal: &Refusal) {
        let Some(Some(connection)) = self.connections.get(index) else { return };
        self.traffic.refused.count(refusal.reason);
        let address = connection.stream.address();
        let peer = connection.peer.map_or("unknown".to_owned(), |peer| peer.to_string());
        self.log_refusal(&address, &peer, refusal);
    }

    fn close(&mut self, index: usize) {
        let Some(mut connection) = self.connections[index].take() else { return };
        connection.count(&mut self.traffic);
        self.discount(&connection);
        self.registry.deregister(&mut connection.stream).ok();
        self.free.push(index);
        let peer = connection.peer;
        if let Some(peer) = peer.filter(|_| connection.origin == Origin::Called && !connection.heard) {
            match connection.stream {
                ByteStream::Tcp(_) | ByteStream::Tls(_) => self.addresses.failed(peer),
                ByteStream::Shared(_) => drop(self.over_tcp_next.insert(peer)),
            }
        }
        drop(connection);
        if std::mem::take(&mut self.turned_away) {
            self.may_accept = true;
            self.waker.wake().ok();
        }
        let Some(peer) = peer else { return };
        tracing::debug!(%peer, "a connection closed");
        // Reported even if a newer connection is in use: frames sent on this one may be lost.
        self.disconnected.push_back(peer);
        if self.by_node.get(&peer) == Some(&index) {
            self.by_node.remove(&peer);
        }
    }

    /// Closes the older connections of a peer that has called again. A node calls only when it has
    /// no connection left, so it has given up the older ones, and resends what was in flight.
    ///
    /// A connection that this node made and that the peer has not used yet stays. If both ends call
    /// at once, each would otherwise close the other's connection.
    fn close_replaced(&mut self, peer: NodeId, by: usize) {
        let Some(newer) = self.connections[by].as_ref().map(|connection| connection.serial) else { return };
        for index in 0..self.connections.len() {
            let is_replaced = |old: &Connection| old.peer == Some(peer) && old.heard && old.serial < newer;
            if self.connections[index].as_ref().is_some_and(is_replaced) {
                tracing::debug!(%peer, "a node called again; closing its older connection");
                self.close(index);
            }
        }
    }

    /// Goes on with the handshake of a connection. When it has ended, checks that the peer is the
    /// node that was called. Returns whether frames may be sent and received.
    fn is_ready(&mut self, index: usize) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return false };
        if connection.is_checked {
            return true;
        }
        let problem = match connection.stream.shake() {
            Ok(false) => return false,
            Ok(true) => {
                connection.is_checked = true;
                let has_place = connection.stream.peer().is_some_and(|peer| self.guard.has_place(peer));
                match (connection.origin, connection.peer, connection.stream.peer()) {
                    (Origin::Called, Some(node), Some(peer)) => self.guard.check_called(node, peer).err(),
                    (Origin::Called, ..) => None,
                    (Origin::Accepted, ..) => {
                        if has_place {
                            self.give_place(index);
                        }
                        self.count_key(index)
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                Some(Refusal::of(&error, RefusalReason::NotAuthenticated))
            }
            Err(_) => {
                self.close(index);
                return false;
            }
        };
        match problem {
            None => {
                // What was queued waited for the handshake.
                self.flush_one(index);
                matches!(self.connections.get(index), Some(Some(_)))
            }
            Some(why) => {
                self.note_incompatible(index, &why);
                self.refuse_peer(index, &why);
                false
            }
        }
    }

    /// Who is at the other end of a connection; `None` in an insecure run.
    fn binding_at(&self, index: usize) -> Option<Binding> {
        self.guard.binding_of(self.connections.get(index)?.as_ref()?.stream.peer()?)
    }

    /// Whether another process uses this name on another connection.
    fn is_taken(&self, node: NodeId, index: usize) -> bool {
        let other = self.by_node.get(&node).copied().filter(|other| *other != index);
        other.and_then(|other| self.binding_at(other)).is_some_and(|other| self.binding_at(index) != Some(other))
    }

    /// Closes a connection whose peer is not who it should be, or says what it may not.
    fn refuse_peer(&mut self, index: usize, why: &Refusal) {
        self.refuse(index, why);
        self.close(index);
    }

    fn receive(&mut self, index: usize) -> Option<TransportEvent> {
        self.connections.get_mut(index)?.as_mut()?.queued_to_read = false;
        if !self.is_ready(index) {
            return None;
        }
        let connection = self.connections.get_mut(index)?.as_mut()?;
        let may_pause = (self.settings.pauses || connection.is_stranger) && connection.asks();
        if may_pause && connection.send_queue.waiting > connection.pause_above() {
            if connection.stream.has_ended() {
                // The peer will never read the bytes that wait for it.
                self.close(index);
                return None;
            }
            connection.paused = true;
            connection.stream.watched().pause(true);
            return None;
        }
        let next = connection.inbox.next(&mut connection.stream, &self.settings.pool);
        match next {
            Ok(Some(frame)) => {
                connection.queued_to_read = true;
                self.readable.push_back(index);
                self.traffic.frames_in += 1;
                let from = frame.head.from;
                match self.guard.judge(connection.stream.peer(), &frame) {
                    Verdict::Accepted => {}
                    Verdict::NotYet => return None,
                    Verdict::Refused(why) => {
                        self.refuse_peer(index, &why);
                        return None;
                    }
                }
                if self.is_taken(from, index) {
                    let words = format!("another process is {from} already");
                    self.refuse_peer(index, &Refusal::new(RefusalReason::NameTaken, words));
                    return None;
                }
                if !is_provisional(from) {
                    self.give_place(index);
                }
                let connection = self.connections.get_mut(index)?.as_mut()?;
                self.traffic.unauthenticated += u64::from(connection.stream.peer().is_none());
                let origin = connection.origin;
                connection.heard = true;
                if connection.peer != Some(from) {
                    let before = connection.peer.replace(from);
                    // Forget the provisional name that the peer had before the coordinator named
                    // it.
                    if let Some(before) = before.filter(|before| self.by_node.get(before) == Some(&index)) {
                        self.by_node.remove(&before);
                    }
                    if origin == Origin::Accepted {
                        self.close_replaced(from, index);
                    }
                    self.by_node.insert(from, index);
                }
                Some(TransportEvent::Frame(frame))
            }
            Ok(None) => {
                connection.stream.watched().look(&self.watch, Token(index + FIRST_CONNECTION));
                None
            }
            Err(ended) => {
                match ended {
                    CloseReason::Closed => {}
                    CloseReason::Refused(error) => {
                        if matches!(error, WireError::Version { .. } | WireError::Tls) {
                            self.answer_in_own_version(index);
                        }
                        if matches!(error, WireError::Version { .. } | WireError::NotSlackwater | WireError::Tls) {
                            self.note_incompatible(index, &error);
                        }
                        self.refuse(index, &Refusal::new(RefusalReason::BadFrame, error.to_string()));
                    }
                    CloseReason::Broken(error) => {
                        self.note_incompatible(index, &error);
                        self.refuse(index, &Refusal::of(&error, RefusalReason::BadFrame));
                    }
                }
                self.close(index);
                None
            }
        }
    }
}

impl Transport for SocketTransport {
    fn send(&mut self, frame: Frame) {
        let to = frame.head.to;
        let index = match self.by_node.get(&to) {
            Some(index) => *index,
            None => {
                let address = match self.addresses.way(to) {
                    NodeAddress::At(address) => address,
                    NodeAddress::NotYet => return self.disconnected.push_back(to),
                    NodeAddress::Unknown => return,
                };
                match self.dial(to, address) {
                    Ok(index) => index,
                    Err(error) => {
                        tracing::debug!(%to, %address, %error, "cannot connect to a node");
                        self.addresses.failed(to);
                        return self.disconnected.push_back(to);
                    }
                }
            }
        };
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        if let Err(error) = connection.send_queue.push(&frame) {
            if let Some(unlogged) = self.unsendable_log.note(Instant::now()) {
                let kind = frame.message.kind_name();
                tracing::error!(%to, kind, %error, unlogged, "dropped a message that its receiver would refuse");
            }
            return;
        }
        self.traffic.frames_out += 1;
        if connection.send_queue.waiting > WRITE_ABOVE {
            self.flush_one(index);
            self.overflows(index);
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

    fn next(&mut self) -> Option<TransportEvent> {
        self.take_ready();
        if self.may_accept {
            self.frames_since_accept += 1;
            if self.readable.is_empty() || self.frames_since_accept >= ACCEPT_AFTER {
                self.frames_since_accept = 0;
                self.accept();
            }
        }
        loop {
            if let Some(node) = self.disconnected.pop_front() {
                return Some(TransportEvent::Disconnected(node));
            }
            let index = self.readable.pop_front()?;
            if let Some(event) = self.receive(index) {
                return Some(event);
            }
        }
    }

    fn tick(&mut self, now: Instant) {
        self.look_at_deadlines(now);
    }

    fn glance(&mut self) -> bool {
        let over_tcp = |connection: &&Connection| !matches!(connection.stream, ByteStream::Shared(_));
        let few = self.connections.len() <= GLANCE_AT_SHARED
            && self.connections.iter().flatten().filter(over_tcp).count() <= GLANCE_AT;
        if few {
            (0..self.connections.len()).for_each(|index| self.queue_read(index));
        }
        few
    }

    fn know(&mut self, members: &[Member]) {
        self.guard.know(members);
        members.iter().for_each(|member| self.addresses.know(member.node, &member.address));
    }

    fn call_elsewhere(&mut self, node: NodeId, address: &str) {
        let Some(turn) = self.addresses.elsewhere(node, address) else { return };
        if let Some(index) = self.by_node.get(&node).copied() {
            self.close(index);
        }
        self.addresses.turn_to(node, turn);
    }

    fn addresses(&self, node: NodeId) -> Vec<SocketAddr> {
        self.addresses.of(node)
    }

    fn incompatible(&self) -> Option<String> {
        self.incompatible.clone()
    }

    fn rename(&mut self, _: NodeId) {}

    fn binding_of(&self, node: NodeId) -> Option<Binding> {
        self.binding_at(*self.by_node.get(&node)?)
    }

    fn backlog(&self) -> usize {
        self.connections.iter().flatten().map(|connection| connection.send_queue.waiting).sum()
    }

    fn traffic(&self) -> Traffic {
        let mut traffic = self.traffic;
        self.connections.iter().flatten().for_each(|connection| connection.count(&mut traffic));
        traffic
    }
}
