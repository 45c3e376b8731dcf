//! The change feed of a table, for Python: changed rows as bytes, from which `slackwater/_feed.py`
//! makes arrays.

use crate::error;
use crate::memory::numpy_name;
use crate::session::{check_process, seconds};
use pyo3::prelude::*;
use slackwater::feed::{Changes, Feed, FollowFrom, FollowOptions, follow_bytes};
use slackwater::policy::NumberType;
use slackwater::table::Clock;
use slackwater::{Connect, Error};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a waiting call checks for Python signals.
const TURN: Duration = Duration::from_millis(50);

/// A reader of a table's changes, in order for each row.
#[pyclass(name = "Feed", frozen, module = "slackwater")]
pub struct PyFeed {
    feed: Mutex<Feed<u8>>,
    number: NumberType,
    #[pyo3(get)]
    width: u32,
    process: u32,
}

impl PyFeed {
    pub fn new(feed: Feed<u8>, process: u32) -> Self {
        let number = feed.spec().number;
        let width = feed.spec().width;
        Self { feed: Mutex::new(feed), number, width, process }
    }
}

/// Converts Python's arguments to options: where the feed begins.
pub fn follow_options(rows: bool, clock: Option<u64>) -> FollowOptions {
    let from = match clock {
        Some(clock) => FollowFrom::Clock(Clock(clock)),
        None if rows => FollowFrom::Rows,
        None => FollowFrom::Now,
    };
    FollowOptions { from }
}

/// Follows a table from a process that is no worker of the run.
#[pyfunction]
pub fn follow(
    py: Python<'_>,
    coordinator: &str,
    table: &str,
    rows: bool,
    clock: Option<u64>,
    limit: f64,
) -> PyResult<PyFeed> {
    let connect = Connect { join_limit: seconds(limit)?, ..Connect::to(coordinator) };
    let options = follow_options(rows, clock);
    let feed = py.detach(|| follow_bytes(&connect, table, options)).map_err(|error| error::raise(py, error))?;
    Ok(PyFeed::new(feed, std::process::id()))
}

#[pymethods]
impl PyFeed {
    /// The number type of the table, as NumPy names it.
    #[getter]
    fn dtype(&self) -> &'static str {
        numpy_name(self.number)
    }

    /// The feed has returned every change before the run reached this clock.
    #[getter]
    fn clock(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.feed.lock().unwrap_or_else(PoisonError::into_inner).clock().0)
    }

    /// The next changes. Waits at most `limit` seconds, or without limit if it is None.
    fn next(&self, py: Python<'_>, limit: Option<f64>) -> PyResult<Option<PyChanges>> {
        check_process(self.process)?;
        let begin = Instant::now();
        let limit = limit.map(seconds).transpose()?;
        let changes = py.detach(|| {
            loop {
                let left = limit.map_or(TURN, |limit| limit.saturating_sub(begin.elapsed()));
                let changes = self.feed.lock().unwrap_or_else(PoisonError::into_inner).next(left.min(TURN))?;
                if changes.is_some() || left.is_zero() {
                    return Ok(changes.map(PyChanges::new));
                }
                if error::is_interrupted() {
                    return Err(Error::Run(slackwater::cluster::NodeError::Interrupted));
                }
            }
        });
        changes.map_err(|error| error::raise(py, error))
    }
}

/// One page of a feed: rows of one shard that changed or were deleted.
#[pyclass(name = "Changes", frozen, module = "slackwater")]
pub struct PyChanges {
    #[pyo3(get)]
    clock: u64,
    #[pyo3(get)]
    shard: usize,
    #[pyo3(get)]
    starts_over: bool,
    /// Keys of changed rows, as bytes of uint64.
    #[pyo3(get)]
    keys: Vec<u8>,
    /// Values of changed rows, as bytes of the table's number type.
    #[pyo3(get)]
    rows: Vec<u8>,
    /// Keys of deleted rows, as bytes of uint64.
    #[pyo3(get)]
    deleted: Vec<u8>,
    changes: Changes<u8>,
}

impl PyChanges {
    fn new(mut changes: Changes<u8>) -> Self {
        Self {
            clock: changes.clock.0,
            shard: changes.shard,
            starts_over: changes.starts_over,
            keys: bytemuck::cast_slice(&changes.ids).to_vec(),
            rows: std::mem::take(&mut changes.values),
            deleted: bytemuck::cast_slice(&changes.deleted).to_vec(),
            changes,
        }
    }
}

#[pymethods]
impl PyChanges {
    /// For each key, whether its row belongs to the shard of these changes.
    fn covers(&self, keys: Vec<u64>) -> Vec<bool> {
        keys.into_iter().map(|key| self.changes.covers(key)).collect()
    }
}
