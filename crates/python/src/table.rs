//! Tables for Python: pushes from Python's arrays, and pulls into them.

use crate::error::{self, TableError};
use crate::feed::PyFeed;
use crate::keys::PyKeys;
use crate::leases::PyDataLease;
use crate::memory::{Lent, Memory, Target, Use, numpy_name};
use crate::session::check_process;
use crate::ticket::{Direct, Pulling, PyTicket, Scattered};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use slackwater::data_leases::DataLease;
use slackwater::feed::FollowOptions;
use slackwater::policy::{Codecs, Combine, Initial, NumberType, Reduce};
use slackwater::table::{
    Payload, PullInto, PullOptions, PushOptions, PushPullOptions, PushValues, ScanOptions, TargetNumber,
};
use slackwater::{Consistency, Error, Session, TableSpec, UpdaterSpec};
use std::borrow::Cow;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The settings of a table, as `slackwater/_table.py` passes them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct PyTableSpec {
    name: String,
    dtype: String,
    rows: Option<u64>,
    width: u32,
    updater: String,
    settings: HashMap<String, f64>,
    slack: Option<u64>,
    eager: bool,
    combine: String,
    up: Vec<String>,
    down: Vec<String>,
    initial: Option<(String, u64, f64)>,
    cached_rows: Option<u64>,
    ordered: bool,
}

impl PyTableSpec {
    fn build(self) -> PyResult<TableSpec> {
        let updater = updater(&self.updater, self.settings)?;
        let spec = match self.rows {
            Some(rows) => TableSpec::dense(&self.name, rows, self.width),
            None => TableSpec::sparse(&self.name, self.width),
        };
        let number = match self.dtype.as_str() {
            "float32" => NumberType::F32,
            "float64" => NumberType::F64,
            "int64" => NumberType::I64,
            other => {
                return Err(PyValueError::new_err(format!("a table holds float32, float64 or int64, not {other}")));
            }
        };
        let consistency = match self.slack {
            Some(slack) => Consistency::Bounded { slack, eager: self.eager },
            None => Consistency::Unbounded,
        };
        let combine = match self.combine.as_str() {
            "each" => Combine::Each,
            "sum" => Combine::Clock(Reduce::Sum),
            "mean" => Combine::Clock(Reduce::Mean),
            other => {
                let text = format!("combine='{other}' is none of 'each', 'sum' and 'mean'");
                return Err(PyValueError::new_err(text));
            }
        };
        let initial = match self.initial {
            None => Initial::Zero,
            Some((kind, seed, scale)) if kind == "uniform" => Initial::Uniform { seed, scale },
            Some((kind, seed, scale)) if kind == "normal" => Initial::Normal { seed, scale },
            Some((kind, ..)) => {
                return Err(PyValueError::new_err(format!("initial='{kind}' is neither 'uniform' nor 'normal'")));
            }
        };
        let codecs = Codecs { up: self.up, down: self.down };
        let spec = spec.number(number).updater(updater).consistency(consistency).combine(combine).initial(initial);
        let spec = spec.codecs(codecs);
        let spec = if self.ordered { spec.ordered() } else { spec };
        Ok(self.cached_rows.map_or(spec.clone(), |rows| spec.cached(rows)))
    }
}

/// The updater of that name, with default settings for those not given.
fn updater(name: &str, mut given: HashMap<String, f64>) -> PyResult<UpdaterSpec> {
    let mut setting = |name: &str, usual: f64| given.remove(name).unwrap_or(usual);
    let made = match name {
        "sum" => UpdaterSpec::Sum,
        "assign" => UpdaterSpec::Assign,
        "sgd" => UpdaterSpec::Sgd { rate: setting("rate", 0.01) },
        "momentum" => UpdaterSpec::Momentum { rate: setting("rate", 0.01), momentum: setting("momentum", 0.9) },
        "adagrad" => UpdaterSpec::Adagrad { rate: setting("rate", 0.05), epsilon: setting("epsilon", 1e-8) },
        "adam" => UpdaterSpec::Adam {
            rate: setting("rate", 0.001),
            beta1: setting("beta1", 0.9),
            beta2: setting("beta2", 0.999),
            epsilon: setting("epsilon", 1e-8),
        },
        "ftrl" => UpdaterSpec::Ftrl {
            rate: setting("rate", 0.05),
            beta: setting("beta", 1.0),
            l1: setting("l1", 0.0),
            l2: setting("l2", 0.0),
        },
        "proximal" => UpdaterSpec::Proximal { rate: setting("rate", 0.05), l1: setting("l1", 0.0) },
        other => {
            let text = format!(
                "no updater is called '{other}': there are sum, assign, sgd, momentum, adagrad, adam, ftrl and proximal"
            );
            return Err(PyValueError::new_err(text));
        }
    };
    match given.keys().min() {
        None => Ok(made),
        Some(unknown) => Err(PyValueError::new_err(format!("the updater '{name}' has no setting '{unknown}'"))),
    }
}

