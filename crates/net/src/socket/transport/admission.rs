//! Who may have a connection, and for how long: accepts callers, moves peers that turn out to be
//! nodes of the run out of the pool of strangers, and closes what exceeds a limit.

use super::super::FIRST_CONNECTION;
use super::super::connection::{Connection, Origin};
use super::super::deadlines::Activity;
use super::super::stream::ByteStream;
use super::SocketTransport;
use crate::refusal::Refusal;
use mio::{Interest, Token};
use std::io::{Error, ErrorKind};
use std::time::Instant;
use types::{RefusalReason, limits};

impl SocketTransport {
    /// Makes a connection of a stream. On an error there is none.
    pub(super) fn add(&mut self, mut stream: ByteStream, origin: Origin) -> std::io::Result<usize> {
        stream.prepare();
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.registry.register(&mut stream, Token(index + FIRST_CONNECTION), interest) {
            self.free.push(index);
            return Err(error);
        }
        self.serials += 1;
        let mut connection = Connection::new(stream, self.serials, origin, self.promises.clone());
        let is_secured = self.guard.credentials().is_some();
        connection.is_checked = !is_secured;
        connection.is_stranger = origin == Origin::Accepted;
        connection.inbox.of_stranger = connection.is_stranger && is_secured;
        if connection.is_stranger {
            self.strangers.insert(connection.serial, index, connection.stream.caller());
        } else {
            connection.stream.read_far();
        }
        self.connections[index] = Some(connection);
        Ok(index)
    }

    /// Accepts callers, a bounded number at once: frames of nodes are handled in between.
    pub(super) fn accept(&mut self) {
        self.may_accept = true;
        for _ in 0..limits::ACCEPTED_AT_ONCE {
            let accepted = match self.listener.accept() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => match &self.door {
                    Some(door) => {
                        door.accept().map(|(socket, _)| ByteStream::accept_here(socket, self.guard.credentials()))
                    }
                    None => Err(error),
                },
                tcp => tcp.map(|(stream, _)| self.guard.accept(stream)),
            };
            match accepted {
                Ok(stream) => self.take_in(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.may_accept = false;
                    return;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.may_accept = false;
                    return self.turn_away(&error);
                }
            }
        }
        // The listeners report only new callers: the next turn must not wait for one.
        self.waker.wake().ok();
    }

    /// Makes room for an accepted connection and adds it.
    fn take_in(&mut self, stream: std::io::Result<ByteStream>) {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                self.traffic.refused.count(RefusalReason::NotAuthenticated);
                return self.log_refusal("an accepted connection", "unknown", &error);
            }
        };
        let limits = self.settings.limits;
        let has_room = self.connections.len() - self.free.len() < limits.connections;
        let to_close = self.strangers.to_close(stream.caller(), &limits);
        match to_close.or_else(|| if has_room { None } else { self.strangers.oldest() }) {
            Some(oldest) => self.refuse_peer(oldest, &room_is_needed()),
            None if has_room => {}
            None => {
                self.traffic.refused.count(RefusalReason::TooManyConnections);
                let words = format!("this node has its {} connections already", limits.connections);
                return self.log_refusal(&stream.address(), "unknown", &words);
            }
        }
        match self.add(stream, Origin::Accepted) {
            Ok(index) => self.queue_read(index),
            Err(error) => self.log_refusal("an accepted connection", "unknown", &error),
        }
    }

    /// A connection could not be accepted. Most likely the process is out of file descriptors.
    /// Connected nodes are still served, and callers are accepted when a connection closes.
    fn turn_away(&mut self, error: &Error) {
        if let Some(unlogged) = self.refusal_log.note(Instant::now()) {
            tracing::warn!(
                %error,
                unlogged,
                "cannot accept a connection; callers wait until another one closes. \
                 If the process has too many open files, raise its limit (ulimit -n)"
            );
        }
        self.turned_away = true;
        if let Some(oldest) = self.strangers.oldest() {
            self.refuse_peer(oldest, &room_is_needed());
        }
    }

    /// The peer of a connection is a node of the run.
    pub(super) fn give_place(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        if std::mem::take(&mut connection.is_stranger) {
            connection.inbox.of_stranger = false;
            connection.stream.read_far();
            self.strangers.remove(connection.serial);
        }
    }

    /// Counts a connection by the key of its peer, which has proved it. Returns why it is one too
    /// many.
    pub(super) fn count_key(&mut self, index: usize) -> Option<Refusal> {
        let connection = self.connections.get_mut(index)?.as_mut()?;
        let key = connection.stream.peer()?.key;
        connection.counted_key = Some(key);
        let count = self.by_key.entry(key).or_default();
        *count += 1;
        let most = self.settings.limits.connections_per_key;
        let words = || format!("processes with the key of this peer have {most} connections already");
        (*count > most).then(|| Refusal::new(RefusalReason::TooManyConnections, words()))
    }

    /// Takes a connection that closes out of the counts.
    pub(super) fn discount(&mut self, connection: &Connection) {
        self.strangers.remove(connection.serial);
        let Some(key) = connection.counted_key else { return };
        if let Some(count) = self.by_key.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.by_key.remove(&key);
            }
        }
    }

    /// Closes connections whose peers take too long.
    pub(super) fn look_at_deadlines(&mut self, now: Instant) {
        let Some(look) = self.looks.due(now) else { return };
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else { continue };
            let activity = activity(connection);
            let Some((reason, limit)) = connection.deadline.note(activity, look, now, &self.settings.limits) else {
                continue;
            };
            let words = match reason {
                RefusalReason::HandshakeTimeout => "its first frame did not arrive",
                RefusalReason::Idle => "a peer without a place in the run said nothing",
                RefusalReason::Outbox => "a peer without a place in the run did not read its answers",
                _ => "a frame did not arrive",
            };
            self.refuse_peer(index, &Refusal::new(reason, format!("{words} within {} s", limit.as_secs())));
        }
    }

    /// Whether too much waits for a peer. Closes its connection then.
    pub(super) fn overflows(&mut self, index: usize) -> bool {
        let Some(Some(connection)) = self.connections.get(index) else { return false };
        let most = match (connection.is_stranger, self.settings.pauses) {
            (true, _) => self.settings.limits.stranger_outbox_bytes,
            (false, true) => self.settings.limits.outbox_bytes,
            (false, false) => return false,
        };
        let waiting = connection.send_queue.waiting;
        if waiting <= most {
            return false;
        }
        let words = format!("{waiting} bytes wait for it, and {most} may: it does not read fast enough");
        self.refuse_peer(index, &Refusal::new(RefusalReason::Outbox, words));
        true
    }

    /// Logs a refusal, unless there were too many lately.
    pub(super) fn log_refusal(&mut self, address: &str, peer: &str, error: &dyn std::fmt::Display) {
        if let Some(unlogged) = self.refusal_log.note(Instant::now()) {
            tracing::warn!(address, peer, %error, unlogged, "refused a connection");
        }
    }
}

