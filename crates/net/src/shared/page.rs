//! The shared memory of one connection: a ring buffer for each direction, and the control words
//! that hold each side's positions and wake-up requests.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// Bytes of one ring: a writer may be this far ahead of its reader. Small enough for the rings of
/// several connections to stay in a cache that cores share.
pub const RING_BYTES: usize = 1 << 20;
/// Bytes reserved for the control words, before the rings.
const CONTROL_BYTES: usize = 4096;
/// Bytes of the whole mapping.
const PAGE_BYTES: usize = CONTROL_BYTES + 2 * RING_BYTES;
/// Bytes from one control word to the next, so that no two share a cache line or a prefetched pair.
const WORD_STRIDE: usize = 128;
/// With these seals neither side can shrink or grow the memory, or seal it further.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A direction of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the caller to the node it called.
    Up,
    /// From the called node to the caller.
    Down,
}

/// The control words of each ring.
#[derive(Clone, Copy, Debug)]
pub enum ControlWord {
    /// Bytes written so far. Only the writer changes it.
    Tail,
    /// Bytes read so far. Only the reader changes it.
    Head,
    /// 1 while the reader wants a doorbell for new bytes. The reader sets it, the writer clears it.
    ReaderSleeps,
    /// 1 while the writer wants a doorbell for room. The writer sets it, the reader clears it.
    WriterWaits,
}

/// Memory that another process can write at any time, so all access is through atomics.
pub struct Page {
    start: NonNull<u8>,
}

// SAFETY: the memory stays mapped until the page is dropped, and all access is through atomics.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Makes sealed, zeroed memory. The file descriptor lets another process map it, too.
    pub fn create() -> Result<(Self, OwnedFd)> {
        let file = memfd_create("slackwater", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, PAGE_BYTES as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        let page = Self::map(&file)?;
        Ok((page, file))
    }

    /// Maps memory that a peer has passed. Checks that it has the seals and the size that
    /// [`Page::create`] gives it: if the peer could shrink it, an access could kill this process.
    pub fn open(file: impl AsFd) -> Result<Self> {
        let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS));
        if !sealed {
            return Err(Error::new(
                ErrorKind::InvalidData,
                "the shared memory is not sealed, so the peer could shrink it",
            ));
        }
        let bytes = fstat(&file)?.st_size;
        if bytes != PAGE_BYTES as i64 {
            return Err(Error::new(
                ErrorKind::InvalidData,
                format!(
                    "the shared memory is {bytes} bytes and should be {PAGE_BYTES}; run the same release on all nodes"
                ),
            ));
        }
        Self::map(&file)
    }

    fn map(file: impl AsFd) -> Result<Self> {
        // SAFETY: the system chooses the address of a new mapping, so it replaces no other.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), PAGE_BYTES, access, MapFlags::SHARED, file, 0)?
        };
        let start = NonNull::new(start.cast()).ok_or(ErrorKind::OutOfMemory)?;
        Ok(Self { start })
    }

    /// One control word of a ring.
    pub fn word(&self, direction: Direction, word: ControlWord) -> &AtomicU64 {
        let at = (direction as usize * 4 + word as usize) * WORD_STRIDE;
        // SAFETY: the word lies within the control bytes, is aligned, stays mapped as long as
        // `self` lives, and is only accessed as an atomic. The size is sealed, so the memory behind
        // the mapping cannot go away.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    /// The ring of a direction.
    pub fn ring(&self, direction: Direction) -> &[AtomicU8] {
        let at = CONTROL_BYTES + direction as usize * RING_BYTES;
        // SAFETY: the ring lies within the mapping, which lives as long as `self`. An atomic byte
        // has the layout of a byte and may change under a shared reference.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at).cast(), RING_BYTES) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: `map` made this mapping, and no borrow of it outlives `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), PAGE_BYTES) };
        debug_assert!(unmapped.is_ok(), "munmap failed on this page's own mapping");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn two_mappings_show_the_same_bytes_and_words_do_not_overlap() {
        let (ours, file) = Page::create().expect("memory");
        let theirs = Page::open(&file).expect("the same memory");
        let words = [ControlWord::Tail, ControlWord::Head, ControlWord::ReaderSleeps, ControlWord::WriterWaits];
        let all = || [Direction::Up, Direction::Down].into_iter().flat_map(|way| words.map(|word| (way, word)));
        all().zip(1..).for_each(|((way, word), value)| ours.word(way, word).store(value, Relaxed));
        for way in [Direction::Up, Direction::Down] {
            for at in [0, RING_BYTES - 1] {
                ours.ring(way)[at].store(way as u8 + 7, Relaxed);
                assert_eq!(theirs.ring(way)[at].load(Relaxed), way as u8 + 7);
            }
        }
        all().zip(1..).for_each(|((way, word), value)| assert_eq!(theirs.word(way, word).load(Relaxed), value));
    }

    #[test]
    fn sealed_memory_can_be_neither_resized_nor_made_read_only() {
        let (_page, file) = Page::create().expect("memory");
        for bytes in [0, PAGE_BYTES as u64 / 2, PAGE_BYTES as u64 * 2] {
            ftruncate(&file, bytes).expect_err("sealed");
        }
        fcntl_add_seals(&file, SealFlags::WRITE).expect_err("sealed");
    }

    #[test]
    fn open_rejects_memory_that_is_unsealed_or_of_another_size() {
        let make = |bytes: usize, seals: SealFlags| {
            let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
            ftruncate(&file, bytes as u64).expect("room");
            fcntl_add_seals(&file, seals).expect("sealed");
            file
        };
        for (bytes, seals, words) in [
            (PAGE_BYTES, SealFlags::empty(), "not sealed"),
            (PAGE_BYTES, SealFlags::GROW | SealFlags::SEAL, "not sealed"),
            (PAGE_BYTES - 4096, SEALS, "and should be"),
            (0, SEALS, "and should be"),
        ] {
            let error = Page::open(make(bytes, seals)).err().expect("refused");
            assert!(error.to_string().contains(words), "{bytes} bytes with {seals:?}: {error}");
        }
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        assert!(Page::open(file).is_err(), "a file on disk is not shared memory");
        assert!(Page::open(make(PAGE_BYTES, SEALS | SealFlags::WRITE)).is_err(), "it is read-only");
    }
}
