//! A coordinator's inputs as data: a recording keeps them, and replaying it feeds them back.

#![deny(clippy::wildcard_enum_match_arm)]

use crate::{Coordinator, Resume};
use types::{NodeId, Time};
use wire::{Field, Frame, Outbox, Reader, WireError};

/// One input of a coordinator.
#[derive(Clone, Debug)]
pub enum CoordinatorInput {
    /// A frame arrived.
    Frame(Time, Box<Frame>),
    /// Time has passed.
    Tick(Time),
    /// A node's process has ended.
    Gone(NodeId),
    /// The run goes on from a checkpoint.
    Resume(Box<Resume>),
    /// A checkpoint has been begun: in which store, and its name there.
    Checkpoint(Time, String, String),
    /// It was told to leave, and nobody could lead in its place: why the run ends.
    GiveUp(String),
    /// Whether the run's end waits for a last checkpoint.
    LastCheckpoint(bool),
}

impl CoordinatorInput {
    /// Hands it to the machine.
    pub fn apply(self, coordinator: &mut Coordinator, out: &mut Outbox) {
        match self {
            Self::Frame(now, frame) => coordinator.handle(now, *frame, out),
            Self::Tick(now) => coordinator.tick(now, out),
            Self::Gone(node) => coordinator.gone(node, out),
            Self::Resume(resume) => coordinator.resume(*resume),
            Self::Checkpoint(now, location, name) => coordinator.checkpoint(now, location, name, out),
            Self::GiveUp(reason) => coordinator.give_up(reason, out),
            Self::LastCheckpoint(wanted) => coordinator.last_checkpoint(wanted),
        }
    }
}

impl Field for CoordinatorInput {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Frame(now, frame) => {
                put_time(0, *now, out);
                frame.put(out);
            }
            Self::Tick(now) => put_time(2, *now, out),
            Self::Gone(node) => {
                out.push(3);
                node.put(out);
            }
            Self::Resume(resume) => {
                out.push(4);
                resume.put(out);
            }
            Self::Checkpoint(now, location, name) => {
                put_time(5, *now, out);
                location.put(out);
                name.put(out);
            }
            Self::GiveUp(reason) => {
                out.push(6);
                reason.put(out);
            }
            Self::LastCheckpoint(wanted) => {
                out.push(7);
                wanted.put(out);
            }
        }
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        match u8::get(input)? {
            0 => Ok(Self::Frame(Field::get(input)?, Box::new(Frame::get(input)?))),
            2 => Ok(Self::Tick(Field::get(input)?)),
            3 => Ok(Self::Gone(Field::get(input)?)),
            4 => Ok(Self::Resume(Box::new(Field::get(input)?))),
            5 => Ok(Self::Checkpoint(Field::get(input)?, Field::get(input)?, Field::get(input)?)),
            6 => Ok(Self::GiveUp(Field::get(input)?)),
            7 => Ok(Self::LastCheckpoint(Field::get(input)?)),
            _ => Err(UNKNOWN),
        }
    }
}

const UNKNOWN: WireError = WireError::Malformed("an unknown kind of input");

fn put_time(tag: u8, now: Time, out: &mut Vec<u8>) {
    out.push(tag);
    now.put(out);
}
