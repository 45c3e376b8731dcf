//! Tells a node from outside to leave in good order: a Unix signal does, or the program that
//! started the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tells a node to leave in good order. Clones tell the same node.
///
/// A server of a run that nodes come to and go from hands over what it holds and ends; a
/// coordinator of several lets another lead and ends. A worker's program is told
/// ([`is_asked`](Self::is_asked)), and leaves when it has finished what it is at.
///
/// ```
/// use node::LeaveSignal;
///
/// let leave = LeaveSignal::default();
/// let elsewhere = leave.clone();
/// assert!(!leave.is_asked());
/// elsewhere.ask();
/// assert!(leave.is_asked());
/// ```
#[derive(Clone, Debug, Default)]
pub struct LeaveSignal(Arc<AtomicBool>);

impl LeaveSignal {
    /// Raised with this flag, which a Unix signal handler may set.
    ///
    /// ```
    /// use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
    ///
    /// let flag = Arc::new(AtomicBool::new(false));
    /// let leave = node::LeaveSignal::from_flag(flag.clone());
    /// flag.store(true, Ordering::Relaxed);
    /// assert!(leave.is_asked());
    /// ```
    #[must_use]
    pub fn from_flag(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }

    /// Tells the node to leave.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was told to.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
