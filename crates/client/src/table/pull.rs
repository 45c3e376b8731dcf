//! Pulls of keys, and scans of a range or of everything.

use super::{PullInto, PullOptions, ScanOptions, Table, TargetNumber};
use crate::Error;
use crate::ticket::{Rows, Ticket};
use std::ops::{Bound, RangeBounds};
use types::{Position, PositionRange};
use wire::Keys;
use worker::Op;

impl<T: TargetNumber> Table<T> {
    /// Pulls the rows of `keys`; of neighbouring rows of a dense or ordered table, with
    /// [`Keys::run`]. Returns at once, unless thousands of reads are open already: then it blocks
    /// until one of them is answered. [`Ticket::wait`] gives the rows, as fresh as the table's
    /// consistency asks, and blocks until the slowest worker allows that. A key that was never
    /// written reads as zero, or as its initial row where the table has an initialiser.
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

    /// As [`Table::pull`]: into memory of the caller's, after other tickets, or with each row's
    /// updater state. Fails if the memory has not room for exactly the rows.
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
    /// // The same memory each time.
    /// let mut memory = vec![0.0; 2];
    /// for _ in 0..3 {
    ///     let (into, after) = (Some(memory.into()), Tickets::none().and(&push));
    ///     let rows = table.pull_opts(&keys, PullOptions { into, after, ..PullOptions::default() })?.wait()?;
    ///     memory = rows.into_values();
    ///     assert_eq!(memory, [-1.0, 0.0]);
    /// }
    ///
    /// // With the velocity of each weight.
    /// let rows = table.pull_opts(&keys, PullOptions { row_state: true, ..PullOptions::default() })?.wait()?;
    /// assert_eq!((rows.ids(), rows.values()), (&[0, 3][..], &[-1.0, 2.0, 0.0, 0.0][..]));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn pull_opts(&self, keys: &Keys, options: PullOptions<T>) -> Result<Ticket<Rows<T>>, Error> {
        let PullOptions { into, after, row_state } = options;
        if row_state && into.is_some() {
            let problem = format!(
                "row state of table '{}' cannot be pulled into memory of the caller's; leave out `into` or `row_state`",
                self.spec.name
            );
            return Err(Error::Table { problem });
        }
        self.absorb_logs()?;
        if row_state {
            return self.submit(Op::RowState { keys: keys.clone() }, None, &after);
        }
        if self.spec.consistency.is_eager() {
            // Refreshes that have arrived must not wait in a queue while the cache says no.
            self.shared.driver.catch_up();
        }
        let into = into.or_else(|| self.room_for(keys));
        self.submit(Op::Pull { keys: keys.clone() }, into.map(PullInto::target), &after)
    }

    /// Memory for the rows of `keys`, made before the worker's machine is locked for a call. None
    /// where there is not so much: the worker then refuses the read, and says why.
    pub(super) fn room_for(&self, keys: &Keys) -> Option<PullInto<T>> {
        let count = keys.len().saturating_mul(self.spec.width as usize);
        Vec::<T>::new().try_reserve_exact(count).ok()?;
        Some(vec![T::ZERO; count].into())
    }

    /// Pulls the rows that a dense or ordered table has in a range of ids, or every row that any
    /// table has with `scan(..)`; [`Rows::ids`] names them. Fails for a range of any other table.
    ///
    /// The rows come shard by shard in parts, each as fresh as the table's consistency asks; behind
    /// a [`Session::barrier`](crate::Session::barrier), with nobody pushing, they are the table as
    /// it stands. Needs memory for all of them. A `clock` table may name keys whose first clock is
    /// still held, with what a pull of them reads.
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

    /// As [`Table::scan`]: after other tickets, or with each row's updater state. What is beside
    /// the rows is not among them: the learning rate, if [`Table::set_rate`] has changed it, and
    /// the examples that an FTRL table has counted.
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
    /// // They go on alike.
    /// for table in [&table, &other] {
    ///     table.push(&table.keys(&[7, 8]), vec![0.25, 0.5])?.wait()?;
    /// }
    /// let (one, two) = (table.scan_opts(.., with_state.clone())?.wait()?, other.scan_opts(.., with_state)?.wait()?);
    /// assert_eq!(one.values(), two.values());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn scan_opts(&self, ids: impl RangeBounds<u64>, options: ScanOptions) -> Result<Ticket<Rows<T>>, Error> {
        let ScanOptions { after, row_state } = options;
        self.absorb_logs()?;
        match positions(&ids) {
            Some(range) => self.submit(Op::Scan { range, row_state }, None, &after),
            // There is no such range of positions; a pull of no keys brings no rows either.
            None => self.submit(Op::Pull { keys: Keys::run(0..0) }, None, &after),
        }
    }
}

/// A range of ids as positions, which they are in a dense or ordered table; none for an empty
/// range.
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
    fn a_range_of_ids_is_a_range_of_positions() {
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
