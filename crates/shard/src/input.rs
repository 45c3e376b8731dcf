//! A server's inputs as data: a recording keeps them, and replaying it feeds them back.

#![deny(clippy::wildcard_enum_match_arm)]

use crate::{Restored, Server};
use types::Time;
use wire::{Frame, Outbox};

/// One input of a server.
#[derive(Clone, Debug)]
pub enum ServerInput {
    /// A frame arrived.
    Frame(Time, Box<Frame>),
    /// What arrived together has been handled.
    Settle,
    /// Time has passed.
    Tick(Time),
    /// It is time for a sign of life.
    Heartbeat(Time),
    /// A table of a checkpoint was read.
    Restore(Time, Box<Restored>),
}

impl ServerInput {
    /// Hands it to the machine.
    pub fn apply(self, server: &mut Server, out: &mut Outbox) {
        match self {
            Self::Frame(now, frame) => server.handle(now, *frame, out),
            Self::Settle => server.settle(out),
            Self::Tick(now) => server.tick(now, out),
            Self::Heartbeat(now) => server.heartbeat(now, out),
            Self::Restore(now, restored) => server.restore(now, &restored, out),
        }
    }
}

wire::tuple_variants!(ServerInput {
    0 => Frame(now, frame),
    1 => Settle,
    2 => Tick(now),
    3 => Heartbeat(now),
    4 => Restore(now, restored),
});
