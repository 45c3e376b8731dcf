//! Reads of a table: pulls of keys, and scans of a range or of all rows.

use super::{PullInto, PullOptions, ScanOptions, Table, TargetNumber};
use crate::Error;
use crate::ticket::{Rows, Ticket};
use std::ops::{Bound, RangeBounds};
use types::{Position, PositionRange};
use wire::Keys;
use worker::Op;

impl<T: TargetNumber> Table<T> {
    /// Pulls the rows of `keys`. Use [`Keys::run`] for consecutive rows of a dense or ordered
    /// table. Returns at once, unless thousands of reads are open already: then it blocks until one
    /// of them is answered. [`Ticket::wait`] returns the rows, as fresh as the table's consistency
    /// requires, and blocks until the slowest worker allows that. A key that was never written
    /// reads as zero, or as its initial row if the table has an initialiser.
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 2, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1))?;
    /// let rows = table.pull(&table.keys(&[1, 2, 3]))?.wait()?;
    /// assert_eq!(rows.values(), [0.0; 3]);
    /// assert_eq!(rows.staleness(), 0);
    /// let dense = session.table::<f32>(TableSpec::dense("dense", 9, 1))?;
    /// assert_eq!(dense.pull(&Keys::run(2..4))?.wait()?.values(), [0.0; 2]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn pull(&self, keys: &Keys) -> Result<Ticket<Rows<T>>, Error> {
        self.pull_opts(keys, PullOptions::default())
    }

    /// As [`Table::pull`], with options: into the caller's memory, after other tickets, or with
    /// each row's updater state. Fails if the memory does not have exactly the size of the rows.
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec, Tickets, UpdaterSpec};
    /// # use slackwater::table::PullOptions;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let momentum = UpdaterSpec::Momentum { rate: 0.5, momentum: 0.5 };
    /// let table = session.table::<f32>(TableSpec::dense("t", 4, 1).updater(momentum))?;
    /// let keys = table.keys(&[0, 3]);
    /// let push = table.push(&Keys::run(0..1), vec![2.0])?;
    ///
    /// // Reuse the same memory for each pull.
    /// let mut memory = vec![0.0; 2];
    /// for _ in 0..3 {
    ///     let into = Some(memory.into());
    ///     let after = Tickets::none().and(&push);
    ///     let rows = table.pull_opts(&keys, PullOptions { into, after, ..PullOptions::default() })?.wait()?;
    ///     memory = rows.into_values();
    ///     assert_eq!(memory, [-1.0, 0.0]);
    /// }
    ///
    /// // Pull the velocity of each weight too.
    /// let rows = table.pull_opts(&keys, PullOptions { row_state: true, ..PullOptions::default() })?.wait()?;
    /// assert_eq!((rows.ids(), rows.values()), (&[0, 3][..], &[-1.0, 2.0, 0.0, 0.0][..]));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn pull_opts(&self, keys: &Keys, options: PullOptions<T>) -> Result<Ticket<Rows<T>>, Error> {
        let PullOptions { into, after, row_state } = options;
        if row_state && into.is_some() {
            let problem = format!(
                "row state of table '{}' cannot be pulled into the caller's memory; leave out `into` or `row_state`",
                self.spec.name
            );
            return Err(Error::Table { problem });
        }
        self.absorb_logs()?;
        if row_state {
            return self.submit(Op::RowState { keys: keys.clone() }, None, &after);
        }
        if self.spec.consistency.is_eager() {
            // Apply refreshes that have arrived first: the cache may then hold the rows.
            self.shared.driver.catch_up();
        }
        let into = into.or_else(|| self.room_for(keys));
        self.submit(Op::Pull { keys: keys.clone() }, into.map(PullInto::target), &after)
    }

    /// Memory for the rows of `keys`, allocated before the call locks the worker. `None` if there
    /// is not enough memory: the worker then refuses the read, and says why.
    pub(super) fn room_for(&self, keys: &Keys) -> Option<PullInto<T>> {
        let count = keys.len().saturating_mul(self.spec.width as usize);
        Vec::<T>::new().try_reserve_exact(count).ok()?;
        Some(vec![T::ZERO; count].into())
    }

    /// Reads the rows of a dense or ordered table in a range of ids. `scan(..)` reads all rows of
    /// any table. [`Rows::ids`] has their ids. Fails for a range of a `spread` table.
    ///
    /// The rows come shard by shard in parts, each as fresh as the table's consistency requires.
    /// After a [`Session::barrier`](crate::Session::barrier), while no worker pushes, they are the
    /// table's exact state. The scan needs memory for all of the rows. In a `clock` table it may
    /// include keys whose first clock is not applied yet, with the values that a pull of them
    /// reads.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 2, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1).ordered())?;
    /// table.push(&table.keys(&[5, 900]), vec![1.0, 2.0])?.wait()?;
    /// let rows = table.scan(0..100)?.wait()?;
    /// assert_eq!((rows.ids(), rows.values()), (&[5][..], &[1.0][..]));
    /// assert_eq!(table.scan(..)?.wait()?.ids(), [5, 900]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn scan(&self, ids: impl RangeBounds<u64>) -> Result<Ticket<Rows<T>>, Error> {
        self.scan_opts(ids, ScanOptions::default())
    }

    /// As [`Table::scan`], with options: after other tickets, or with each row's updater state. Row
    /// state leaves out what a table keeps beside its rows: the learning rate, if
    /// [`Table::set_rate`] has changed it, and the examples that an FTRL table has counted.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec, UpdaterSpec};
    /// # use slackwater::table::ScanOptions;
    /// # let session = Session::embedded(RunSize { servers: 2, workers: 1 })?.remove(0);
    /// let spec = TableSpec::sparse("t", 1).updater(UpdaterSpec::Adagrad { rate: 0.5, epsilon: 1e-8 });
    /// let table = session.table::<f32>(spec.clone())?;
    /// let other = session.table::<f32>(TableSpec { name: "other".into(), ..spec })?;
    /// table.push(&table.keys(&[7, 900]), vec![1.0, 2.0])?.wait()?;
    /// let with_state = ScanOptions { row_state: true, ..ScanOptions::default() };
    /// let rows = table.scan_opts(.., with_state.clone())?.wait()?;
    /// other.set(&other.keys_in_order(rows.ids())?, rows.values())?.wait()?;
    /// // Both tables now learn alike.
    /// for table in [&table, &other] {
    ///     table.push(&table.keys(&[7, 8]), vec![0.25, 0.5])?.wait()?;
    /// }
    /// let one = table.scan_opts(.., with_state.clone())?.wait()?;
    /// let two = other.scan_opts(.., with_state)?.wait()?;
    /// assert_eq!(one.values(), two.values());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn scan_opts(&self, ids: impl RangeBounds<u64>, options: ScanOptions) -> Result<Ticket<Rows<T>>, Error> {
        let ScanOptions { after, row_state } = options;
        self.absorb_logs()?;
        match positions(&ids) {
            Some(range) => self.submit(Op::Scan { range, row_state }, None, &after),
            // An empty range is no `PositionRange`; a pull of no keys returns no rows either.
            None => self.submit(Op::Pull { keys: Keys::run(0..0) }, None, &after),
        }
    }
}

