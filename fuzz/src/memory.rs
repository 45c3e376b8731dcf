//! Checks the largest single allocation of a decoder: a few bytes of a file must not make it ask
//! for gigabytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The largest allocation since the last reset, in bytes.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which also notes the largest allocation.
struct Noting;

// SAFETY: every call goes unchanged to the system's allocator.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the promises of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Noting = Noting;

/// Runs `run`, and panics if it made an allocation of more than `bytes` bytes.
pub fn within<R>(bytes: usize, run: impl FnOnce() -> R) -> R {
    LARGEST.store(0, Ordering::Relaxed);
    let result = run();
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest <= bytes, "one allocation of {largest} bytes, and at most {bytes} are allowed");
    result
}
