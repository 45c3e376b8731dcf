//! The receiving half of a connection: reads bytes, returns frames.
//!
//! One read fills a staging buffer, from which small frames are cut. A large payload is read
//! straight into the buffer that the machine will use. The same vectored read takes the beginning
//! of the next frame.
//!
//! Memory follows the bytes that arrive. A frame gets its whole buffers at once only if the node's
//! budget ([`Promises`]) has room for them. Otherwise they start small and double as bytes arrive,
//! which copies what they hold. A large frame of a peer without a place in the run is not stored at
//! all.

use super::guard::is_provisional;
use super::promises::{Promised, Promises};
use std::io::{ErrorKind, IoSliceMut, Read};
use types::limits::{FIRST_BUFFER_BYTES, STRANGER_FRAME_BYTES};
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
    /// Body and payloads. Each has memory for its beginning at least up to the bytes that have
    /// arrived.
    body: Vec<u8>,
    payloads: [Fresh; 2],
    /// Whether all of them have all of their memory.
    is_whole: bool,
    /// Bytes of body and payloads that have arrived.
    filled: usize,
    /// What is taken from the node's budget for it.
    _promised: Option<Promised>,
}

impl Partial {
    fn new(header: Header, pool: &Pool, budget: &Promises) -> Self {
        let following = header.following();
        let promised = if following > FIRST_BUFFER_BYTES { budget.take(following) } else { None };
        let is_whole = following <= FIRST_BUFFER_BYTES || promised.is_some();
        let begin = |bytes| if is_whole { bytes } else { 0 };
        Self {
            body: vec![0; begin(header.body)],
            payloads: header.payloads.map(|bytes| pool.take(begin(bytes))),
            is_whole,
            filled: 0,
            _promised: promised,
            header,
        }
    }

    fn total(&self) -> usize {
        self.header.following()
    }

    /// Doubles the buffer that the next byte goes into, if it is full.
    fn grow(&mut self, pool: &Pool) {
        if self.is_whole || self.filled == self.total() {
            return;
        }
        let mut place = self.filled;
        let next = |has: usize, full: usize| full.min((2 * has).max(FIRST_BUFFER_BYTES));
        if place < self.header.body {
            if place == self.body.len() {
                self.body.resize(next(place, self.header.body), 0);
            }
            return;
        }
        place -= self.header.body;
        for (buffer, full) in self.payloads.iter_mut().zip(self.header.payloads) {
            if place < full {
                if place == buffer.bytes_mut().len() {
                    let mut larger = pool.take(next(place, full));
                    larger.bytes_mut()[..place].copy_from_slice(buffer.bytes_mut());
                    *buffer = larger;
                }
                return;
            }
            place -= full;
        }
    }

    /// The memory for bytes of body and payloads that have not arrived yet.
    fn rest(&mut self) -> [&mut [u8]; 3] {
        let full = [self.header.body, self.header.payloads[0], self.header.payloads[1]];
        let mut skip = self.filled;
        let mut is_reached = true;
        let [positions, values] = &mut self.payloads;
        let mut full = full.into_iter();
        [&mut self.body[..], positions.bytes_mut(), values.bytes_mut()].map(|piece| {
            let from = if is_reached { skip.min(piece.len()) } else { piece.len() };
            skip -= if is_reached { from } else { 0 };
            is_reached &= full.next() == Some(piece.len());
            &mut piece[from..]
        })
    }

    fn take(&mut self, mut bytes: &[u8], pool: &Pool) -> usize {
        let before = self.filled;
        while !bytes.is_empty() && self.filled < self.total() {
            self.grow(pool);
            let mut taken = 0;
            for piece in self.rest() {
                let count = piece.len().min(bytes.len());
                piece[..count].copy_from_slice(&bytes[..count]);
                bytes = &bytes[count..];
                taken += count;
            }
            self.filled += taken;
        }
        self.filled - before
    }
}

/// Received bytes that are not yet returned as frames.
pub struct Inbox {
    staging: Box<[u8]>,
    /// The unread bytes in `staging` lie between `start` and `end`.
    start: usize,
    end: usize,
    partial: Option<Partial>,
    /// Bytes of a frame that is not stored and that have not arrived yet.
    skipping: usize,
    budget: Promises,
    /// Whether the peer has no place in the run, or has not shown that it has one.
    pub of_stranger: bool,
    /// Whether the socket may have more bytes. A short read shows that it is empty.
    pub may_have_more: bool,
    /// Whether the peer has closed its end. Its last bytes and its close are one event, so after a
    /// short read the socket must be read again.
    pub peer_ended: bool,
    /// Bytes received so far.
    pub bytes: u64,
    /// Frames received so far, whole.
    pub frames: u64,
}

