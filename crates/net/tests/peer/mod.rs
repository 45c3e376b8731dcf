//! A hand-made end of a shared-memory connection. A test can do with it everything that a process
//! can do with memory it shares, right or wrong. It accesses the memory as a file, so it needs no
//! unsafe code.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read, Result, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::time::Duration;

/// Bytes of a ring.
pub const RING: u64 = 1 << 20;
/// Bytes of the whole memory.
pub const MEMORY: u64 = 4096 + 2 * RING;
pub const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// Offsets of the control words: `UP` from the caller to the called node, `DOWN` back, and the
/// words within each.
pub const UP: u64 = 0;
pub const DOWN: u64 = 512;
pub const TAIL: u64 = 0;
pub const HEAD: u64 = 128;
const READER_SLEEPS: u64 = 256;
const WRITER_WAITS: u64 = 384;
/// Longest wait for a doorbell: another thread of the test may have read it from the socket.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

pub fn greeting() -> Vec<u8> {
    [b"SLKWSHM\x01".as_slice(), &RING.to_le_bytes()].concat()
}

/// Memory of this size with these seals.
pub fn memory(bytes: u64, seals: SealFlags) -> File {
    let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
    ftruncate(&file, bytes).expect("room");
    fcntl_add_seals(&file, seals).expect("sealed");
    file.into()
}

/// Calls the node that listens at `address`, and sends `greeting` with `memory`.
pub fn call(address: SocketAddr, greeting: &[u8], memory: Option<&File>) -> UnixStream {
    let name = UnixAddress::from_abstract_name(format!("slackwater/{address}")).expect("a name");
    let socket = UnixStream::connect_addr(&name).expect("a listener");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = memory.iter().map(|memory| memory.as_fd()).collect();
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    }
    sendmsg(&socket, &[IoSlice::new(greeting)], &mut control, SendFlags::empty()).expect("sent");
    socket
}

/// A peer that has called a node.
pub struct SharedPeer {
    pub socket: UnixStream,
    memory: File,
}

impl SharedPeer {
    /// Calls as the protocol says.
    pub fn connect(address: SocketAddr) -> Self {
        let memory = memory(MEMORY, SEALS);
        let socket = call(address, &greeting(), Some(&memory));
        socket.set_read_timeout(Some(LOOK_AGAIN)).expect("a timeout");
        Self { socket, memory }
    }

    /// A second handle of the same connection, for another thread.
    pub fn again(&self) -> Self {
        let socket = self.socket.try_clone().expect("a handle");
        let memory = self.memory.try_clone().expect("a handle");
        Self { socket, memory }
    }

    /// Writes a control word.
    pub fn say(&self, at: u64, value: u64) {
        self.memory.write_all_at(&value.to_le_bytes(), at).expect("written");
    }

    /// Reads a control word.
    pub fn hear(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, at).expect("read");
        u64::from_le_bytes(bytes)
    }

    /// Writes any bytes at any offset.
    pub fn scribble(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).expect("written");
    }

    /// Rings the doorbell. Ignores the error if the other end is gone.
    pub fn ring(&self) {
        (&self.socket).write_all(&[1]).ok();
    }

    /// Waits for a doorbell, at most [`LOOK_AGAIN`]. Returns whether the other end is still there.
    fn wait(&self) -> bool {
        match (&self.socket).read(&mut [0; 64]) {
            Ok(0) => false,
            Ok(_) => true,
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted),
        }
    }
}

impl Read for SharedPeer {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let mut there = true;
        loop {
            let tail = self.hear(DOWN + TAIL);
            let head = self.hear(DOWN + HEAD);
            let at = head % RING;
            let count = (tail - head).min(RING - at).min(into.len() as u64);
            if count > 0 {
                self.memory.read_exact_at(&mut into[..count as usize], 4096 + RING + at)?;
                self.say(DOWN + HEAD, head + count);
                if self.hear(DOWN + WRITER_WAITS) != 0 {
                    self.say(DOWN + WRITER_WAITS, 0);
                    self.ring();
                }
                return Ok(count as usize);
            }
            if !there {
                return Ok(0);
            }
            self.say(DOWN + READER_SLEEPS, 1);
            if self.hear(DOWN + TAIL) == tail {
                there = self.wait();
            }
        }
    }
}

impl Write for SharedPeer {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        loop {
            let tail = self.hear(UP + TAIL);
            let head = self.hear(UP + HEAD);
            let at = tail % RING;
            let count = (RING - (tail - head)).min(RING - at).min(bytes.len() as u64);
            if count > 0 {
                self.memory.write_all_at(&bytes[..count as usize], 4096 + at)?;
                self.say(UP + TAIL, tail + count);
                self.ring();
                return Ok(count as usize);
            }
            self.say(UP + WRITER_WAITS, 1);
            if self.hear(UP + HEAD) == head && !self.wait() {
                return Err(ErrorKind::BrokenPipe.into());
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
