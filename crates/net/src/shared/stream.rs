//! One connection through shared memory: a byte stream over two ring buffers, with a Unix socket
//! that carries doorbells and shows when the peer ends.

use super::handshake::{Handshake, Handshaken};
use super::page::{Direction, Page, RING_BYTES};
use super::ring::{Bell, Consumer, Producer, TELL_EVERY};
use super::watch::{Line, Watched};
use identity::{Credentials, PeerIdentity};
use mio::net::UnixStream;
use mio::{Interest, Registry, Token, event::Source};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv,
    recvmsg, send, sendmsg, sockopt,
};
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Read, Result, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Bytes of the greeting that comes with the memory: the magic, the layout's version, and the size
/// of a ring.
const GREETING_BYTES: usize = 16;
const MAGIC: [u8; 7] = *b"SLKWSHM";
/// The version of the memory's layout.
const VERSION: u8 = 1;
/// Doorbells read from the socket at a time.
const BELLS: usize = 64;

fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..7].copy_from_slice(&MAGIC);
    bytes[7] = VERSION;
    bytes[8..].copy_from_slice(&(RING_BYTES as u64).to_le_bytes());
    bytes
}

fn refused(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}

/// Which end of the connection this is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Caller,
    Called,
}

/// A byte stream to and from another process of this host. Never blocks.
pub struct SharedStream {
    socket: UnixStream,
    side: Side,
    /// `None` in an insecure run, and once it has ended.
    handshake: Option<Box<Handshake>>,
    /// What the handshake proved; `None` in an insecure run, and until it has ended.
    handshaken: Option<Handshaken>,
    /// None until the caller has passed the memory.
    line: Option<Arc<Line>>,
    /// The peer has closed its socket, or its process has ended.
    ended: bool,
}

impl SharedStream {
    /// Makes the caller's end. Without credentials, passes the memory to the peer at once. Does not
    /// wait for the peer to accept.
    pub fn call(socket: UnixStream, credentials: Option<&Credentials>) -> Result<Self> {
        same_user(&socket)?;
        let handshake = credentials.map(Handshake::call).transpose()?.map(Box::new);
        let mut stream = Self { socket, side: Side::Caller, handshake, handshaken: None, line: None, ended: false };
        stream.advance()?;
        Ok(stream)
    }

    /// Goes on with the handshake and with passing the memory. Returns whether both are done.
    pub fn advance(&mut self) -> Result<bool> {
        if let Some(handshake) = &mut self.handshake {
            let Some(handshaken) = handshake.advance(&self.socket)? else { return Ok(false) };
            self.handshaken = Some(handshaken);
            self.handshake = None;
        }
        if self.line.is_none() {
            match self.side {
                Side::Caller => self.pass_memory()?,
                Side::Called => self.receive_memory()?,
            }
        }
        Ok(self.line.is_some())
    }

    /// Who is at the other end; `None` in an insecure run, and until the handshake has ended.
    pub fn peer_identity(&self) -> Option<&PeerIdentity> {
        self.handshaken.as_ref().map(|handshaken| &handshaken.peer)
    }

    /// The greeting that comes with the memory, and in a secured run the tag of the handshake.
    fn greeting(&self) -> Vec<u8> {
        let tag = self.handshaken.iter().flat_map(|handshaken| handshaken.tag);
        greeting().into_iter().chain(tag).collect()
    }

    /// Makes the memory and passes it to the peer.
    fn pass_memory(&mut self) -> Result<()> {
        let (page, file) = Page::create()?;
        let line = Line::new(page, Producer::new(Direction::Up), Consumer::new(Direction::Down));
        line.sleep();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        let greeting = self.greeting();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if sendmsg(&self.socket, &[IoSlice::new(&greeting)], &mut control, flags)? < greeting.len() {
            return Err(ErrorKind::WriteZero.into());
        }
        self.line = Some(Arc::new(line));
        Ok(())
    }

    /// Makes the called node's end.
    pub fn accept(socket: UnixStream, credentials: Option<&Credentials>) -> Result<Self> {
        same_user(&socket)?;
        let handshake = credentials.map(Handshake::accept).transpose()?.map(Box::new);
        Ok(Self { socket, side: Side::Called, handshake, handshaken: None, line: None, ended: false })
    }

    /// The peer's process, for log lines.
    pub fn peer(&self) -> String {
        match sockopt::socket_peercred(&self.socket) {
            Ok(peer) => format!("process {}", peer.pid.as_raw_nonzero()),
            Err(_) => "a process that has ended".to_owned(),
        }
    }

