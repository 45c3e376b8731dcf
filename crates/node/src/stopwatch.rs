//! Processor time, for the meters of codecs.

use codec::Stopwatch;
use rustix::time::{ClockId, clock_gettime};

/// What this thread has spent of a processor.
pub const STOPWATCH: Stopwatch = Stopwatch(|| {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
});
