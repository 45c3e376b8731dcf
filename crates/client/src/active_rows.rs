//! The active set of an ℓ1 problem: which rows the next steps may move, as the shards decide.

use crate::table::TargetNumber;
use crate::ticket::FromOutcome;
use crate::{Error, Table, Ticket, Tickets};
use types::{Clock, Placement, WorkerId};
use wire::{Bits, Keys};
use worker::{Op, TicketOutcome};

/// Which of the requested rows are active: see [`Table::active`].
///
/// ```
/// # use slackwater::{RunSize, Session, TableSpec};
/// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
/// let table = session.table::<f32>(TableSpec::dense("t", 3, 1))?;
/// let active = table.active(&table.keys(&[0, 2]))?.wait()?;
/// assert_eq!(active.bits().ones(), 2);                   // without the codec `kkt` every row is active
/// # session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ActiveRows {
    bits: Bits,
    clock: Clock,
    released_by: Option<WorkerId>,
}

impl ActiveRows {
    /// One bit for each requested key, in order. Pass them to [`Keys::choose`] to keep the active
    /// keys.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 3, 1))?;
    /// let active = table.active(&table.keys(&[0, 2]))?.wait()?;
    /// assert!(active.bits().count() == 2 && active.bits().get(1));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn bits(&self) -> &Bits {
        &self.bits
    }

    /// The answer reflects every update of clocks below this one.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::dense("t", 3, 1))?;
    /// let active = table.active(&table.keys(&[0, 2]))?.wait()?;
    /// assert_eq!(active.clock().0, 0);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }
}

impl FromOutcome for ActiveRows {
    fn from_outcome(outcome: TicketOutcome, _: Placement) -> Self {
        let TicketOutcome::Rows(rows) = outcome else { unreachable!("a read brings an answer") };
        Self { bits: rows.active, clock: rows.clock, released_by: rows.released_by }
    }
    fn released_by(&self) -> Option<WorkerId> {
        self.released_by
    }
}

impl<T: TargetNumber> Table<T> {
    /// Asks which of these rows are active: those that the next steps may move.
    ///
    /// A row of an ℓ1 problem is inactive if its weight is zero and its last gradient was so far
    /// within the penalty that the weight will stay zero. A program may leave inactive rows out
    /// until it next looks at all rows. The shards decide, because they see the gradients of all
    /// workers. They do so in a table with updater proximal that combines by clock and has the
    /// codec `kkt`. In any other table all rows are active.
    ///
    /// The answer is as fresh as a pull of these rows would be, and the ticket waits as a pull
    /// does.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec, UpdaterSpec};
    /// # use slackwater::policy::{Codecs, Combine, Reduce};
    /// # let session = Session::embedded(RunSize { servers: 2, workers: 1 })?.remove(0);
    /// let spec = TableSpec::sparse("weights", 2)                      // a weight; a gradient and its curvature
    ///     .updater(UpdaterSpec::Proximal { rate: 1.0, l1: 1.0 })
    ///     .combine(Combine::Clock(Reduce::Sum))
    ///     .codecs(Codecs::up(["kkt"]));
    /// let table = session.table::<f32>(spec)?;
    /// let keys = table.keys(&[7, 8]);
    /// let small = keys.ids().position(|id| id == 7).expect("one of the two");
    /// let gradient = |id| if id == 7 { 0.2 } else { -1.1 };
    /// for _ in 0..2 {
    ///     let pushed = keys.ids().flat_map(|id| [gradient(id), 1.0]).collect::<Vec<f32>>();
    ///     table.push(&keys, pushed)?.wait()?;                         // gradients and curvatures
    ///     session.clock()?;
    /// }
    /// let active = table.active(&keys)?.wait()?;
    /// assert!(!active.bits().get(small) && active.bits().ones() == 1);
    /// let chosen = keys.choose(active.bits());                        // the list travels as two bits
    /// assert!(chosen.ids().eq([8]));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn active(&self, keys: &Keys) -> Result<Ticket<ActiveRows>, Error> {
        self.submit(Op::Active { keys: keys.clone() }, None, &Tickets::none())
    }
}
