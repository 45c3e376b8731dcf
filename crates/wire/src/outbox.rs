//! Where machines put what they have to say.

use crate::Frame;

/// Frames to be sent, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    frames: Vec<Frame>,
}

impl Outbox {
    /// Nothing to say yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says something.
    pub fn send(&mut self, frame: Frame) {
        self.frames.push(frame);
    }

    /// Everything said since the last time, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = Frame> + '_ {
        self.frames.drain(..)
    }
}
