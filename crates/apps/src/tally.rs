//! The tally: counts what all workers together have learnt from. Each example counts once, even if
//! workers are lost.
//!
//! A lease's counts are pushed as part of the lease, like its gradients, so a second run of the
//! lease does not count again. Counts are kept in a few rows, by the lease's place in the run. So
//! they also give a curve of the loss, and the tables do not grow with the run.
//!
//! A run that resumes from a checkpoint begins its own counts anew. The total count is saved in
//! checkpoints like the weights, so it counts once over all these runs. If a checkpoint holds half
//! of a lease, a later run learns the rest and then counts the whole lease.

use slackwater::data_leases::DataLease;
use slackwater::policy::NumberType;
use slackwater::table::PushOptions;
use slackwater::{Consistency, Error, Keys, Session, Table, TableSpec};
use std::time::{SystemTime, UNIX_EPOCH};

/// At most so many points in a tally.
pub const POINTS: u64 = 128;
/// Numbers in a row of the tables.
const WIDTH: usize = 6;

/// Counts and sums of some examples that were learnt from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// How many examples.
    pub examples: f64,
    /// How many minibatches they came in.
    pub minibatches: f64,
    /// How many malformed lines were skipped among them.
    pub bad_rows: f64,
    /// How many ordinary examples they count for: the sum of their importances. The sums below are
    /// over as many.
    pub weight: f64,
    /// Their summed loss before they were learnt from.
    pub loss: f64,
    /// The times at which they were learnt from, in seconds since 1970, summed.
    pub time: f64,
}

impl Counted {
    /// Counts one minibatch, learnt from just now.
    #[must_use]
    pub fn minibatch(examples: u64, weight: f64, loss: f64) -> Self {
        Self { examples: examples as f64, minibatches: 1.0, bad_rows: 0.0, weight, loss, time: weight * now() }
    }

    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let mut row = self.to_row();
        row.iter_mut().zip(other.to_row()).for_each(|(number, more)| *number += more);
        Self::from_row(&row)
    }

    fn to_row(self) -> [f64; WIDTH] {
        let Self { examples, minibatches, bad_rows, weight, loss, time } = self;
        [examples, minibatches, bad_rows, weight, loss, time]
    }

    fn from_row(row: &[f64]) -> Self {
        Self { examples: row[0], minibatches: row[1], bad_rows: row[2], weight: row[3], loss: row[4], time: row[5] }
    }
}

/// Seconds since 1970, by this host's clock. Only for people to read.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "workers that join late have no other start time in common")]
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// The tables that add up the counts of all workers.
pub struct Tally {
    /// This run's counts: a row for each point, then as many rows again for leases that were learnt
    /// in part.
    run: Table<f64>,
    /// One row: all leases that were learnt completely, in this run and in the runs that it
    /// resumes.
    all: Table<f64>,
    /// How many leases the run has.
    leases: u64,
}

impl Tally {
    /// The tally of a run of `leases` leases.
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

    /// Counts a lease that was learnt completely. The caller does so once for each lease, before it
    /// commits the lease.
    pub(crate) fn add(&self, lease: &DataLease, counted: Counted) -> Result<(), Error> {
        // `examples` is 0, because the push of the gradients counts the examples. The lease is
        // committed once these pushes are acknowledged, like all pushes of the lease.
        let of_lease = || PushOptions { lease: Some(lease), examples: 0, ..PushOptions::default() };
        drop(self.all.push_opts(&self.all.keys(&[0]), counted.to_row().to_vec(), of_lease())?);
        drop(self.run.push_opts(&self.run.keys(&[self.point(lease)]), counted.to_row().to_vec(), of_lease())?);
        Ok(())
    }

    /// Counts the learnt part of a lease whose rest no worker will learn in this run. A run that
    /// resumes from its last checkpoint learns the rest, and then counts the whole lease.
    pub(crate) fn add_part(&self, lease: &DataLease, counted: Counted) -> Result<(), Error> {
        let keys = self.run.keys(&[POINTS + self.point(lease)]);
        let of_lease = PushOptions { lease: Some(lease), examples: 0, ..PushOptions::default() };
        self.run.push_opts(&keys, counted.to_row().to_vec(), of_lease)?.wait()
    }

    /// The point that a lease counts for: its place in the run, scaled to the number of points.
    fn point(&self, lease: &DataLease) -> u64 {
        let point = u128::from(lease.place()) * u128::from(POINTS) / u128::from(self.leases.max(1));
        (point as u64).min(POINTS - 1)
    }

    /// The points of this run, in its order, without empty ones. Complete when the training is
    /// over.
    pub fn read(&self) -> Result<Vec<Counted>, Error> {
        let rows = self.run.pull(&Keys::run(0..2 * POINTS))?.wait()?;
        let (whole, parts) = rows.values().split_at(POINTS as usize * WIDTH);
        let rows = whole.chunks_exact(WIDTH).zip(parts.chunks_exact(WIDTH));
        let points = rows.map(|(whole, part)| Counted::from_row(whole).and(Counted::from_row(part)));
        Ok(points.filter(|point| *point != Counted::default()).collect())
    }

    /// The total count of this run and of the runs that it resumes: every example once. Complete
    /// when the training is over.
    pub fn read_all(&self) -> Result<Counted, Error> {
        let all = self.all.pull(&Keys::run(0..1))?.wait()?;
        let rows = self.run.pull(&Keys::run(POINTS..2 * POINTS))?.wait()?;
        let parts = rows.values().chunks_exact(WIDTH).map(Counted::from_row);
        Ok(parts.fold(Counted::from_row(all.values()), Counted::and))
    }
}
