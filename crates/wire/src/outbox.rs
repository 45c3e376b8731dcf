//! The outbox: the frames that a machine wants to send.

use crate::Frame;

/// Frames to be sent, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    frames: Vec<Frame>,
}

impl Outbox {
    /// An empty outbox.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a frame.
    pub fn send(&mut self, frame: Frame) {
        self.frames.push(frame);
    }

    /// Removes and returns all frames, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = Frame> + '_ {
        self.frames.drain(..)
    }
}
