//! The calls of a program: their arguments are checked here, before anything is sent.

use super::operations::Operation;
use super::pacing::{Pacer, send};
use super::stream::{ShardStream, StreamMessage};
use super::{Batch, PullTarget, TicketId, Worker};
use types::{NodeId, OPEN_READS, PositionRange, Setting, TableId, TableSpec, Time, UNACKNOWLEDGED_ITEMS};
use wire::{Control, Head, Keys, Outbox, Refusal};

/// Why a call is refused before anything is sent.
///
/// ```
/// use worker::TableFailure;
///
/// assert!(TableFailure::Left.to_string().contains("open a new session"));
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TableFailure {
    /// The keys were put in another order than the table's.
    #[error("these keys were made for a table in another order; make them with this table's keys()")]
    Placement,
    /// The worker has left the run.
    #[error("this worker has left the run; open a new session")]
    Left,
    /// The push is made for a data lease that the worker does not hold.
    #[error("lease {lease} is not this worker's: it is committed, or was never granted")]
    NotLeased {
        /// Which.
        lease: u64,
    },
    /// The batch does not fit the table.
    #[error("{}", refusal.describe(table, *placement))]
    Unfit {
        /// The table's name.
        table: String,
        /// Its order, to name keys.
        placement: types::Placement,
        /// What does not fit.
        refusal: Refusal,
    },
}

impl Worker {
    /// Pushes a batch, after the tickets named.
    pub fn push(
        &mut self,
        now: Time,
        table: TableId,
        batch: Batch,
        after: &[TicketId],
        out: &mut Outbox,
    ) -> Result<TicketId, TableFailure> {
        self.check_batch(table, &batch)?;
        let leased_parts = self.number_leased_parts(table, &batch);
        Ok(self.submit(now, table, Operation::Push { batch, leased_parts }, after, out))
    }

    /// Pulls rows into `target`, after the tickets named. The target must hold exactly those rows.
    pub fn pull(
        &mut self,
        now: Time,
        table: TableId,
        keys: Keys,
        mut target: PullTarget,
        after: &[TicketId],
        out: &mut Outbox,
    ) -> Result<TicketId, TableFailure> {
        self.check_target(table, &keys, &mut target)?;
        Ok(self.submit(now, table, Operation::Pull { keys, target, own: false }, after, out))
    }

    /// Pushes a batch and pulls the same rows into `target`, with the push in them where the table
    /// combines `each`: one operation and one ticket, which fails if any part of the push is
    /// refused.
    pub fn push_pull(
        &mut self,
        now: Time,
        table: TableId,
        batch: Batch,
        mut target: PullTarget,
        after: &[TicketId],
        out: &mut Outbox,
    ) -> Result<TicketId, TableFailure> {
        self.check_batch(table, &batch)?;
        self.check_target(table, &batch.keys, &mut target)?;
        let leased_parts = self.number_leased_parts(table, &batch);
        Ok(self.submit(now, table, Operation::PushPull { batch, leased_parts, target }, after, out))
    }

    fn check_batch(&self, table: TableId, batch: &Batch) -> Result<(), TableFailure> {
        let spec = self.known(table)?;
        check_keys(spec, &batch.keys)?;
        batch.lease.map_or(Ok(()), |lease| self.check_lease(lease))?;
        let unfit = |refusal| unfit(spec, refusal);
        if batch.values.number != spec.number {
            return Err(unfit(Refusal::WrongNumber { expected: spec.number, found: batch.values.number }));
        }
        let expected = (batch.keys.len() as u64).saturating_mul(spec.row_bytes() as u64);
        if batch.values.bytes.len() as u64 != expected {
            return Err(unfit(Refusal::WrongLength { expected, found: batch.values.bytes.len() as u64 }));
        }
        Ok(())
    }

    fn check_target(&self, table: TableId, keys: &Keys, target: &mut PullTarget) -> Result<(), TableFailure> {
        let spec = self.known(table)?;
        check_keys(spec, keys)?;
        let found = target.number();
        if found != spec.number {
            return Err(unfit(spec, Refusal::WrongNumber { expected: spec.number, found }));
        }
        let expected = (keys.len() as u64).saturating_mul(spec.row_bytes() as u64);
        let length = target.bytes_mut().len() as u64;
        if length != expected {
            return Err(unfit(spec, Refusal::WrongLength { expected, found: length }));
        }
        Ok(())
    }

