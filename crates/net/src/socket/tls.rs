//! TLS 1.3 over a non-blocking byte stream.
//!
//! The stream reads as empty until the handshake has ended, so no frame is read before. Reads and
//! writes drive the handshake. The records are rustls's: this file moves bytes between them and the
//! socket, in large pieces.

use crate::refusal::Refusal;
use identity::{Credentials, PeerIdentity};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus};
use rustls::{AlertDescription, CertificateError};
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Read, Result, Write};
use types::RefusalReason;
use types::limits::STRANGER_READ_BYTES;

/// Bytes that one read of the socket is given at first, and at most. It grows while reads fill it.
const READ_AT_FIRST: usize = 8 << 10;
const READ_AT_MOST: usize = 256 << 10;
/// Bytes that one write encrypts, at most.
const WRITE_AT_MOST: usize = 256 << 10;
/// Bytes of a record beside its content, and of the largest content.
const RECORD_OVERHEAD: usize = 32;
const RECORD_CONTENT: usize = 16 << 10;

/// The two ends have types of their own in rustls.
enum End {
    Caller(UnbufferedClientConnection),
    Called(UnbufferedServerConnection),
}

/// What the connection waits for, once it has processed all complete records.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// More bytes of the peer's handshake.
    Handshake,
    /// Nothing: content can be sent.
    Established,
    /// Nothing more arrives.
    Closed,
}

/// A TLS connection over `S`.
pub struct TlsStream<S> {
    socket: S,
    end: End,
    state: State,
    peer: Option<PeerIdentity>,
    /// Encrypted bytes that arrived: those from `start` to `filled` are not processed.
    incoming: Vec<u8>,
    start: usize,
    filled: usize,
    /// Decrypted bytes that arrived: those from `taken` on are not read.
    content: Vec<u8>,
    taken: usize,
    /// Encrypted bytes to send: those from `sent` on are not sent.
    outgoing: Vec<u8>,
    sent: usize,
    /// Bytes that `incoming` may have.
    most_incoming: usize,
}

impl<S: Read + Write> TlsStream<S> {
    /// The caller's end.
    pub fn call(socket: S, credentials: &Credentials) -> Result<Self> {
        // Certificates name a job and a role, not a host: the name is not sent.
        let name = ServerName::try_from("slackwater").map_err(Error::other)?;
        let connection = UnbufferedClientConnection::new(credentials.client(), name).map_err(Error::other)?;
        Ok(Self::new(socket, End::Caller(connection)))
    }

    /// The end of the node that was called.
    pub fn accept(socket: S, credentials: &Credentials) -> Result<Self> {
        let connection = UnbufferedServerConnection::new(credentials.server()).map_err(Error::other)?;
        Ok(Self::new(socket, End::Called(connection)))
    }

    fn new(socket: S, end: End) -> Self {
        Self {
            socket,
            end,
            state: State::Handshake,
            peer: None,
            incoming: vec![0; READ_AT_FIRST],
            start: 0,
            filled: 0,
            content: Vec::new(),
            taken: 0,
            outgoing: Vec::new(),
            sent: 0,
            most_incoming: STRANGER_READ_BYTES,
        }
    }

    /// Lets reads take in large pieces: the peer is a node of the run.
    pub fn read_far(&mut self) {
        self.most_incoming = READ_AT_MOST;
    }

    /// Who is at the other end; `None` until the handshake has ended.
    pub fn peer(&self) -> Option<&PeerIdentity> {
        self.peer.as_ref()
    }

