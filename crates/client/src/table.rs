//! Tables as a program sees them.

use crate::log::Logs;
use crate::session::Shared;
use crate::ticket::{Rows, Ticket, Tickets};
use crate::{Error, Log};
use machine::{Batch, PullTarget, TableFailure, Values};
use std::ops::Range;
use std::sync::Arc;
use types::{Position, PositionRange, Setting, TableId, TableSpec};
use update::Number;
use wire::{Keys, Payload, Refusal};

/// A number that tables can hold: `f32`, `f64` or `i64`. A program never needs to implement it.
pub trait TargetNumber: Number {
    #[doc(hidden)]
    fn to_target(values: Vec<Self>) -> PullTarget;
    #[doc(hidden)]
    fn from_target(target: PullTarget) -> Vec<Self>;
}

macro_rules! target_numbers {
    ($($kind:ty => $variant:ident),*) => {$(
        impl TargetNumber for $kind {
            fn to_target(values: Vec<Self>) -> PullTarget {
                PullTarget::$variant(values)
            }
            fn from_target(target: PullTarget) -> Vec<Self> {
                match target {
                    PullTarget::$variant(values) => values,
                    _ => unreachable!("a table brings its own numbers"),
                }
            }
        }
    )*};
}
target_numbers!(f32 => F32, f64 => F64, i64 => I64);

/// A table of the run, for one worker. Cloning it is cheap; threads may share it. Made by [`crate::Session::table`].
///
/// Pushes and pulls return a [`Ticket`] at once. They fail at once if the batch does not fit ([`Error::Batch`]: nothing was
/// sent) or if the run is over ([`Error::Run`]); what a shard refuses fails the ticket.
#[derive(Clone)]
pub struct Table<T: TargetNumber> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: TableId,
    pub(crate) spec: Arc<TableSpec>,
    pub(crate) logs: Arc<Logs<T>>,
}

/// Copies of borrowed values that may be under way: enough to keep everybody busy, few enough to stay in a cache.
const COPIED_BYTES: usize = 4 << 20;

/// Values to push: owned memory travels as it is, borrowed memory is copied once, part by part.
///
/// ```
/// # use slackwater::{Session, Shape, TableSpec};
/// # use std::sync::Arc;
/// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
/// # let table = session.table::<f32>(TableSpec::dense("t", 2, 1))?;
/// table.push_range(0..2, vec![1.0, 2.0])?.wait()?;                        // given away
/// table.push_range(0..2, Arc::<[f32]>::from([1.0, 2.0]))?.wait()?;        // shared, and not to be changed
/// table.push_range(0..2, &[1.0, 2.0])?.wait()?;                           // kept, and free again when the push returns
/// assert_eq!(table.pull_range(0..2)?.wait()?.values(), [3.0, 6.0]);
/// # session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
pub enum PushValues<'a, T> {
    /// Memory that nobody changes any more.
    Owned(Payload),
    /// Memory that the caller keeps; it may be changed as soon as the push returns.
    Borrowed(&'a [T]),
}

impl<T: Number> From<Vec<T>> for PushValues<'_, T> {
    fn from(values: Vec<T>) -> Self {
        Self::Owned(Payload::new(values))
    }
}

impl<T: Number> From<Arc<[T]>> for PushValues<'_, T> {
    fn from(values: Arc<[T]>) -> Self {
        Self::Owned(Payload::new(values))
    }
}

impl<'a, T: Number> From<&'a [T]> for PushValues<'a, T> {
    fn from(values: &'a [T]) -> Self {
        Self::Borrowed(values)
    }
}

impl<'a, T: Number, const N: usize> From<&'a [T; N]> for PushValues<'a, T> {
    fn from(values: &'a [T; N]) -> Self {
        Self::Borrowed(values)
    }
}

impl<'a, T: Number> From<&'a Vec<T>> for PushValues<'a, T> {
    fn from(values: &'a Vec<T>) -> Self {
        Self::Borrowed(values)
    }
}

