//! Busy processes that compete with the nodes of a run for the processors.

use std::time::{Duration, Instant};

use launch::{Process, Start};

/// Busy processes for each core.
const PER_CORE: usize = 3;
/// A busy process ends by itself after this long: its parent may have been killed.
const LONGEST: Duration = Duration::from_secs(600);

/// How many busy processes starve this machine.
pub(crate) fn busy_processes() -> usize {
    PER_CORE * std::thread::available_parallelism().map_or(2, usize::from)
}

/// Starts the busy processes. Dropping them ends them.
pub(crate) fn starve() -> anyhow::Result<Vec<Process>> {
    let start = |_| Ok(Start::this_program("a busy process")?.args(["bench-peer", "busy"]).spawn()?);
    (0..busy_processes()).map(start).collect()
}

/// What a busy process does.
pub(crate) fn keep_busy() {
    let begin = Instant::now();
    while begin.elapsed() < LONGEST {
        (0..100_000).for_each(|_| std::hint::spin_loop());
    }
}