    /// The stream below.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// The stream below.
    pub fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    /// Whether encrypted bytes wait to be written.
    pub fn has_unsent(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Processes what has arrived, until a record is incomplete. Leaves content in `content`, at
    /// most one incoming buffer of it.
    fn process(&mut self) -> Result<()> {
        loop {
            let incoming = &mut self.incoming[self.start..self.filled];
            let parts = (&mut self.content, &mut self.outgoing);
            let (discard, next) = match &mut self.end {
                End::Caller(connection) => step(connection.process_tls_records(incoming), parts),
                End::Called(connection) => step(connection.process_tls_records(incoming), parts),
            };
            self.start += discard;
            match next {
                Ok(None) => {}
                Ok(Some(state)) => {
                    if state == State::Established && self.state == State::Handshake {
                        self.peer = Some(self.read_peer()?);
                    }
                    self.state = state;
                    return Ok(());
                }
                Err(error) => {
                    self.send_alert();
                    return Err(refused(&error));
                }
            }
        }
    }

    /// After an error: tells the peer, as far as the socket takes it.
    fn send_alert(&mut self) {
        let parts = (&mut self.content, &mut self.outgoing);
        match &mut self.end {
            End::Caller(connection) => drop(step(connection.process_tls_records(&mut []), parts)),
            End::Called(connection) => drop(step(connection.process_tls_records(&mut []), parts)),
        }
        self.write_out().ok();
    }

    fn read_peer(&self) -> Result<PeerIdentity> {
        let certificates = match &self.end {
            End::Caller(connection) => connection.peer_certificates(),
            End::Called(connection) => connection.peer_certificates(),
        };
        let certificate = certificates.and_then(<[_]>::first);
        let peer = certificate.ok_or_else(|| "the peer has no certificate".to_owned()).and_then(PeerIdentity::of);
        peer.map_err(|why| Error::new(ErrorKind::InvalidData, why))
    }

    /// Writes encrypted bytes until the socket takes no more.
    fn write_out(&mut self) -> Result<()> {
        while self.has_unsent() {
            match self.socket.write(&self.outgoing[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A connection that is still being established takes nothing yet.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }

    /// Reads the socket once. Returns how many bytes there were.
    fn read_in(&mut self) -> Result<usize> {
        if self.start == self.filled {
            self.start = 0;
            self.filled = 0;
        } else if self.filled == self.incoming.len() {
            self.incoming.copy_within(self.start..self.filled, 0);
            self.filled -= self.start;
            self.start = 0;
        }
        if self.filled == self.incoming.len() {
            // Less than one record fits: records end below the largest size.
            if self.filled == self.most_incoming {
                return Err(Refusal::new(RefusalReason::NotAuthenticated, "a TLS message is too long").into());
            }
            self.incoming.resize((2 * self.filled).min(self.most_incoming), 0);
        }
        let room = &mut self.incoming[self.filled..];
        let wanted = room.len();
        let count = self.socket.read(room)?;
        self.filled += count;
        if count == wanted && self.incoming.len() < self.most_incoming {
            self.incoming.resize((2 * self.incoming.len()).min(self.most_incoming), 0);
        }
        Ok(count)
    }

    fn take_content(&mut self, pieces: &mut [IoSliceMut<'_>], mut filled: usize) -> usize {
        let mut skip = filled;
        for piece in pieces {
            let from = skip.min(piece.len());
            skip -= from;
            let rest = &self.content[self.taken..];
            let count = rest.len().min(piece.len() - from);
            piece[from..from + count].copy_from_slice(&rest[..count]);
            self.taken += count;
            filled += count;
        }
        if self.taken == self.content.len() {
            self.content.clear();
            self.taken = 0;
        }
        filled
    }

    /// Goes on with the handshake as far as the socket allows. Returns whether it has ended.
    pub fn shake(&mut self) -> Result<bool> {
        loop {
            self.advance()?;
            if self.state == State::Established {
                return Ok(true);
            }
            match self.read_in() {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::NotConnected => return Ok(false),
                    ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Goes on with the handshake, and sends what is left to send.
    fn advance(&mut self) -> Result<()> {
        if self.state == State::Handshake {
            self.process()?;
        }
        self.write_out()
    }
}

/// Handles one state of the connection. Returns how many bytes of the incoming buffer are used up,
/// and what the connection waits for, if it waits.
fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    (content, outgoing): (&mut Vec<u8>, &mut Vec<u8>),
) -> (usize, std::result::Result<Option<State>, rustls::Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let state = match state {
        Ok(state) => state,
        Err(error) => return (discard, Err(error)),
    };
    let next = match state {
        ConnectionState::ReadTraffic(mut records) => {
            while let Some(record) = records.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        content.extend_from_slice(record.payload);
                    }
                    Err(error) => return (discard, Err(error)),
                }
            }
            None
        }
        ConnectionState::EncodeTlsData(mut record) => {
            let end = outgoing.len();
            let mut result = record.encode(&mut []);
            if let Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) = result {
                outgoing.resize(end + required_size, 0);
                result = record.encode(&mut outgoing[end..]);
            }
            match result {
                Ok(count) => outgoing.truncate(end + count),
                Err(error) => return (discard, Err(rustls::Error::General(error.to_string()))),
            }
            None
        }
        ConnectionState::TransmitTlsData(transmit) => {
            // The bytes are in `outgoing`, in order before all later ones.
            transmit.done();
            None
        }
        ConnectionState::BlockedHandshake => Some(State::Handshake),
        ConnectionState::WriteTraffic(_) => Some(State::Established),
        ConnectionState::PeerClosed | ConnectionState::Closed => Some(State::Closed),
        state => return (discard, Err(rustls::Error::General(format!("unexpected state {state:?}")))),
    };
    (discard, Ok(next))
}

/// Encrypts `piece` to the end of `outgoing`.
fn encrypt<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    piece: &[u8],
    outgoing: &mut Vec<u8>,
) -> std::result::Result<(), rustls::Error> {
    let general = |what: &dyn std::fmt::Display| rustls::Error::General(what.to_string());
    let ConnectionState::WriteTraffic(mut traffic) = status.state? else {
        return Err(general(&"the connection is not ready to send"));
    };
    let end = outgoing.len();
    let records = piece.len() / RECORD_CONTENT + 1;
    outgoing.resize(end + piece.len() + records * RECORD_OVERHEAD, 0);
    let mut result = traffic.encrypt(piece, &mut outgoing[end..]);
    if let Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) = result {
        outgoing.resize(end + required_size, 0);
        result = traffic.encrypt(piece, &mut outgoing[end..]);
    }
    let count = result.map_err(|error| general(&error))?;
    outgoing.truncate(end + count);
    Ok(())
}

/// Why a connection is refused, in words that say what to do.
pub fn refused(error: &rustls::Error) -> Error {
    let why = match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the peer's certificate is of another job: give every process of the run the same token file".to_owned()
        }
        rustls::Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "the peer's certificate has expired: give it a new token, and compare the clocks of both hosts".to_owned()
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => "the peer's certificate is not valid yet: compare the clocks of both hosts".to_owned(),
        rustls::Error::InvalidCertificate(CertificateError::Other(other)) => other.to_string(),
        rustls::Error::NoCertificatesPresented => "the peer brought no certificate".to_owned(),
        rustls::Error::InvalidMessage(_) => {
            "the peer does not speak TLS: was it started with --insecure, or is this the wrong port?".to_owned()
        }
        rustls::Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateExpired => {
                "the peer says that this process's certificate has expired: give it a new token".to_owned()
            }
            AlertDescription::UnknownCA => {
                "the peer belongs to another job: give every process of the run the same token file".to_owned()
            }
            alert => format!("the peer refused this process ({alert:?}): its log says why"),
        },
        error => format!("TLS failed: {error}"),
    };
    Error::new(ErrorKind::InvalidData, why)
}

