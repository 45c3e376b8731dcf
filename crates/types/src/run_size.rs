//! How many servers and workers a run has.

/// How many servers and workers a run has. Both must be at least one.
///
/// ```
/// use types::RunSize;
///
/// let size = RunSize { servers: 2, workers: 3 };
/// assert!(size.is_possible());
/// assert!(!RunSize { servers: 0, ..size }.is_possible());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSize {
    /// Threads that hold shards.
    pub servers: u32,
    /// Programs that compute.
    pub workers: u32,
}

impl RunSize {
    /// Whether such a run can exist: it needs a server to hold rows and a worker to compute.
    #[must_use]
    pub fn is_possible(self) -> bool {
        self.servers > 0 && self.workers > 0
    }
}
