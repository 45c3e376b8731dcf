//! A server's inputs as data: a recording keeps them, and replaying it feeds them back.

#![deny(clippy::wildcard_enum_match_arm)]

use crate::{Restored, Server};
use types::Time;
use wire::{Field, Frame, Outbox, Reader, WireError};

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

impl Field for ServerInput {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Frame(now, frame) => {
                put_time(0, *now, out);
                frame.put(out);
            }
            Self::Settle => out.push(1),
            Self::Tick(now) => put_time(2, *now, out),
            Self::Heartbeat(now) => put_time(3, *now, out),
            Self::Restore(now, restored) => {
                put_time(4, *now, out);
                restored.put(out);
            }
        }
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        match u8::get(input)? {
            0 => Ok(Self::Frame(Field::get(input)?, Box::new(Frame::get(input)?))),
            1 => Ok(Self::Settle),
            2 => Ok(Self::Tick(Field::get(input)?)),
            3 => Ok(Self::Heartbeat(Field::get(input)?)),
            4 => Ok(Self::Restore(Field::get(input)?, Box::new(Field::get(input)?))),
            _ => Err(UNKNOWN),
        }
    }
}

const UNKNOWN: WireError = WireError::Malformed("an unknown kind of input");

fn put_time(tag: u8, now: Time, out: &mut Vec<u8>) {
    out.push(tag);
    now.put(out);
}
