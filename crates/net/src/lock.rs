//! How threads of a node share a value.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, whether or not a thread fell over while it held it: what is shared in a node is
/// whole between any two statements, and one thread's panic must not become everybody's.
///
/// ```
/// use std::sync::Mutex;
///
/// let shared = Mutex::new(1);
/// std::thread::scope(|scope| {
///     let fallen = scope.spawn(|| {
///         let _held = net::lock(&shared);
///         panic!("as a test");
///     });
///     assert!(fallen.join().is_err());
/// });
/// *net::lock(&shared) += 1;
/// assert_eq!(*net::lock(&shared), 2);
/// ```
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
