//! The number of servers and workers of a run.

/// The number of servers and workers of a run. Both must be at least one.
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
    /// Server threads, which hold shards.
    pub servers: u32,
    /// Workers, which compute.
    pub workers: u32,
}

impl RunSize {
    /// Whether such a run can exist: it needs a server to hold rows and a worker to compute.
    #[must_use]
    pub fn is_possible(self) -> bool {
        self.servers > 0 && self.workers > 0
    }
}
