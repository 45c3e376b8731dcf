//! A single-producer, single-consumer ring buffer in shared memory: its writing half and its
//! reading half, in two processes.
//!
//! Each half keeps its own position in private memory and publishes a copy in the shared memory. It
//! checks the position that the other half publishes, and rejects one that cannot be
//! ([`PageError`]).

use super::copy;
use super::page::{ControlWord, Direction, Page, RING_BYTES};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Publish positions at least every so many bytes, so that both sides copy at the same time.
pub const TELL_EVERY: usize = 64 << 10;
/// Free bytes from which the reader wakes a waiting writer. The writer wakes up while the reader
/// reads the rest.
const ROOM_FOR_BELL: usize = RING_BYTES / 2;

/// The peer published an impossible position in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageError {
    /// The writer claims to have written more bytes than fit, or fewer than it claimed before.
    Tail {
        /// The published position.
        says: u64,
        /// The lowest possible position.
        least: u64,
        /// The highest possible position is `least + span`.
        span: u64,
    },
    /// The reader claims to have read more bytes than were written, or fewer than it claimed
    /// before.
    Head {
        /// The published position.
        says: u64,
        /// The lowest possible position.
        least: u64,
        /// The highest possible position is `least + span`.
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
            "invalid ring position in shared memory: the peer says that it {did} {says} bytes so far; possible are "
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

/// Whether the other side needs a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Bell {
    /// The other side sleeps: wake it.
    Ring,
    /// The other side looks into the ring by itself.
    Silent,
}

/// Clears a request for a doorbell. Says whether there was one.
fn taken(request: &AtomicU64) -> Bell {
    // The load comes first: without a request the core need not fetch the cache line for writing.
    if request.load(Ordering::Relaxed) != 0 && request.swap(0, Ordering::Relaxed) != 0 {
        Bell::Ring
    } else {
        Bell::Silent
    }
}

/// The writing half of a ring.
pub struct Producer {
    direction: Direction,
    /// Bytes written. Atomic because the waiting thread reads it, too.
    tail: AtomicU64,
    /// The last published head that passed the check.
    head: AtomicU64,
}

impl Producer {
    pub fn new(direction: Direction) -> Self {
        Self { direction, tail: AtomicU64::new(0), head: AtomicU64::new(0) }
    }

    /// Bytes that can be written now. Fails if the reader's published position is impossible.
    pub fn room(&self, page: &Page) -> Result<usize, PageError> {
        let says = page.word(self.direction, ControlWord::Head).load(Ordering::Acquire);
        let tail = self.tail.load(Ordering::Relaxed);
        let least = self.head.load(Ordering::Relaxed);
        let span = tail.wrapping_sub(least);
        if says.wrapping_sub(least) > span {
            return Err(PageError::Head { says, least, span });
        }
        self.head.store(says, Ordering::Relaxed);
        Ok(RING_BYTES - tail.wrapping_sub(says) as usize)
    }

    /// Whether there is room for `bytes`, by the reader's unchecked position. The write that
    /// follows checks it. An impossible position counts as room, so that a write follows.
    pub fn may_have_room(&self, page: &Page, bytes: usize) -> bool {
        let says = page.word(self.direction, ControlWord::Head).load(Ordering::Acquire);
        let used = self.tail.load(Ordering::Relaxed).wrapping_sub(says);
        used.checked_add(bytes as u64).is_none_or(|after| after <= RING_BYTES as u64) || used > RING_BYTES as u64
    }

