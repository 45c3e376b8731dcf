//! Pushes, alone or together with a pull of the same rows.

use super::{PullInto, PushOptions, PushPullOptions, PushValues, Table, TargetNumber};
use crate::Error;
use crate::data_leases::DataLease;
use crate::ticket::{Rows, Ticket};
use wire::{Keys, lend};
use worker::{Batch, Op, RowsOfPush};

/// How many bytes of copied values may be under way: enough to keep the shards busy, few enough to
/// stay in the processor's cache. A larger push blocks its caller in any case, and an embedded run
/// lends its memory instead.
const COPIED_BYTES: usize = 4 << 20;
/// The same bound for shards with replicas. Their servers acknowledge one replication batch at a
/// time, and a batch waits for all workers that push to its rows: a worker that could not send the
/// rest of its push would keep the other workers waiting.
const REPLICATED_BYTES: usize = 32 << 20;

impl<T: TargetNumber> Table<T> {
    /// Pushes `values`, row after row in the order of `keys`. Use [`Keys::run`] for consecutive
    /// rows of a dense or ordered table. Returns at once, unless too much is under way already:
    /// then it blocks until some of it has been acknowledged. It also blocks for large borrowed
    /// memory (see [`PushValues`]). Fails, before anything is sent, if the batch does not fit.
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
    pub fn push<'v>(&self, keys: &Keys, values: impl Into<PushValues<'v, T>>) -> Result<Ticket<()>, Error>
    where
        T: 'v,
    {
        self.push_opts(keys, values, PushOptions::default())
    }

    /// As [`Table::push`], with options: computed from several examples, for a data lease, or after
    /// other tickets.
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec, Tickets};
    /// # use slackwater::data_leases::LeasedInput;
    /// # use slackwater::table::PushOptions;
    /// # let session = Session::embedded(RunSize { servers: 2, workers: 1 })?.remove(0);
    /// let first = session.table::<f32>(TableSpec::dense("first", 1, 1))?;
    /// let second = session.table::<f32>(TableSpec::dense("second", 1, 1))?;
    /// let ticket = first.push(&Keys::run(0..1), vec![1.0])?;
    /// let after = Tickets::none().and(&ticket);
    /// second.push_opts(&Keys::run(0..1), vec![2.0], PushOptions { after, ..PushOptions::default() })?.wait()?;
    /// assert!(ticket.is_done());
    ///
    /// let mut leases = session.leases("train", &LeasedInput::new(1))?;
    /// let lease = leases.next_lease()?.expect("one range");
    /// let learnt = PushOptions { lease: Some(&lease), examples: 32, ..PushOptions::default() };
    /// drop(first.push_opts(&Keys::run(0..1), vec![0.5], learnt)?);    // a failure would show at the clock
    /// leases.commit(lease)?;
    /// # assert!(leases.next_lease()?.is_none());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn push_opts<'v>(
        &self,
        keys: &Keys,
        values: impl Into<PushValues<'v, T>>,
        options: PushOptions<'_>,
    ) -> Result<Ticket<()>, Error>
    where
        T: 'v,
    {
        let PushOptions { examples, lease, after } = options;
        let values = values.into();
        if let PushValues::Borrowed(values) = values {
            let whole = values.len() == keys.len() * self.spec.width as usize;
            if lease.is_none() && after.0.is_empty() && whole {
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
        let lease_id = lease.map(DataLease::id);
        let batch = Batch { keys: keys.clone(), values: self.owned(values), examples, lease: lease_id };
        let ticket = self.submit(Op::Push { batch }, None, &after)?;
        lease.into_iter().for_each(|lease| lease.learnt_from(examples));
        Ok(ticket)
    }

    /// Lends the caller's memory to the shards and blocks until every shard has taken its values.
    /// For large pushes, whose copying would block the caller as long. Returns `None`, without
    /// pushing, if the push must wait for other operations first.
    fn push_lent(&self, keys: &Keys, values: &[T], examples: u64) -> Result<Option<Ticket<()>>, Error> {
        let driver = &self.shared.driver;
        let table = self.id;
        let row_bytes = self.spec.row_bytes();
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
            // If the run is lost, no shard reports that it is done with the memory: let go of it
            // here.
            let taken = self.shared.wait_until(|worker| worker.is_finished(ticket));
            taken.inspect_err(|_| driver.call(|worker| worker.let_go()))?;
            Ok(Some(self.ticket(ticket)))
        })
    }

    /// Pushes part by part, from copies in a few buffers that are reused. Returns `None`, without
    /// pushing, if the push must wait for other operations first.
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
                // Look at the plan only past the lower bound: it may have many shards.
                let is_replicated = under_way > COPIED_BYTES && worker.plan().has_replicas();
                (under_way, if is_replicated { REPLICATED_BYTES } else { COPIED_BYTES })
            });
            if under_way > most {
                let has_room = |worker: &worker::Worker| worker.unacknowledged_bytes() <= most / 2;
                // If the run is lost, the wait fails: end the push too.
                self.shared.wait_until(has_room).inspect_err(|_| {
                    driver.call(|worker| worker.end_push(ticket));
                })?;
            }
        }
        driver.call(|worker| worker.end_push(ticket));
        Ok(Some(self.ticket(ticket)))
    }

    /// Pushes, then pulls the same rows, as one operation in one round trip. The rows reflect the
    /// push (in a `clock` table, once its clock is applied), and the ticket fails if any part of
    /// the push is refused.
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
        self.push_pull_opts(keys, values, PushPullOptions::default())
    }

    /// As [`Table::push_pull`], with options: computed from several examples, into the caller's
    /// memory, or after other tickets.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec, Tickets};
    /// # use slackwater::table::PushPullOptions;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1))?;
    /// let keys = table.keys(&[0]);
    /// let first = table.push(&keys, vec![1.0])?;
    /// let after = Tickets::none().and(&first);
    /// let options = PushPullOptions { examples: 32, into: Some(vec![0.0].into()), after };
    /// let rows = table.push_pull_opts(&keys, vec![2.0], options)?.wait()?;
    /// assert_eq!(rows.into_values(), [3.0]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn push_pull_opts<'v>(
        &self,
        keys: &Keys,
        values: impl Into<PushValues<'v, T>>,
        options: PushPullOptions<T>,
    ) -> Result<Ticket<Rows<T>>, Error>
    where
        T: 'v,
    {
        let PushPullOptions { examples, into, after } = options;
        self.absorb_logs()?;
        let batch = Batch { keys: keys.clone(), values: self.owned(values.into()), examples, lease: None };
        let into = into.or_else(|| self.room_for(keys));
        self.submit(Op::PushPull { batch }, into.map(PullInto::target), &after)
    }
}