/// A table of any number type.
enum Numbers {
    F32(slackwater::Table<f32>),
    F64(slackwater::Table<f64>),
    I64(slackwater::Table<i64>),
}

/// Runs the same code for each number type.
macro_rules! with_table {
    ($numbers:expr, $table:ident => $work:expr) => {
        match $numbers {
            Numbers::F32($table) => $work,
            Numbers::F64($table) => $work,
            Numbers::I64($table) => $work,
        }
    };
}

/// A table of the run.
#[pyclass(name = "Table", frozen, module = "slackwater")]
pub struct PyTable {
    numbers: Numbers,
    process: u32,
}

impl PyTable {
    /// Opens the table's change feed.
    pub fn follow(&self, session: &Session, options: FollowOptions) -> Result<PyFeed, Error> {
        with_table!(&self.numbers, table => {
            Ok(PyFeed::new(session.follow_opts(table, options)?.into_bytes(), self.process))
        })
    }

    /// Makes the table, or finds it.
    pub fn open(py: Python<'_>, session: &Session, spec: PyTableSpec, process: u32) -> PyResult<Self> {
        let spec = spec.build()?;
        let made = py.detach(|| match spec.number {
            NumberType::F32 => session.table(spec).map(Numbers::F32),
            NumberType::F64 => session.table(spec).map(Numbers::F64),
            NumberType::I64 => session.table(spec).map(Numbers::I64),
        });
        Ok(Self { numbers: made.map_err(|error| error::raise(py, error))?, process })
    }

    fn spec(&self) -> &TableSpec {
        with_table!(&self.numbers, table => table.spec())
    }

    fn name(&self) -> &str {
        &self.spec().name
    }

    /// The memory of an array for the rows of `keys`. Fails if its type or size does not fit.
    fn memory(&self, array: &Bound<'_, PyAny>, keys: &PyKeys, what_for: Use) -> PyResult<Memory> {
        self.memory_of_rows(array, keys, self.spec().width as usize, what_for)
    }

    /// As `memory`, for rows of `width` numbers.
    fn memory_of_rows(&self, array: &Bound<'_, PyAny>, keys: &PyKeys, width: usize, what_for: Use) -> PyResult<Memory> {
        let memory = Memory::of(array, what_for)?;
        let name = &self.spec().name;
        let number = self.spec().number;
        if !memory.kind.holds(number) {
            let wanted = numpy_name(number);
            let found = memory.kind.name();
            let text = format!("table '{name}' holds {wanted}, and the array {found}; convert one of them");
            return Err(PyTypeError::new_err(text));
        }
        if memory.count() != keys.given.saturating_mul(width) {
            let rows = keys.given;
            let found = memory.count();
            let text = format!(
                "{rows} rows of {width} of table '{name}' are {} numbers, and the array has {found}",
                rows * width
            );
            return Err(PyValueError::new_err(text));
        }
        Ok(memory)
    }

    /// How many numbers a row's state has. Known for every updater, because Python cannot register
    /// custom ones.
    fn row_state_width(&self) -> usize {
        with_table!(&self.numbers, table => table.row_state_width()).unwrap_or(self.spec().width as usize)
    }

    /// The key list of an argument; all rows of a dense table if it is None.
    fn rows<'k>(&self, keys: Option<&'k Bound<'_, PyAny>>) -> PyResult<Chosen<'k>> {
        match keys {
            None => PyKeys::whole(self.spec()).map(Chosen::Own),
            Some(given) => match given.cast::<PyKeys>() {
                Ok(made) => Ok(Chosen::Made(made.get())),
                Err(_) => PyKeys::of(given, self.spec()).map(Chosen::Own),
            },
        }
    }
}

/// A key list made for this call, or by `Table.keys` before.
enum Chosen<'k> {
    Own(PyKeys),
    Made(&'k PyKeys),
}