impl Inbox {
    /// An inbox into which no bytes were received.
    pub fn new(budget: Promises) -> Self {
        let staging = vec![0; STAGING].into_boxed_slice();
        Self {
            staging,
            start: 0,
            end: 0,
            partial: None,
            skipping: 0,
            budget,
            of_stranger: false,
            may_have_more: true,
            peer_ended: false,
            bytes: 0,
            frames: 0,
        }
    }

    /// The next frame. None if the socket has no more bytes for now.
    pub fn next(&mut self, socket: &mut impl Read, pool: &Pool) -> Result<Option<Frame>, CloseReason> {
        loop {
            if self.skipping > 0 {
                let skipped = self.skipping.min(self.end - self.start);
                self.start += skipped;
                self.skipping -= skipped;
                if self.skipping == 0 {
                    self.frames += 1;
                    continue;
                }
            } else if let Some(partial) = &mut self.partial {
                self.start += partial.take(&self.staging[self.start..self.end], pool);
                if partial.filled == partial.total() {
                    return self.finish().map(Some);
                }
                partial.grow(pool);
            } else if self.end - self.start >= HEADER_BYTES {
                let mut header = [0; HEADER_BYTES];
                header.copy_from_slice(&self.staging[self.start..self.start + HEADER_BYTES]);
                self.start += HEADER_BYTES;
                let header = Header::parse(&header).map_err(CloseReason::Refused)?;
                self.begin(header, pool)?;
                continue;
            }
            if !self.may_have_more || !self.read(socket)? {
                return Ok(None);
            }
        }
    }

    /// Begins a frame. A peer without a place sends small frames only. A node of the run whose
    /// place is not known here yet may send large ones: they are dropped, and the sender repeats
    /// what matters.
    fn begin(&mut self, header: Header, pool: &Pool) -> Result<(), CloseReason> {
        let bytes = header.following();
        if self.of_stranger && bytes > STRANGER_FRAME_BYTES {
            if header.sender().is_none_or(is_provisional) {
                let what = "a frame of a process without a place in the run";
                let most = STRANGER_FRAME_BYTES as u64;
                return Err(CloseReason::Refused(WireError::TooLong { what, bytes: bytes as u64, most }));
            }
            self.skipping = bytes;
        } else {
            self.partial = Some(Partial::new(header, pool, &self.budget));
        }
        Ok(())
    }

    /// Bytes of the frame that is arriving, header excluded; `None` between two frames.
    pub fn arriving(&self) -> Option<usize> {
        let begun = || (self.skipping > 0 || self.start < self.end).then_some(self.skipping);
        self.partial.as_ref().map(Partial::total).or_else(begun)
    }

