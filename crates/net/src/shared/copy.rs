//! Copies bytes into and out of shared memory, with non-temporal stores and with prefetching.
//!
//! - **Writing.** If the two processes may run on cores without a common cache, large pieces bypass
//!   the caches (non-temporal stores). The reading core would otherwise fetch each line out of the
//!   writer's cache, several times slower than from memory. If all cores share a cache
//!   ([`caches`](super::caches)), plain stores keep the bytes in it.
//! - **Reading.** Plain loads that prefetch the next lines. The standard library's copy
//!   (`rep movsb`) reads such memory several times slower.

use super::caches;
use std::sync::atomic::AtomicU8;

/// Bytes from which a piece is written past the caches. For shorter pieces latency counts, and a
/// cached store is seen sooner.
const PAST_CACHE_ABOVE: usize = 16 << 10;
/// Bytes from which a piece is read with prefetching.
const AHEAD_ABOVE: usize = 1 << 10;
/// Prefetch distance in bytes.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 1 << 10;
/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Writes `bytes` to shared memory. A reader that sees a later release store sees the bytes. Panics
/// if the lengths differ.
pub fn store(to: &[AtomicU8], bytes: &[u8]) {
    assert_eq!(to.len(), bytes.len(), "a copy of unequal lengths");
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= PAST_CACHE_ABOVE && !caches::are_shared() {
        return store_past_cache(to, bytes);
    }
    // SAFETY: both pointers are valid for the length. Shared memory is only ever borrowed as
    // atomics, so the two ranges do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), first(to), bytes.len()) }
}

/// Reads shared memory into `bytes`. Panics if the lengths differ.
pub fn load(from: &[AtomicU8], bytes: &mut [u8]) {
    assert_eq!(from.len(), bytes.len(), "a copy of unequal lengths");
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= AHEAD_ABOVE {
        return load_ahead(from, bytes);
    }
    // SAFETY: as above. A peer that writes meanwhile changes which bytes come out; callers look at
    // them only after the copy.
    unsafe { std::ptr::copy_nonoverlapping(first(from), bytes.as_mut_ptr(), bytes.len()) }
}

/// A pointer to the first byte, for writing. Atomics may be written through a shared reference.
fn first(memory: &[AtomicU8]) -> *mut u8 {
    memory.as_ptr().cast_mut().cast()
}

#[cfg(target_arch = "x86_64")]
fn store_past_cache(to: &[AtomicU8], bytes: &[u8]) {
    use std::arch::x86_64::{
        __m128i, _MM_HINT_NTA, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_storeu_si128, _mm_stream_si128,
    };
    let to = first(to);
    let from = bytes.as_ptr();
    let count = bytes.len();
    debug_assert!(count >= 2 * LINE);
    // The first and the last line are whole, unaligned stores. The aligned lines between overlap
    // them.
    let start = to.align_offset(LINE);
    let lines = (count - start) / LINE;
    // SAFETY: SSE2 is part of x86-64. `start` < LINE, so every access below lies within the `count`
    // bytes that both pointers are valid for. `start` aligns the streaming stores. A prefetch never
    // faults.
    unsafe {
        for edge in [0, count - LINE] {
            for at in (edge..edge + LINE).step_by(16) {
                _mm_storeu_si128(to.add(at).cast(), _mm_loadu_si128(from.add(at).cast()));
            }
        }
        for line in 0..lines {
            let at = start + line * LINE;
            _mm_prefetch::<_MM_HINT_NTA>(from.wrapping_add(at + AHEAD).cast());
            let quarters: [__m128i; 4] = std::array::from_fn(|n| _mm_loadu_si128(from.add(at + 16 * n).cast()));
            for (n, quarter) in quarters.into_iter().enumerate() {
                _mm_stream_si128(to.add(at + 16 * n).cast(), quarter);
            }
        }
        // A release store alone does not wait for streaming stores; the fence does.
        _mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
fn load_ahead(from: &[AtomicU8], bytes: &mut [u8]) {
    use std::arch::x86_64::{__m128i, _MM_HINT_NTA, _mm_loadu_si128, _mm_prefetch, _mm_storeu_si128};
    let from = first(from);
    let to = bytes.as_mut_ptr();
    let count = bytes.len();
    debug_assert!(count >= LINE);
    // SAFETY: SSE2 is part of x86-64. Every access lies within the `count` bytes that both pointers
    // are valid for: whole lines from the front, and one that ends where they end. A prefetch never
    // faults.
    unsafe {
        let line = |at: usize| {
            let quarters: [__m128i; 4] = std::array::from_fn(|n| _mm_loadu_si128(from.add(at + 16 * n).cast()));
            for (n, quarter) in quarters.into_iter().enumerate() {
                _mm_storeu_si128(to.add(at + 16 * n).cast(), quarter);
            }
        };
        for at in (0..count - LINE).step_by(LINE) {
            _mm_prefetch::<_MM_HINT_NTA>(from.wrapping_add(at + AHEAD).cast());
            line(at);
        }
        line(count - LINE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    /// The reference for `store`: one byte at a time.
    fn store_bytewise(to: &[AtomicU8], bytes: &[u8]) {
        to.iter().zip(bytes).for_each(|(to, byte)| to.store(*byte, Relaxed));
    }

    /// The reference for `load`: one byte at a time.
    fn load_bytewise(from: &[AtomicU8], bytes: &mut [u8]) {
        from.iter().zip(bytes).for_each(|(from, byte)| *byte = from.load(Relaxed));
    }

    fn memory(bytes: usize) -> Vec<AtomicU8> {
        (0..bytes).map(|_| AtomicU8::new(0xEE)).collect()
    }

    fn contents(memory: &[AtomicU8]) -> Vec<u8> {
        memory.iter().map(|byte| byte.load(Relaxed)).collect()
    }

    #[test]
    fn copies_equal_bytewise_copies_at_all_offsets_and_lengths_and_touch_nothing_else() {
        const AROUND: usize = 200;
        let lengths = (0..=AHEAD_ABOVE + 130).chain(PAST_CACHE_ABOVE - 130..=PAST_CACHE_ABOVE + 130).chain([70_001]);
        for (turn, length) in lengths.enumerate() {
            // Covers every offset within a line on both sides, and most pairs of offsets.
            let near = turn % 67;
            let far = turn * 31 % 64;
            let bytes: Vec<u8> = (0..length + far).map(|at| (at * 7 + at / 256 + turn) as u8).collect();
            let fast = memory(length + 2 * AROUND);
            let slow = memory(length + 2 * AROUND);
            let place = AROUND - near..AROUND - near + length;
            #[cfg(target_arch = "x86_64")]
            if length >= PAST_CACHE_ABOVE {
                // Also on a machine whose cores share a cache.
                store_past_cache(&fast[place.clone()], &bytes[far..]);
                assert_eq!(
                    contents(&fast)[place.clone()],
                    bytes[far..],
                    "{length} bytes past the cache at {near} from {far}"
                );
            }
            store(&fast[place.clone()], &bytes[far..]);
            store_bytewise(&slow[place.clone()], &bytes[far..]);
            assert_eq!(contents(&fast), contents(&slow), "{length} bytes stored at {near} from {far}");
            let (mut out, mut expected) = (vec![0xAA; length + far + 70], vec![0xAA; length + far + 70]);
            load(&fast[place.clone()], &mut out[far..far + length]);
            load_bytewise(&slow[place], &mut expected[far..far + length]);
            assert_eq!(out, expected, "{length} bytes loaded from {near} to {far}");
        }
    }
}
