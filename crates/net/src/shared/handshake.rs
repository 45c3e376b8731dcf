//! The TLS handshake of a connection through shared memory, over its Unix socket.
//!
//! It proves to each end who the other is. Afterwards TLS encrypts nothing more: the two processes
//! belong to one user of one host. The caller passes the memory with a tag that TLS exports
//! (RFC 8446, 7.5), so the memory comes from the process that did the handshake.
//!
//! A TLS record is read exactly, never past its end: what follows the last one is the message that
//! carries the memory's file descriptor, and a plain read would drop it.

use identity::{Credentials, PeerIdentity};
use mio::net::UnixStream;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};
use std::io::{Error, ErrorKind, Result};

/// Bytes of the tag that the memory is passed with.
pub const TAG_BYTES: usize = 32;
const TAG_LABEL: &[u8] = b"EXPORTER-slackwater-shared-memory";
/// Bytes of a record's header, and of its longest content.
const HEADER: usize = 5;
const MOST_CONTENT: usize = (16 << 10) + 256;

/// The outcome of a handshake.
pub struct Handshaken {
    pub peer: PeerIdentity,
    pub tag: [u8; TAG_BYTES],
}

/// A handshake under way.
pub struct Handshake {
    connection: Connection,
    /// The bytes of the record that is arriving.
    record: Vec<u8>,
}

impl Handshake {
    /// The caller's end.
    pub fn call(credentials: &Credentials) -> Result<Self> {
        let name = ServerName::try_from("slackwater").map_err(Error::other)?;
        let connection = ClientConnection::new(credentials.client(), name).map_err(Error::other)?;
        Ok(Self { connection: connection.into(), record: Vec::new() })
    }

    /// The end of the node that was called.
    pub fn accept(credentials: &Credentials) -> Result<Self> {
        let connection = ServerConnection::new(credentials.server()).map_err(Error::other)?;
        Ok(Self { connection: connection.into(), record: Vec::new() })
    }

    /// Goes on as far as the socket allows. Returns the outcome once the handshake has ended.
    pub fn advance(&mut self, socket: &UnixStream) -> Result<Option<Handshaken>> {
        loop {
            self.write(socket)?;
            if !self.connection.is_handshaking() {
                return self.outcome().map(Some);
            }
            if !self.read_record(socket)? {
                return Ok(None);
            }
            let mut record = &self.record[..];
            while !record.is_empty() {
                self.connection.read_tls(&mut record)?;
                if let Err(error) = self.connection.process_new_packets() {
                    // The alert tells the peer why; it may have gone.
                    self.write(socket).ok();
                    return Err(crate::socket::refused(&error));
                }
            }
            self.record.clear();
        }
    }

    /// Reads the socket to the end of the record. Returns whether the record is complete.
    fn read_record(&mut self, socket: &UnixStream) -> Result<bool> {
        loop {
            let wanted = match self.record[..] {
                [_, _, _, high, low, ..] => HEADER + usize::from(u16::from_be_bytes([high, low])),
                _ => HEADER,
            };
            if wanted > HEADER + MOST_CONTENT {
                return Err(Error::new(ErrorKind::InvalidData, "the peer does not speak TLS over its Unix socket"));
            }
            let filled = self.record.len();
            if filled == wanted && wanted > HEADER {
                return Ok(true);
            }
            self.record.resize(wanted, 0);
            let result = recv(socket, &mut self.record[filled..], RecvFlags::DONTWAIT);
            let count = result.as_ref().map_or(0, |(_, count)| *count);
            self.record.truncate(filled + count);
            match result {
                Ok((_, 0)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write(&mut self, socket: &UnixStream) -> Result<()> {
        while self.connection.wants_write() {
            let mut bytes = Vec::new();
            self.connection.write_tls(&mut bytes)?;
            // A handshake is far smaller than the buffer of a socket.
            if send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)? < bytes.len() {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Handshaken> {
        let invalid = |why: String| Error::new(ErrorKind::InvalidData, why);
        let certificate = self.connection.peer_certificates().and_then(<[_]>::first);
        let certificate = certificate.ok_or_else(|| invalid("the peer has no certificate".to_owned()))?;
        let peer = PeerIdentity::of(certificate).map_err(invalid)?;
        let tag = self.connection.export_keying_material([0; TAG_BYTES], TAG_LABEL, None);
        Ok(Handshaken { peer, tag: tag.map_err(|error| invalid(error.to_string()))? })
    }
}
