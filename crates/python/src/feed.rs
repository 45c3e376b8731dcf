//! The change feed of a table, for Python: changed rows as bytes, from which `slackwater/_feed.py`
//! makes arrays.

use crate::error;
use crate::memory::numpy_name;
use crate::session::{check_process, seconds};
use pyo3::prelude::*;
use slackwater::feed::{Changes, Feed, FollowFrom, FollowOptions};
use slackwater::monitor::status;
use slackwater::policy::NumberType;
use slackwater::table::{Clock, TargetNumber};
use slackwater::{Connect, Error, TableSpec};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a waiting call checks for Python signals.
const TURN: Duration = Duration::from_millis(50);

/// A feed of any number type.
trait AnyFeed: Send {
    fn next(&mut self, limit: Duration) -> Result<Option<PyChanges>, Error>;
    fn clock(&self) -> Clock;
}

impl<T: TargetNumber> AnyFeed for Feed<T> {
    fn next(&mut self, limit: Duration) -> Result<Option<PyChanges>, Error> {
        Ok(Feed::next(self, limit)?.map(PyChanges::new))
    }
    fn clock(&self) -> Clock {
        Feed::clock(self)
    }
}

/// A reader of a table's changes, in order for each row.
#[pyclass(name = "Feed", frozen, module = "slackwater")]
pub struct PyFeed {
    feed: Mutex<Box<dyn AnyFeed>>,
    number: NumberType,
    #[pyo3(get)]
    width: u32,
    process: u32,
}

impl PyFeed {
    pub fn new<T: TargetNumber>(feed: Feed<T>, spec: &TableSpec, process: u32) -> Self {
        Self { feed: Mutex::new(Box::new(feed)), number: spec.number, width: spec.width, process }
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
    let followed = py.detach(|| {
        let status = status(&connect)?;
        let found = status.tables.into_iter().find(|found| found.spec.name == table).map(|found| found.spec);
        // If there is no such table, `follow` fails and names the tables of the run.
        let spec = found.unwrap_or_else(|| TableSpec::sparse(table, 1));
        fn open<T: TargetNumber>(connect: &Connect, spec: &TableSpec, options: FollowOptions) -> Result<PyFeed, Error> {
            let feed = slackwater::feed::follow::<T>(connect, &spec.name, options)?;
            Ok(PyFeed::new(feed, spec, std::process::id()))
        }
        match spec.number {
            NumberType::F32 => open::<f32>(&connect, &spec, options),
            NumberType::F64 => open::<f64>(&connect, &spec, options),
            NumberType::I64 => open::<i64>(&connect, &spec, options),
        }
    });
    followed.map_err(|error| error::raise(py, error))
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
                    return Ok(changes);
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
    covers: Box<dyn Fn(u64) -> bool + Send + Sync>,
}

impl PyChanges {
    fn new<T: TargetNumber>(changes: Changes<T>) -> Self {
        Self {
            clock: changes.clock.0,
            shard: changes.shard,
            starts_over: changes.starts_over,
            keys: bytemuck::cast_slice(&changes.ids).to_vec(),
            rows: bytemuck::cast_slice(&changes.values).to_vec(),
            deleted: bytemuck::cast_slice(&changes.deleted).to_vec(),
            covers: Box::new(move |id| changes.covers(id)),
        }
    }
}

#[pymethods]
impl PyChanges {
    /// For each key, whether its row belongs to the shard of these changes.
    fn covers(&self, keys: Vec<u64>) -> Vec<bool> {
        keys.into_iter().map(|key| (self.covers)(key)).collect()
    }
}
