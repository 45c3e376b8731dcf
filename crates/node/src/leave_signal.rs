//! The order to leave (drain): a Unix signal, or the program that started the node, tells the node
//! to leave in good order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tells a node to leave in good order. Clones tell the same node.
///
/// - A server of an elastic run hands over its shards and ends.
/// - One of several coordinators lets another lead and ends.
/// - A worker's program asks [`is_asked`](Self::is_asked), finishes its work and leaves.
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
    /// A signal that is given by setting this flag, as a Unix signal handler may.
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

    /// Whether the node was told to leave.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