impl std::ops::Deref for Chosen<'_> {
    type Target = PyKeys;
    fn deref(&self) -> &PyKeys {
        match self {
            Self::Own(keys) => keys,
            Self::Made(keys) => keys,
        }
    }
}

/// The caller's rows in the table's order: borrowed if they are in that order already, otherwise
/// copied, with rows of the same key added up.
///
/// # Safety
/// `T` is the type of the memory's numbers, and no code changes them while the result is used.
unsafe fn in_order<'m, T: TargetNumber>(memory: &'m Memory, keys: &PyKeys, width: usize) -> Cow<'m, [T]> {
    // SAFETY: the caller guarantees it.
    let given = unsafe { memory.numbers::<T>() };
    let Some(places) = &keys.places else { return Cow::Borrowed(given) };
    let mut rows = vec![T::ZERO; keys.list.len() * width];
    for (row, place) in given.chunks_exact(width).zip(places) {
        let sum = &mut rows[*place as usize * width..][..width];
        sum.iter_mut().zip(row).for_each(|(sum, number)| *sum = sum.plus(*number));
    }
    Cow::Owned(rows)
}

fn push<T: TargetNumber>(
    table: &slackwater::Table<T>,
    memory: &Memory,
    keys: &PyKeys,
    options: PushOptions<'_>,
) -> Result<slackwater::Ticket<()>, Error> {
    table.push_opts(&keys.list, ordered_values(table, memory, keys), options)
}

/// The values to push, in the table's order.
fn ordered_values<'m, T: TargetNumber>(
    table: &slackwater::Table<T>,
    memory: &'m Memory,
    keys: &PyKeys,
) -> PushValues<'m, T> {
    // SAFETY: `PyTable::memory` checked that the memory holds the table's number type; the call
    // reads it while it runs, and copies what it needs for longer.
    match unsafe { in_order::<T>(memory, keys, table.spec().width as usize) } {
        Cow::Borrowed(values) => PushValues::Borrowed(values),
        Cow::Owned(values) => values.into(),
    }
}

/// Sets row states, each key once, in the table's order.
fn set_rows<T: TargetNumber>(
    table: &slackwater::Table<T>,
    memory: &Memory,
    keys: &PyKeys,
    width: usize,
) -> Result<slackwater::Ticket<()>, Error> {
    // SAFETY: as in `ordered_values`.
    let given = unsafe { memory.numbers::<T>() };
    let Some(places) = &keys.places else { return table.set(&keys.list, given) };
    let mut rows = vec![T::ZERO; keys.list.len() * width];
    for (row, place) in given.chunks_exact(width).zip(places) {
        rows[*place as usize * width..][..width].copy_from_slice(row);
    }
    table.set(&keys.list, rows)
}

/// Begins a pull into `out`: in place, or through a copy if the keys are in another order.
fn pull<T: TargetNumber>(table: &slackwater::Table<T>, keys: &PyKeys, out: Target) -> Result<Box<dyn Pulling>, Error> {
    match &keys.places {
        None => {
            let into = Some(PullInto::Buffer(Box::new(out)));
            Ok(Box::new(Direct(table.pull_opts(&keys.list, PullOptions { into, ..PullOptions::default() })?)))
        }
        Some(places) => {
            let ticket = table.pull(&keys.list)?;
            let width = table.spec().width as usize;
            Ok(Box::new(Scattered { ticket, places: places.clone(), width, target: out }))
        }
    }
}

fn push_pull<T: TargetNumber>(
    table: &slackwater::Table<T>,
    memory: &Memory,
    keys: &PyKeys,
    examples: u64,
    out: Target,
) -> Result<Box<dyn Pulling>, Error> {
    let values = ordered_values(table, memory, keys);
    let options = PushPullOptions { examples, ..PushPullOptions::default() };
    match &keys.places {
        None => {
            let into = Some(PullInto::Buffer(Box::new(out)));
            let options = PushPullOptions { into, ..options };
            Ok(Box::new(Direct(table.push_pull_opts(&keys.list, values, options)?)))
        }
        Some(places) => {
            let ticket = table.push_pull_opts(&keys.list, values, options)?;
            let width = table.spec().width as usize;
            Ok(Box::new(Scattered { ticket, places: places.clone(), width, target: out }))
        }
    }
}

