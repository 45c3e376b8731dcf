//! Scaffolding of this crate's tests: the parts of a shard that followers read, and parked reads.

use crate::identity::Identity;
use crate::intake::clocks::Clocks;
use crate::intake::gate::Streams;
use crate::leases::LeasedParts;
use crate::reads::parked::ParkedRead;
use crate::rows::Rows;
use crate::view::ShardView;
use types::{
    Clock, NodeId, Placed, Plan, PlanNumber, Position, PositionRange, ShardId, Source, TableId, TableSpec, Time,
    WorkerId,
};
use update::Updaters;
use wire::{KeyPart, Pool, Pull, Wants};

/// The server that holds the shard.
pub(crate) const HERE: NodeId = NodeId::Server(1);

/// The parts of a shard that replication reads. Its only worker is worker 0, source 1.
pub(crate) struct Parts {
    pub identity: Identity,
    pub streams: Streams,
    pub clocks: Clocks<f32>,
    pub leases: LeasedParts,
    pub rows: Rows<f32>,
    pub pool: Pool,
}

impl Parts {
    /// A shard that holds `positions` positions of a table, from 0 on.
    pub fn new(spec: &TableSpec, positions: u64) -> Self {
        let range = PositionRange { first: Position(0), last: Position(positions - 1) };
        let placed = Placed { shard: ShardId(0), range, owner: HERE };
        Self {
            identity: Identity { table: TableId(0), placed, plan: PlanNumber(1) },
            streams: Streams::new(&Plan::first(1, vec![Source(1)])),
            clocks: Clocks::new(spec.combine, [true].into_iter()),
            leases: LeasedParts::default(),
            rows: Rows::new(spec, range, &Updaters::builtin(), 1 << 20).expect("they fit"),
            pool: Pool::new(),
        }
    }

    /// A view of the parts.
    pub fn view(&self) -> ShardView<'_, f32> {
        let Self { identity, streams, clocks, leases, rows, pool } = self;
        ShardView { identity, streams, clocks, leases, rows, pool }
    }
}

/// A read of row 0 that arrives at `since` and needs the worker's own stream up to `after`.
pub(crate) fn parked_read(worker: u32, request: u64, after: u64, since: Time) -> ParkedRead {
    let pull = Pull {
        table: TableId(0),
        shard: ShardId(0),
        request,
        after,
        frontier: Clock(0),
        subscribe: false,
        deltas: None,
        wants: Wants::Values,
        keys: KeyPart::Run { first: Position(0), count: 1 },
    };
    ParkedRead { worker: WorkerId(worker), clock: Clock(0), since, pull }
}
