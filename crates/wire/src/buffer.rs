//! Payloads: reference-counted bytes that go from the caller's memory to a socket, or back, without
//! a copy. And a pool that recycles buffers.

use bytemuck::{Pod, Zeroable};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The kind of memory of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary memory of this process.
    Host,
}

/// Memory that a payload can refer to. Its bytes must not move or change while it lives.
pub trait Backing: Send + Sync {
    /// All bytes of the memory.
    fn bytes(&self) -> &[u8];
    /// The kind of the memory.
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }
}

impl<T: Pod + Send + Sync> Backing for Vec<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

/// The owner can use the memory again when the last payload of it is dropped.
impl<T: Pod + Send + Sync> Backing for Arc<Vec<T>> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self.as_slice())
    }
}

impl<T: Pod + Send + Sync> Backing for Arc<[T]> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

/// A slice of reference-counted memory. Cloning it copies no bytes.
#[derive(Clone)]
pub struct Payload {
    /// `None` for no bytes, so that small messages allocate nothing.
    backing: Option<Arc<dyn Backing>>,
    range: Range<usize>,
}

impl Payload {
    /// No bytes.
    pub const EMPTY: Self = Self { backing: None, range: 0..0 };

    /// All of `backing`.
    pub fn new(backing: impl Backing + 'static) -> Self {
        let range = 0..backing.bytes().len();
        Self { backing: Some(Arc::new(backing)), range }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.backing.as_ref().map_or(&[], |backing| &backing.bytes()[self.range.clone()])
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The kind of memory.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.backing.as_ref().map_or(MemoryKind::Host, |backing| backing.kind())
    }

    /// A slice of these bytes that shares the memory. Panics if `range` extends past the end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "slice {range:?} of {} bytes", self.len());
        Self { backing: self.backing.clone(), range: self.range.start + range.start..self.range.start + range.end }
    }

    /// The bytes as numbers. Returns `None` unless they are whole numbers and aligned, as payloads
    /// from transports are.
    #[must_use]
    pub fn numbers<T: Pod>(&self) -> Option<&[T]> {
        if self.is_empty() {
            // An empty slice needs no alignment.
            return Some(&[]);
        }
        bytemuck::try_cast_slice(self.bytes()).ok()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.len())
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

/// A cache line: makes every buffer start at one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: 64 plain bytes without padding; any bit pattern is valid.
unsafe impl Zeroable for Line {}
// SAFETY: as above.
unsafe impl Pod for Line {}

/// Bytes of a cache line.
const LINE: usize = size_of::<Line>();
/// The smallest size class: log2 of the bytes of a buffer.
const SMALLEST_CLASS: u32 = 12;
/// The number of size classes, 2^12 to 2^21 bytes. Larger buffers are allocated and freed as
/// needed.
const CLASSES: usize = 10;
/// The largest number of bytes that a pool keeps in each class.
const KEPT_BYTES: usize = 16 << 20;

/// A pool of buffers, so that a busy connection uses the same warm memory again.
#[derive(Clone, Default)]
pub struct Pool {
    free: Arc<[Mutex<Vec<Vec<Line>>>; CLASSES]>,
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A buffer of `bytes` bytes with arbitrary contents. The caller fills it and freezes it into a
    /// payload.
    #[must_use]
    pub fn take(&self, bytes: usize) -> Fresh {
        let Some(class) = class_of(bytes) else {
            return Fresh { lines: vec![Line([0; 64]); bytes.div_ceil(LINE)], bytes, home: None };
        };
        let recycled = self.free[class].lock().unwrap_or_else(PoisonError::into_inner).pop();
        let lines = recycled.unwrap_or_else(|| vec![Line([0; 64]); (1 << (class as u32 + SMALLEST_CLASS)) / LINE]);
        Fresh { lines, bytes, home: Some((self.clone(), class)) }
    }

    /// A payload that holds a copy of `numbers`.
    #[must_use]
    pub fn copy<T: Pod>(&self, numbers: &[T]) -> Payload {
        let mut fresh = self.take(size_of_val(numbers));
        fresh.bytes_mut().copy_from_slice(bytemuck::cast_slice(numbers));
        fresh.freeze()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

fn class_of(bytes: usize) -> Option<usize> {
    // Allocating a tiny payload is cheaper than taking a lock.
    if bytes <= 1 << 10 {
        return None;
    }
    let class = bytes.next_power_of_two().trailing_zeros().max(SMALLEST_CLASS) - SMALLEST_CLASS;
    ((class as usize) < CLASSES).then_some(class as usize)
}

/// A buffer to be filled.
pub struct Fresh {
    lines: Vec<Line>,
    bytes: usize,
    home: Option<(Pool, usize)>,
}

impl Fresh {
    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.bytes]
    }

    /// The bytes as numbers, for writing, without an incomplete last number.
    pub fn numbers_mut<T: Pod>(&mut self) -> &mut [T] {
        let count = self.bytes / size_of::<T>();
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..count]
    }

    /// Makes the buffer an immutable, shared payload.
    #[must_use]
    pub fn freeze(self) -> Payload {
        if self.bytes == 0 { Payload::EMPTY } else { Payload::new(self) }
    }
}

impl Backing for Fresh {
    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.bytes]
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let Some((pool, class)) = self.home.take() else { return };
        let mut free = pool.free[class].lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT_BYTES >> (class as u32 + SMALLEST_CLASS) {
            free.push(std::mem::take(&mut self.lines));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_reuses_a_dropped_buffer() {
        let pool = Pool::new();
        let first = pool.take(1 << 20).freeze();
        let address = first.bytes().as_ptr();
        drop(first);
        assert_eq!(pool.take(1 << 20).freeze().bytes().as_ptr(), address);
    }

    #[test]
    fn slices_share_memory_and_keep_it_alive() {
        let pool = Pool::new();
        let whole = pool.copy(&[1f32, 2.0, 3.0, 4.0]);
        let part = whole.slice(4..12);
        drop(whole);
        assert_eq!(part.numbers::<f32>(), Some(&[2f32, 3.0][..]));
        assert_eq!(part.slice(2..4).numbers::<f32>(), None, "two bytes are not an f32");
        for nothing in [Payload::EMPTY, part.slice(3..3), pool.copy::<u8>(&[])] {
            assert_eq!(nothing.numbers::<u64>(), Some(&[][..]), "no bytes are zero numbers of any type");
        }
    }

    #[test]
    fn pool_buffers_have_the_exact_size() {
        let pool = Pool::new();
        for bytes in [0, 1, 63, 64, 1 << 10, (1 << 10) + 1, 4096, 4097, 1 << 20, (2 << 20) + 5, 9 << 20] {
            assert_eq!(pool.take(bytes).freeze().len(), bytes);
        }
    }
}
