//! Lends a caller's memory as a payload without copying it. The caller blocks until all pieces of
//! the payload are dropped.

use crate::buffer::{Backing, Payload};
use bytemuck::Pod;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Signals that the last payload of the memory was dropped.
#[derive(Default)]
struct Return {
    done: Mutex<bool>,
    changed: Condvar,
}

/// The lent memory; dropped with its last payload.
struct Lent {
    bytes: &'static [u8],
    returned: Arc<Return>,
}

impl Backing for Lent {
    fn bytes(&self) -> &[u8] {
        self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        *self.returned.done.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.returned.changed.notify_all();
    }
}

/// Waits on drop until the memory is returned, also if the work panics.
struct Await(Arc<Return>);

impl Drop for Await {
    fn drop(&mut self) {
        let done = self.0.done.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.0.changed.wait_while(done, |done| !*done));
    }
}

/// Lends `numbers` to `work` as a payload, which it may pass on. Blocks until the last piece of the
/// payload is dropped, and then returns the result of `work`. So `work` should pass pieces only to
/// code that soon drops them.
///
/// ```
/// let kept = [1f32, 2.0, 3.0];
/// let reader = wire::lend(&kept, |payload| {
///     let piece = payload.slice(4..12);
///     std::thread::spawn(move || piece.numbers::<f32>().map(|numbers| numbers.iter().sum::<f32>()))
/// });
/// assert_eq!(reader.join().expect("no panic"), Some(5.0));     // before `lend` returned
/// ```
pub fn lend<T: Pod + Sync, R>(numbers: &[T], work: impl FnOnce(Payload) -> R) -> R {
    let bytes: &[u8] = bytemuck::cast_slice(numbers);
    let returned = Arc::new(Return::default());
    let _await = Await(returned.clone());
    // SAFETY: `numbers` is borrowed until this function ends. A return and a panic both drop
    // `_await`, which waits until `Lent` is dropped. Only `Lent` has the static reference:
    // `Backing::bytes` and `Payload::bytes` return it with the shorter lifetime of their own
    // borrow.
    let bytes = unsafe { std::mem::transmute::<&[u8], &'static [u8]>(bytes) };
    work(Payload::new(Lent { bytes, returned }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    #[test]
    fn lend_gives_the_same_bytes_as_a_copy() {
        let pool = Pool::new();
        for length in [0usize, 1, 5, 1_000] {
            let numbers: Vec<f64> = (0..length).map(|n| n as f64).collect();
            let copy = pool.copy(&numbers);
            lend(&numbers, |lent| {
                assert!(lent == copy && lent.numbers::<f64>() == copy.numbers::<f64>());
                assert!(lent.slice(0..length * 4) == copy.slice(0..length * 4));
            });
        }
    }

    #[test]
    fn lend_returns_when_the_last_piece_is_dropped() {
        let mut numbers = vec![7u64; 1_000];
        for _ in 0..20 {
            let gone = Arc::new(AtomicBool::new(false));
            lend(&numbers, |lent| {
                for piece in [lent.slice(0..80), lent.slice(80..160), lent] {
                    let gone = gone.clone();
                    std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_millis(piece.len() as u64 / 1_000));
                        assert!(piece.numbers::<u64>().is_some_and(|numbers| numbers.iter().all(|n| *n == 7)));
                        gone.fetch_or(piece.len() > 80, Ordering::SeqCst);
                        drop(piece);
                    });
                }
            });
            assert!(gone.load(Ordering::SeqCst), "lend waits for the largest piece, which is dropped last");
            numbers.fill(8);
            numbers.fill(7);
        }
    }

    #[test]
    fn lend_waits_after_a_panic_too() {
        let numbers = [1u8; 10];
        let gone = Arc::new(AtomicBool::new(false));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            lend(&numbers, |lent| {
                let gone = gone.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(20));
                    gone.store(true, Ordering::SeqCst);
                    drop(lent);
                });
                std::panic::resume_unwind(Box::new("in the middle"));
            });
        }));
        assert!(caught.is_err() && gone.load(Ordering::SeqCst));
    }
}
