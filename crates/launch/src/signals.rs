//! Signals to this process, noted for a loop that looks at them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;

use crate::ProcessError;

/// The last of some signals that came to this process, which no longer do what they usually do.
#[derive(Debug)]
pub struct SignalFlag(Arc<AtomicUsize>);

impl SignalFlag {
    /// Notes these signals from now on.
    pub fn listen(signals: &[Signal]) -> Result<Self, ProcessError> {
        let flag = Arc::new(AtomicUsize::new(0));
        for signal in signals {
            let number = signal.as_raw();
            signal_hook::flag::register_usize(number, flag.clone(), number as usize)
                .map_err(|source| ProcessError::Listen { source })?;
        }
        Ok(Self(flag))
    }

    /// The last signal that came and was not taken yet.
    pub fn take(&self) -> Option<Signal> {
        Signal::from_named_raw(self.0.swap(0, Ordering::Relaxed) as i32)
    }
}
