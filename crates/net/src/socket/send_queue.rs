//! The sending half of a connection: queues frames and writes them with vectored writes. It does
//! not copy payloads.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Write};
use wire::{Frame, Payload, WireError, encode};

/// Most slices that one write is given.
const PIECES: usize = 48;

/// A frame that is not written yet, or only in part.
struct Queued {
    /// Header and body.
    small: Vec<u8>,
    payloads: [Payload; 2],
    /// Bytes of it that are written.
    sent: usize,
}

impl Queued {
    fn len(&self) -> usize {
        self.small.len() + self.payloads[0].len() + self.payloads[1].len()
    }
}

/// Frames that are queued and not yet written.
#[derive(Default)]
pub struct SendQueue {
    queue: VecDeque<Queued>,
    /// Bytes that are still to be written.
    pub waiting: usize,
    /// Bytes written so far.
    pub written: u64,
}

impl SendQueue {
    /// Queues a frame. Fails if the peer would refuse it.
    pub fn push(&mut self, frame: &Frame) -> Result<(), WireError> {
        let mut small = Vec::with_capacity(192);
        encode(frame, &mut small)?;
        let queued = Queued { small, payloads: frame.message.payloads().map(Clone::clone), sent: 0 };
        self.waiting += queued.len();
        self.queue.push_back(queued);
        Ok(())
    }

    /// Writes until the queue is empty or the socket would block. An error means that the
    /// connection is broken.
    pub fn flush(&mut self, socket: &mut impl Write) -> std::io::Result<()> {
        while self.waiting > 0 {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let mut count = 0;
            'fill: for queued in &self.queue {
                let mut skip = queued.sent;
                for piece in [&queued.small[..], queued.payloads[0].bytes(), queued.payloads[1].bytes()] {
                    let from = skip.min(piece.len());
                    skip -= from;
                    if from < piece.len() {
                        if count == PIECES {
                            break 'fill;
                        }
                        pieces[count] = IoSlice::new(&piece[from..]);
                        count += 1;
                    }
                }
            }
            match socket.write_vectored(&pieces[..count]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => self.advance(bytes),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::NotConnected => return Ok(()),
                    ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    fn advance(&mut self, mut bytes: usize) {
        self.waiting -= bytes;
        self.written += bytes as u64;
        while let Some(first) = self.queue.front_mut() {
            let left = first.len() - first.sent;
            if bytes < left {
                first.sent += bytes;
                return;
            }
            bytes -= left;
            self.queue.pop_front();
        }
    }
}
