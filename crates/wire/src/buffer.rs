//! Payloads: reference-counted bytes that travel from the caller's memory to a socket, or back,
//! without being copied.

use bytemuck::{Pod, Zeroable};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Where a payload's bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary memory of this process.
    Host,
}

/// Memory that can stand behind a payload. Its bytes stay in place and unchanged for as long as it
/// lives.
pub trait Backing: Send + Sync {
    /// All of its bytes.
    fn bytes(&self) -> &[u8];
    /// Where they lie.
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }
}

impl<T: Pod + Send + Sync> Backing for Vec<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

/// Its owner has the memory back when the last payload of it is gone.
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

/// A piece of reference-counted memory. Cloning it copies no bytes.
#[derive(Clone)]
pub struct Payload {
    /// `None` stands for no bytes at all, so that small messages allocate nothing.
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

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Where the bytes lie.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.backing.as_ref().map_or(MemoryKind::Host, |backing| backing.kind())
    }

    /// A part of these bytes, sharing the memory. Panics if `range` reaches past the end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "slice {range:?} of {} bytes", self.len());
        Self { backing: self.backing.clone(), range: self.range.start + range.start..self.range.start + range.end }
    }

    /// The bytes as numbers, if they are a whole number of them and aligned (as all that transports
    /// read are).
    #[must_use]
    pub fn numbers<T: Pod>(&self) -> Option<&[T]> {
        if self.is_empty() {
            // No bytes lie nowhere in particular, aligned or not.
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

/// One cache line, so that every buffer starts on one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: 64 plain bytes without padding; any bit pattern is one.
unsafe impl Zeroable for Line {}
// SAFETY: as above.
unsafe impl Pod for Line {}

const LINE: usize = size_of::<Line>();
/// Buffers come in powers of two from 2^12 to 2^21 bytes; larger ones are made and freed as needed.
const SMALLEST_CLASS: u32 = 12;
const CLASSES: usize = 10;
/// What a pool keeps of each class, in bytes.
const KEPT_BYTES: usize = 16 << 20;

/// Recycles buffers, so that a busy connection touches the same warm memory again and again.
#[derive(Clone, Default)]
pub struct Pool {
    free: Arc<[Mutex<Vec<Vec<Line>>>; CLASSES]>,
}

impl Pool {
    /// A pool that holds nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A buffer of `bytes` bytes with arbitrary contents, to be filled and then frozen into a
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
    // Tiny payloads are cheaper to allocate than to lock for.
    if bytes <= 1 << 10 {
        return None;
    }
    let class = bytes.next_power_of_two().trailing_zeros().max(SMALLEST_CLASS) - SMALLEST_CLASS;
    ((class as usize) < CLASSES).then_some(class as usize)
}

/// A buffer that is being filled.
pub struct Fresh {
    lines: Vec<Line>,
    bytes: usize,
    home: Option<(Pool, usize)>,
}

impl Fresh {
    /// Its bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.bytes]
    }

    /// Its bytes as numbers, to be written; a trailing piece of a number is left out.
    pub fn numbers_mut<T: Pod>(&mut self) -> &mut [T] {
        let count = self.bytes / size_of::<T>();
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..count]
    }

    /// From now on it is shared and cannot change.
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
    fn a_dropped_buffer_is_used_again() {
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
        assert_eq!(part.slice(2..4).numbers::<f32>(), None, "two bytes are no f32");
        for nothing in [Payload::EMPTY, part.slice(3..3), pool.copy::<u8>(&[])] {
            assert_eq!(nothing.numbers::<u64>(), Some(&[][..]), "no bytes are no numbers of any type");
        }
    }

    #[test]
    fn sizes_of_all_classes_come_out_exact() {
        let pool = Pool::new();
        for bytes in [0, 1, 63, 64, 1 << 10, (1 << 10) + 1, 4096, 4097, 1 << 20, (2 << 20) + 5, 9 << 20] {
            assert_eq!(pool.take(bytes).freeze().len(), bytes);
        }
    }
}
