//! Buffers that are in no processor cache. A benchmark that moves 64 MiB starts from these;
//! otherwise it measures the cache.

use std::hint::black_box;
use std::time::Instant;

/// How many bytes of other memory are touched between two uses of a buffer, at least: more than the
/// last-level cache of a core.
const APART_BYTES: usize = 192 << 20;

/// Equal buffers, used in turn. A buffer has left the caches when its turn comes again.
pub(crate) struct ColdBuffers {
    buffers: Vec<Vec<u8>>,
    next: usize,
}

impl ColdBuffers {
    /// Makes buffers of this many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let count = 1 + APART_BYTES.div_ceil(bytes);
        // Filled with something other than zero: the system may not map pages of zeros yet.
        Self { buffers: (0..count).map(|index| vec![index as u8 | 1; bytes]).collect(), next: 0 }
    }

    /// The buffer that was used longest ago.
    pub(crate) fn coldest(&mut self) -> &mut [u8] {
        let index = self.next;
        self.next = (index + 1) % self.buffers.len();
        &mut self.buffers[index]
    }
}

/// Copies between cold buffers of one process: the upper limit for moving data within it.
pub(crate) struct ColdCopy {
    sources: ColdBuffers,
    destinations: ColdBuffers,
}

impl ColdCopy {
    /// Makes buffers of this many bytes on both sides.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { sources: ColdBuffers::new(bytes), destinations: ColdBuffers::new(bytes) }
    }

    /// Copies once, and returns the speed in 10⁹ bytes per second.
    pub(crate) fn gb_per_s(&mut self) -> f64 {
        let start = Instant::now();
        let bytes = self.once();
        bytes as f64 / start.elapsed().as_secs_f64() / 1e9
    }

    /// Copies once, and returns the number of bytes.
    pub(crate) fn once(&mut self) -> usize {
        let source = black_box(self.sources.coldest());
        let destination = black_box(self.destinations.coldest());
        destination.copy_from_slice(source);
        black_box(&destination);
        source.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coldest_returns_a_buffer_again_only_after_enough_others() {
        let mut buffers = ColdBuffers::new(64 << 20);
        let first = buffers.coldest().as_ptr();
        let others = (0..).take_while(|_| buffers.coldest().as_ptr() != first).count();
        assert!(others * (64 << 20) >= APART_BYTES);
    }
}
