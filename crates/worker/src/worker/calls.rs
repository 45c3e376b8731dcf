//! The calls of a program besides operations on tables: to end clocks, to ask how much is under
//! way, and to leave.

use super::Worker;
use crate::TableFailure;
use crate::send::stream::ShardStream;
use types::{NodeId, Span, TableId, TableSpec, Time, UNACKNOWLEDGED_ITEMS};
use wire::{Control, Head, Outbox, Refusal};

impl Worker {
    /// The spec of a table, if the worker has it and has not left.
    pub(super) fn known(&self, table: TableId) -> Result<&TableSpec, TableFailure> {
        if self.left {
            return Err(TableFailure::Left);
        }
        self.spec(table).ok_or_else(|| TableFailure::Unfit {
            table: format!("number {}", table.0),
            placement: types::Placement::Ordered,
            refusal: Refusal::UnknownTable,
        })
    }

    /// Whether every operation has started and every push is handed over, so that a clock may end.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.schedule.is_flushed()
    }

    /// Whether `node` has not answered something that the worker sent.
    #[must_use]
    pub fn waits_for(&self, node: NodeId) -> bool {
        let streams = self.tables.values().flat_map(|table| &table.streams);
        streams.filter(|stream| stream.owner() == node).any(ShardStream::awaits_answer)
    }

    /// Ends the clock: sends a marker to every shard of every table. Call it when
    /// [`Worker::is_flushed`] is true.
    pub fn end_clock(&mut self, now: Time, out: &mut Outbox) {
        self.close_clock(now, out);
        self.proceed(now, out);
    }

    pub(super) fn close_clock(&mut self, now: Time, out: &mut Outbox) {
        let head = self.head();
        for (id, table) in &mut self.tables {
            table.push_codec.end_clock();
            for stream in &mut table.streams {
                self.link.end_clock(now, *id, stream, head, out);
            }
        }
        self.clock = self.clock.next();
        self.copy_residuals_if_due(out);
        self.leases.clock_ended();
        self.leases.learning().for_each(|learning| self.control(learning, out));
    }

    /// Whether shards have answered every push, marker and read, and every finished lease is
    /// committed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.schedule.is_idle()
            && self.leases.is_idle()
            && self.link.is_idle()
            && self.tables.values().flat_map(|table| &table.streams).all(ShardStream::is_idle)
    }

    /// Whether shards have acknowledged every push and marker, and every finished lease is
    /// committed. Reads may still be open.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let acknowledged = self.tables.values().flat_map(|table| &table.streams).all(ShardStream::is_acknowledged);
        self.unacknowledged_bytes() == 0 && acknowledged && self.leases.is_idle()
    }

    /// Bytes of pushes that are not acknowledged, or wait to be sent. A caller should bound them.
    #[must_use]
    pub fn unacknowledged_bytes(&self) -> usize {
        self.link.unacknowledged_bytes() + self.schedule.bytes()
    }

    /// Whether fewer than [`UNACKNOWLEDGED_ITEMS`] pushes, ends of clocks and settings are under
    /// way: a program waits until this is true before it sends more.
    #[must_use]
    pub fn may_send(&self) -> bool {
        let streams = self.tables.values().flat_map(|table| &table.streams);
        streams.map(ShardStream::unacknowledged).sum::<usize>() < UNACKNOWLEDGED_ITEMS
    }

    /// Whether the program may start another read. With [`OPEN_READS`](types::OPEN_READS) open, it
    /// waits until one of them is finished.
    #[must_use]
    pub fn may_read(&self) -> bool {
        self.tickets.may_read()
    }

    /// Sends a heartbeat to the coordinator, and to each server that the worker waits for. If a
    /// server's host vanishes, no event tells: without heartbeats, the worker would wait for ever.
    pub fn heartbeat(&mut self, now: Time, out: &mut Outbox) {
        let head = Head { to: NodeId::Coordinator, ..self.head() };
        let streams = self.tables.values().flat_map(|table| &table.streams);
        let awaited = streams.filter(|stream| stream.awaits_answer()).map(ShardStream::owner);
        self.heartbeats.send(now, head, awaited, out);
    }

    /// The servers that the worker waits for and has not heard since, and for how long at the last
    /// heartbeat.
    #[must_use]
    pub fn silent_servers(&self) -> Vec<(NodeId, Span)> {
        self.heartbeats.silent_peers()
    }

    /// Ends the run for this worker without a goodbye, and frees the values of its unacknowledged
    /// pushes.
    pub fn let_go(&mut self) {
        self.left = true;
        let streams = self.tables.values_mut().flat_map(|table| &mut table.streams);
        streams.for_each(ShardStream::free_values);
        self.link.free_values();
    }

    /// Says goodbye to the coordinator. Call it when [`Worker::is_idle`] is true.
    pub fn leave(&mut self, out: &mut Outbox) {
        self.left = true;
        self.control(Control::Bye, out);
    }

    /// Tells the coordinator that the worker cannot go on, and why.
    pub fn fail(&mut self, reason: String, out: &mut Outbox) {
        self.left = true;
        self.control(Control::Fail { reason }, out);
    }
}
