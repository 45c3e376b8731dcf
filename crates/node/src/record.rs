//! A recording of everything a server machine was told, and the proof that telling it again gives the same bytes.

use machine::{Outbox, Server};
use std::sync::mpsc::{Receiver, Sender, channel};
use types::{NodeId, Plan, Time};
use update::Registry;
use wire::{Frame, Pool, encode};

/// One thing a machine was told.
#[derive(Clone, Debug)]
enum Input {
    Frame(Time, Box<Frame>),
    Settle,
    Tick(Time),
}

enum Entry {
    Begin(NodeId, Plan),
    Input(Input),
    Output(Vec<u8>),
}

/// Takes down what a server is told and says. Give it to [`crate::run_server`].
pub struct Recorder {
    entries: Sender<Entry>,
}

/// Where a recording arrives.
pub struct Recording {
    entries: Receiver<Entry>,
}

/// What came of feeding a recording back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Inputs fed.
    pub inputs: usize,
    /// Frames that the machine said, in the recording and again.
    pub frames: usize,
    /// The first frame that differs, if one does.
    pub first_difference: Option<usize>,
}

impl Recorder {
    /// A recorder and the recording it makes.
    #[must_use]
    pub fn new() -> (Self, Recording) {
        let (entries, received) = channel();
        (Self { entries }, Recording { entries: received })
    }

    fn put(&self, entry: Entry) {
        // Nobody keeping the recording is no reason to stop serving.
        self.entries.send(entry).ok();
    }

    pub(crate) fn begin(&mut self, node: NodeId, plan: &Plan) {
        self.put(Entry::Begin(node, plan.clone()));
    }

    pub(crate) fn input(&mut self, now: Time, frame: &Frame) {
        self.put(Entry::Input(Input::Frame(now, Box::new(frame.clone()))));
    }

    pub(crate) fn settle(&mut self) {
        self.put(Entry::Input(Input::Settle));
    }

    pub(crate) fn tick(&mut self, now: Time) {
        self.put(Entry::Input(Input::Tick(now)));
    }

    pub(crate) fn output(&mut self, frame: &Frame) {
        self.put(Entry::Output(bytes_of(frame)));
    }
}

fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes);
    frame.message.payloads().iter().for_each(|payload| bytes.extend_from_slice(payload.bytes()));
    bytes
}

/// Feeds a finished recording to a fresh server and compares every byte it says.
#[must_use]
pub fn replay_server(recording: Recording, registry: Registry) -> Replayed {
    let mut machine = None;
    let mut recorded = Vec::new();
    let mut said = Vec::new();
    let mut inputs = 0;
    let mut out = Outbox::new();
    for entry in recording.entries {
        match entry {
            Entry::Begin(node, plan) => machine = Some(Server::new(node, plan, registry.clone(), Pool::new())),
            Entry::Output(bytes) => recorded.push(bytes),
            Entry::Input(input) => {
                let Some(machine) = &mut machine else { continue };
                inputs += 1;
                match input {
                    Input::Frame(now, frame) => machine.handle(now, *frame, &mut out),
                    Input::Settle => machine.settle(&mut out),
                    Input::Tick(now) => machine.tick(now, &mut out),
                }
                said.extend(out.drain().map(|frame| bytes_of(&frame)));
            }
        }
    }
    let differs = (0..recorded.len().max(said.len())).find(|index| recorded.get(*index) != said.get(*index));
    Replayed { inputs, frames: recorded.len(), first_difference: differs }
}
