//! Data leases for Python: workers take input range by range, and each range counts once although
//! workers are lost.

use crate::error::{self, TableError};
use crate::session::check_process;
use pyo3::prelude::*;
use slackwater::data_leases::NextLease;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a thread that waits for a lease releases the lock, so that other threads of this
/// worker can commit theirs.
const LOOK: Duration = Duration::from_millis(50);

/// The description of a leased input; equal for all workers.
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

/// One worker's leases of one data set.
#[pyclass(name = "DataLeases", frozen, module = "slackwater")]
pub struct PyDataLeases {
    leases: Mutex<slackwater::data_leases::DataLeases>,
    process: u32,
}

/// One range of the input in one epoch. It is this worker's until the worker commits it. Iterate
/// over `slackwater.leases` to get them.
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
    /// `None` once it is committed.
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
    /// Runs `work` with the lease; `None` if it is committed.
    pub fn with<R>(&self, work: impl FnOnce(&slackwater::data_leases::DataLease) -> R) -> Option<R> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(work)
    }

    /// The exception for a lease that is committed already.
    pub fn is_over(&self) -> PyErr {
        TableError::new_err(format!("lease {} is committed: nothing more can be pushed for it", self.number))
    }
}

#[pymethods]
impl PyDataLeases {
    /// The next lease to process, or None when every lease is committed.
    fn take(&self, py: Python<'_>) -> PyResult<Option<PyDataLease>> {
        check_process(self.process)?;
        let lease = py.detach(|| {
            loop {
                let next = self.lock().next_within(LOOK)?;
                match next {
                    NextLease::Lease(lease) => return Ok(Some(lease)),
                    NextLease::NoneYet => {}
                    NextLease::Over => return Ok(None),
                }
            }
        });
        let lease = lease.map_err(|error| error::raise(py, error))?;
        Ok(lease.map(|lease| {
            let number = lease.number();
            let epoch = lease.epoch();
            let range = lease.range();
            PyDataLease { lease: Mutex::new(Some(lease)), number, epoch, range }
        }))
    }

    /// Commits a lease once every push for it is acknowledged. Returns at once.
    fn commit(&self, py: Python<'_>, lease: &Bound<'_, PyDataLease>) -> PyResult<()> {
        check_process(self.process)?;
        let held = lease.get();
        let taken = py.detach(|| held.lease.lock().unwrap_or_else(PoisonError::into_inner).take());
        let taken = taken.ok_or_else(|| held.is_over())?;
        py.detach(|| self.lock().commit(taken)).map_err(|error| error::raise(py, error))
    }

    /// Ends the data set for all workers: no more leases are granted.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.process)?;
        py.detach(|| self.lock().end()).map_err(|error| error::raise(py, error))
    }

    /// How many minibatches this worker should put into a clock.
    #[getter]
    fn share(&self, py: Python<'_>) -> PyResult<u32> {
        check_process(self.process)?;
        Ok(py.detach(|| self.lock().share()))
    }
}

#[pymethods]
impl PyDataLease {
    /// The number of the lease: `epoch * ranges + range`.
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    /// The epoch that it belongs to, from 0.
    #[getter]
    fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The range of the input, from 0.
    #[getter]
    fn range(&self) -> u64 {
        self.range
    }

    /// Whether it is committed. Pushes for a committed lease are refused.
    #[getter]
    fn is_committed(&self) -> bool {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn __repr__(&self) -> String {
        format!("<slackwater.DataLease {}: range {} of epoch {}>", self.number, self.range, self.epoch)
    }
}
