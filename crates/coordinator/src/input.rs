//! A coordinator's inputs as data: a recording stores them, and a replay feeds them back.

#![deny(clippy::wildcard_enum_match_arm)]

use crate::{Coordinator, Resume};
use types::{Binding, NodeId, Time};
use wire::{Frame, Outbox};

/// One input of a coordinator.
#[derive(Clone, Debug)]
pub enum CoordinatorInput {
    /// A frame arrived, from this peer; `None` in an insecure run.
    Frame(Time, Box<Frame>, Option<Binding>),
    /// Time has passed.
    Tick(Time),
    /// A node's process has ended.
    Gone(NodeId),
    /// The run resumes from a checkpoint.
    Resume(Box<Resume>),
    /// The shell has begun a checkpoint: the location of the store, and the name in it.
    Checkpoint(Time, String, String),
    /// The run ends for this reason: the coordinator was told to leave, and no other can take over.
    GiveUp(String),
    /// Whether the run's end waits for a last checkpoint.
    LastCheckpoint(bool),
    /// Where the run reads and writes checkpoints.
    Locations(Vec<String>),
}

impl CoordinatorInput {
    /// Hands the input to the machine.
    pub fn apply(self, coordinator: &mut Coordinator, out: &mut Outbox) {
        match self {
            Self::Frame(now, frame, peer) => coordinator.handle_from(now, *frame, peer, out),
            Self::Tick(now) => coordinator.tick(now, out),
            Self::Gone(node) => coordinator.gone(node, out),
            Self::Resume(resume) => coordinator.resume(*resume),
            Self::Checkpoint(now, location, name) => coordinator.checkpoint(now, location, name, out),
            Self::GiveUp(reason) => coordinator.give_up(reason, out),
            Self::LastCheckpoint(wanted) => coordinator.last_checkpoint(wanted),
            Self::Locations(locations) => coordinator.set_locations(locations),
        }
    }
}

wire::tuple_variants!(CoordinatorInput {
    0 => Frame(now, frame, peer),
    2 => Tick(now),
    3 => Gone(node),
    4 => Resume(resume),
    5 => Checkpoint(now, location, name),
    6 => GiveUp(reason),
    7 => LastCheckpoint(wanted),
    8 => Locations(locations),
});
