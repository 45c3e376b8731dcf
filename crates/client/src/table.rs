//! [`Table`]: a program's handle of a table, with its keys, its values and the operations on it.
//!
//! A [`Table`] has few verbs: [`push`](Table::push), [`pull`](Table::pull),
//! [`push_pull`](Table::push_pull), [`set`](Table::set), [`delete`](Table::delete) and
//! [`scan`](Table::scan), each with an `_opts` form that takes a struct with a `Default`;
//! [`active`](Table::active) and [`set_rate`](Table::set_rate). Each returns a [`Ticket`] at once.
//! [`Session::follow`](crate::Session::follow) opens a table's change feed.

pub(crate) mod options;
mod pull;
mod push;
mod row_state;
mod values;

pub use crate::active_rows::ActiveRows;
pub use crate::ticket::{FromOutcome, Prerequisite, Rows, Ticket, Tickets};
pub use crate::update_log::UpdateLog;
pub use options::*;
pub use types::{Clock, Key, Position};
pub use values::{PushValues, TargetNumber};
pub use wire::{Backing, Bits, FailedClock, KeyError, Keys, Payload, Refusal};
pub use worker::{PullBuffer, TableFailure};

use crate::Error;
use crate::session::SessionState;
use crate::update_log::UpdateLogs;
use std::sync::Arc;
use types::{Setting, TableId, TableSpec, UpdaterSpec};
use worker::{Op, PullTarget, TicketId, Values};

/// One worker's handle of a table. Cloning it is cheap; threads may share it. Made by
/// [`crate::Session::table`].
///
/// Pushes and pulls return a [`Ticket`] at once. They fail at once if the batch does not fit
/// ([`Error::Batch`]: nothing was sent) or if the run is over ([`Error::Run`]). If a shard refuses
/// a part of the batch, the ticket fails.
///
/// ```
/// # use slackwater::{RunSize, Session, TableSpec};
/// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
/// let table = session.table::<f32>(TableSpec::sparse("t", 2))?;
/// let keys = table.keys(&[3, 8]);
/// let push = table.push(&keys, vec![1.0; 4])?;           // a row of two for each key; under way
/// let pull = table.pull(&keys)?;                         // under way, too, behind the push
/// assert_eq!(pull.wait()?.values(), [1.0; 4]);
/// push.wait()?;
/// # session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
#[derive(Clone)]
pub struct Table<T: TargetNumber> {
    pub(crate) shared: Arc<SessionState>,
    pub(crate) id: TableId,
    pub(crate) spec: Arc<TableSpec>,
    pub(crate) logs: Arc<UpdateLogs<T>>,
}

