//! Replay of recorded inputs: a new machine that gets the same inputs must send the same bytes.

use crate::network::Packed;
use shard::{Server, ServerInput};
use types::{NodeId, Plan, WorkerId};
use update::Updaters;
use wire::{Frame, Outbox, Pool};
use worker::{Worker, WorkerInput, WorkerSettings};

/// Row state that one piece of a server's long work concerns: a row or two, so that small tables
/// take many pieces.
const PIECE_BYTES: usize = 16;

/// A server as every run of the simulator has it.
pub(crate) fn new_server(node: NodeId, plan: Plan) -> Server {
    Server::new(node, plan, Updaters::builtin(), Pool::new()).piece_bytes(PIECE_BYTES)
}

/// The frames that a machine sent for one input.
pub type MachineOutput = Vec<Packed>;

pub(crate) fn packed(frames: &[Frame]) -> MachineOutput {
    frames.iter().map(Packed::new).collect()
}

fn drained(out: &mut Outbox) -> MachineOutput {
    out.drain().map(|frame| Packed::new(&frame)).collect()
}

/// Feeds recorded inputs to a new server. Returns what it sends for each.
#[must_use]
pub fn replay_server(node: NodeId, plan: &Plan, inputs: impl IntoIterator<Item = ServerInput>) -> Vec<MachineOutput> {
    let mut server = new_server(node, plan.clone());
    let mut out = Outbox::new();
    let say = |input: ServerInput| {
        input.apply(&mut server, &mut out);
        drained(&mut out)
    };
    inputs.into_iter().map(say).collect()
}

/// Feeds recorded inputs to a new worker. Returns what it sends for each.
#[must_use]
pub fn replay_worker(
    worker: u32,
    plan: &Plan,
    settings: WorkerSettings,
    inputs: impl IntoIterator<Item = WorkerInput>,
) -> Vec<MachineOutput> {
    let mut machine =
        Worker::new(WorkerId(worker), plan.workers[worker as usize].expect("a live worker"), plan.clone(), settings);
    let mut out = Outbox::new();
    let say = |input: WorkerInput| {
        input.apply(&mut machine, &mut out).expect("the program fits its tables");
        drained(&mut out)
    };
    inputs.into_iter().map(say).collect()
}
