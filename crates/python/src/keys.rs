//! Key lists for Python: the table's order of the caller's keys, and where each of them is in it.

use crate::memory::{ElementKind, Memory, Use};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyList, PyRange, PyTuple};
use slackwater::TableSpec;
use slackwater::policy::{Placement, TableShape};

/// A key list of a table, made once to be used for many pushes and pulls. The servers keep it, so a
/// repeated list is not sent again. `Table.keys` returns one; `len()` is how many keys were given.
///
/// >>> import numpy, slackwater
/// >>> run = slackwater.init()
/// >>> table = slackwater.Table("of keys", updater="sum", slack=0)
/// >>> keys = table.keys([42, 7])
/// >>> len(keys)
/// 2
/// >>> table.push(numpy.array([1, 2], "float32"), keys)
/// >>> table.pull(keys).tolist()
/// [1.0, 2.0]
/// >>> slackwater.shutdown()
#[pyclass(name = "Keys", frozen, module = "slackwater")]
pub struct PyKeys {
    pub list: slackwater::Keys,
    /// Where each of the caller's keys is in the list; `None` if they are in the table's order,
    /// each once.
    pub places: Option<Vec<u32>>,
    /// How many keys the caller gave.
    pub given: usize,
}

impl PyKeys {
    /// All rows of a dense table.
    pub fn whole(spec: &TableSpec) -> PyResult<Self> {
        let TableShape::Dense { rows } = spec.shape else {
            let text = format!("table '{}' is sparse: it can have any key; say which rows: keys=[…]", spec.name);
            return Err(PyValueError::new_err(text));
        };
        Ok(Self { list: slackwater::Keys::run(0..rows), places: None, given: rows as usize })
    }

    /// Makes the key list of a Python object: integers in any order, possibly repeated.
    pub fn of(object: &Bound<'_, PyAny>, spec: &TableSpec) -> PyResult<Self> {
        let ids: Vec<u64> = if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
            listed(object)?
        } else if object.is_instance_of::<PyRange>() {
            if let Some(run) = run_of(object, spec)? {
                return Ok(run);
            }
            listed(object)?
        } else if object.is_instance_of::<PyInt>() {
            vec![id_of(object)?]
        } else {
            ids_of(&memory_of(object)?)?
        };
        let placement = spec.shape.placement();
        let is_run =
            placement == Placement::Ordered && ids.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
        if let (true, Some(first)) = (is_run, ids.first())
            && let Some(end) = first.checked_add(ids.len() as u64)
        {
            return Ok(Self { list: slackwater::Keys::run(*first..end), places: None, given: ids.len() });
        }
        let mut places = Vec::new();
        let list = slackwater::Keys::with_places(placement, &ids, &mut places);
        let in_order = places.iter().enumerate().all(|(index, place)| index == *place as usize);
        Ok(Self { list, places: (!in_order).then_some(places), given: ids.len() })
    }
}

/// Converts a `range` of step 1, of an ordered or dense table, to a run of keys without a list.
fn run_of(object: &Bound<'_, PyAny>, spec: &TableSpec) -> PyResult<Option<PyKeys>> {
    let step = object.getattr("step")?;
    if spec.shape.placement() != Placement::Ordered || !step.eq(1)? || object.len()? == 0 {
        return Ok(None);
    }
    let start = id_of(&object.getattr("start")?)?;
    let stop = id_of(&object.getattr("stop")?)?;
    Ok(Some(PyKeys { list: slackwater::Keys::run(start..stop), places: None, given: (stop - start) as usize }))
}

/// The keys of a list, a tuple or a range.
fn listed(object: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    // Convert all at once; if that fails, one by one, to name the wrong one.
    if let Ok(ids) = object.extract() {
        return Ok(ids);
    }
    object.try_iter()?.map(|id| id_of(&id?)).collect()
}

/// Converts one Python integer to a key.
fn id_of(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    let name = object.get_type().name()?;
    if object.is_instance_of::<PyBool>() || !object.hasattr("__index__")? {
        return Err(PyTypeError::new_err(format!("keys are integers, not {name}")));
    }
    object.extract().map_err(|error: PyErr| match error.is_instance_of::<PyOverflowError>(object.py()) {
        true => no_key(&object.to_string()),
        false => error,
    })
}

fn no_key(id: &str) -> PyErr {
    PyValueError::new_err(format!("keys are 64-bit numbers, not negative; {id} is out of range"))
}

/// The memory that keys are read from. An array that is not contiguous is copied first.
fn memory_of(object: &Bound<'_, PyAny>) -> PyResult<Memory> {
    Memory::of(object, Use::Read).or_else(|error: PyErr| {
        let py = object.py();
        if error.is_instance_of::<PyTypeError>(py) {
            let name = object.get_type().name()?;
            let text = format!("keys are integers: a list, a range, an array or a tensor of them, or one; not {name}");
            let wrong = PyTypeError::new_err(text);
            wrong.set_cause(py, Some(error));
            return Err(wrong);
        }
        // PyTorch (`contiguous`) and NumPy (`copy`) make contiguous copies.
        let copy = object.call_method0("contiguous").or_else(|_| object.call_method0("copy"));
        copy.and_then(|copy| Memory::of(&copy, Use::Read)).map_err(|_| error)
    })
}

/// Reads keys from an array of integers of any type.
fn ids_of(memory: &Memory) -> PyResult<Vec<u64>> {
    fn ids<T: Copy + Into<i128>>(numbers: &[T]) -> PyResult<Vec<u64>> {
        let id = |number: &T| u64::try_from((*number).into()).map_err(|_| no_key(&(*number).into().to_string()));
        numbers.iter().map(id).collect()
    }
    if memory.count() == 0 {
        // Of any type: NumPy makes an empty list an array of float64.
        return Ok(Vec::new());
    }
    // SAFETY: the numbers have the type that `kind` says, and the caller holds the interpreter
    // while they are read.
    unsafe {
        match memory.kind {
            ElementKind::U64 => Ok(memory.numbers::<u64>().to_vec()),
            ElementKind::I64 => ids(memory.numbers::<i64>()),
            ElementKind::I32 => ids(memory.numbers::<i32>()),
            ElementKind::I16 => ids(memory.numbers::<i16>()),
            ElementKind::I8 => ids(memory.numbers::<i8>()),
            ElementKind::U32 => ids(memory.numbers::<u32>()),
            ElementKind::U16 => ids(memory.numbers::<u16>()),
            ElementKind::U8 => ids(memory.numbers::<u8>()),
            kind => Err(PyTypeError::new_err(format!("keys are integers, not {}", kind.name()))),
        }
    }
}

#[pymethods]
impl PyKeys {
    fn __len__(&self) -> usize {
        self.given
    }
}
