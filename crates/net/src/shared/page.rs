//! The shared memory itself: a ring of bytes for each direction, and the words that say how far
//! each side is.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// Bytes that may be under way in one direction. Whoever writes more waits for the reader: these
/// are its credits. So few that the rings of some connections stay in a cache that cores share.
pub const RING_BYTES: usize = 1 << 20;
/// The words, before the rings.
const CONTROL_BYTES: usize = 4096;
const PAGE_BYTES: usize = CONTROL_BYTES + 2 * RING_BYTES;
/// Words that different processes write lie so far apart that no core fetches one with the other.
const WORD_STRIDE: usize = 128;
/// Neither side can cut, grow or further restrict the memory once these are on it.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// One way through the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the one who called.
    Up,
    /// To the one who called.
    Down,
}

/// What stands beside each ring.
#[derive(Clone, Copy, Debug)]
pub enum ControlWord {
    /// Bytes written so far; the writer's.
    Tail,
    /// Bytes read so far; the reader's.
    Head,
    /// 1 while the reader wants a bell for new bytes. Set by the reader, taken by the writer.
    ReaderSleeps,
    /// 1 while the writer wants a bell for room. Set by the writer, taken by the reader.
    WriterWaits,
}

/// Memory that another process can write at any time: only atomics may look at it.
pub struct Page {
    start: NonNull<u8>,
}

// SAFETY: the memory is mapped until the page is dropped, and is reached through atomics alone.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Makes sealed memory of zeros, and what another process needs to map it too.
    pub fn create() -> Result<(Self, OwnedFd)> {
        let file = memfd_create("slackwater", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, PAGE_BYTES as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        let page = Self::map(&file)?;
        Ok((page, file))
    }

    /// Maps memory that came from outside, if it is what [`Page::create`] makes. If it could be
    /// cut, touching it could kill this process.
    pub fn open(file: impl AsFd) -> Result<Self> {
        let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS));
        if !sealed {
            return Err(Error::new(ErrorKind::InvalidData, "the shared memory is not sealed"));
        }
        let bytes = fstat(&file)?.st_size;
        if bytes != PAGE_BYTES as i64 {
            return Err(Error::new(
                ErrorKind::InvalidData,
                format!("the shared memory is {bytes} bytes and should be {PAGE_BYTES}"),
            ));
        }
        Self::map(&file)
    }

    fn map(file: impl AsFd) -> Result<Self> {
        // SAFETY: a new mapping where the system finds room touches nothing that is there.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), PAGE_BYTES, access, MapFlags::SHARED, file, 0)?
        };
        let start = NonNull::new(start.cast()).ok_or(ErrorKind::OutOfMemory)?;
        Ok(Self { start })
    }

    /// One of the words.
    pub fn word(&self, direction: Direction, word: ControlWord) -> &AtomicU64 {
        let at = (direction as usize * 4 + word as usize) * WORD_STRIDE;
        // SAFETY: within the control bytes, aligned, mapped as long as `self` lives, and never
        // reached but as an atomic. Its size is sealed, so the memory behind the mapping cannot go
        // away.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    /// The bytes of a direction.
    pub fn ring(&self, direction: Direction) -> &[AtomicU8] {
        let at = CONTROL_BYTES + direction as usize * RING_BYTES;
        // SAFETY: within the mapping, for as long as `self` lives; an atomic byte is laid out as a
        // byte and may change under a shared reference.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at).cast(), RING_BYTES) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made, and nothing borrowed from it outlives
        // `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), PAGE_BYTES) };
        debug_assert!(unmapped.is_ok(), "a mapping that was not there");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn both_mappings_show_the_same_bytes_and_no_word_lies_on_another() {
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
    fn memory_that_was_passed_on_can_be_neither_cut_nor_grown_nor_made_read_only() {
        let (_page, file) = Page::create().expect("memory");
        for bytes in [0, PAGE_BYTES as u64 / 2, PAGE_BYTES as u64 * 2] {
            ftruncate(&file, bytes).expect_err("sealed");
        }
        fcntl_add_seals(&file, SealFlags::WRITE).expect_err("sealed");
    }

    #[test]
    fn memory_that_could_be_cut_or_is_of_another_size_is_refused() {
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
        assert!(Page::open(file).is_err(), "a file of the disk is no shared memory");
        assert!(Page::open(make(PAGE_BYTES, SEALS | SealFlags::WRITE)).is_err(), "nobody could write it");
    }
}
