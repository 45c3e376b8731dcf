//! Scaffolding of this crate's tests: a worker with one table, and the frames that it receives.

use crate::{Batch, Values, Worker, WorkerSettings};
use types::{NodeId, NumberType, Plan, ShardId, Source, TableId, TableSpec, Time, WorkerId};
use wire::{Acked, Control, Frame, Head, Keys, Message, Outbox, Payload, Refused};

/// The worker's only table.
pub(crate) const TABLE: TableId = TableId(0);

/// Worker 0, source 1, with one table on this many servers.
pub(crate) fn worker_with_table(spec: TableSpec, servers: u32) -> Worker {
    let plan = Plan::first(servers, vec![Source(1)]);
    let mut worker = Worker::new(WorkerId(0), Source(1), plan, WorkerSettings::default());
    let mut out = Outbox::new();
    let name = spec.name.clone();
    worker.make_table(spec, &mut out);
    hear(&mut worker, Control::TableMade { table: TABLE, name }, &mut out);
    worker
}

/// The worker receives a message of the coordinator.
pub(crate) fn hear(worker: &mut Worker, control: Control, out: &mut Outbox) {
    let head = Head::plain(NodeId::Coordinator, NodeId::Worker(0));
    worker.handle(Time(0), Frame { head, message: Message::Control(control) }, out);
}

/// A shard acknowledges everything up to `through`, and refuses some of it.
pub(crate) fn acknowledge(
    worker: &mut Worker,
    now: Time,
    shard: u32,
    through: u64,
    refused: Vec<Refused>,
    out: &mut Outbox,
) {
    let head = Head { source: Source(1), ..Head::plain(NodeId::Server(shard), NodeId::Worker(0)) };
    let acked = Acked { table: TABLE, shard: ShardId(shard), through, refused };
    worker.handle(now, Frame { head, message: Message::Acked(acked) }, out);
}

/// A batch of ones.
pub(crate) fn ones(keys: Keys, width: usize, examples: u64) -> Batch {
    let values = Values { number: NumberType::F32, bytes: Payload::new(vec![1f32; keys.len() * width]) };
    Batch { keys, values, examples, lease: None }
}