    /// Pulls all rows that a dense or ordered table has in a range, or all rows of any table.
    pub fn scan(
        &mut self,
        now: Time,
        table: TableId,
        range: PositionRange,
        after: &[TicketId],
        out: &mut Outbox,
    ) -> Result<TicketId, TableFailure> {
        let spec = self.known(table)?;
        if spec.shape.placement() != types::Placement::Ordered && range != PositionRange::ALL {
            return Err(unfit(spec, Refusal::NotOrdered));
        }
        Ok(self.submit(now, table, Operation::Scan { range }, after, out))
    }

    /// Changes a setting of the table's updater for updates made from this clock on.
    pub fn tune(
        &mut self,
        now: Time,
        table: TableId,
        setting: Setting,
        out: &mut Outbox,
    ) -> Result<TicketId, TableFailure> {
        self.known(table)?;
        let at = self.clock;
        Ok(self.submit(now, table, Operation::Tune { at, setting }, &[], out))
    }

    pub(crate) fn known(&self, table: TableId) -> Result<&TableSpec, TableFailure> {
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
        self.queue.is_empty() && self.begun == 0
    }

    /// Whether something sent to `node` has not been answered.
    #[must_use]
    pub fn waits_for(&self, node: NodeId) -> bool {
        let streams = self.tables.values().flat_map(|table| &table.streams);
        streams.filter(|stream| stream.placed.owner == node).any(ShardStream::awaits_answer)
    }

    /// Ends the clock: a marker goes to every shard of every table. Call when
    /// [`Worker::is_flushed`].
    pub fn end_clock(&mut self, now: Time, out: &mut Outbox) {
        self.close_clock(now, out);
        self.proceed(now, out);
    }

    pub(crate) fn close_clock(&mut self, now: Time, out: &mut Outbox) {
        let head = self.head();
        for (id, table) in &mut self.tables {
            for (shard, stream) in table.streams.iter_mut().enumerate() {
                if let Some(pacer) = self.pacer.as_mut().filter(|pacer| pacer.has_waiting(*id, shard)) {
                    let examples = std::mem::take(&mut stream.untold);
                    pacer.end_clock(*id, shard, Head { examples, ..head });
                    continue;
                }
                stream.touch(now);
                send(&mut self.pacer, stream.append(head, StreamMessage::Marker), out);
            }
        }
        self.clock = self.clock.next();
        self.look_at_checkpoint(out);
        self.clock_ended(out);
    }

    /// Whether every push, marker and read has been answered, and every lease that is done is
    /// committed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.leases.is_idle()
            && self.pacer.as_ref().is_none_or(|pacer| pacer.is_empty())
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
        self.unacknowledged_bytes + self.queue.bytes()
    }

    /// Whether fewer pushes, ends of clocks and settings are under way than a worker keeps.
    #[must_use]
    pub fn may_send(&self) -> bool {
        let streams = self.tables.values().flat_map(|table| &table.streams);
        streams.map(|stream| stream.unacknowledged.len()).sum::<usize>() < UNACKNOWLEDGED_ITEMS
    }

    /// Whether another read may be asked for: a program that has [`OPEN_READS`](types::OPEN_READS)
    /// open waits for one of them first.
    #[must_use]
    pub fn may_read(&self) -> bool {
        self.open_reads < OPEN_READS
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
        streams.flat_map(|stream| &mut stream.unacknowledged).for_each(|sent| sent.message.free_values());
        self.pacer.iter_mut().for_each(Pacer::free_values);
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

pub(crate) fn unfit(spec: &TableSpec, refusal: Refusal) -> TableFailure {
    TableFailure::Unfit { table: spec.name.clone(), placement: spec.shape.placement(), refusal }
}

/// Rejects a list of more keys than a read can have parts for: a run of an ordered table can be
/// longer than fits a shard, or memory. `expected`: the bytes that an answer would have.
pub(crate) fn check_count(spec: &TableSpec, keys: &Keys, expected: u64) -> Result<(), TableFailure> {
    if keys.len() > u32::MAX as usize {
        return Err(unfit(spec, Refusal::WrongLength { expected, found: 0 }));
    }
    Ok(())
}

pub(crate) fn check_keys(spec: &TableSpec, keys: &Keys) -> Result<(), TableFailure> {
    if keys.placement() != spec.shape.placement() {
        return Err(TableFailure::Placement);
    }
    let last = keys.len().checked_sub(1).map(|last| keys.position(last));
    match last.filter(|last| *last > spec.shape.extent().last) {
        Some(position) => Err(unfit(spec, Refusal::OutOfRange { position })),
        None => Ok(()),
    }
}