impl<T: TargetNumber> Table<T> {
    /// The spec it was made with.
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 8))?;
    /// assert_eq!((table.spec().name.as_str(), table.spec().width), ("t", 8));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// `ids` as this table's keys: in its order, each once. Values go in the order of [`Keys::ids`]. Make the list once
    /// and use it often: a list that was sent before travels as a signature. Does not block, and cannot fail: ids that the
    /// table does not have are refused when they are pushed or pulled.
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
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

    /// `ids` as this table's keys, which must be in its order already (rising, for a dense or ordered table) and each once.
    /// Fails naming the first that is not ([`Error::Keys`]). Does not block.
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
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

    /// Pushes `values`, row after row in the order of `keys`. Returns at once, unless too much is under way already: then
    /// it blocks until some of it has been acknowledged. Fails, before anything is sent, if the batch does not fit.
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
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
    /// # use slackwater::{Session, Shape, TableSpec, Tickets};
    /// # let session = Session::embedded(Shape { servers: 2, workers: 1 })?.remove(0);
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
        let bytes = match values.into() {
            PushValues::Owned(payload) => payload,
            PushValues::Borrowed(values) => {
                let whole = values.len() == keys.len() * self.spec.width as usize;
                if after.0.is_empty()
                    && whole
                    && let Some(ticket) = self.push_copies(keys, values, examples)?
                {
                    return Ok(ticket);
                }
                self.shared.pool.copy(values)
            }
        };
        let values = Values { number: T::TYPE, bytes };
        let batch = Batch { keys: keys.clone(), values, examples };
        let number = self.shared.push(|worker, now, out| worker.push(now, self.id, batch, &after.0, out))??;
        Ok(Ticket::new(self.shared.clone(), number, self.spec.shape.placement()))
    }

    /// Pushes part by part from copies that few buffers take in turn. Nothing if the push must wait for others first.
    fn push_copies(&self, keys: &Keys, values: &[T], examples: u64) -> Result<Option<Ticket<()>>, Error> {
        let driver = &self.shared.driver;
        let begun = driver.call(|worker, _, _| {
            let ticket = worker.begin_push(self.id, keys, examples)?;
            Ok::<_, Error>(ticket.map(|ticket| (ticket, worker.parts(self.id, keys))))
        })?;
        let Some((ticket, parts)) = begun else { return Ok(None) };
        let width = self.spec.width as usize;
        for rows in parts {
            let copy = self.shared.pool.copy(&values[rows.start * width..rows.end * width]);
            let under_way = driver.call(|worker, now, out| {
                worker.push_rows(now, ticket, self.id, keys, rows, copy, out);
                worker.unacknowledged_bytes()
            });
            if under_way > COPIED_BYTES {
                let room = |worker: &mut machine::Worker| worker.unacknowledged_bytes() <= COPIED_BYTES / 2;
                // A run that is lost fails every wait; the push is over then, too.
                driver.wait_until(|worker| room(worker).then_some(())).inspect_err(|_| {
                    driver.call(|worker, _, _| worker.end_push(ticket));
                })?;
            }
        }
        driver.call(|worker, _, _| worker.end_push(ticket));
        Ok(Some(Ticket::new(self.shared.clone(), ticket, self.spec.shape.placement())))
    }

    /// Pulls the rows of `keys`. Returns at once, unless thousands of reads are open already: then it blocks until one of
    /// them is answered. [`Ticket::wait`] gives the rows, as fresh as the table's consistency
    /// asks, and blocks until the slowest worker allows that. A key that was never written reads as zero, or as its
    /// initial row where the table has an initialiser.
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 2, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1))?;
    /// let rows = table.pull(&table.keys(&[1, 2, 3]))?.wait()?;
    /// assert_eq!(rows.values(), [0.0; 3]);
    /// assert_eq!(rows.staleness(), 0);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn pull(&self, keys: &Keys) -> Result<Ticket<Rows<T>>, Error> {
        self.pull_into(keys, self.room_for(keys)?, &Tickets::none())
    }

    /// Memory for the rows of `keys`, unless they are more than the table has or the machine can hold.
    fn room_for(&self, keys: &Keys) -> Result<Vec<T>, Error> {
        let (table, placement) = (self.spec.name.clone(), self.spec.shape.placement());
        let last = keys.len().checked_sub(1).map(|last| keys.position(last));
        if let Some(position) = last.filter(|last| *last > self.spec.shape.extent().last) {
            return Err(TableFailure::Unfit { table, placement, refusal: Refusal::OutOfRange { position } }.into());
        }
        let count = keys.len().saturating_mul(self.spec.width as usize);
        if Vec::<T>::new().try_reserve_exact(count).is_err() {
            let expected = (keys.len() as u64).saturating_mul(self.spec.row_bytes() as u64);
            return Err(
                TableFailure::Unfit { table, placement, refusal: Refusal::WrongLength { expected, found: 0 } }.into()
            );
        }
        Ok(vec![T::ZERO; count])
    }

    /// As [`Table::pull`] into memory of the caller's, which [`Rows::into_values`] gives back, after other tickets are done. Fails
    /// if `target` has not room for exactly the rows.
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec, Tickets};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 2, 1))?;
    /// let keys = table.keys(&[0, 1]);
    /// let push = table.push(&keys, vec![1.0, 2.0])?;
    /// let mut memory = vec![0.0; 2];
    /// for _ in 0..3 {
    ///     memory = table.pull_into(&keys, memory, &Tickets::none().and(&push))?.wait()?.into_values();
    ///     assert_eq!(memory, [1.0, 2.0]);
    /// }
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn pull_into(&self, keys: &Keys, target: Vec<T>, after: &Tickets) -> Result<Ticket<Rows<T>>, Error> {
        self.absorb_logs()?;
        if self.spec.consistency.is_eager() {
            // Refreshes that have arrived must not wait in a queue while the cache says no.
            self.shared.driver.catch_up();
        }
        let target = T::to_target(target);
        let call = |worker: &mut machine::Worker, now, out: &mut machine::Outbox| {
            worker.pull(now, self.id, keys.clone(), target, &after.0, out)
        };
        let number = self.shared.push(call)??;
        Ok(Ticket::new(self.shared.clone(), number, self.spec.shape.placement()))
    }

    /// Pushes, then pulls the same rows, as one task: the rows hold the push (in a `clock` table, once its clock is
    /// applied), and the ticket fails if any part of the push is refused. One round trip.
    ///
    /// ```
    /// # use slackwater::{Consistency, Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
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
    /// # use slackwater::{Session, Shape, TableSpec, Tickets};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
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
        let bytes = match values.into() {
            PushValues::Owned(payload) => payload,
            PushValues::Borrowed(values) => self.shared.pool.copy(values),
        };
        let batch = Batch { keys: keys.clone(), values: Values { number: T::TYPE, bytes }, examples };
        let target = T::to_target(self.room_for(keys)?);
        let call = |worker: &mut machine::Worker, now, out: &mut machine::Outbox| {
            worker.push_pull(now, self.id, batch, target, &after.0, out)
        };
        let number = self.shared.push(call)??;
        Ok(Ticket::new(self.shared.clone(), number, self.spec.shape.placement()))
    }

    /// Pushes to neighbouring ids of a dense or ordered table, as [`Table::push`] does; fails for any other. With examples or
    /// tickets to run after, use [`Table::push_after`] with [`Keys::run`].
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
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

    /// Pulls neighbouring rows of a dense table, or whatever rows an ordered one has in a range ([`Rows::ids`] tells), as
    /// [`Table::pull`] does; fails for any other.
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 2, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1).ordered())?;
    /// table.push(&table.keys(&[5, 900]), vec![1.0, 2.0])?.wait()?;
    /// let rows = table.pull_range(0..1000)?.wait()?;
    /// assert_eq!((rows.ids(), rows.values()), (&[5, 900][..], &[1.0, 2.0][..]));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn pull_range(&self, ids: Range<u64>) -> Result<Ticket<Rows<T>>, Error> {
        if matches!(self.spec.shape, types::Shape::Dense { .. }) || ids.is_empty() {
            return self.pull(&Keys::run(ids));
        }
        self.absorb_logs()?;
        let range = PositionRange { first: Position(ids.start), last: Position(ids.end - 1) };
        let number = self.shared.push(|worker, now, out| worker.scan(now, self.id, range, &[], out))??;
        Ok(Ticket::new(self.shared.clone(), number, self.spec.shape.placement()))
    }

    /// Pulls every row there is; [`Rows::ids`] tells which they are. The rows come shard by shard in parts, each as fresh as
    /// the table's consistency asks; behind a [`Session::barrier`](crate::Session::barrier), with nobody pushing, they are
    /// the table as it stands. Needs memory for all of them. A `clock` table may name keys whose first clock is still
    /// held, with what a pull of them reads.
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 2, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1))?;
    /// table.push(&table.keys(&[900]), vec![2.0])?.wait()?;
    /// let rows = table.pull_all()?.wait()?;
    /// assert_eq!((rows.ids(), rows.values()), (&[900][..], &[2.0][..]));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn pull_all(&self) -> Result<Ticket<Rows<T>>, Error> {
        self.absorb_logs()?;
        let all = PositionRange::ALL;
        let number = self.shared.push(|worker, now, out| worker.scan(now, self.id, all, &[], out))??;
        Ok(Ticket::new(self.shared.clone(), number, self.spec.shape.placement()))
    }

    /// Pushes to neighbouring ids of a dense or ordered table, then pulls them, as [`Table::push_pull`] does; fails for any other.
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
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

    /// Changes the learning rate for updates made from this worker's clock on, in every shard; for all workers, so one of them
    /// should do it. Returns at once; the ticket is done when every shard knows. Fails if the rate is negative or not finite
    /// ([`Error::Table`]).
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec, UpdaterSpec};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 1, 1).updater(UpdaterSpec::Sgd { rate: 0.5 }))?;
    /// table.push_range(0..1, vec![1.0])?.wait()?;           // w = −0.5
    /// session.clock()?;
    /// table.set_rate(0.25)?.wait()?;
    /// let rows = table.push_pull_range(0..1, vec![1.0])?.wait()?;
    /// assert_eq!(rows.values(), [-0.75]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn set_rate(&self, rate: f64) -> Result<Ticket<()>, Error> {
        if !rate.is_finite() || rate < 0.0 {
            let problem =
                format!("a learning rate of {rate} for table '{}'; use a finite one, not negative", self.spec.name);
            return Err(Error::Table { problem });
        }
        let setting = Setting::Rate(rate);
        let number = self.shared.driver.call(|worker, now, out| worker.tune(now, self.id, setting, out))?;
        Ok(Ticket::new(self.shared.clone(), number, self.spec.shape.placement()))
    }

    /// A log for the calling thread, for many small updates; see [`Log::add`]. Does not block.
    ///
    /// ```
    /// # use slackwater::{Session, Shape, TableSpec};
    /// # let session = Session::embedded(Shape { servers: 1, workers: 1 })?.remove(0);
    /// let counts = session.table::<i64>(TableSpec::dense("counts", 4, 1).number(slackwater::NumberType::I64))?;
    /// let hot = counts.keys(&[2]);
    /// std::thread::scope(|scope| {
    ///     for _ in 0..2 {
    ///         let (mut log, hot) = (counts.log(), hot.clone());
    ///         scope.spawn(move || (0..100).try_for_each(|_| log.add(&hot, &[1], 1)));
    ///     }
    /// });
    /// assert_eq!(counts.pull(&hot)?.wait()?.values(), [200]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn log(&self) -> Log<T> {
        self.logs.open(&self.spec)
    }

    /// Sends what the logs of this table hold.
    pub(crate) fn absorb_logs(&self) -> Result<(), Error> {
        self.logs.absorb(&self.spec, |(keys, values, examples)| {
            // Failures show at the end of the clock, as for any ticket that is dropped.
            self.push_after(&keys, values, examples, &Tickets::none()).map(drop)
        })
    }
}