    /// Whether the peer has closed its socket, or its process has ended. Bytes that it wrote before
    /// can still be read.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The rings, for a waiter to look into. Empty until the memory has arrived.
    pub fn watched(&self) -> Watched<'_> {
        Watched(self.line.as_ref())
    }

    /// Reads the socket after an event on it: doorbells, or the peer's end.
    pub fn hear(&mut self, peer_ended: bool) {
        self.ended |= peer_ended;
        let mut bells = [0; BELLS];
        // Until the memory has arrived, the bytes on the socket are the greeting.
        while self.line.is_some() && !self.ended {
            match recv(&self.socket, &mut bells[..], RecvFlags::DONTWAIT) {
                Ok((_, BELLS)) | Err(Errno::INTR) => {}
                Ok((_, 0)) => self.ended = true,
                Ok(_) | Err(Errno::AGAIN) => return,
                Err(_) => self.ended = true,
            }
        }
    }

    fn ring(&self, bell: Bell) {
        if bell == Bell::Ring {
            // The result does not matter. A full socket already holds doorbells that wake the peer,
            // and if the peer has ended, an event on the socket tells.
            let _ = send(&self.socket, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Maps the memory that the caller has passed.
    fn receive_memory(&mut self) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let greeting = self.greeting();
        let mut bytes = vec![0; greeting.len()];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Err(Errno::AGAIN) => return Ok(()),
            received => received?,
        };
        let files: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(files) => Some(files),
                _ => None,
            })
            .flatten()
            .collect();
        if received.bytes == 0 {
            self.ended = true;
            return Ok(());
        }
        if received.bytes < greeting.len() || bytes[..7] != MAGIC {
            return Err(refused("the peer does not speak Slackwater over shared memory"));
        }
        if bytes[GREETING_BYTES..] != greeting[GREETING_BYTES..] {
            return Err(refused("the memory does not come from the process that did the handshake"));
        }
        if bytes != greeting {
            return Err(refused("the peer uses another shared-memory layout; run the same release on all nodes"));
        }
        let [file] = &files[..] else { return Err(refused("the peer passed no shared memory with its greeting")) };
        let page = Page::open(file)?;
        self.line = Some(Arc::new(Line::new(page, Producer::new(Direction::Down), Consumer::new(Direction::Up))));
        Ok(())
    }

    /// The rings, if the memory has arrived.
    fn line(&mut self) -> Result<Option<Arc<Line>>> {
        // Also after the peer has ended: the memory holds what it wrote before.
        if self.line.is_none() {
            self.advance()?;
        }
        Ok(self.line.clone())
    }
}

/// Fails if the peer's process belongs to another user. Any process may take an abstract socket
/// name, so the name proves nothing; the user id does.
fn same_user(socket: &UnixStream) -> Result<()> {
    let peer = sockopt::socket_peercred(socket)?;
    if peer.uid != rustix::process::geteuid() {
        let reason = format!(
            "process {} belongs to another user, and only processes of one user share memory",
            peer.pid.as_raw_nonzero()
        );
        return Err(Error::new(ErrorKind::PermissionDenied, reason));
    }
    Ok(())
}

impl Read for SharedStream {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(into)])
    }

    fn read_vectored(&mut self, pieces: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let Some(line) = self.line()? else {
            return if self.ended { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        };
        // Read before the ring: if the peer has ended by now, all that it wrote is in the ring.
        let ended = self.ended;
        let filled = line.consumer.filled(&line.page)?;
        let mut left = filled;
        for piece in pieces {
            let wanted = piece.len().min(left);
            for chunk in piece[..wanted].chunks_mut(TELL_EVERY) {
                self.ring(line.consumer.take(&line.page, chunk));
            }
            left -= wanted;
        }
        match filled - left {
            0 if !ended => Err(ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }
}

impl Write for SharedStream {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize> {
        // A peer that has ended reads nothing more. The connection closes when this node has read
        // the peer's last bytes.
        let Some(line) = self.line()?.filter(|_| !self.ended) else { return Err(ErrorKind::WouldBlock.into()) };
        let mut room = line.producer.room(&line.page)?;
        if room == 0 {
            line.producer.ask_for_room(&line.page);
            room = line.producer.room(&line.page)?;
        }
        let mut left = room;
        for piece in pieces {
            let wanted = piece.len().min(left);
            for chunk in piece[..wanted].chunks(TELL_EVERY) {
                self.ring(line.producer.put(&line.page, chunk));
            }
            left -= wanted;
        }
        if room == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(room - left) }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Source for SharedStream {
    fn register(&mut self, registry: &Registry, token: Token, _: Interest) -> Result<()> {
        if let Some(line) = &self.line {
            line.set_token(token);
        }
        // Readable events bring doorbells and the peer's end. Writable events are not needed: a
        // socket without room holds doorbells enough.
        self.socket.register(registry, token, Interest::READABLE)
    }

    fn reregister(&mut self, registry: &Registry, token: Token, _: Interest) -> Result<()> {
        self.socket.reregister(registry, token, Interest::READABLE)
    }

    fn deregister(&mut self, registry: &Registry) -> Result<()> {
        self.socket.deregister(registry)
    }
}

impl Drop for SharedStream {
    fn drop(&mut self) {
        if let Some(line) = &self.line {
            line.close();
        }
    }
}
