//! Data leases: input that is dealt out in ranges, each of which counts once, whoever is lost on
//! the way.

use crate::error::{self, TableError};
use crate::session::check_process;
use pyo3::prelude::*;
use slackwater::data_leases::NextLease;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One that waits for a lease lets others commit theirs this often: what it waits for may be held
/// by this very worker.
const LOOK: Duration = Duration::from_millis(50);

/// What all workers say of the input.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct PyLeaseTerms {
    name: String,
    ranges: u64,
    epochs: u32,
    shuffle: Option<u64>,
    per_clock: u32,
    input: Option<(String, u64)>,
}

/// A worker's leases of one data set.
#[pyclass(name = "DataLeases", frozen, module = "slackwater")]
pub struct PyDataLeases {
    leases: Mutex<slackwater::data_leases::DataLeases>,
    process: u32,
}

/// One range of the input in one epoch, this worker's to learn from until it is committed.
/// `slackwater.leases` gives them out.
///
/// >>> import numpy, slackwater
/// >>> run = slackwater.init()
/// >>> table = slackwater.Table("of leases", rows=1, updater="sum", slack=0)
/// >>> leases = slackwater.leases("a data set", ranges=2)
/// >>> lease = next(leases)
/// >>> lease.number, lease.epoch, lease.range, lease.is_committed
/// (0, 0, 0, False)
/// >>> table.push(numpy.ones(1, "float32"), lease=lease)
/// >>> leases.commit(lease)
/// >>> lease.is_committed
/// True
/// >>> slackwater.shutdown()
#[pyclass(name = "DataLease", frozen, module = "slackwater")]
pub struct PyDataLease {
    /// Nothing once it is committed.
    lease: Mutex<Option<slackwater::data_leases::DataLease>>,
    number: u64,
    epoch: u64,
    range: u64,
}

impl PyDataLeases {
    pub fn open(py: Python<'_>, session: &slackwater::Session, terms: PyLeaseTerms, process: u32) -> PyResult<Self> {
        let PyLeaseTerms { name, ranges, epochs, shuffle, per_clock, input } = terms;
        let made = slackwater::data_leases::LeasedInput::new(ranges).epochs(epochs).per_clock(per_clock);
        let made = shuffle.into_iter().fold(made, slackwater::data_leases::LeasedInput::shuffled);
        let made =
            input.into_iter().fold(made, |made, (words, fingerprint)| made.named(&words, u128::from(fingerprint)));
        let leases = py.detach(|| session.leases(&name, &made)).map_err(|error| error::raise(py, error))?;
        Ok(Self { leases: Mutex::new(leases), process })
    }

    fn lock(&self) -> MutexGuard<'_, slackwater::data_leases::DataLeases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PyDataLease {
    /// Does something for a lease that is not committed yet.
    pub fn with<R>(&self, work: impl FnOnce(&slackwater::data_leases::DataLease) -> R) -> Option<R> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(work)
    }

    pub fn is_over(&self) -> PyErr {
        TableError::new_err(format!("lease {} is committed: nothing more can be pushed for it", self.number))
    }
}

#[pymethods]
impl PyDataLeases {
    /// The next lease to learn from, or None when every lease is committed.
    fn take(&self, py: Python<'_>) -> PyResult<Option<PyDataLease>> {
        check_process(self.process)?;
        let lease = py.detach(|| {
            loop {
                let offer = self.lock().next_within(LOOK)?;
                match offer {
                    NextLease::Lease(lease) => return Ok(Some(lease)),
                    NextLease::NoneYet => {}
                    NextLease::Over => return Ok(None),
                }
            }
        });
        let lease = lease.map_err(|error| error::raise(py, error))?;
        Ok(lease.map(|lease| {
            let (number, epoch, range) = (lease.number(), lease.epoch(), lease.range());
            PyDataLease { lease: Mutex::new(Some(lease)), number, epoch, range }
        }))
    }

    /// A lease is done: it is committed once all that was pushed for it is acknowledged.
    fn commit(&self, py: Python<'_>, lease: &Bound<'_, PyDataLease>) -> PyResult<()> {
        check_process(self.process)?;
        let held = lease.get();
        let taken = py.detach(|| held.lease.lock().unwrap_or_else(PoisonError::into_inner).take());
        let taken = taken.ok_or_else(|| held.is_over())?;
        py.detach(|| self.lock().commit(taken)).map_err(|error| error::raise(py, error))
    }

    /// Ends the data set for all workers, wherever they are in it.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.process)?;
        py.detach(|| self.lock().end()).map_err(|error| error::raise(py, error))
    }

    /// How many minibatches to put into a clock.
    #[getter]
    fn share(&self, py: Python<'_>) -> PyResult<u32> {
        check_process(self.process)?;
        Ok(py.detach(|| self.lock().share()))
    }
}

#[pymethods]
impl PyDataLease {
    /// `epoch * ranges + range`.
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    /// Which pass over the input it is of, from 0.
    #[getter]
    fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Which range of the input it is, from 0.
    #[getter]
    fn range(&self) -> u64 {
        self.range
    }

    /// Whether it was committed: nothing more can be pushed for it.
    #[getter]
    fn is_committed(&self) -> bool {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn __repr__(&self) -> String {
        format!("<slackwater.DataLease {}: range {} of epoch {}>", self.number, self.range, self.epoch)
    }
}
