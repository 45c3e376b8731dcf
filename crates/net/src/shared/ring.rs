//! The two halves of a ring. Each keeps its own position to itself and only tells it to the other;
//! what the other says of its position is believed as far as it is possible.

use super::copy;
use super::page::{ControlWord, Direction, Page, RING_BYTES};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The other side is told of bytes, and of room, at least this often, so that both copy at the same
/// time.
pub const TELL_EVERY: usize = 64 << 10;
/// Room that is worth a bell: the writer has time to wake up while the rest is read.
const ROOM_FOR_BELL: usize = RING_BYTES / 2;

/// What the other side wrote where its position in a ring stands cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageError {
    /// It says that it wrote more than there is room for, or less than it had said before.
    Tail {
        /// What it says.
        says: u64,
        /// The least that could be true, and how far beyond that it may be.
        least: u64,
        /// See `least`.
        span: u64,
    },
    /// It says that it read more than it was given, or less than it had said before.
    Head {
        /// What it says.
        says: u64,
        /// The least that could be true, and how far beyond that it may be.
        least: u64,
        /// See `least`.
        span: u64,
    },
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (did, says, least, span) = match self {
            Self::Tail { says, least, span } => ("wrote", says, least, span),
            Self::Head { says, least, span } => ("read", says, least, span),
        };
        write!(
            f,
            "the shared memory was scribbled on: the peer says that it {did} {says} bytes so far, which can only be "
        )?;
        write!(f, "{least} to {}", least.wrapping_add(*span))
    }
}

impl std::error::Error for PageError {}

impl From<PageError> for std::io::Error {
    fn from(error: PageError) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, error)
    }
}

/// Whether the other side needs a bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Bell {
    /// It sleeps.
    Ring,
    /// It will find out by itself.
    Silent,
}

/// Takes a wish for a bell, if there is one.
fn taken(wish: &AtomicU64) -> Bell {
    // A word that nobody has touched is not fetched for writing.
    if wish.load(Ordering::Relaxed) != 0 && wish.swap(0, Ordering::Relaxed) != 0 { Bell::Ring } else { Bell::Silent }
}

/// The end of a ring that bytes are put in at.
pub struct Producer {
    direction: Direction,
    /// Bytes written. The one who waits reads it too.
    tail: AtomicU64,
    /// The last head that was believed.
    head: AtomicU64,
}

impl Producer {
    pub fn new(direction: Direction) -> Self {
        Self { direction, tail: AtomicU64::new(0), head: AtomicU64::new(0) }
    }

    /// Bytes that can be written now.
    pub fn room(&self, page: &Page) -> Result<usize, PageError> {
        let says = page.word(self.direction, ControlWord::Head).load(Ordering::Acquire);
        let (tail, least) = (self.tail.load(Ordering::Relaxed), self.head.load(Ordering::Relaxed));
        let span = tail.wrapping_sub(least);
        if says.wrapping_sub(least) > span {
            return Err(PageError::Head { says, least, span });
        }
        self.head.store(says, Ordering::Relaxed);
        Ok(RING_BYTES - tail.wrapping_sub(says) as usize)
    }

    /// Whether the other side says that there is room for so many bytes. Whether that can be true
    /// is found out by whoever then writes.
    pub fn may_have_room(&self, page: &Page, bytes: usize) -> bool {
        let says = page.word(self.direction, ControlWord::Head).load(Ordering::Acquire);
        let used = self.tail.load(Ordering::Relaxed).wrapping_sub(says);
        used.checked_add(bytes as u64).is_none_or(|after| after <= RING_BYTES as u64) || used > RING_BYTES as u64
    }

    /// Writes `bytes`, for which there is room, and tells of them.
    pub fn put(&self, page: &Page, bytes: &[u8]) -> Bell {
        let tail = self.tail.load(Ordering::Relaxed);
        let at = tail as usize % RING_BYTES;
        let (first, second) = bytes.split_at(bytes.len().min(RING_BYTES - at));
        let ring = page.ring(self.direction);
        copy::store(&ring[at..at + first.len()], first);
        copy::store(&ring[..second.len()], second);
        let tail = tail.wrapping_add(bytes.len() as u64);
        self.tail.store(tail, Ordering::Relaxed);
        page.word(self.direction, ControlWord::Tail).store(tail, Ordering::Release);
        // Either the reader, about to sleep, sees these bytes, or this sees that it sleeps.
        fence(Ordering::SeqCst);
        taken(page.word(self.direction, ControlWord::ReaderSleeps))
    }