    /// Writes `bytes` and publishes the new tail. The caller has checked that there is room.
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
        // With the fence in `ask_for_bytes`: either a reader about to sleep sees these bytes, or
        // this writer sees the reader's request.
        fence(Ordering::SeqCst);
        taken(page.word(self.direction, ControlWord::ReaderSleeps))
    }

    /// Requests a doorbell for when there is room. Check for room again afterwards: there may
    /// already be some.
    pub fn ask_for_room(&self, page: &Page) {
        page.word(self.direction, ControlWord::WriterWaits).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// The reading half of a ring.
pub struct Consumer {
    direction: Direction,
    /// Bytes read. Atomic because the waiting thread reads it, too.
    head: AtomicU64,
    /// The last published tail that passed the check.
    tail: AtomicU64,
}

impl Consumer {
    pub fn new(direction: Direction) -> Self {
        Self { direction, head: AtomicU64::new(0), tail: AtomicU64::new(0) }
    }

    /// Bytes that can be read now. Fails if the writer's published position is impossible.
    pub fn filled(&self, page: &Page) -> Result<usize, PageError> {
        let says = page.word(self.direction, ControlWord::Tail).load(Ordering::Acquire);
        let head = self.head.load(Ordering::Relaxed);
        let least = self.tail.load(Ordering::Relaxed);
        let span = RING_BYTES as u64 - least.wrapping_sub(head);
        if says.wrapping_sub(least) > span {
            return Err(PageError::Tail { says, least, span });
        }
        self.tail.store(says, Ordering::Relaxed);
        Ok(says.wrapping_sub(head) as usize)
    }

    /// Whether the ring holds unread bytes, by the writer's unchecked position. The read that
    /// follows checks it.
    pub fn may_have_more(&self, page: &Page) -> bool {
        page.word(self.direction, ControlWord::Tail).load(Ordering::Acquire) != self.head.load(Ordering::Relaxed)
    }

    /// Fills `into` and publishes the new head. The caller has checked that so many bytes are
    /// there.
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
        // With the fence in `ask_for_room`: either a writer about to wait sees this room, or this
        // reader sees the writer's request.
        fence(Ordering::SeqCst);
        taken(page.word(self.direction, ControlWord::WriterWaits))
    }

    /// Requests a doorbell for when there are bytes. Check for bytes again afterwards: there may
    /// already be some.
    pub fn ask_for_bytes(&self, page: &Page) {
        page.word(self.direction, ControlWord::ReaderSleeps).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Withdraws the request for a doorbell: a thread looks into the ring by itself.
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
    fn ring_returns_bytes_as_written_across_wraparound() {
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
    fn doorbell_rings_once_per_request_and_for_room_only_when_half_is_free() {
        let (page, producer, consumer) = ring();
        let piece = vec![1; TELL_EVERY];
        assert_eq!(producer.put(&page, &piece), Bell::Silent, "no request");
        consumer.ask_for_bytes(&page);
        assert_eq!(producer.put(&page, &piece), Bell::Ring);
        assert_eq!(producer.put(&page, &piece), Bell::Silent, "rung already");
        consumer.ask_for_bytes(&page);
        consumer.ask_no_more(&page);
        while producer.room(&page).expect("sound") > 0 {
            assert_eq!(producer.put(&page, &piece), Bell::Silent, "request withdrawn");
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
    fn ring_rejects_impossible_positions_and_accepts_all_others() {
        const RING: u64 = RING_BYTES as u64;
        // (bytes written, bytes read, tail that the writer then publishes; accepted)
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
        for (written, read, says, accepted) in tails {
            let (page, producer, consumer) = ring();
            let _ = producer.put(&page, &vec![0; written]);
            consumer.filled(&page).expect("sound");
            let _ = consumer.take(&page, &mut vec![0; read]);
            page.word(Direction::Up, ControlWord::Tail).store(says, Ordering::Relaxed);
            let found = consumer.filled(&page);
            assert_eq!(found.is_ok(), accepted, "{written} written, {read} read, then {says}: {found:?}");
            assert_eq!(consumer.may_have_more(&page), says != read as u64, "a waiter wakes up either way");
        }
        // (bytes written, bytes read, head that the reader then publishes; accepted)
        let heads = [
            (100, 40, 40, true),
            (100, 40, 100, true),
            (100, 40, 101, false),
            (100, 40, 39, false),
            (100, 40, 0, false),
            (100, 40, u64::MAX, false),
            (0, 0, 1, false),
        ];
        for (written, read, says, accepted) in heads {
            let (page, producer, consumer) = ring();
            let _ = producer.put(&page, &vec![0; written]);
            consumer.filled(&page).expect("sound");
            let _ = consumer.take(&page, &mut vec![0; read]);
            producer.room(&page).expect("sound");
            page.word(Direction::Up, ControlWord::Head).store(says, Ordering::Relaxed);
            let found = producer.room(&page);
            assert_eq!(found.is_ok(), accepted, "{written} written, {read} read, then {says}: {found:?}");
        }
    }
}
