//! Rows as they are kept, with their updater's state: pulled, and set.

use super::{PushValues, Table, TargetNumber};
use crate::Error;
use crate::ticket::{Rows, Ticket};
use wire::Keys;

impl<T: TargetNumber> Table<T> {
    /// How many numbers a row is kept in: its weights, followed by its updater's state. Nothing
    /// where the updater is one that only servers know; [`Table::pull_all_row_state`] tells it by
    /// what it brings.
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

    /// Pulls the rows of `keys` as they are kept, each its weights followed by its updater's state,
    /// to be set again with [`Table::set_rows`]. As fresh as [`Table::pull`] is, never from copies,
    /// and as they are, whatever the table's codecs; [`Rows::ids`] names them. A key that was never
    /// written is all zeros, or its initial row where the table has an initialiser.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec, UpdaterSpec};
    /// # let session = Session::embedded(RunSize { servers: 2, workers: 1 })?.remove(0);
    /// let momentum = UpdaterSpec::Momentum { rate: 0.5, momentum: 0.5 };
    /// let table = session.table::<f64>(TableSpec::dense("t", 4, 1).number(slackwater::NumberType::F64).updater(momentum))?;
    /// table.push_range(0..1, vec![2.0])?.wait()?;
    /// let rows = table.pull_row_state(&table.keys(&[0, 3]))?.wait()?;
    /// assert_eq!((rows.ids(), rows.values()), (&[0, 3][..], &[-1.0, 2.0, 0.0, 0.0][..]));    // weight, velocity
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn pull_row_state(&self, keys: &Keys) -> Result<Ticket<Rows<T>>, Error> {
        self.kept(Some(keys.clone()))
    }

    /// Pulls every row there is as it is kept, as [`Table::pull_row_state`] and [`Table::pull_all`]
    /// do. What is beside the rows is not among them: the learning rate, if [`Table::set_rate`] has
    /// changed it, and the examples that an FTRL table has counted.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec, UpdaterSpec};
    /// # let session = Session::embedded(RunSize { servers: 2, workers: 1 })?.remove(0);
    /// let spec = TableSpec::sparse("t", 1).updater(UpdaterSpec::Adagrad { rate: 0.5, epsilon: 1e-8 });
    /// let (table, other) = (session.table::<f32>(spec.clone())?, session.table::<f32>(TableSpec { name: "other".into(), ..spec })?);
    /// table.push(&table.keys(&[7, 900]), vec![1.0, 2.0])?.wait()?;
    /// let rows = table.pull_all_row_state()?.wait()?;
    /// other.set_rows(&other.keys_in_order(rows.ids())?, rows.values())?.wait()?;
    /// // They go on alike.
    /// for table in [&table, &other] {
    ///     table.push(&table.keys(&[7, 8]), vec![0.25, 0.5])?.wait()?;
    /// }
    /// assert_eq!(table.pull_all_row_state()?.wait()?.values(), other.pull_all_row_state()?.wait()?.values());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn pull_all_row_state(&self) -> Result<Ticket<Rows<T>>, Error> {
        self.kept(None)
    }

    fn kept(&self, keys: Option<Keys>) -> Result<Ticket<Rows<T>>, Error> {
        self.absorb_logs()?;
        self.begin(|worker| worker.pull_row_state(self.id, keys, &[]))
    }

    /// Sets the rows of `keys`, whatever the table's updater: `values` are rows as they are kept
    /// ([`Table::pull_row_state`]), in the order of `keys`, and take the place of those there. Rows
    /// that were not there are made. Returns at once, as [`Table::push`] does, and is ordered among
    /// this worker's pushes: what it pushed before is gone from these rows, also what codecs had
    /// still to send of it, and what it pushes after is applied to them. What other workers push at
    /// the same time comes before or after. Every number is checked to be finite, and no more: what
    /// an updater has not kept itself, it may not know what to do with.
    ///
    /// Fails if the values are not as many as are kept, or the table combines by clock
    /// ([`Error::Batch`]: nothing was sent).
    ///
    /// ```
    /// # use slackwater::{Combine, NumberType, Reduce, RunSize, Session, TableSpec, UpdaterSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let adagrad = UpdaterSpec::Adagrad { rate: 0.5, epsilon: 1e-8 };
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1).updater(adagrad))?;
    /// let keys = table.keys(&[7]);
    /// table.set_rows(&keys, vec![2.0, 9.0])?.wait()?;        // the weight, and the sum of squares that has led to it
    /// let rows = table.push_pull(&keys, vec![4.0])?.wait()?;
    /// assert_eq!(rows.values(), [1.6]);                      // 2 − 0.5 · 4 / √(9 + 16)
    /// assert!(table.set_rows(&keys, vec![2.0]).is_err());
    ///
    /// let counts = session.table::<i64>(TableSpec::dense("counts", 2, 1).number(NumberType::I64))?;
    /// counts.set_rows(&counts.keys(&[0, 1]), vec![40, 2])?.wait()?;
    /// assert_eq!(counts.pull_range(0..2)?.wait()?.values(), [40, 2]);
    ///
    /// let clocks = session.table::<f32>(TableSpec::dense("clocks", 1, 1).combine(Combine::Clock(Reduce::Sum)))?;
    /// let error = clocks.set_rows(&clocks.keys(&[0]), vec![1.0]).err().expect("no moment is a row's own");
    /// assert!(error.to_string().contains("combines by clock"));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn set_rows<'v>(&self, keys: &Keys, values: impl Into<PushValues<'v, T>>) -> Result<Ticket<()>, Error>
    where
        T: 'v,
    {
        // What logs hold was done before.
        self.absorb_logs()?;
        let values = self.owned(values.into());
        self.begin(|worker| worker.set_rows(self.id, keys.clone(), values, &[]))
    }
}