    /// Asks for a bell when there is room. There may be some already: look again after this.
    pub fn ask_for_room(&self, page: &Page) {
        page.word(self.direction, ControlWord::WriterWaits).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// The end of a ring that bytes are taken out at.
pub struct Consumer {
    direction: Direction,
    /// Bytes read. The one who waits reads it too.
    head: AtomicU64,
    /// The last tail that was believed.
    tail: AtomicU64,
}

impl Consumer {
    pub fn new(direction: Direction) -> Self {
        Self { direction, head: AtomicU64::new(0), tail: AtomicU64::new(0) }
    }

    /// Bytes that can be read now.
    pub fn filled(&self, page: &Page) -> Result<usize, PageError> {
        let says = page.word(self.direction, ControlWord::Tail).load(Ordering::Acquire);
        let (head, least) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
        let span = RING_BYTES as u64 - least.wrapping_sub(head);
        if says.wrapping_sub(least) > span {
            return Err(PageError::Tail { says, least, span });
        }
        self.tail.store(says, Ordering::Relaxed);
        Ok(says.wrapping_sub(head) as usize)
    }

    /// Whether the other side has said anything new since the ring was last looked into. Whether
    /// that can be true is found out by whoever then reads.
    pub fn may_have_more(&self, page: &Page) -> bool {
        page.word(self.direction, ControlWord::Tail).load(Ordering::Acquire) != self.head.load(Ordering::Relaxed)
    }

    /// Reads as many bytes as `into` holds, which are there, and tells of the room.
    pub fn take(&self, page: &Page, into: &mut [u8]) -> Bell {
        let head = self.head.load(Ordering::Relaxed);
        let at = head as usize % RING_BYTES;
        let length = into.len();
        let (first, second) = into.split_at_mut(length.min(RING_BYTES - at));
        let ring = page.ring(self.direction);
        copy::load(&ring[at..at + first.len()], first);
        copy::load(&ring[..second.len()], second);
        let head = head.wrapping_add(length as u64);
        self.head.store(head, Ordering::Relaxed);
        page.word(self.direction, ControlWord::Head).store(head, Ordering::Release);
        let filled = self.tail.load(Ordering::Relaxed).wrapping_sub(head) as usize;
        if RING_BYTES - filled < ROOM_FOR_BELL {
            return Bell::Silent;
        }
        // Either the writer, about to wait, sees this room, or this sees that it waits.
        fence(Ordering::SeqCst);
        taken(page.word(self.direction, ControlWord::WriterWaits))
    }

    /// Asks for a bell when there are bytes. There may be some already: look again after this.
    pub fn ask_for_bytes(&self, page: &Page) {
        page.word(self.direction, ControlWord::ReaderSleeps).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// No bell is needed: somebody looks.
    pub fn ask_no_more(&self, page: &Page) {
        page.word(self.direction, ControlWord::ReaderSleeps).store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> (Page, Producer, Consumer) {
        let (page, _) = Page::create().expect("memory");
        (page, Producer::new(Direction::Up), Consumer::new(Direction::Up))
    }

    #[test]
    fn bytes_come_out_as_they_went_in_round_and_round() {
        let (page, producer, consumer) = ring();
        let piece: Vec<u8> = (0..TELL_EVERY + 13).map(|at| (at ^ at >> 8) as u8).collect();
        let mut out = vec![0; piece.len()];
        for round in 0..3 * RING_BYTES / piece.len() {
            assert_eq!(producer.room(&page), Ok(RING_BYTES));
            let _ = producer.put(&page, &piece);
            assert_eq!(consumer.filled(&page), Ok(piece.len()));
            out.fill(0);
            let _ = consumer.take(&page, &mut out);
            assert_eq!(out, piece, "round {round}");
        }
    }

    #[test]
    fn a_bell_is_wanted_once_and_for_room_only_when_there_is_much() {
        let (page, producer, consumer) = ring();
        let piece = vec![1; TELL_EVERY];
        assert_eq!(producer.put(&page, &piece), Bell::Silent, "nobody sleeps");
        consumer.ask_for_bytes(&page);
        assert_eq!(producer.put(&page, &piece), Bell::Ring);
        assert_eq!(producer.put(&page, &piece), Bell::Silent, "rung already");
        consumer.ask_for_bytes(&page);
        consumer.ask_no_more(&page);
        while producer.room(&page).expect("sound") > 0 {
            assert_eq!(producer.put(&page, &piece), Bell::Silent, "thought better of it");
        }
        producer.ask_for_room(&page);
        let mut out = vec![0; TELL_EVERY];
        let mut read = 0;
        assert_eq!(consumer.filled(&page), Ok(RING_BYTES));
        let rung_at = loop {
            let bell = consumer.take(&page, &mut out);
            read += out.len();
            if bell == Bell::Ring {
                break read;
            }
        };
        assert_eq!(rung_at, ROOM_FOR_BELL);
        assert_eq!(consumer.take(&page, &mut out), Bell::Silent, "rung already");
    }

    #[test]
    fn positions_that_cannot_be_are_errors_and_those_that_can_are_believed() {
        const RING: u64 = RING_BYTES as u64;
        // (written, read, then said by the writer; believed)
        let tails = [
            (100, 40, 100, true),
            (100, 40, 101, true),
            (100, 40, 40 + RING, true),
            (100, 40, 41 + RING, false),
            (100, 40, 99, false),
            (100, 40, 40, false),
            (100, 40, 0, false),
            (100, 40, u64::MAX, false),
            (0, 0, u64::MAX, false),
        ];
        for (written, read, says, believed) in tails {
            let (page, producer, consumer) = ring();
            let _ = producer.put(&page, &vec![0; written]);
            consumer.filled(&page).expect("sound");
            let _ = consumer.take(&page, &mut vec![0; read]);
            page.word(Direction::Up, ControlWord::Tail).store(says, Ordering::Relaxed);
            let found = consumer.filled(&page);
            assert_eq!(found.is_ok(), believed, "{written} written, {read} read, then {says}: {found:?}");
            assert_eq!(consumer.may_have_more(&page), says != read as u64, "whoever waits is told either way");
        }
        // (written, read, then said by the reader; believed)
        let heads = [
            (100, 40, 40, true),
            (100, 40, 100, true),
            (100, 40, 101, false),
            (100, 40, 39, false),
            (100, 40, 0, false),
            (100, 40, u64::MAX, false),
            (0, 0, 1, false),
        ];
        for (written, read, says, believed) in heads {
            let (page, producer, consumer) = ring();
            let _ = producer.put(&page, &vec![0; written]);
            consumer.filled(&page).expect("sound");
            let _ = consumer.take(&page, &mut vec![0; read]);
            producer.room(&page).expect("sound");
            page.word(Direction::Up, ControlWord::Head).store(says, Ordering::Relaxed);
            let found = producer.room(&page);
            assert_eq!(found.is_ok(), believed, "{written} written, {read} read, then {says}: {found:?}");
        }
    }
}
