//! What a program asks of its worker besides operations on tables: to end clocks and to leave, and
//! how much is under way.

use super::Worker;
use crate::TableFailure;
use crate::send::stream::ShardStream;
use types::{NodeId, TableId, TableSpec, Time, UNACKNOWLEDGED_ITEMS};
use wire::{Control, Outbox, Refusal};

impl Worker {
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

    /// Whether everything asked for has been sent, so that a clock may end.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.schedule.is_flushed()
    }

    /// Whether something sent to `node` has not been answered.
    #[must_use]
    pub fn waits_for(&self, node: NodeId) -> bool {
        let streams = self.tables.values().flat_map(|table| &table.streams);
        streams.filter(|stream| stream.owner() == node).any(ShardStream::awaits_answer)
    }

    /// Ends the clock: a marker goes to every shard of every table. Call when
    /// [`Worker::is_flushed`].
    pub fn end_clock(&mut self, now: Time, out: &mut Outbox) {
        self.close_clock(now, out);
        self.proceed(now, out);
    }

    pub(super) fn close_clock(&mut self, now: Time, out: &mut Outbox) {
        let head = self.head();
        for (id, table) in &mut self.tables {
            for stream in &mut table.streams {
                self.link.end_clock(now, *id, stream, head, out);
            }
        }
        self.clock = self.clock.next();
        self.look_at_checkpoint(out);
        self.leases.clock_ended();
        self.leases.learning().for_each(|learning| self.control(learning, out));
    }

    /// Whether every push, marker and read has been answered, and every lease that is done is
    /// committed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.schedule.is_idle()
            && self.leases.is_idle()
            && self.link.is_idle()
            && self.tables.values().flat_map(|table| &table.streams).all(ShardStream::is_idle)
    }

    /// Whether every push and marker has been acknowledged, and every lease that is done is
    /// committed: only reads may be open.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let acknowledged = self.tables.values().flat_map(|table| &table.streams).all(ShardStream::is_acknowledged);
        self.unacknowledged_bytes() == 0 && acknowledged && self.leases.is_idle()
    }

    /// Bytes of pushes that are not acknowledged, or wait to be sent: what a caller should bound.
    #[must_use]
    pub fn unacknowledged_bytes(&self) -> usize {
        self.link.unacknowledged_bytes() + self.schedule.bytes()
    }

    /// Whether fewer pushes, ends of clocks and settings are under way than a worker keeps.
    #[must_use]
    pub fn may_send(&self) -> bool {
        let streams = self.tables.values().flat_map(|table| &table.streams);
        streams.map(ShardStream::unacknowledged).sum::<usize>() < UNACKNOWLEDGED_ITEMS
    }

    /// Whether another read may be asked for: a program that has [`OPEN_READS`](types::OPEN_READS)
    /// open waits for one of them first.
    #[must_use]
    pub fn may_read(&self) -> bool {
        self.tickets.may_read()
    }

    /// Tells the coordinator that it lives.
    pub fn heartbeat(&self, out: &mut Outbox) {
        self.control(Control::Heartbeat, out);
    }

    /// The run is over for this worker, without a goodbye: the memory of what it has pushed is let
    /// go.
    pub fn let_go(&mut self) {
        self.left = true;
        let streams = self.tables.values_mut().flat_map(|table| &mut table.streams);
        streams.for_each(ShardStream::free_values);
        self.link.free_values();
    }

    /// Says goodbye. Call when idle.
    pub fn leave(&mut self, out: &mut Outbox) {
        self.left = true;
        self.control(Control::Bye, out);
    }

    /// Says that it cannot go on, and why.
    pub fn fail(&mut self, reason: String, out: &mut Outbox) {
        self.left = true;
        self.control(Control::Fail { reason }, out);
    }
}