    fn finish(&mut self) -> Result<Frame, CloseReason> {
        let Some(Partial { header, body, payloads, .. }) = self.partial.take() else { return Err(CloseReason::Closed) };
        self.frames += 1;
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
                let [body, positions, values] = partial.rest();
                let wanted = body.len() + positions.len() + values.len();
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
            Ok((0, _)) if self.arriving().is_some() => {
                let rest = &self.staging[self.start..self.end];
                // An alert of TLS is shorter than a header.
                let is_tls =
                    self.partial.is_none() && self.skipping == 0 && WireError::of_foreign(rest) == WireError::Tls;
                Err(CloseReason::Refused(if is_tls { WireError::Tls } else { WireError::Truncated }))
            }
            Ok((0, _)) => Err(CloseReason::Closed),
            Ok((count, wanted)) => {
                self.bytes += count as u64;
                self.may_have_more = count == wanted || self.partial.is_some() || self.skipping > 0 || self.peer_ended;
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
            encode(frame, &mut bytes).expect("sendable");
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
            let mut inbox = Inbox::new(Promises::new(usize::MAX));
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

    /// Receives all frames of `bytes`, which arrive in pieces of `size`.
    fn received(bytes: &[u8], size: usize, inbox: &mut Inbox) -> Vec<Frame> {
        let mut socket = ChunkedSocket(bytes.chunks(size).map(<[u8]>::to_vec).collect());
        let pool = Pool::new();
        let mut received = Vec::new();
        while !socket.0.is_empty() {
            inbox.may_have_more = true;
            while let Some(frame) = inbox.next(&mut socket, &pool).expect("well formed") {
                received.push(frame);
            }
        }
        received
    }

    #[test]
    fn inbox_returns_the_same_frames_without_a_budget() {
        let frames = frames();
        let bytes = bytes_of(&frames);
        for size in [1, 89, 4_000, 16_384, 50_000, bytes.len()] {
            let mut inbox = Inbox::new(Promises::new(0));
            assert_eq!(received(&bytes, size, &mut inbox), frames, "pieces of {size}");
        }
    }

    /// Bytes of memory that the frame that is arriving has.
    fn memory(inbox: &mut Inbox) -> usize {
        let buffers = |partial: &mut Partial| {
            partial.body.len() + partial.payloads.iter_mut().map(|buffer| buffer.bytes_mut().len()).sum::<usize>()
        };
        inbox.partial.as_mut().map_or(0, buffers)
    }

    #[test]
    fn memory_without_a_budget_follows_the_bytes_that_arrive() {
        let bytes = bytes_of(&frames()[3..4]);
        let mut inbox = Inbox::new(Promises::new(0));
        let mut socket = ChunkedSocket(bytes.chunks(500).map(<[u8]>::to_vec).collect());
        let mut arrived = 0;
        while !socket.0.is_empty() {
            let piece = socket.0.pop_front().expect("more");
            arrived += piece.len();
            inbox.may_have_more = true;
            let mut one = ChunkedSocket([piece].into());
            if inbox.next(&mut one, &Pool::new()).expect("well formed").is_none() {
                let memory = memory(&mut inbox);
                assert!(memory <= 2 * arrived + FIRST_BUFFER_BYTES, "{memory} bytes for {arrived}");
            }
        }
    }

    #[test]
    fn headers_alone_take_no_more_than_the_budget_and_a_first_buffer_each() {
        const BUDGET: usize = 4 << 20;
        let bytes = bytes_of(&frames()[3..4]);
        let budget = Promises::new(BUDGET);
        let mut inboxes: Vec<Inbox> = (0..1_000).map(|_| Inbox::new(budget.clone())).collect();
        let mut taken = 0;
        for inbox in &mut inboxes {
            let mut socket = ChunkedSocket([bytes[..HEADER_BYTES].to_vec()].into());
            assert!(inbox.next(&mut socket, &Pool::new()).expect("well formed").is_none());
            taken += memory(inbox);
        }
        assert!(taken <= BUDGET + inboxes.len() * FIRST_BUFFER_BYTES, "{taken} bytes");
        assert!(taken > BUDGET / 2, "the budget is used: {taken} bytes");
        drop(inboxes);
        assert!(budget.take(BUDGET).is_some(), "closed connections give their part back");
    }

    #[test]
    fn a_large_frame_of_a_stranger_is_not_stored() {
        let frames = frames();
        let bytes = bytes_of(&frames);
        let mut inbox = Inbox::new(Promises::new(usize::MAX));
        inbox.of_stranger = true;
        let small: Vec<Frame> = [&frames[..3], &frames[4..]].concat();
        assert_eq!(received(&bytes, 1_000, &mut inbox), small);
        assert_eq!(inbox.frames, frames.len() as u64);
        let mut provisional = frames[3].clone();
        provisional.head.from = NodeId::Worker(0x1000_0000);
        inbox.may_have_more = true;
        let mut socket = ChunkedSocket([bytes_of(&[provisional])].into());
        let refused = inbox.next(&mut socket, &Pool::new());
        assert!(matches!(refused, Err(CloseReason::Refused(WireError::TooLong { .. }))));
    }

    #[test]
    fn inbox_refuses_garbage_and_never_returns_a_truncated_frame() {
        let mut inbox = Inbox::new(Promises::new(usize::MAX));
        let garbage = vec![b'x'; 200];
        assert!(matches!(inbox.next(&mut ChunkedSocket([garbage].into()), &Pool::new()), Err(CloseReason::Refused(_))));
        let bytes = bytes_of(&frames()[..2]);
        let mut inbox = Inbox::new(Promises::new(usize::MAX));
        let mut socket = ChunkedSocket([bytes[..bytes.len() - 1].to_vec()].into());
        assert!(matches!(inbox.next(&mut socket, &Pool::new()), Ok(Some(_))));
        assert!(matches!(inbox.next(&mut socket, &Pool::new()), Ok(None)));
    }
}