#[pymethods]
impl PyTable {
    /// Makes a key list to be used for many pushes and pulls.
    fn keys(&self, keys: &Bound<'_, PyAny>) -> PyResult<PyKeys> {
        PyKeys::of(keys, self.spec())
    }

    #[pyo3(signature = (values, keys, examples, lease = None))]
    fn push(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        keys: Option<&Bound<'_, PyAny>>,
        examples: u64,
        lease: Option<&Bound<'_, PyDataLease>>,
    ) -> PyResult<PyTicket> {
        check_process(self.process)?;
        let keys = self.rows(keys)?;
        let memory = self.memory(values, &keys, Use::Read)?;
        let submit = |lease: Option<&DataLease>| {
            let options = PushOptions { examples, lease, ..PushOptions::default() };
            with_table!(&self.numbers, table => push(table, &memory, &keys, options))
        };
        let ticket = match lease.map(Bound::get) {
            None => py.detach(|| submit(None)),
            Some(lease) => {
                let pushed = py.detach(|| lease.with(|lease| submit(Some(lease))));
                pushed.ok_or_else(|| lease.is_over())?
            }
        };
        Ok(PyTicket::push(ticket.map_err(|error| error::raise(py, error))?, self.name(), self.process))
    }

    /// As `push`, without a copy: the program must not change the memory until the ticket is done.
    fn push_lent(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        keys: Option<&Bound<'_, PyAny>>,
        examples: u64,
    ) -> PyResult<PyTicket> {
        check_process(self.process)?;
        let keys = self.rows(keys)?;
        if keys.places.is_some() {
            return Err(TableError::new_err("push_lent takes keys in the table's order, each once"));
        }
        let payload = Payload::new(Lent(Py::new(py, self.memory(values, &keys, Use::Read)?)?));
        let options = PushOptions { examples, ..PushOptions::default() };
        let ticket = py.detach(
            || with_table!(&self.numbers, table => table.push_opts(&keys.list, PushValues::Owned(payload), options)),
        );
        Ok(PyTicket::push(ticket.map_err(|error| error::raise(py, error))?, self.name(), self.process))
    }

    fn pull(&self, py: Python<'_>, out: &Bound<'_, PyAny>, keys: Option<&Bound<'_, PyAny>>) -> PyResult<PyTicket> {
        check_process(self.process)?;
        let keys = self.rows(keys)?;
        let target = Target(Py::new(py, self.memory(out, &keys, Use::Write)?)?);
        let pulling = py.detach(|| with_table!(&self.numbers, table => pull(table, &keys, target)));
        let pulling = pulling.map_err(|error| error::raise(py, error))?;
        Ok(PyTicket::pull(pulling, out.clone().unbind(), self.name(), self.process))
    }

    fn push_pull(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        keys: Option<&Bound<'_, PyAny>>,
        examples: u64,
    ) -> PyResult<PyTicket> {
        check_process(self.process)?;
        let keys = self.rows(keys)?;
        let memory = self.memory(values, &keys, Use::Read)?;
        let target = Target(Py::new(py, self.memory(out, &keys, Use::Write)?)?);
        let pulling =
            py.detach(|| with_table!(&self.numbers, table => push_pull(table, &memory, &keys, examples, target)));
        let pulling = pulling.map_err(|error| error::raise(py, error))?;
        Ok(PyTicket::pull(pulling, out.clone().unbind(), self.name(), self.process))
    }

    /// Reads every row from the servers, bypassing the cache. Returns the keys as bytes of uint64,
    /// the values as bytes of the table's number type, and a clock: every update of earlier clocks
    /// is in.
    fn pull_all(&self, py: Python<'_>) -> PyResult<(Vec<u8>, Vec<u8>, u64)> {
        check_process(self.process)?;
        fn all<T: TargetNumber>(table: &slackwater::Table<T>) -> Result<(Vec<u8>, Vec<u8>, u64), Error> {
            let rows = table.scan(..)?.wait()?;
            let bytes = |numbers: &[u8]| numbers.to_vec();
            Ok((bytes(bytemuck::cast_slice(rows.ids())), bytes(bytemuck::cast_slice(rows.values())), rows.clock().0))
        }
        let all = py.detach(|| with_table!(&self.numbers, table => all(table)));
        all.map_err(|error| error::raise(py, error))
    }

