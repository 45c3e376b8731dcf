//! Signals that tell a process to drain and leave: SIGTERM, which a host's operator sends, and
//! SIGUSR1, which batch systems send some time before.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use signal_hook::consts::{SIGTERM, SIGUSR1};
use signal_hook::flag::{register, register_conditional_shutdown};
use slackwater::Error;
use slackwater::cluster::{LeaveSignal, NodeError};

/// Installs the signal handlers. The same signal twice ends the process at once.
pub(crate) fn listen() -> anyhow::Result<LeaveSignal> {
    let told = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGUSR1] {
        let before = Arc::new(AtomicBool::new(false));
        // Handlers run in this order: the first signal finds `before` unset, and then sets it.
        register_conditional_shutdown(signal, 128 + signal, before.clone())
            .and_then(|_| register(signal, before))
            .and_then(|_| register(signal, told.clone()))
            .context("cannot listen for signals")?;
    }
    Ok(LeaveSignal::from_flag(told))
}

/// Turns the error of a process that was told to leave before the run began into success.
pub(crate) fn left_early(error: anyhow::Error) -> anyhow::Result<()> {
    if matches!(error.downcast_ref(), Some(Error::Run(NodeError::LeftEarly))) {
        tracing::info!("told to leave before the run had begun");
        return Ok(());
    }
    Err(error)
}
