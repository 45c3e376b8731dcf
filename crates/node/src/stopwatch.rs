//! A stopwatch of processor time, with which codecs measure what they cost.

use codec::Stopwatch;
use rustix::time::{ClockId, clock_gettime};

/// The processor time of the calling thread, in nanoseconds.
pub const STOPWATCH: Stopwatch = Stopwatch(|| {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
});
