//! A process that takes a given share of a processor, in place of an attacker.

use std::time::{Duration, Instant};

use super::cpu_seconds;

/// How long it sleeps when it is ahead of its share.
const REST: Duration = Duration::from_millis(1);

/// The settings of the hidden spinning process.
#[derive(clap::Args)]
pub struct SiegeSpinner {
    /// The share of one processor.
    #[arg(long)]
    share: f64,
    /// It ends after this many seconds.
    #[arg(long)]
    seconds: f64,
}

/// Spins until its time is over.
pub(crate) fn spin(options: &SiegeSpinner) {
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < options.seconds {
        if cpu_seconds() < options.share * begin.elapsed().as_secs_f64() {
            (0..10_000).for_each(|_| std::hint::spin_loop());
        } else {
            std::thread::sleep(REST);
        }
    }
}
