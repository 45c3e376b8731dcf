//! Which core a process of a benchmark runs on.
//!
//! A round trip that sleeps costs six times more when the system happens to put both ends on
//! different cores than when it puts them on one, and it decides anew for every pair. Round trips
//! are therefore measured with this process on the first core and its peer on the second, raw and
//! Slackwater alike. So is what goes through shared memory: on one core both sides would copy in
//! turn, and not at the same time.

use rustix::thread::{CpuSet, sched_setaffinity};

/// The core of the measuring process.
pub(crate) const OURS: usize = 0;
/// The core of the other process.
pub(crate) const PEERS: usize = 1;

/// Keeps the calling thread, and those it starts from now on, on one core. Where there is no such
/// core, nothing changes.
pub(crate) fn stay_on(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    let _ = sched_setaffinity(None, &cores);
}
