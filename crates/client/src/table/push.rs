//! Pushes, by themselves and with a pull of the same rows.

use super::{PushValues, Table, TargetNumber};
use crate::ticket::{Rows, Ticket, Tickets};
use crate::{DataLease, Error};
use std::ops::Range;
use wire::{Keys, lend};
use worker::{Batch, PullBuffer, PullTarget, RowsOfPush};

/// Copies of borrowed values that may be under way: enough to keep everybody busy, few enough to
/// stay in a cache. What is larger holds its caller in any case, and is lent within one process.
const COPIED_BYTES: usize = 4 << 20;
/// The same where shards have replicas. There, servers acknowledge one replication batch at a time,
/// and a batch waits for all workers that push to its rows: a worker that could not send the rest
/// of its push would keep the others waiting.
const REPLICATED_BYTES: usize = 32 << 20;

impl<T: TargetNumber> Table<T> {
    /// Pushes `values`, row after row in the order of `keys`. Returns at once, unless too much is
    /// under way already: then it blocks until some of it has been acknowledged; and so it does for
    /// much borrowed memory (see [`PushValues`]). Fails, before anything is sent, if the batch does
    /// not fit.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 2))?;
    /// let keys = table.keys(&[3, 1, 2]);
    /// let ticket = table.push(&keys, vec![0.5; 6])?;   // three rows of two
    /// ticket.wait()?;
    /// assert!(table.push(&keys, vec![0.5; 5]).is_err());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn push<'v>(&self, keys: &Keys, values: impl Into<PushValues<'v, T>>) -> Result<Ticket<()>, Error> {
        self.push_after(keys, values, 1, &Tickets::none())
    }

    /// As [`Table::push`], computed from `examples` examples, after other tickets are done.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec, Tickets};
    /// # let session = Session::embedded(RunSize { servers: 2, workers: 1 })?.remove(0);
    /// let (first, second) = (session.table::<f32>(TableSpec::dense("first", 1, 1))?, session.table::<f32>(TableSpec::dense("second", 1, 1))?);
    /// let ticket = first.push_range(0..1, vec![1.0])?;
    /// let after = Tickets::none().and(&ticket);
    /// second.push_after(&second.keys(&[0]), vec![2.0], 1, &after)?.wait()?;
    /// assert!(ticket.is_done());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn push_after<'v>(
        &self,
        keys: &Keys,
        values: impl Into<PushValues<'v, T>>,
        examples: u64,
        after: &Tickets,
    ) -> Result<Ticket<()>, Error> {
        let values = values.into();
        if let PushValues::Borrowed(values) = values {
            let whole = values.len() == keys.len() * self.spec.width as usize;
            if after.0.is_empty() && whole {
                let is_large = size_of_val(values) > COPIED_BYTES;
                let begun = if is_large && self.shared.driver.lends() {
                    self.push_lent(keys, values, examples)?
                } else {
                    self.push_copies(keys, values, examples)?
                };
                if let Some(ticket) = begun {
                    return Ok(ticket);
                }
            }
        }
        let batch = Batch { keys: keys.clone(), values: self.owned(values), examples, lease: None };
        self.begin(|worker| worker.push(self.id, batch, &after.0))
    }

    /// Pushes what was learnt from `examples` examples of a lease, as [`Table::push`] does. However
    /// often the lease is learnt from, should a worker be lost with it, each of its pushes counts
    /// once. For that every run of a lease has to push the same keys in the same order, for each
    /// table: see [`DataLeases`](crate::DataLeases).
    ///
    /// ```
    /// # use slackwater::{LeasedInput, RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1))?;
    /// let mut leases = session.leases("train", &LeasedInput::new(1))?;
    /// let lease = leases.next_lease()?.expect("one range");
    /// drop(table.push_for(&lease, &table.keys(&[7]), vec![0.5], 32)?);    // a failure would show at the clock
    /// leases.commit(lease)?;
    /// # assert!(leases.next_lease()?.is_none());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn push_for<'v>(
        &self,
        lease: &DataLease,
        keys: &Keys,
        values: impl Into<PushValues<'v, T>>,
        examples: u64,
    ) -> Result<Ticket<()>, Error>
    where
        T: 'v,
    {
        let values = self.owned(values.into());
        let batch = Batch { keys: keys.clone(), values, examples, lease: Some(lease.id()) };
        let ticket = self.begin(|worker| worker.push(self.id, batch, &[]))?;
        lease.learnt_from(examples);
        Ok(ticket)
    }

    /// Pushes the values from where they are and blocks until every shard has taken them. Nothing
    /// if the push must wait for others first. For large pushes: copying them would hold the caller
    /// as long.
    fn push_lent(&self, keys: &Keys, values: &[T], examples: u64) -> Result<Option<Ticket<()>>, Error> {
        let driver = &self.shared.driver;
        let (table, row_bytes) = (self.id, self.spec.row_bytes());
        lend(values, |lent| {
            let ticket = driver.call(|worker| {
                let Some(ticket) = worker.begin_push(table, keys, examples)? else { return Ok(None) };
                for rows in worker.parts(table, keys) {
                    let values = lent.slice(rows.start * row_bytes..rows.end * row_bytes);
                    worker.push_rows(RowsOfPush { ticket, table, keys: keys.clone(), rows, values });
                }
                worker.end_push(ticket);
                Ok::<_, Error>(Some(ticket))
            })?;
            let Some(ticket) = ticket else { return Ok(None) };
            drop(lent);
            // Of a run that is lost nobody will say that it is done with the memory.
            let taken = self.shared.wait_until(|worker| worker.is_finished(ticket));
            taken.inspect_err(|_| driver.call(|worker| worker.let_go()))?;
            Ok(Some(self.ticket(ticket)))
        })
    }

    /// Pushes part by part from copies that few buffers take in turn. Nothing if the push must wait
    /// for others first.
    fn push_copies(&self, keys: &Keys, values: &[T], examples: u64) -> Result<Option<Ticket<()>>, Error> {
        let driver = &self.shared.driver;
        let begun = driver.call(|worker| {
            let ticket = worker.begin_push(self.id, keys, examples)?;
            Ok::<_, Error>(ticket.map(|ticket| (ticket, worker.parts(self.id, keys))))
        })?;
        let Some((ticket, parts)) = begun else { return Ok(None) };
        let width = self.spec.width as usize;
        for rows in parts {
            let copy = self.shared.pool.copy(&values[rows.start * width..rows.end * width]);
            let part = RowsOfPush { ticket, table: self.id, keys: keys.clone(), rows, values: copy };
            let (under_way, most) = driver.call(|worker| {
                worker.push_rows(part);
                let under_way = worker.unacknowledged_bytes();
                // Looked up only past the lower bound: there may be many shards.
                let is_replicated = under_way > COPIED_BYTES && worker.plan().has_replicas();
                (under_way, if is_replicated { REPLICATED_BYTES } else { COPIED_BYTES })
            });
            if under_way > most {
                let has_room = |worker: &worker::Worker| worker.unacknowledged_bytes() <= most / 2;
                // A run that is lost fails every wait; the push is over then, too.
                self.shared.wait_until(has_room).inspect_err(|_| {
                    driver.call(|worker| worker.end_push(ticket));
                })?;
            }
        }
        driver.call(|worker| worker.end_push(ticket));
        Ok(Some(self.ticket(ticket)))
    }

    /// Pushes to neighbouring ids of a dense or ordered table, as [`Table::push`] does; fails for
    /// any other. With examples or tickets to run after, use [`Table::push_after`] with
    /// [`Keys::run`].
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 4, 1))?;
    /// table.push_range(1..3, vec![1.0, 2.0])?.wait()?;
    /// assert_eq!(table.pull_range(0..4)?.wait()?.values(), [0.0, 1.0, 2.0, 0.0]);
    /// let spread = session.table::<f32>(TableSpec::sparse("spread", 1))?;
    /// assert!(spread.push_range(1..3, vec![1.0, 2.0]).is_err());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn push_range<'v>(&self, ids: Range<u64>, values: impl Into<PushValues<'v, T>>) -> Result<Ticket<()>, Error> {
        self.push(&Keys::run(ids), values)
    }

    /// Pushes, then pulls the same rows, as one task: the rows hold the push (in a `clock` table,
    /// once its clock is applied), and the ticket fails if any part of the push is refused. One
    /// round trip.
    ///
    /// ```
    /// # use slackwater::{Consistency, RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1).consistency(Consistency::Unbounded))?;
    /// let rows = table.push_pull(&table.keys(&[9]), vec![2.5])?.wait()?;
    /// assert_eq!(rows.values(), [2.5]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn push_pull<'v>(&self, keys: &Keys, values: impl Into<PushValues<'v, T>>) -> Result<Ticket<Rows<T>>, Error>
    where
        T: 'v,
    {
        self.push_pull_after(keys, values, 1, &Tickets::none())
    }

    /// As [`Table::push_pull`], computed from `examples` examples, after other tickets are done.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec, Tickets};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// let keys = table.keys(&[0]);
    /// let first = table.push(&keys, vec![1.0])?;
    /// let rows = table.push_pull_after(&keys, vec![2.0], 32, &Tickets::none().and(&first))?.wait()?;
    /// assert_eq!(rows.values(), [3.0]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn push_pull_after<'v>(
        &self,
        keys: &Keys,
        values: impl Into<PushValues<'v, T>>,
        examples: u64,
        after: &Tickets,
    ) -> Result<Ticket<Rows<T>>, Error>
    where
        T: 'v,
    {
        self.absorb_logs()?;
        let target = T::to_target(self.room_for(keys)?);
        self.push_pull_to_target(keys, values.into(), examples, target, after)
    }

    /// As [`Table::push_pull`], into memory that is no vector: see [`Table::pull_to`].
    ///
    /// ```
    /// # use slackwater::{PullBuffer, RunSize, Session, TableSpec, Tickets};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// # struct Foreign(&'static mut [u8]);
    /// # impl PullBuffer for Foreign { fn bytes_mut(&mut self) -> &mut [u8] { self.0 } }
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// let foreign = Foreign(Box::leak(vec![0; 4].into_boxed_slice()));       // as in `pull_to`
    /// table.push_pull_to(&table.keys(&[0]), vec![1.0], 1, Box::new(foreign), &Tickets::none())?.wait()?;
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn push_pull_to<'v>(
        &self,
        keys: &Keys,
        values: impl Into<PushValues<'v, T>>,
        examples: u64,
        buffer: Box<dyn PullBuffer>,
        after: &Tickets,
    ) -> Result<Ticket<Rows<T>>, Error>
    where
        T: 'v,
    {
        self.absorb_logs()?;
        self.push_pull_to_target(keys, values.into(), examples, PullTarget::Buffer(T::TYPE, buffer), after)
    }

    fn push_pull_to_target(
        &self,
        keys: &Keys,
        values: PushValues<'_, T>,
        examples: u64,
        target: PullTarget,
        after: &Tickets,
    ) -> Result<Ticket<Rows<T>>, Error> {
        let batch = Batch { keys: keys.clone(), values: self.owned(values), examples, lease: None };
        self.begin(|worker| worker.push_pull(self.id, batch, target, &after.0))
    }

    /// Pushes to neighbouring ids of a dense or ordered table, then pulls them, as
    /// [`Table::push_pull`] does; fails for any other.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 4, 1))?;
    /// assert_eq!(table.push_pull_range(0..2, vec![1.0, 2.0])?.wait()?.values(), [1.0, 2.0]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn push_pull_range<'v>(
        &self,
        ids: Range<u64>,
        values: impl Into<PushValues<'v, T>>,
    ) -> Result<Ticket<Rows<T>>, Error> {
        self.push_pull(&Keys::run(ids), values)
    }
}
