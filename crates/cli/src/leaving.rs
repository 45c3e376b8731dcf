//! Signals that tell a process to leave in good order: SIGTERM, as whoever takes a machine away
//! sends it, and SIGUSR1, as batch systems send it some time before.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use signal_hook::consts::{SIGTERM, SIGUSR1};
use signal_hook::flag::{register, register_conditional_shutdown};
use slackwater::Error;
use slackwater::cluster::{LeaveSignal, NodeError};

/// Listens from now on. The same signal twice ends the process at once.
pub(crate) fn listen() -> anyhow::Result<LeaveSignal> {
    let told = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGUSR1] {
        let before = Arc::new(AtomicBool::new(false));
        // In this order: the first signal finds its flag down, and only then raises it.
        register_conditional_shutdown(signal, 128 + signal, before.clone())
            .and_then(|_| register(signal, before))
            .and_then(|_| register(signal, told.clone()))
            .context("cannot listen for signals")?;
    }
    Ok(LeaveSignal::from_flag(told))
}

/// One that was told to leave before there was anything to leave has done so.
pub(crate) fn left_early(error: anyhow::Error) -> anyhow::Result<()> {
    if matches!(error.downcast_ref(), Some(Error::Run(NodeError::LeftEarly))) {
        tracing::info!("told to leave before the run had begun");
        return Ok(());
    }
    Err(error)
}
