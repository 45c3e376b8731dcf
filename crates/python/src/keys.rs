//! Key lists: which rows, and where the caller's rows are among them.

use crate::memory::{Kind, Memory, Use};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use slackwater::{Placement, TableShape, TableSpec};

/// Rows of a table, made ready once and used again and again: a list that comes back is not sent again.
#[pyclass(frozen, module = "slackwater")]
pub struct Keys {
    pub list: slackwater::Keys,
    /// Where each key of the caller's is in the list; nothing if they are in its order, each once.
    pub places: Option<Vec<u32>>,
    /// How many keys the caller gave.
    pub given: usize,
}

impl Keys {
    /// All rows of a dense table.
    pub fn whole(spec: &TableSpec) -> PyResult<Self> {
        let TableShape::Dense { rows } = spec.shape else {
            let text = format!("table '{}' has any key; say which rows: keys=[…]", spec.name);
            return Err(PyValueError::new_err(text));
        };
        Ok(Self { list: slackwater::Keys::run(0..rows), places: None, given: rows as usize })
    }

    /// The rows that `object` names: integers, in any order, some of them perhaps more than once.
    pub fn of(object: &Bound<'_, PyAny>, spec: &TableSpec) -> PyResult<Self> {
        let ids: Vec<u64> =
            if object.is_instance_of::<pyo3::types::PyList>() || object.is_instance_of::<pyo3::types::PyTuple>() {
                object.extract()?
            } else if let Some(run) = range_of(object, spec)? {
                return Ok(run);
            } else {
                ids_of(&Memory::of(object, Use::Read)?)?
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

/// A `range` of step 1 of an ordered or dense table, which takes no list at all.
fn range_of(object: &Bound<'_, PyAny>, spec: &TableSpec) -> PyResult<Option<Keys>> {
    if spec.shape.placement() != Placement::Ordered || object.get_type().name()? != "range" {
        return Ok(None);
    }
    let bound = |name: &str| object.getattr(name)?.extract::<u64>();
    if object.getattr("step")?.extract::<i64>()? != 1 {
        return Err(PyValueError::new_err("a range of keys must have a step of 1; pass a list"));
    }
    let (start, stop) = (bound("start")?, bound("stop")?);
    let stop = stop.max(start);
    Ok(Some(Keys { list: slackwater::Keys::run(start..stop), places: None, given: (stop - start) as usize }))
}

fn ids_of(memory: &Memory) -> PyResult<Vec<u64>> {
    let negative = || PyValueError::new_err("keys are 64-bit numbers, not negative");
    let unsigned = |id: i64| u64::try_from(id).map_err(|_| negative());
    // SAFETY: of each kind the numbers are what it says, and the caller holds the interpreter while they are read.
    unsafe {
        match memory.kind {
            Kind::U64 => Ok(memory.numbers::<u64>().to_vec()),
            Kind::I64 => memory.numbers::<i64>().iter().map(|id| unsigned(*id)).collect(),
            Kind::I32 => memory.numbers::<i32>().iter().map(|id| unsigned(i64::from(*id))).collect(),
            kind => Err(PyTypeError::new_err(format!("keys are integers, not {}", kind.name()))),
        }
    }
}

#[pymethods]
impl Keys {
    fn __len__(&self) -> usize {
        self.given
    }
}
