//! The interrupt signal: once, the clock is finished and the model written; twice, the process ends at once.

use anyhow::Context;
use signal_hook::consts::SIGINT;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a process that was interrupted twice ends with, as shells have it.
const STATUS: i32 = 128 + SIGINT;

/// Whether the process was told to stop.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on.
    pub fn listen() -> anyhow::Result<Self> {
        let told = Arc::new(AtomicBool::new(false));
        // In this order: the first signal finds the flag down, and only then raises it.
        signal_hook::flag::register_conditional_shutdown(SIGINT, STATUS, told.clone())
            .and_then(|_| signal_hook::flag::register(SIGINT, told.clone()))
            .context("cannot listen for signals")?;
        Ok(Self(told))
    }

    pub fn is_told(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