fn room_is_needed() -> Refusal {
    let words = "too many peers without a place in the run: the oldest connection makes room for a new one";
    Refusal::new(RefusalReason::TooManyConnections, words)
}

/// What the peer of a connection is doing, if that has a limit. A node that this one has called, or
/// that has a place, may say nothing: its failure timeout decides.
fn activity(connection: &Connection) -> Option<Activity> {
    let inbox = &connection.inbox;
    let sends = inbox.arriving().filter(|_| connection.is_checked);
    if connection.is_stranger && inbox.frames == 0 {
        return Some(Activity::Introduces { bytes: sends.unwrap_or(0) });
    }
    if connection.paused {
        return connection.is_stranger.then_some(Activity::Reads { written: connection.send_queue.written });
    }
    match sends {
        Some(bytes) => Some(Activity::Sends { frame: inbox.frames, bytes }),
        None => connection.is_stranger.then_some(Activity::IsIdle { frames: inbox.frames }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, SameHost, Security, SocketSettings, Transport, listen};
    use mio::net::TcpStream;
    use std::net::SocketAddr;
    use wire::Pool;

    fn transport() -> (SocketTransport, SocketAddr) {
        let settings = SocketSettings {
            pauses: true,
            pool: Pool::new(),
            same_host: SameHost::Tcp,
            security: Security::Insecure,
            limits: Limits::default(),
        };
        let (transport, _, address) = listen(([127, 0, 0, 1], 0).into(), settings).expect("a free port");
        (transport, address)
    }

    #[test]
    fn a_connection_that_cannot_be_registered_leaves_nothing_behind() {
        let (mut transport, address) = transport();
        for _ in 0..10 {
            let mut stream = TcpStream::connect(address).expect("a listener");
            transport.registry.register(&mut stream, Token(1_000_000), Interest::READABLE).expect("registered once");
            assert!(transport.add(ByteStream::Tcp(stream), Origin::Accepted).is_err(), "registered already");
        }
        assert_eq!(transport.connections.len(), transport.free.len());
        assert_eq!(transport.connections.len(), 1, "its place is used again");
        assert!(transport.strangers.oldest().is_none());
    }

    #[test]
    fn counts_of_closed_connections_return_to_zero() {
        let (mut transport, address) = transport();
        let _callers: Vec<_> = (0..5).map(|_| std::net::TcpStream::connect(address).expect("a listener")).collect();
        transport.may_accept = true;
        assert!(transport.next().is_none());
        assert_eq!(transport.connections.iter().flatten().count(), 5);
        (0..5).for_each(|index| transport.close(index));
        assert!(transport.strangers.oldest().is_none() && transport.by_key.is_empty());
    }
}
