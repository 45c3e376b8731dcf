//! What a program asks of its worker: checked here, before anything is sent.

use super::pacing::{Pacer, send};
use super::stream::ItemKind;
use super::tasks::Task;
use super::{Batch, PullTarget, ShardLink, TableFailure, TicketId, Worker, touch};
use types::{NodeId, PositionRange, Setting, TableId, TableSpec, Time};
use types::{OPEN_READS, UNACKNOWLEDGED_ITEMS};
use wire::Outbox;
use wire::{Control, Head, Keys, Refusal};

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
        let pieces = self.number_pieces(table, &batch);
        Ok(self.submit(now, table, Task::Push { batch, pieces }, after, out))
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
        Ok(self.submit(now, table, Task::Pull { keys, target, own: false }, after, out))
    }

    /// Pushes a batch and pulls the same rows into `target`, with the push in them where the table combines `each`: one
    /// task and one ticket, which fails if any part of the push is refused.
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
        let pieces = self.number_pieces(table, &batch);
        Ok(self.submit(now, table, Task::PushPull { batch, pieces, target }, after, out))
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

    /// Pulls whatever rows a dense or ordered table has in a range, or any table as a whole.
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
        Ok(self.submit(now, table, Task::Scan { range }, after, out))
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
        Ok(self.submit(now, table, Task::Tune { at, setting }, &[], out))
    }

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
        self.queue.is_empty() && self.begun == 0
    }

    /// Whether something sent to `node` has not been answered.
    #[must_use]
    pub fn waits_for(&self, node: NodeId) -> bool {
        let links = self.tables.values().flat_map(|table| &table.links);
        links.filter(|link| link.placed.owner == node).any(ShardLink::awaits_answer)
    }

    /// Ends the clock: a marker goes to every shard of every table. Call when [`Worker::is_flushed`].
    pub fn end_clock(&mut self, now: Time, out: &mut Outbox) {
        self.close_clock(now, out);
        self.proceed(now, out);
    }

    pub(super) fn close_clock(&mut self, now: Time, out: &mut Outbox) {
        let head = self.head();
        for (id, table) in &mut self.tables {
            for (shard, link) in table.links.iter_mut().enumerate() {
                if let Some(pacer) = self.pacer.as_mut().filter(|pacer| pacer.holds(*id, shard)) {
                    let examples = std::mem::take(&mut link.untold);
                    pacer.end_clock(*id, shard, Head { examples, ..head });
                    continue;
                }
                touch(link, now);
                send(&mut self.pacer, link.append(head, ItemKind::Marker), out);
            }
        }
        self.clock = self.clock.next();
        self.look_at_checkpoint(out);
        self.clock_ended(out);
    }

    /// Whether every push, marker and read has been answered, and every lease that is done is committed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.leases.is_idle()
            && self.pacer.as_ref().is_none_or(|pacer| pacer.is_empty())
            && self.tables.values().flat_map(|table| &table.links).all(ShardLink::is_idle)
    }

    /// Whether every push and marker has been acknowledged, and every lease that is done is committed: only reads may be open.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let acknowledged = self.tables.values().flat_map(|table| &table.links).all(ShardLink::is_acknowledged);
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
        let links = self.tables.values().flat_map(|table| &table.links);
        links.map(|link| link.unacknowledged.len()).sum::<usize>() < UNACKNOWLEDGED_ITEMS
    }

    /// Whether another read may be asked for: a program that has [`OPEN_READS`](types::OPEN_READS) open waits for one of
    /// them first.
    #[must_use]
    pub fn may_read(&self) -> bool {
        self.open_reads < OPEN_READS
    }

    /// Tells the coordinator that it lives.
    pub fn beat(&self, out: &mut Outbox) {
        self.control(Control::Beat, out);
    }

    /// The run is over for this worker, without a goodbye: the memory of what it has pushed is let go.
    pub fn let_go(&mut self) {
        self.left = true;
        let links = self.tables.values_mut().flat_map(|table| &mut table.links);
        links.flat_map(|link| &mut link.unacknowledged).for_each(|item| item.kind.let_go());
        self.pacer.iter_mut().for_each(Pacer::let_go);
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

pub(super) fn unfit(spec: &TableSpec, refusal: Refusal) -> TableFailure {
    TableFailure::Unfit { table: spec.name.clone(), placement: spec.shape.placement(), refusal }
}

pub(super) fn check_keys(spec: &TableSpec, keys: &Keys) -> Result<(), TableFailure> {
    if keys.placement() != spec.shape.placement() {
        return Err(TableFailure::Placement);
    }
    let last = keys.len().checked_sub(1).map(|last| keys.position(last));
    match last.filter(|last| *last > spec.shape.extent().last) {
        Some(position) => Err(unfit(spec, Refusal::OutOfRange { position })),
        None => Ok(()),
    }
}
