//! Memory that a server no longer needs. Freeing gigabytes takes long, so the server hands them to
//! its shell, which frees them on another thread.

/// Memory to free. Dropping it frees it.
pub struct Discarded {
    _memory: Box<dyn Send>,
}

impl Discarded {
    pub(crate) fn new(memory: impl Send + 'static) -> Self {
        Self { _memory: Box::new(memory) }
    }
}
