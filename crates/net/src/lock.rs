//! Locks a mutex that the threads of a node share, also after one of them has panicked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, even if a thread has panicked while it held the lock. The values that threads of
/// a node share are consistent between any two statements, and the panic of one thread must not
/// spread to the others.
///
/// ```
/// use std::sync::Mutex;
///
/// let shared = Mutex::new(1);
/// std::thread::scope(|scope| {
///     let panicked = scope.spawn(|| {
///         let _held = net::lock(&shared);
///         panic!("as a test");
///     });
///     assert!(panicked.join().is_err());
/// });
/// *net::lock(&shared) += 1;
/// assert_eq!(*net::lock(&shared), 2);
/// ```
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
