//! A machine's inputs as data: the cluster drives its machines by these alone, so that a recorded run can be fed back.

use crate::network::Packed;
use machine::{Batch, Outbox, PullTarget, Server, Ticket, Worker, WorkerSettings};
use types::{NodeId, NumberType, Plan, PositionRange, Setting, TableId, TableSpec, Time, WorkerId};
use update::Registry;
use wire::{Frame, Keys, Pool};

/// One input of a server.
#[derive(Clone, Debug)]
pub enum ServerInput {
    /// A frame arrived.
    Frame(Time, Packed),
    /// What arrived together has been handled.
    Settle,
    /// Time has passed.
    Tick(Time),
}

impl ServerInput {
    /// Hands it to the machine.
    pub fn apply(&self, server: &mut Server, out: &mut Outbox) {
        match self {
            Self::Frame(now, packed) => server.handle(*now, packed.frame(), out),
            Self::Settle => server.settle(out),
            Self::Tick(now) => server.tick(*now, out),
        }
    }
}

/// One input of a worker: what arrived, or what its program asked for.
#[derive(Clone, Debug)]
pub enum WorkerInput {
    /// A frame arrived.
    Frame(Time, Packed),
    /// Time has passed.
    Tick(Time),
    /// A connection is there again.
    Reconnected(Time, NodeId),
    /// The program asks for a table.
    MakeTable(TableSpec),
    /// The program pushes.
    Push(Time, TableId, Batch, Vec<Ticket>),
    /// The program pulls.
    Pull(Time, TableId, Keys, Vec<Ticket>),
    /// The program scans.
    Scan(Time, TableId, PositionRange),
    /// The program changes a setting.
    Tune(Time, TableId, Setting),
    /// The program ends its clock.
    EndClock(Time),
    /// The program stands at a barrier.
    Barrier,
    /// The program says goodbye.
    Leave,
}

impl WorkerInput {
    /// Hands it to the machine. Returns the ticket of a task, or the number of a barrier.
    pub fn apply(&self, worker: &mut Worker, out: &mut Outbox) -> Option<u64> {
        let fits = "the program fits the table";
        let ticket = match self {
            Self::Frame(now, packed) => {
                worker.handle(*now, packed.frame(), out);
                return None;
            }
            Self::Tick(now) => {
                worker.tick(*now, out);
                return None;
            }
            Self::Reconnected(now, node) => {
                worker.reconnected(*now, *node, out);
                return None;
            }
            Self::MakeTable(spec) => {
                worker.make_table(spec.clone(), out);
                return None;
            }
            Self::EndClock(now) => {
                worker.end_clock(*now, out);
                return None;
            }
            Self::Leave => {
                worker.leave(out);
                return None;
            }
            Self::Barrier => return Some(worker.barrier(out)),
            Self::Push(now, table, batch, after) => worker.push(*now, *table, batch.clone(), after, out).expect(fits),
            Self::Pull(now, table, keys, after) => {
                let spec = worker.spec(*table).expect(fits);
                let count = keys.len() * spec.width as usize;
                let target = match spec.number {
                    NumberType::F32 => PullTarget::F32(vec![0.0; count]),
                    NumberType::F64 => PullTarget::F64(vec![0.0; count]),
                    NumberType::I64 => PullTarget::I64(vec![0; count]),
                };
                worker.pull(*now, *table, keys.clone(), target, after, out).expect(fits)
            }
            Self::Scan(now, table, range) => worker.scan(*now, *table, *range, &[], out).expect(fits),
            Self::Tune(now, table, setting) => worker.tune(*now, *table, *setting, out).expect(fits),
        };
        Some(ticket.0)
    }
}

/// What a machine said to one input.
pub type Output = Vec<Packed>;

pub(crate) fn packed(frames: &[Frame]) -> Output {
    frames.iter().map(Packed::new).collect()
}

fn drained(out: &mut Outbox) -> Output {
    out.drain().map(|frame| Packed::new(&frame)).collect()
}

/// What a fresh server says to these inputs.
#[must_use]
pub fn replay_server<'a>(node: NodeId, plan: &Plan, inputs: impl IntoIterator<Item = &'a ServerInput>) -> Vec<Output> {
    let mut server = Server::new(node, plan.clone(), Registry::builtin(), Pool::new());
    let mut out = Outbox::new();
    let say = |input: &ServerInput| {
        input.apply(&mut server, &mut out);
        drained(&mut out)
    };
    inputs.into_iter().map(say).collect()
}

/// What a fresh worker says to these inputs.
#[must_use]
pub fn replay_worker<'a>(
    worker: u32,
    plan: &Plan,
    settings: WorkerSettings,
    inputs: impl IntoIterator<Item = &'a WorkerInput>,
) -> Vec<Output> {
    let mut machine = Worker::new(WorkerId(worker), plan.workers[worker as usize], plan.clone(), settings);
    let mut out = Outbox::new();
    let say = |input: &WorkerInput| {
        input.apply(&mut machine, &mut out);
        drained(&mut out)
    };
    inputs.into_iter().map(say).collect()
}