impl<S: Read + Write> Read for TlsStream<S> {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(into)])
    }

    /// Fills the pieces, or else the socket has no more bytes for now.
    fn read_vectored(&mut self, pieces: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let wanted: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.advance()?;
        let mut filled = self.take_content(pieces, 0);
        while filled < wanted && self.state != State::Closed {
            match self.read_in() {
                // An end without a farewell is an end, too: frames have their own lengths.
                Ok(0) => self.state = State::Closed,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) if filled > 0 => return Ok(filled),
                Err(error) => return Err(error),
            }
            if self.state != State::Closed {
                self.process()?;
                self.write_out()?;
            }
            filled = self.take_content(pieces, filled);
        }
        Ok(filled)
    }
}

impl<S: Read + Write> Write for TlsStream<S> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// Encrypts bytes if all earlier ones are written, and writes them as far as the socket takes
    /// them. What is left goes with the next write or flush.
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize> {
        self.advance()?;
        if self.state != State::Established || self.has_unsent() {
            return Err(ErrorKind::WouldBlock.into());
        }
        // Content of records that have arrived must be out of the way before anything is encrypted.
        self.process()?;
        let mut left = WRITE_AT_MOST;
        for piece in pieces {
            let piece = &piece[..piece.len().min(left)];
            left -= piece.len();
            if piece.is_empty() {
                continue;
            }
            let incoming = &mut self.incoming[self.start..self.filled];
            let result = match &mut self.end {
                End::Caller(connection) => encrypt(connection.process_tls_records(incoming), piece, &mut self.outgoing),
                End::Called(connection) => encrypt(connection.process_tls_records(incoming), piece, &mut self.outgoing),
            };
            result.map_err(|error| refused(&error))?;
        }
        self.write_out()?;
        Ok(WRITE_AT_MOST - left)
    }

    fn flush(&mut self) -> Result<()> {
        self.advance()
    }
}

#[cfg(test)]
mod tests;
