//! One connection through shared memory: what a socket would carry goes through two rings, and the
//! socket carries bells.

use super::page::{Direction, Page, RING_BYTES};
use super::ring::{Bell, Consumer, Producer, TELL_EVERY};
use super::watch::{Line, Watched};
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

/// What comes with the memory: that this is Slackwater's, its layout's version, and the size of a
/// ring.
const GREETING_BYTES: usize = 16;
const MAGIC: [u8; 7] = *b"SLKWSHM";
const VERSION: u8 = 1;
/// Bells that are taken off the socket in one go.
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

/// Bytes to and from another process of this host. Never blocks.
pub struct SharedStream {
    socket: UnixStream,
    /// None until the one who called has passed the memory.
    line: Option<Arc<Line>>,
    /// The other side has closed its socket, or its process has ended.
    ended: bool,
}

impl SharedStream {
    /// The end of the one who calls: makes the memory and passes it on. The other side need not
    /// have noticed yet.
    pub fn call(socket: UnixStream) -> Result<Self> {
        same_user(&socket)?;
        let (page, file) = Page::create()?;
        let line = Line::new(page, Producer::new(Direction::Up), Consumer::new(Direction::Down));
        line.sleep();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        let greeting = greeting();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if sendmsg(&socket, &[IoSlice::new(&greeting)], &mut control, flags)? < GREETING_BYTES {
            return Err(ErrorKind::WriteZero.into());
        }
        Ok(Self { socket, line: Some(Arc::new(line)), ended: false })
    }

    /// The end of the one who is called.
    pub fn accept(socket: UnixStream) -> Result<Self> {
        same_user(&socket)?;
        Ok(Self { socket, line: None, ended: false })
    }

    /// Who is at the other end, in words.
    pub fn peer(&self) -> String {
        match sockopt::socket_peercred(&self.socket) {
            Ok(peer) => format!("process {}", peer.pid.as_raw_nonzero()),
            Err(_) => "a process that is gone".to_owned(),
        }
    }

    /// Whether the other side has closed its socket, or its process has ended. What it wrote before
    /// that may still be read.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// What a waiter needs to know of it, once there is memory.
    pub fn watched(&self) -> Watched<'_> {
        Watched(self.line.as_ref())
    }

    /// The socket has something to say: bells, or the end.
    pub fn hear(&mut self, peer_ended: bool) {
        self.ended |= peer_ended;
        let mut bells = [0; BELLS];
        // Before the memory has come, what is on the socket is the greeting.
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
            // If there is no room for another bell, there are enough. If nobody is there, the
            // socket's own event will tell.
            let _ = send(&self.socket, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Takes the memory that the caller has passed.
    fn receive_memory(&mut self) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; GREETING_BYTES];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
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
        if received.bytes < GREETING_BYTES || bytes[..7] != MAGIC {
            return Err(refused("the peer does not speak Slackwater over shared memory"));
        }
        if bytes != greeting() {
            return Err(refused("the peer lays shared memory out differently; run the same release everywhere"));
        }
        let [file] = &files[..] else { return Err(refused("the peer passed no shared memory")) };
        let page = Page::open(file)?;
        self.line = Some(Arc::new(Line::new(page, Producer::new(Direction::Down), Consumer::new(Direction::Up))));
        Ok(())
    }

    /// The line, if there is one by now.
    fn line(&mut self) -> Result<Option<Arc<Line>>> {
        // Even if the peer has ended: what it said before that is in the memory that it passed.
        if self.line.is_none() {
            self.receive_memory()?;
        }
        Ok(self.line.clone())
    }
}

/// The name in whose place somebody else may wait is free for anybody to take; the user behind the
/// socket is not.
fn same_user(socket: &UnixStream) -> Result<()> {
    let peer = sockopt::socket_peercred(socket)?;
    if peer.uid != rustix::process::geteuid() {
        let reason = format!("process {} belongs to another user", peer.pid.as_raw_nonzero());
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
        // Asked before the ring is looked into: what the peer wrote before its end is there by
        // then.
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
        // Nobody reads it any more; what is still to be read comes first, and then its end.
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
        // Bells and the end: there is always room for a bell, or nobody needs one.
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
