//! Row state (a row's weights with its updater's state): its width, setting it, and deleting rows.

use super::{DeleteOptions, PushValues, SetOptions, Table, TargetNumber};
use crate::Error;
use crate::ticket::Ticket;
use wire::Keys;
use worker::Op;

impl<T: TargetNumber> Table<T> {
    /// How many numbers the state of a row has: its weights, followed by its updater's state.
    /// `None` for a custom updater, which only servers know; a scan with
    /// [`row_state`](super::ScanOptions::row_state) shows the width then.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec, UpdaterSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let adagrad = UpdaterSpec::Adagrad { rate: 0.5, epsilon: 1e-8 };
    /// let table = session.table::<f32>(TableSpec::sparse("t", 8).updater(adagrad))?;
    /// assert_eq!(table.row_state_width(), Some(16));              // a sum of squares beside each weight
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn row_state_width(&self) -> Option<usize> {
        update::row_state_width(&self.spec)
    }

    /// Sets the state of the rows of `keys`, under any updater. `values` are row states
    /// ([`PullOptions::row_state`](super::PullOptions::row_state)) in the order of `keys`; they
    /// replace existing rows and make missing ones.
    ///
    /// Returns at once, as [`Table::push`] does, and is ordered among this worker's pushes. Its
    /// earlier pushes to these rows are overwritten, with the residuals that codecs still had of
    /// them; its later pushes apply to the new rows. Pushes that other workers make at the same
    /// time come before or after.
    ///
    /// The shard checks only that every number is finite. An updater may misbehave on state that it
    /// did not produce.
    ///
    /// Fails if there are not exactly as many values as the row states have, or if the table
    /// combines by clock ([`Error::Batch`]: nothing was sent).
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec, UpdaterSpec};
    /// # use slackwater::policy::{Combine, NumberType, Reduce};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let adagrad = UpdaterSpec::Adagrad { rate: 0.5, epsilon: 1e-8 };
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1).updater(adagrad))?;
    /// let keys = table.keys(&[7]);
    /// table.set(&keys, vec![2.0, 9.0])?.wait()?;        // the weight, and the sum of squared gradients
    /// let rows = table.push_pull(&keys, vec![4.0])?.wait()?;
    /// assert_eq!(rows.values(), [1.6]);                      // 2 − 0.5 · 4 / √(9 + 16)
    /// assert!(table.set(&keys, vec![2.0]).is_err());
    ///
    /// let counts = session.table::<i64>(TableSpec::dense("counts", 2, 1).number(NumberType::I64))?;
    /// counts.set(&counts.keys(&[0, 1]), vec![40, 2])?.wait()?;
    /// assert_eq!(counts.pull(&Keys::run(0..2))?.wait()?.values(), [40, 2]);
    ///
    /// let clocks = session.table::<f32>(TableSpec::dense("clocks", 1, 1).combine(Combine::Clock(Reduce::Sum)))?;
    /// let error = clocks.set(&clocks.keys(&[0]), vec![1.0]).err().expect("clock tables refuse it");
    /// assert!(error.to_string().contains("combines by clock"));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn set<'v>(&self, keys: &Keys, values: impl Into<PushValues<'v, T>>) -> Result<Ticket<()>, Error>
    where
        T: 'v,
    {
        self.set_opts(keys, values, SetOptions::default())
    }

    /// As [`Table::set`], after other tickets.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec, Tickets};
    /// # use slackwater::table::SetOptions;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1))?;
    /// let keys = table.keys(&[7]);
    /// let pull = table.pull(&keys)?;
    /// table.set_opts(&keys, vec![2.0], SetOptions { after: Tickets::none().and(&pull) })?.wait()?;
    /// assert_eq!(pull.wait()?.values(), [0.0]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn set_opts<'v>(
        &self,
        keys: &Keys,
        values: impl Into<PushValues<'v, T>>,
        options: SetOptions,
    ) -> Result<Ticket<()>, Error>
    where
        T: 'v,
    {
        // Logged updates come before.
        self.absorb_logs()?;
        let values = self.owned(values.into());
        self.submit(Op::Set { keys: keys.clone(), values }, None, &options.after)
    }

    /// Deletes the rows of `keys` of a sparse table, with their updater's state, on every replica.
    /// Afterwards a key reads as if it had never been pushed, and a push makes its row anew from
    /// the initial value. Keys without a row are ignored.
    ///
    /// Returns at once, as [`Table::push`] does, and is ordered among this worker's pushes. Its
    /// earlier pushes to these rows are gone, with the residuals that codecs still had of them.
    /// Pushes that other workers make at the same time come before or after. A shard reuses the
    /// memory of deleted rows.
    ///
    /// In a table that combines by clock, rows are deleted after the combined update of this
    /// worker's clock. All workers' pushes of that clock and earlier ones are gone; pushes of later
    /// clocks make the row anew. Gone are also this worker's residuals of those pushes, even of
    /// pushes that it makes in that clock after the delete.
    ///
    /// Residuals of a deleted row in other workers' lossy codecs count as later pushes: they make
    /// the row anew.
    ///
    /// Fails if the table is dense, because every key of it has a row ([`Error::Batch`]: nothing
    /// was sent).
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec, UpdaterSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let adagrad = UpdaterSpec::Adagrad { rate: 0.5, epsilon: 1e-8 };
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1).updater(adagrad))?;
    /// let seven = table.keys(&[7]);
    /// let both = table.keys(&[7, 8]);
    /// table.push(&both, vec![4.0, 4.0])?.wait()?;
    /// table.delete(&seven)?.wait()?;
    /// assert_eq!(table.pull(&both)?.wait()?.values(), [0.0, -0.5]);
    /// assert_eq!(table.scan(..)?.wait()?.ids(), [8]);
    /// // The sum of squares of key 7 has gone, too: the step is as large as the first one.
    /// assert_eq!(table.push_pull(&seven, vec![1.0])?.wait()?.values(), [-0.5]);
    ///
    /// let dense = session.table::<f32>(TableSpec::dense("dense", 9, 1))?;
    /// let error = dense.delete(&dense.keys(&[3])).err().expect("every key has a row");
    /// assert!(error.to_string().contains("every key of a dense table has a row"));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn delete(&self, keys: &Keys) -> Result<Ticket<()>, Error> {
        self.delete_opts(keys, DeleteOptions::default())
    }

    /// As [`Table::delete`], after other tickets.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec, Tickets};
    /// # use slackwater::table::DeleteOptions;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1))?;
    /// let keys = table.keys(&[7]);
    /// table.push(&keys, vec![2.0])?.wait()?;
    /// let pull = table.pull(&keys)?;
    /// table.delete_opts(&keys, DeleteOptions { after: Tickets::none().and(&pull) })?.wait()?;
    /// assert_eq!(pull.wait()?.values(), [2.0]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn delete_opts(&self, keys: &Keys, options: DeleteOptions) -> Result<Ticket<()>, Error> {
        // Logged updates come before.
        self.absorb_logs()?;
        self.submit(Op::Delete { keys: keys.clone() }, None, &options.after)
    }
}