/// Converts a range of ids to positions, which are the same in a dense or ordered table. `None` for
/// an empty range.
fn positions(ids: &impl RangeBounds<u64>) -> Option<PositionRange> {
    let first = match ids.start_bound() {
        Bound::Unbounded => 0,
        Bound::Included(first) => *first,
        Bound::Excluded(before) => before.checked_add(1)?,
    };
    let last = match ids.end_bound() {
        Bound::Unbounded => u64::MAX,
        Bound::Included(last) => *last,
        Bound::Excluded(end) => end.checked_sub(1)?,
    };
    (first <= last).then_some(PositionRange { first: Position(first), last: Position(last) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_of_ids_converts_to_positions() {
        let range = |first, last| Some(PositionRange { first: Position(first), last: Position(last) });
        assert_eq!(positions(&(..)), Some(PositionRange::ALL));
        assert_eq!(positions(&(..=u64::MAX)), Some(PositionRange::ALL));
        assert_eq!(positions(&(3..9)), range(3, 8));
        assert_eq!(positions(&(3..=9)), range(3, 9));
        assert_eq!(positions(&(3..)), range(3, u64::MAX));
        assert_eq!(positions(&(..3)), range(0, 2));
        assert_eq!(positions(&(Bound::Excluded(3), Bound::Unbounded)), range(4, u64::MAX));
        for empty in [0..0, 7..7] {
            assert_eq!(positions(&empty), None);
        }
    }
}
