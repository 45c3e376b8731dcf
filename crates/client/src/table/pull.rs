//! Pulls: of keys, of a range, and of everything.

use super::{Table, TargetNumber};
use crate::Error;
use crate::ticket::{Rows, Ticket, Tickets};
use std::ops::Range;
use types::{Position, PositionRange};
use wire::{Keys, Refusal};
use worker::{PullBuffer, PullTarget, TableFailure};

impl<T: TargetNumber> Table<T> {
    /// Pulls the rows of `keys`. Returns at once, unless thousands of reads are open already: then
    /// it blocks until one of them is answered. [`Ticket::wait`] gives the rows, as fresh as the
    /// table's consistency asks, and blocks until the slowest worker allows that. A key that was
    /// never written reads as zero, or as its initial row where the table has an initialiser.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 2, workers: 1 })?.remove(0);
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

    /// Memory for the rows of `keys`, unless they are more than the table has or the machine can
    /// hold.
    pub(super) fn room_for(&self, keys: &Keys) -> Result<Vec<T>, Error> {
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

    /// As [`Table::pull`] into memory of the caller's, which [`Rows::into_values`] gives back,
    /// after other tickets are done. Fails if `target` has not room for exactly the rows.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec, Tickets};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
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
        self.pull_to_target(keys, T::to_target(target), after)
    }

    /// As [`Table::pull`], into memory that is no vector, such as an array of another language: the
    /// rows are written where they are wanted, and [`Rows::values`] is empty. The room is let go of
    /// when the ticket is done, or when nobody can write to it any more.
    ///
    /// ```
    /// # use slackwater::{PullBuffer, RunSize, Session, TableSpec, Tickets};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// /// Memory that somebody else has made, and keeps.
    /// struct Foreign(&'static mut [u8]);
    /// impl PullBuffer for Foreign {
    ///     fn bytes_mut(&mut self) -> &mut [u8] { self.0 }
    /// }
    ///
    /// let table = session.table::<f32>(TableSpec::dense("t", 2, 1))?;
    /// let foreign = Foreign(Box::leak(vec![0; 8].into_boxed_slice()));
    /// let rows = table.pull_to(&table.keys(&[0, 1]), Box::new(foreign), &Tickets::none())?.wait()?;
    /// assert!(rows.values().is_empty());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn pull_to(&self, keys: &Keys, buffer: Box<dyn PullBuffer>, after: &Tickets) -> Result<Ticket<Rows<T>>, Error> {
        self.pull_to_target(keys, PullTarget::Buffer(T::TYPE, buffer), after)
    }

    fn pull_to_target(&self, keys: &Keys, target: PullTarget, after: &Tickets) -> Result<Ticket<Rows<T>>, Error> {
        self.absorb_logs()?;
        if self.spec.consistency.is_eager() {
            // Refreshes that have arrived must not wait in a queue while the cache says no.
            self.shared.driver.catch_up();
        }
        self.begin(|worker| worker.pull(self.id, keys.clone(), target, &after.0))
    }

    /// Pulls neighbouring rows of a dense table, or whatever rows an ordered one has in a range
    /// ([`Rows::ids`] tells), as [`Table::pull`] does; fails for any other.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 2, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1).ordered())?;
    /// table.push(&table.keys(&[5, 900]), vec![1.0, 2.0])?.wait()?;
    /// let rows = table.pull_range(0..1000)?.wait()?;
    /// assert_eq!((rows.ids(), rows.values()), (&[5, 900][..], &[1.0, 2.0][..]));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn pull_range(&self, ids: Range<u64>) -> Result<Ticket<Rows<T>>, Error> {
        self.pull_range_after(ids, &Tickets::none())
    }

    /// As [`Table::pull_range`], after other tickets are done.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec, Tickets};
    /// # let session = Session::embedded(RunSize { servers: 2, workers: 1 })?.remove(0);
    /// let (days, done) = (session.table::<f32>(TableSpec::sparse("days", 1).ordered())?, session.table::<f32>(TableSpec::dense("done", 1, 1))?);
    /// let push = done.push_range(0..1, vec![1.0])?;
    /// let rows = days.pull_range_after(0..1000, &Tickets::none().and(&push))?.wait()?;
    /// assert!(push.is_done() && rows.ids().is_empty());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn pull_range_after(&self, ids: Range<u64>, after: &Tickets) -> Result<Ticket<Rows<T>>, Error> {
        if matches!(self.spec.shape, types::TableShape::Dense { .. }) || ids.is_empty() {
            let keys = Keys::run(ids);
            return self.pull_into(&keys, self.room_for(&keys)?, after);
        }
        self.scan(PositionRange { first: Position(ids.start), last: Position(ids.end - 1) }, after)
    }

    /// Pulls every row there is; [`Rows::ids`] tells which they are. The rows come shard by shard
    /// in parts, each as fresh as the table's consistency asks; behind a
    /// [`Session::barrier`](crate::Session::barrier), with nobody pushing, they are the table as it
    /// stands. Needs memory for all of them. A `clock` table may name keys whose first clock is
    /// still held, with what a pull of them reads.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 2, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1))?;
    /// table.push(&table.keys(&[900]), vec![2.0])?.wait()?;
    /// let rows = table.pull_all()?.wait()?;
    /// assert_eq!((rows.ids(), rows.values()), (&[900][..], &[2.0][..]));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn pull_all(&self) -> Result<Ticket<Rows<T>>, Error> {
        self.pull_all_after(&Tickets::none())
    }

    /// As [`Table::pull_all`], after other tickets are done.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec, Tickets};
    /// # let session = Session::embedded(RunSize { servers: 2, workers: 1 })?.remove(0);
    /// let (words, done) = (session.table::<f32>(TableSpec::sparse("words", 1))?, session.table::<f32>(TableSpec::dense("done", 1, 1))?);
    /// let push = done.push_range(0..1, vec![1.0])?;
    /// let rows = words.pull_all_after(&Tickets::none().and(&push))?.wait()?;
    /// assert!(push.is_done() && rows.ids().is_empty());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn pull_all_after(&self, after: &Tickets) -> Result<Ticket<Rows<T>>, Error> {
        self.scan(PositionRange::ALL, after)
    }

    fn scan(&self, range: PositionRange, after: &Tickets) -> Result<Ticket<Rows<T>>, Error> {
        self.absorb_logs()?;
        self.begin(|worker| worker.scan(self.id, range, &after.0))
    }
}
