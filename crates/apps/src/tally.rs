//! What all workers together have learnt from, each example counted once, whoever was lost on the
//! way.
//!
//! The counts of a lease are pushed for it as everything else that it teaches is, so that a second
//! run of it does not count again. They are kept apart by where a lease stands in the run, in few
//! rows however long that is: so they are a curve of the loss, too.
//!
//! A run that goes on from a checkpoint begins its own counts anew. What is counted in all goes
//! into checkpoints as the weights do, and so counts once over all those runs, too: of a lease that
//! a checkpoint holds half of, the whole is counted when another run has learnt the rest.

use slackwater::data_leases::DataLease;
use slackwater::policy::NumberType;
use slackwater::table::PushOptions;
use slackwater::{Consistency, Error, Keys, Session, Table, TableSpec};
use std::time::{SystemTime, UNIX_EPOCH};

/// A tally has at most so many points.
pub const POINTS: u64 = 128;
/// Numbers in a row.
const WIDTH: usize = 6;

/// Some examples that were learnt from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// How many they are.
    pub examples: f64,
    /// In how many minibatches.
    pub minibatches: f64,
    /// Malformed lines that were skipped among them.
    pub bad_rows: f64,
    /// How many ordinary examples they count for: the other sums are over as many.
    pub weight: f64,
    /// Their summed loss before they were learnt from.
    pub loss: f64,
    /// When they were learnt from, in seconds since 1970, summed.
    pub time: f64,
}

impl Counted {
    /// A minibatch, learnt from just now.
    #[must_use]
    pub fn minibatch(examples: u64, weight: f64, loss: f64) -> Self {
        let (examples, minibatches, bad_rows) = (examples as f64, 1.0, 0.0);
        Self { examples, minibatches, bad_rows, weight, loss, time: weight * now() }
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let (mut row, other) = (self.to_row(), other.to_row());
        row.iter_mut().zip(other).for_each(|(number, more)| *number += more);
        Self::from_row(&row)
    }

    fn to_row(self) -> [f64; WIDTH] {
        let Self { examples, minibatches, bad_rows, weight, loss, time } = self;
        [examples, minibatches, bad_rows, weight, loss, time]
    }

    fn from_row(row: &[f64]) -> Self {
        let (examples, minibatches, bad_rows) = (row[0], row[1], row[2]);
        Self { examples, minibatches, bad_rows, weight: row[3], loss: row[4], time: row[5] }
    }
}

/// Seconds since 1970, by this host's clock: for people to read, and for nothing else.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "workers come later, and have no other beginning in common")]
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// The tables in which everybody's counts meet.
pub struct Tally {
    /// Of this run alone: its points, and as many once more for leases that were not learnt to the
    /// end.
    run: Table<f64>,
    /// A row, of leases that were learnt to the end: in this run, and in those that it goes on
    /// from.
    all: Table<f64>,
    /// Of the run.
    leases: u64,
}

impl Tally {
    /// The tally of a run of so many leases.
    pub(crate) fn open(session: &Session, number: u64, leases: u64) -> Result<Self, Error> {
        let table = |name: String, rows| {
            let spec = TableSpec::dense(&name, rows, WIDTH as u32).number(NumberType::F64);
            session.table(spec.consistency(Consistency::Unbounded))
        };
        Ok(Self {
            run: table(format!(".tally {number}"), 2 * POINTS)?,
            all: table(format!("tally {number}"), 1)?,
            leases,
        })
    }

    /// What was learnt of a lease, all of it: to be said once for each, and before it is committed.
    pub(crate) fn add(&self, lease: &DataLease, counted: Counted) -> Result<(), Error> {
        // The examples are counted where they are learnt. It is committed when these are
        // acknowledged, as all that was pushed of it.
        let of_lease = || PushOptions { lease: Some(lease), examples: 0, ..PushOptions::default() };
        drop(self.all.push_opts(&self.all.keys(&[0]), counted.to_row().to_vec(), of_lease())?);
        drop(self.run.push_opts(&self.run.keys(&[self.point(lease)]), counted.to_row().to_vec(), of_lease())?);
        Ok(())
    }

    /// What was learnt of a lease whose rest nobody will learn in this run. One that goes on from
    /// its last checkpoint will, and then counts all of it.
    pub(crate) fn add_part(&self, lease: &DataLease, counted: Counted) -> Result<(), Error> {
        let keys = self.run.keys(&[POINTS + self.point(lease)]);
        let of_lease = PushOptions { lease: Some(lease), examples: 0, ..PushOptions::default() };
        self.run.push_opts(&keys, counted.to_row().to_vec(), of_lease)?.wait()
    }

    fn point(&self, lease: &DataLease) -> u64 {
        let point = u128::from(lease.place()) * u128::from(POINTS) / u128::from(self.leases.max(1));
        (point as u64).min(POINTS - 1)
    }

    /// The points of this run, in its order, without those that nothing has counted for. Whole when
    /// the training is over.
    pub fn read(&self) -> Result<Vec<Counted>, Error> {
        let rows = self.run.pull(&Keys::run(0..2 * POINTS))?.wait()?;
        let (whole, parts) = rows.values().split_at(POINTS as usize * WIDTH);
        let rows = whole.chunks_exact(WIDTH).zip(parts.chunks_exact(WIDTH));
        let points = rows.map(|(whole, part)| Counted::from_row(whole).and(Counted::from_row(part)));
        Ok(points.filter(|point| *point != Counted::default()).collect())
    }

    /// What this run has counted, and those that it goes on from: every example once. Whole when
    /// the training is over.
    pub fn read_all(&self) -> Result<Counted, Error> {
        let (all, rows) =
            (self.all.pull(&Keys::run(0..1))?.wait()?, self.run.pull(&Keys::run(POINTS..2 * POINTS))?.wait()?);
        let parts = rows.values().chunks_exact(WIDTH).map(Counted::from_row);
        Ok(parts.fold(Counted::from_row(all.values()), Counted::and))
    }
}
