//! Pins the processes of a benchmark to processor cores.
//!
//! Where the system puts the two ends of a connection changes a blocking round trip by a factor of
//! six, and the system decides anew for every pair. So round trips are measured with this process
//! on the first core and its peer on the second, for raw TCP and Slackwater alike. Shared memory is
//! measured in the same way: on one core, the two sides could not copy at the same time.

use rustix::thread::{CpuSet, sched_setaffinity};

/// The core of the measuring process.
pub(crate) const OURS: usize = 0;
/// The core of the other process.
pub(crate) const PEERS: usize = 1;

/// Pins the calling thread, and threads that it starts later, to one core. Does nothing if the
/// machine has no such core.
pub(crate) fn stay_on(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    let _ = sched_setaffinity(None, &cores);
}