impl<T: TargetNumber> Table<T> {
    /// The spec that the table was made with.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 8))?;
    /// assert_eq!((table.spec().name.as_str(), table.spec().width), ("t", 8));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// Makes a key list of `ids`: in the table's order, each once. Values go in the order of
    /// [`Keys::ids`]. Make the list once and reuse it: a list that a shard already holds travels as
    /// a signature. Does not block, and cannot fail: a push or pull refuses ids that the table does
    /// not have.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1))?;
    /// let keys = table.keys(&[9, 4, 9]);
    /// assert_eq!(keys.len(), 2);                             // each once, in the table's own order
    /// let values: Vec<f32> = keys.ids().map(|id| id as f32).collect();
    /// table.push(&keys, values)?.wait()?;
    /// assert_eq!(table.pull(&table.keys(&[4]))?.wait()?.values(), [4.0]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn keys(&self, ids: &[u64]) -> Keys {
        Keys::distinct(self.spec.shape.placement(), ids)
    }

    /// Makes a key list of `ids` that are already in the table's order (rising, for a dense or
    /// ordered table), each once. Fails and names the first id that is not ([`Error::Keys`]). Does
    /// not block.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 10, 1))?;
    /// assert!(table.keys_in_order(&[1, 4, 9]).is_ok());
    /// let error = table.keys_in_order(&[1, 9, 4]).err().expect("4 is not after 9");
    /// assert!(error.to_string().contains("key 4"));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn keys_in_order(&self, ids: &[u64]) -> Result<Keys, Error> {
        Ok(Keys::in_order(self.spec.shape.placement(), ids)?)
    }

    /// Changes the table's learning rate, for updates made from this worker's clock on. The rate
    /// counts for all workers, so one worker should set it. Returns at once, unless too much is
    /// under way; the ticket is done when every shard has the rate. Fails if the rate is negative
    /// or not finite, or if the updater has no rate ([`Error::Table`]).
    ///
    /// ```
    /// # use slackwater::{Keys, RunSize, Session, TableSpec, UpdaterSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1).updater(UpdaterSpec::Sgd { rate: 0.5 }))?;
    /// table.push(&Keys::run(0..1), vec![1.0])?.wait()?;           // w = −0.5
    /// session.clock()?;
    /// table.set_rate(0.25)?.wait()?;
    /// let rows = table.push_pull(&Keys::run(0..1), vec![1.0])?.wait()?;
    /// assert_eq!(rows.values(), [-0.75]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn set_rate(&self, rate: f64) -> Result<Ticket<()>, Error> {
        if !rate.is_finite() || rate < 0.0 {
            let problem = format!(
                "table '{}' cannot have the learning rate {rate}; use a finite number, not negative",
                self.spec.name
            );
            return Err(Error::Table { problem });
        }
        if matches!(self.spec.updater, UpdaterSpec::Sum | UpdaterSpec::Assign) {
            let name = &self.spec.name;
            let updater = &self.spec.updater;
            let problem = format!("table '{name}' has no learning rate, because its updater is {updater}");
            return Err(Error::Table { problem });
        }
        let setting = Setting::Rate(rate);
        self.submit(Op::Tune { setting }, None, &Tickets::none())
    }

    /// Opens an update log for the calling thread, for many small updates; see [`UpdateLog::add`].
    /// Does not block.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # use slackwater::policy::NumberType;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let counts = session.table::<i64>(TableSpec::dense("counts", 4, 1).number(NumberType::I64))?;
    /// let hot = counts.keys(&[2]);
    /// std::thread::scope(|scope| {
    ///     for _ in 0..2 {
    ///         let mut log = counts.log();
    ///         let hot = hot.clone();
    ///         scope.spawn(move || (0..100).try_for_each(|_| log.add(&hot, &[1], 1)));
    ///     }
    /// });
    /// assert_eq!(counts.pull(&hot)?.wait()?.values(), [200]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn log(&self) -> UpdateLog<T> {
        let table = self.clone();
        self.logs.open(&self.spec, Box::new(move || table.absorb_logs()))
    }

    /// Submits an operation on this table, and returns its ticket. First blocks while too many
    /// bytes or reads are under way.
    pub(crate) fn submit<R: FromOutcome>(
        &self,
        op: Op,
        into: Option<PullTarget>,
        after: &Tickets,
    ) -> Result<Ticket<R>, Error> {
        Ok(self.ticket(self.shared.call_with_room(|worker| worker.submit(self.id, op, into, &after.0))??))
    }

    /// Makes the ticket of a submitted operation.
    fn ticket<R: FromOutcome>(&self, id: TicketId) -> Ticket<R> {
        Ticket::new(self.shared.clone(), id, self.spec.shape.placement())
    }

    /// Converts values to the worker's form: takes owned memory as it is, and copies borrowed
    /// memory.
    fn owned(&self, values: PushValues<'_, T>) -> Values {
        let bytes = match values {
            PushValues::Owned(payload) => payload,
            PushValues::Borrowed(values) => self.shared.pool.copy(values),
        };
        Values { number: T::TYPE, bytes }
    }

    /// Pushes what the update logs of this table hold.
    pub(crate) fn absorb_logs(&self) -> Result<(), Error> {
        self.logs.absorb(&self.spec, |(keys, values, examples)| {
            // The end of the clock reports a failure, as for any dropped ticket.
            self.push_opts(&keys, values, PushOptions { examples, ..PushOptions::default() }).map(drop)
        })
    }
}
