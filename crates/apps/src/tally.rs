//! What all workers together have learnt from, each example counted once, whoever was lost on the way.
//!
//! The counts of a lease are pushed for it as everything else that it teaches is, so that a second run of it does not count again. They are
//! kept apart by where a lease stands in the run, in few rows however long that is: so they are a curve of the loss, too.

use slackwater::{Consistency, Error, Lease, NumberType, Session, Table, TableSpec, Ticket};
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

/// Seconds since 1970, by this host's clock.
#[must_use]
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// The table in which everybody's counts meet.
pub struct Tally {
    table: Table<f64>,
    /// Of the run.
    leases: u64,
}

impl Tally {
    /// The tally of a run of so many leases.
    pub(crate) fn open(session: &Session, turn: u64, leases: u64) -> Result<Self, Error> {
        let spec = TableSpec::dense(&format!(".tally {turn}"), POINTS, WIDTH as u32).number(NumberType::F64);
        Ok(Self { table: session.table(spec.consistency(Consistency::Unbounded))?, leases })
    }

    /// What was learnt of a lease, all together: to be said once for each, and before it is committed.
    pub(crate) fn add(&self, lease: &Lease, counted: Counted) -> Result<Ticket<()>, Error> {
        let point = u128::from(lease.place()) * u128::from(POINTS) / u128::from(self.leases.max(1));
        let keys = self.table.keys(&[point as u64]);
        // The examples are counted where they are learnt.
        self.table.push_for(lease, &keys, counted.to_row().to_vec(), 0)
    }

    /// The points, in the order of the run, without those that nothing has counted for. Whole when the training is over.
    pub fn read(&self) -> Result<Vec<Counted>, Error> {
        let rows = self.table.pull_range(0..POINTS)?.wait()?;
        let points = rows.values().chunks_exact(WIDTH).map(Counted::from_row);
        Ok(points.filter(|point| *point != Counted::default()).collect())
    }
}
