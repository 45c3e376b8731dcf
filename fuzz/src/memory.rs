//! How much memory a decoder asks for at once: a few bytes of a file must not make it ask for
//! gigabytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which notes the largest piece that was asked for.
struct Noting;

// SAFETY: every call goes to the system's allocator as it is.
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

/// Runs something that must not ask for more than so many bytes in one piece.
pub fn within<R>(bytes: usize, run: impl FnOnce() -> R) -> R {
    LARGEST.store(0, Ordering::Relaxed);
    let result = run();
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest <= bytes, "{largest} bytes were asked for at once, and {bytes} is the most");
    result
}
