//! The interrupt signal (SIGINT). The first one ends the training after the current clock, and the
//! model is written; the second one ends the process at once.

use anyhow::Context;
use signal_hook::consts::SIGINT;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The exit status of a process that was interrupted twice, by the convention of shells.
const STATUS: i32 = 128 + SIGINT;

/// How often a waiting process checks whether it was interrupted.
const LOOK: Duration = Duration::from_millis(100);
/// After how many such checks it ends.
const MOMENT: u32 = 10;

/// Whether the process was interrupted.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the signal handlers.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let told = Arc::new(AtomicBool::new(false));
        // Handlers run in this order: the first signal finds the flag unset, and then sets it.
        signal_hook::flag::register_conditional_shutdown(SIGINT, STATUS, told.clone())
            .and_then(|_| signal_hook::flag::register(SIGINT, told.clone()))
            .context("cannot listen for signals")?;
        Ok(Self(told))
    }

    /// An interrupt that no signal sets.
    #[cfg(test)]
    pub(crate) fn unheard() -> Self {
        Self(Arc::default())
    }

    /// Acts as if the signal had come.
    #[cfg(test)]
    pub(crate) fn tell(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Does work that may wait for long and cannot be cancelled. If the process is interrupted
    /// meanwhile, it ends about a second later.
    pub(crate) fn unless_told<R>(&self, work: impl FnOnce() -> R) -> R {
        let (done, waiting) = std::sync::mpsc::channel::<()>();
        let told = self.clone();
        std::thread::spawn(move || {
            let mut since_told = 0;
            // The sender is dropped when the work is done.
            while waiting.recv_timeout(LOOK) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                since_told += u32::from(told.is_told());
                if since_told > MOMENT {
                    eprintln!("interrupted before the run had begun");
                    std::process::exit(STATUS);
                }
            }
        });
        let result = work();
        drop(done);
        result
    }

    pub(crate) fn is_told(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
