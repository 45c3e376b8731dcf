//! The interrupt signal: once, the clock is finished and the model written; twice, the process ends
//! at once.

use anyhow::Context;
use signal_hook::consts::SIGINT;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a process that was interrupted twice ends with, as shells have it.
const STATUS: i32 = 128 + SIGINT;

/// How often a waiting process looks whether it is told to stop, and after how many looks it does.
const LOOK: Duration = Duration::from_millis(100);
const MOMENT: u32 = 10;

/// Whether the process was told to stop.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let told = Arc::new(AtomicBool::new(false));
        // In this order: the first signal finds the flag down, and only then raises it.
        signal_hook::flag::register_conditional_shutdown(SIGINT, STATUS, told.clone())
            .and_then(|_| signal_hook::flag::register(SIGINT, told.clone()))
            .context("cannot listen for signals")?;
        Ok(Self(told))
    }

    /// One that no signal reaches.
    #[cfg(test)]
    pub(crate) fn unheard() -> Self {
        Self(Arc::default())
    }

    /// As if the signal had come.
    #[cfg(test)]
    pub(crate) fn tell(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Does something that may wait for long and cannot end early. If the process is told to stop
    /// meanwhile, it ends a moment later.
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
