//! Memory that its owner keeps, lent as a payload for a while: nothing is copied, and the owner
//! waits for it.

use crate::buffer::{Backing, Payload};
use bytemuck::Pod;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Whether the memory is its owner's alone again.
#[derive(Default)]
struct Return {
    done: Mutex<bool>,
    changed: Condvar,
}

/// The memory, for as long as any payload of it lives.
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

/// Waits, when it is dropped, for the memory to come back: whatever becomes of the work.
struct Await(Arc<Return>);

impl Drop for Await {
    fn drop(&mut self) {
        let done = self.0.done.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.0.changed.wait_while(done, |done| !*done));
    }
}

/// Lends `numbers` to `work` as a payload, which it may pass on. Returns what `work` does, once the
/// last piece of the payload is gone: until then it blocks, so `work` should return only when
/// everybody it gave a piece to is about to be done with it.
///
/// ```
/// let kept = [1f32, 2.0, 3.0];
/// let reader = wire::lend(&kept, |payload| {
///     let piece = payload.slice(4..12);
///     std::thread::spawn(move || piece.numbers::<f32>().map(|numbers| numbers.iter().sum::<f32>()))
/// });
/// assert_eq!(reader.join().expect("no panic"), Some(5.0));     // it was done before `lend` was
/// ```
pub fn lend<T: Pod + Sync, R>(numbers: &[T], work: impl FnOnce(Payload) -> R) -> R {
    let bytes: &[u8] = bytemuck::cast_slice(numbers);
    let returned = Arc::new(Return::default());
    let _await = Await(returned.clone());
    // SAFETY: the memory is borrowed until this function is left, and it is left, by a return or by
    // a panic, only through `_await`, which waits until `Lent` has been dropped. Nothing else has
    // the reference: `Backing::bytes` gives it out for as long as the backing is borrowed, and so
    // does `Payload::bytes`.
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
    fn what_is_lent_reads_as_a_copy_does() {
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
    fn the_owner_has_it_back_only_when_the_last_piece_is_gone() {
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
            assert!(gone.load(Ordering::SeqCst), "the longest wait was for the largest piece");
            numbers.fill(8);
            numbers.fill(7);
        }
    }

    #[test]
    fn a_panic_waits_too() {
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
