//! A server's inputs as data: a recording stores them, and a replay feeds them back.

#![deny(clippy::wildcard_enum_match_arm)]

use crate::{Restored, Server};
use types::Time;
use wire::{Frame, Outbox};

/// One input of a server.
#[derive(Clone, Debug)]
pub enum ServerInput {
    /// A frame arrived.
    Frame(Time, Box<Frame>),
    /// The frames that arrived together have been handled.
    Settle,
    /// Time has passed.
    Tick(Time),
    /// A heartbeat is due.
    Heartbeat(Time),
    /// The shell has read a table of a checkpoint.
    Restore(Time, Box<Restored>),
    /// A piece of long work is to be done.
    Work(Time),
}

impl ServerInput {
    /// Calls the method of the server that takes this input.
    pub fn apply(self, server: &mut Server, out: &mut Outbox) {
        match self {
            Self::Frame(now, frame) => server.handle(now, *frame, out),
            Self::Settle => server.settle(out),
            Self::Tick(now) => server.tick(now, out),
            Self::Heartbeat(now) => server.heartbeat(now, out),
            Self::Restore(now, restored) => server.restore(now, *restored, out),
            Self::Work(now) => server.work(now, out),
        }
    }
}

wire::tuple_variants!(ServerInput {
    0 => Frame(now, frame),
    1 => Settle,
    2 => Tick(now),
    3 => Heartbeat(now),
    4 => Restore(now, restored),
    5 => Work(now),
});
