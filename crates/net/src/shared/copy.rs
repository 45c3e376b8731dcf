//! Copying into and out of shared memory.
//!
//! Where the two processes may run on cores that share no cache, large pieces are written past the
//! caches: a line that one core has just written must be fetched out of its cache by the other, at
//! a fraction of what memory itself can do. Where all cores share one, that is where the bytes are
//! read from, and memory sees nothing of them ([`caches`](super::caches)). Reading is by plain
//! loads with the lines fetched ahead: what the standard library would use for it (`rep movsb`)
//! reads such memory several times slower.

use super::caches;
use std::sync::atomic::AtomicU8;

/// Pieces shorter than this are written through the cache: there the time until they are seen
/// counts.
const PAST_CACHE_ABOVE: usize = 16 << 10;
/// Pieces shorter than this are not worth fetching ahead.
const AHEAD_ABOVE: usize = 1 << 10;
/// How far ahead of the copy lines are fetched.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 1 << 10;
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Writes `bytes` to shared memory. They are there for whoever sees a later release store. Panics
/// if the lengths differ.
pub fn store(to: &[AtomicU8], bytes: &[u8]) {
    assert_eq!(to.len(), bytes.len(), "a copy of unequal lengths");
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= PAST_CACHE_ABOVE && !caches::are_shared() {
        return store_past_cache(to, bytes);
    }
    // SAFETY: both are valid for the length; shared memory is never borrowed as anything but
    // atomics, so they do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), first(to), bytes.len()) }
}

/// Reads shared memory into `bytes`. Panics if the lengths differ.
pub fn load(from: &[AtomicU8], bytes: &mut [u8]) {
    assert_eq!(from.len(), bytes.len(), "a copy of unequal lengths");
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= AHEAD_ABOVE {
        return load_ahead(from, bytes);
    }
    // SAFETY: as above. A peer that writes meanwhile changes which bytes come out, and they are not
    // looked at before they are.
    unsafe { std::ptr::copy_nonoverlapping(first(from), bytes.as_mut_ptr(), bytes.len()) }
}

/// Where shared memory begins, to be written: an atomic may be, through a shared reference.
fn first(memory: &[AtomicU8]) -> *mut u8 {
    memory.as_ptr().cast_mut().cast()
}

#[cfg(target_arch = "x86_64")]
fn store_past_cache(to: &[AtomicU8], bytes: &[u8]) {
    use std::arch::x86_64::{
        __m128i, _MM_HINT_NTA, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_storeu_si128, _mm_stream_si128,
    };
    let (to, from, count) = (first(to), bytes.as_ptr(), bytes.len());
    debug_assert!(count >= 2 * LINE);
    // The first and the last line are written whole but unaligned, and what lies between overlaps
    // them.
    let start = to.align_offset(LINE);
    let lines = (count - start) / LINE;
    // SAFETY: SSE2 is part of x86-64. `start` < LINE, so every access below lies within the `count`
    // bytes that both pointers are valid for; those of the stream are aligned, since `start` makes
    // them so. A prefetch never faults.
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
        // Such stores are not ordered before a release store by themselves.
        _mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
fn load_ahead(from: &[AtomicU8], bytes: &mut [u8]) {
    use std::arch::x86_64::{__m128i, _MM_HINT_NTA, _mm_loadu_si128, _mm_prefetch, _mm_storeu_si128};
    let (from, to, count) = (first(from), bytes.as_mut_ptr(), bytes.len());
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

    /// What `store` does, a byte at a time.
    fn store_bytewise(to: &[AtomicU8], bytes: &[u8]) {
        to.iter().zip(bytes).for_each(|(to, byte)| to.store(*byte, Relaxed));
    }

    /// What `load` does, a byte at a time.
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
    fn kernels_do_what_their_twins_do_at_every_offset_and_length_and_touch_nothing_else() {
        const AROUND: usize = 200;
        let lengths = (0..=AHEAD_ABOVE + 130).chain(PAST_CACHE_ABOVE - 130..=PAST_CACHE_ABOVE + 130).chain([70_001]);
        for (turn, length) in lengths.enumerate() {
            // Every offset of a line on either side comes up many times, and so do most pairs of
            // them.
            let (near, far) = (turn % 67, turn * 31 % 64);
            let bytes: Vec<u8> = (0..length + far).map(|at| (at * 7 + at / 256 + turn) as u8).collect();
            let (fast, slow) = (memory(length + 2 * AROUND), memory(length + 2 * AROUND));
            let place = AROUND - near..AROUND - near + length;
            #[cfg(target_arch = "x86_64")]
            if length >= PAST_CACHE_ABOVE {
                // Whether or not this machine would.
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
