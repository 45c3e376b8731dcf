//! The receiving half of a connection: reads bytes, returns frames.
//!
//! One read fills a staging buffer, from which small frames are cut. A large payload is read
//! straight into the buffer that the machine will use. The same vectored read takes the beginning
//! of the next frame.

use std::io::{ErrorKind, IoSliceMut, Read};
use wire::{Frame, Fresh, HEADER_BYTES, Header, Pool, WireError, decode};

/// Bytes of the staging buffer.
const STAGING: usize = 16 << 10;

/// Why a connection ends.
#[derive(Debug)]
pub enum CloseReason {
    /// The peer closed it, or the network did.
    Closed,
    /// The peer sent bytes that are not a frame.
    Refused(WireError),
    /// The peer broke the rules of the connection: it passed unusable shared memory, or wrote an
    /// impossible ring position.
    Broken(std::io::Error),
}

/// A frame of which the header has arrived, and part of the rest.
struct Partial {
    header: Header,
    body: Vec<u8>,
    payloads: [Fresh; 2],
    /// Bytes of body and payloads that have arrived.
    filled: usize,
}

impl Partial {
    fn new(header: Header, pool: &Pool) -> Self {
        let payloads = header.payloads.map(|bytes| pool.take(bytes));
        Self { body: vec![0; header.body], payloads, filled: 0, header }
    }

    fn total(&self) -> usize {
        self.header.body + self.header.payloads[0] + self.header.payloads[1]
    }

    /// The parts of body and payloads that have not arrived yet.
    fn rest(&mut self) -> [&mut [u8]; 3] {
        let mut skip = self.filled;
        let [positions, values] = &mut self.payloads;
        [&mut self.body[..], positions.bytes_mut(), values.bytes_mut()].map(|piece| {
            let from = skip.min(piece.len());
            skip -= from;
            &mut piece[from..]
        })
    }

    fn take(&mut self, mut bytes: &[u8]) -> usize {
        let mut taken = 0;
        for piece in self.rest() {
            let count = piece.len().min(bytes.len());
            piece[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            taken += count;
        }
        self.filled += taken;
        taken
    }
}

/// Received bytes that are not yet returned as frames.
pub struct Inbox {
    staging: Box<[u8]>,
    /// The unread bytes in `staging` lie between `start` and `end`.
    start: usize,
    end: usize,
    partial: Option<Partial>,
    /// Whether the socket may have more bytes. A short read shows that it is empty.
    pub may_have_more: bool,
    /// Whether the peer has closed its end. Its last bytes and its close are one event, so after a
    /// short read the socket must be read again.
    pub peer_ended: bool,
    /// Bytes received so far.
    pub bytes: u64,
}

impl Inbox {
    /// An inbox into which no bytes were received.
    pub fn new() -> Self {
        let staging = vec![0; STAGING].into_boxed_slice();
        Self { staging, start: 0, end: 0, partial: None, may_have_more: true, peer_ended: false, bytes: 0 }
    }

    /// The next frame. None if the socket has no more bytes for now.
    pub fn next(&mut self, socket: &mut impl Read, pool: &Pool) -> Result<Option<Frame>, CloseReason> {
        loop {
            if let Some(partial) = &mut self.partial {
                self.start += partial.take(&self.staging[self.start..self.end]);
                if partial.filled == partial.total() {
                    return self.finish().map(Some);
                }
            } else if self.end - self.start >= HEADER_BYTES {
                let mut header = [0; HEADER_BYTES];
                header.copy_from_slice(&self.staging[self.start..self.start + HEADER_BYTES]);
                self.start += HEADER_BYTES;
                let header = Header::parse(&header).map_err(CloseReason::Refused)?;
                self.partial = Some(Partial::new(header, pool));
                continue;
            }
            if !self.may_have_more || !self.read(socket)? {
                return Ok(None);
            }
        }
    }

    fn finish(&mut self) -> Result<Frame, CloseReason> {
        let Some(Partial { header, body, payloads, .. }) = self.partial.take() else { return Err(CloseReason::Closed) };
        decode(&header, &body, payloads.map(Fresh::freeze)).map_err(CloseReason::Refused)
    }