    /// The shortest of `times` pushes of all rows by the Rust library, in seconds: the baseline of
    /// `slackwater.bench`.
    fn time_push(&self, py: Python<'_>, values: &Bound<'_, PyAny>, times: u32) -> PyResult<f64> {
        check_process(self.process)?;
        let keys = self.rows(None)?;
        let memory = self.memory(values, &keys, Use::Read)?;
        let best = py.detach(|| {
            let once = || {
                let begin = Instant::now();
                with_table!(&self.numbers, table => push(table, &memory, &keys, PushOptions::default())?.wait()?);
                Ok(begin.elapsed())
            };
            (0..times).map(|_| once()).try_fold(Duration::MAX, |best, taken| taken.map(|taken| best.min(taken)))
        });
        best.map(|best| best.as_secs_f64()).map_err(|error| error::raise(py, error))
    }

    /// As `time_push`, for pulls into reused memory.
    fn time_pull(&self, py: Python<'_>, times: u32) -> PyResult<f64> {
        check_process(self.process)?;
        let keys = self.rows(None)?;
        fn time<T: TargetNumber>(table: &slackwater::Table<T>, keys: &PyKeys, times: u32) -> Result<Duration, Error> {
            let mut target = vec![T::ZERO; keys.list.len() * table.spec().width as usize];
            // Touch the memory first, so that page faults are not in the measured time.
            target.iter_mut().for_each(|number| *number = std::hint::black_box(T::ZERO));
            let mut best = Duration::MAX;
            for _ in 0..times {
                let begin = Instant::now();
                let options = PullOptions { into: Some(target.into()), ..PullOptions::default() };
                target = table.pull_opts(&keys.list, options)?.wait()?.into_values();
                best = best.min(begin.elapsed());
            }
            Ok(best)
        }
        let best = py.detach(|| with_table!(&self.numbers, table => time(table, &keys, times)));
        best.map(|best| best.as_secs_f64()).map_err(|error| error::raise(py, error))
    }

    /// Reads the state of every row: its weights followed by its updater's state. Returns the keys
    /// as bytes of uint64, the states as bytes of the table's number type, and how many numbers a
    /// state has.
    fn pull_all_row_state(&self, py: Python<'_>) -> PyResult<(Vec<u8>, Vec<u8>, usize)> {
        check_process(self.process)?;
        fn all<T: TargetNumber>(table: &slackwater::Table<T>) -> Result<(Vec<u8>, Vec<u8>), Error> {
            let rows = table.scan_opts(.., ScanOptions { row_state: true, ..ScanOptions::default() })?.wait()?;
            let bytes = |numbers: &[u8]| numbers.to_vec();
            Ok((bytes(bytemuck::cast_slice(rows.ids())), bytes(bytemuck::cast_slice(rows.values()))))
        }
        let all = py.detach(|| with_table!(&self.numbers, table => all(table)));
        let (keys, rows) = all.map_err(|error| error::raise(py, error))?;
        Ok((keys, rows, self.row_state_width()))
    }

    /// Sets row states in place of the existing rows.
    fn set_rows(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        keys: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyTicket> {
        check_process(self.process)?;
        let keys = self.rows(keys)?;
        let width = self.row_state_width();
        if keys.given > keys.list.len() {
            let text = format!("a key of table '{}' comes more than once; give each row once", self.name());
            return Err(PyValueError::new_err(text));
        }
        let memory = self.memory_of_rows(values, &keys, width, Use::Read)?;
        let ticket = py.detach(|| with_table!(&self.numbers, table => set_rows(table, &memory, &keys, width)));
        Ok(PyTicket::push(ticket.map_err(|error| error::raise(py, error))?, self.name(), self.process))
    }

    /// Deletes the rows of these keys.
    fn delete(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<PyTicket> {
        check_process(self.process)?;
        let keys = self.rows(Some(keys))?;
        let ticket = py.detach(|| with_table!(&self.numbers, table => table.delete(&keys.list)));
        Ok(PyTicket::push(ticket.map_err(|error| error::raise(py, error))?, self.name(), self.process))
    }

    /// Changes the learning rate, for updates from this worker's clock on.
    fn set_rate(&self, py: Python<'_>, rate: f64) -> PyResult<()> {
        check_process(self.process)?;
        let set = py.detach(|| with_table!(&self.numbers, table => table.set_rate(rate).map(drop)));
        set.map_err(|error| TableError::new_err(error.to_string()))
    }
}
