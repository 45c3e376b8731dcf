//! The last signal to this process, noted in a flag that a loop polls. A later signal replaces one
//! that was not taken yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;

use crate::ProcessError;

/// The last signal that this process received, of those that it listens for. They lose their
/// default effect.
#[derive(Debug)]
pub struct SignalFlag(Arc<AtomicUsize>);

impl SignalFlag {
    /// Listens for these signals from now on.
    pub fn listen(signals: &[Signal]) -> Result<Self, ProcessError> {
        let flag = Arc::new(AtomicUsize::new(0));
        for signal in signals {
            let number = signal.as_raw();
            signal_hook::flag::register_usize(number, flag.clone(), number as usize)
                .map_err(|source| ProcessError::Listen { source })?;
        }
        Ok(Self(flag))
    }

    /// Takes the last signal that was received, if it has not been taken yet.
    pub fn take(&self) -> Option<Signal> {
        Signal::from_named_raw(self.0.swap(0, Ordering::Relaxed) as i32)
    }
}