    /// Reads once from the socket. Returns whether the caller should look at the inbox again.
    fn read(&mut self, socket: &mut impl Read) -> Result<bool, CloseReason> {
        self.staging.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let result = match &mut self.partial {
            // The staging buffer is empty here: the partial frame has taken all its bytes.
            Some(partial) => {
                let wanted = partial.total() - partial.filled;
                let [body, positions, values] = partial.rest();
                let mut pieces = [body, positions, values, &mut self.staging[..]].map(IoSliceMut::new);
                socket.read_vectored(&mut pieces).map(|count| {
                    partial.filled += count.min(wanted);
                    self.end = count.saturating_sub(wanted);
                    (count, wanted + STAGING)
                })
            }
            None => {
                let room = &mut self.staging[self.end..];
                let wanted = room.len();
                socket.read(room).map(|count| {
                    self.end += count;
                    (count, wanted)
                })
            }
        };
        match result {
            Ok((0, _)) if self.partial.is_some() || self.start < self.end => {
                let rest = &self.staging[self.start..self.end];
                // An alert of TLS is shorter than a header.
                let is_tls = self.partial.is_none() && WireError::of_foreign(rest) == WireError::Tls;
                Err(CloseReason::Refused(if is_tls { WireError::Tls } else { WireError::Truncated }))
            }
            Ok((0, _)) => Err(CloseReason::Closed),
            Ok((count, wanted)) => {
                self.bytes += count as u64;
                self.may_have_more = count == wanted || self.partial.is_some() || self.peer_ended;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.may_have_more = false;
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            // A connection that is still being established is not readable yet.
            Err(error) if error.kind() == ErrorKind::NotConnected => {
                self.may_have_more = false;
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => Err(CloseReason::Broken(error)),
            Err(_) => Err(CloseReason::Closed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::chunked::ChunkedSocket;
    use super::*;
    use types::{Clock, NodeId, NumberType, Placement, ShardId, TableId};
    use wire::{Control, Head, Keys, Message, Push, Writes, encode};

    fn frames() -> Vec<Frame> {
        let pool = Pool::new();
        let push = |rows: u64| {
            let ids: Vec<u64> = (0..rows).collect();
            let keys = Keys::distinct(Placement::Spread, &ids).slice(0..rows as usize).in_full();
            let values = pool.copy(&ids.iter().map(|id| *id as f32).collect::<Vec<_>>());
            let push = Push {
                table: TableId(1),
                shard: ShardId(0),
                settled: 0,
                number: NumberType::F32,
                writes: Writes::GRADIENTS,
                keys,
                values,
            };
            let mut head = Head::plain(NodeId::Worker(0), NodeId::Server(0));
            head.clock = Clock(rows);
            Frame { head, message: Message::Push(push) }
        };
        let heartbeat = || {
            let message = Message::Control(Control::Heartbeat { heard: 0 });
            Frame { head: Head::plain(NodeId::Worker(0), NodeId::Server(0)), message }
        };
        vec![heartbeat(), push(3), push(0), push(20_000), heartbeat(), push(1)]
    }

    fn bytes_of(frames: &[Frame]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for frame in frames {
            encode(frame, &mut bytes);
            frame.message.payloads().iter().for_each(|payload| bytes.extend_from_slice(payload.bytes()));
        }
        bytes
    }

    #[test]
    fn inbox_returns_whole_frames_for_any_piece_length() {
        let frames = frames();
        let bytes = bytes_of(&frames);
        for size in [1, 7, 87, 88, 89, 4_000, 16_384, 100_000, bytes.len()] {
            let mut socket = ChunkedSocket(bytes.chunks(size).map(<[u8]>::to_vec).collect());
            let mut inbox = Inbox::new();
            let pool = Pool::new();
            let mut received = Vec::new();
            while !socket.0.is_empty() || received.len() < frames.len() {
                inbox.may_have_more = true;
                while let Some(frame) = inbox.next(&mut socket, &pool).expect("well formed") {
                    received.push(frame);
                }
            }
            assert_eq!(received, frames, "pieces of {size}");
            assert_eq!(inbox.bytes, bytes.len() as u64);
        }
    }

    #[test]
    fn inbox_refuses_garbage_and_never_returns_a_truncated_frame() {
        let mut inbox = Inbox::new();
        let garbage = vec![b'x'; 200];
        assert!(matches!(inbox.next(&mut ChunkedSocket([garbage].into()), &Pool::new()), Err(CloseReason::Refused(_))));
        let bytes = bytes_of(&frames()[..2]);
        let mut inbox = Inbox::new();
        let mut socket = ChunkedSocket([bytes[..bytes.len() - 1].to_vec()].into());
        assert!(matches!(inbox.next(&mut socket, &Pool::new()), Ok(Some(_))));
        assert!(matches!(inbox.next(&mut socket, &Pool::new()), Ok(None)));
    }
}
