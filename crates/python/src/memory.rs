//! Zero-copy access to Python's arrays, by the buffer protocol (NumPy, `array`, `memoryview`) and
//! DLPack (PyTorch and others). Links neither NumPy nor PyTorch.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use slackwater::policy::NumberType;
use slackwater::table::{Backing, PullBuffer};
use std::ffi::{CStr, c_char, c_int, c_void};

/// The type of the numbers in an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementKind {
    F32,
    F64,
    I64,
    U64,
    /// The integers from here on cannot be in tables, but can be keys.
    I8,
    I16,
    I32,
    U8,
    U16,
    U32,
}

impl ElementKind {
    fn of(code: Code, bytes: usize) -> Option<Self> {
        match (code, bytes) {
            (Code::Float, 4) => Some(Self::F32),
            (Code::Float, 8) => Some(Self::F64),
            (Code::Signed, 8) => Some(Self::I64),
            (Code::Unsigned, 8) => Some(Self::U64),
            (Code::Signed, 4) => Some(Self::I32),
            (Code::Signed, 2) => Some(Self::I16),
            (Code::Signed, 1) => Some(Self::I8),
            (Code::Unsigned, 4) => Some(Self::U32),
            (Code::Unsigned, 2) => Some(Self::U16),
            (Code::Unsigned, 1) => Some(Self::U8),
            _ => None,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::I16 | Self::U16 => 2,
            Self::I8 | Self::U8 => 1,
        }
    }

    pub fn holds(self, number: NumberType) -> bool {
        matches!(
            (self, number),
            (Self::F32, NumberType::F32) | (Self::F64, NumberType::F64) | (Self::I64, NumberType::I64)
        )
    }

    /// The type's name in NumPy and PyTorch.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::I64 => "int64",
            Self::U64 => "uint64",
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::U8 => "uint8",
            Self::U16 => "uint16",
            Self::U32 => "uint32",
        }
    }
}

/// The name in NumPy and PyTorch of a table's number type.
pub fn numpy_name(number: NumberType) -> &'static str {
    match number {
        NumberType::F32 => "float32",
        NumberType::F64 => "float64",
        NumberType::I64 => "int64",
    }
}

/// The class of a number type.
#[derive(Clone, Copy)]
enum Code {
    Signed,
    Unsigned,
    Float,
}

/// Contiguous numbers of a Python object. The object is kept alive and exported until this is
/// dropped, so Python does not move or free the numbers. The program must not change them while a
/// call uses them.
#[pyclass(frozen)]
pub struct Memory {
    address: *mut u8,
    count: usize,
    pub kind: ElementKind,
    held: Held,
}

// SAFETY: `held` keeps the memory at `address` alive, and only the thread that runs a call of this
// module accesses it.
unsafe impl Send for Memory {}
// SAFETY: as above; only the call that the memory was made for writes through it.
unsafe impl Sync for Memory {}

/// The export that keeps the memory in place until it is dropped.
enum Held {
    Buffer(Box<Buffer>),
    Capsule { _capsule: Py<PyAny> },
}

/// `Py_buffer`. Its layout is unchanged since Python 3.0; it is in the stable ABI from 3.11 on.
#[repr(C)]
struct Buffer {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

const WRITABLE: c_int = 0x1;
const FORMAT: c_int = 0x4;
const C_CONTIGUOUS: c_int = 0x20 | 0x10 | 0x8;

unsafe extern "C" {
    fn PyObject_CheckBuffer(object: *mut ffi::PyObject) -> c_int;
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, view: *mut Buffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut Buffer);
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Held::Buffer(buffer) = &mut self.held {
            // SAFETY: the buffer was filled by `PyObject_GetBuffer` and is released once. A Python
            // object is dropped by a thread that holds the interpreter.
            unsafe { PyBuffer_Release(&raw mut **buffer) };
        }
    }
}

/// Whether a call reads or writes the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Read,
    Write,
}

impl Memory {
    /// The numbers of `object`. Fails if it is no array, or if the numbers are not contiguous, not
    /// in this process's memory, of an unsupported type, or read-only for a write.
    pub fn of(object: &Bound<'_, PyAny>, what_for: Use) -> PyResult<Self> {
        // SAFETY: the object is alive and the interpreter is held.
        let memory = if unsafe { PyObject_CheckBuffer(object.as_ptr()) } != 0 {
            Self::of_buffer(object, what_for)
        } else if object.hasattr("__dlpack__")? {
            Self::of_dlpack(object)
        } else {
            let name = object.get_type().name()?;
            let text = format!("expected an array or a tensor, not {name}; numpy.asarray makes one");
            Err(PyTypeError::new_err(text))
        }?;
        // Numbers must be aligned to their size. An empty array need not be.
        if memory.count > 0 && memory.address.addr() % memory.kind.bytes() != 0 {
            return Err(PyValueError::new_err("the array is not aligned; copy it first"));
        }
        Ok(memory)
    }

    fn of_buffer(object: &Bound<'_, PyAny>, what_for: Use) -> PyResult<Self> {
        // SAFETY: all zeros is a valid, unfilled `Py_buffer`.
        let mut buffer: Box<Buffer> = Box::new(unsafe { std::mem::zeroed() });
        let flags = C_CONTIGUOUS | FORMAT | if what_for == Use::Write { WRITABLE } else { 0 };
        // SAFETY: both are alive, and the interpreter is held.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *buffer, flags) } != 0 {
            let reason = PyErr::take(object.py()).map(|error| error.value(object.py()).to_string()).unwrap_or_default();
            let want = if what_for == Use::Write { "contiguous and writable" } else { "contiguous" };
            let text = format!("the array must be {want} ({reason}); numpy.ascontiguousarray makes a copy that is");
            return Err(PyValueError::new_err(text));
        }
        let format = match buffer.format.is_null() {
            true => b"B".as_slice(),
            // SAFETY: a format that is not null ends with a zero, and lives as long as the buffer.
            false => unsafe { CStr::from_ptr(buffer.format) }.to_bytes(),
        };
        let code = match format
            .strip_prefix(b"<")
            .or(format.strip_prefix(b"="))
            .or(format.strip_prefix(b"@"))
            .unwrap_or(format)
        {
            b"f" | b"d" => Some(Code::Float),
            b"b" | b"h" | b"i" | b"l" | b"q" => Some(Code::Signed),
            b"B" | b"H" | b"I" | b"L" | b"Q" => Some(Code::Unsigned),
            _ => None,
        };
        let kind = code.and_then(|code| ElementKind::of(code, buffer.itemsize as usize));
        let named = String::from_utf8_lossy(format).into_owned();
        let (address, bytes) = (buffer.buf.cast::<u8>(), buffer.len as usize);
        // Construct before anything can fail, so that dropping it releases the buffer.
        let memory = Self { address, count: 0, kind: kind.unwrap_or(ElementKind::F32), held: Held::Buffer(buffer) };
        let kind = kind.ok_or_else(|| unusable(&named))?;
        Ok(Self::with_count(memory, bytes / kind.bytes()))
    }

    fn with_count(mut self, count: usize) -> Self {
        self.count = count;
        self
    }

    fn of_dlpack(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        // PyTorch does not export a tensor that requires a gradient, so export a detached view of
        // it.
        let wants_gradient = object.getattr("requires_grad").is_ok_and(|flag| flag.is_truthy().unwrap_or(false));
        let detached = if wants_gradient { Some(object.call_method0("detach")?) } else { None };
        let plain = detached.as_ref().unwrap_or(object);
        let on_host = |error: PyErr| {
            let text = format!("the tensor's memory cannot be used: {error}; pass a tensor on the CPU (tensor.cpu())");
            PyValueError::new_err(text)
        };
        let capsule = plain.call_method0("__dlpack__").map_err(on_host)?;
        let capsule = capsule.cast::<PyCapsule>()?;
        let pointer = capsule.pointer_checked(Some(c"dltensor"))?;
        // SAFETY: a capsule of this name holds a DLManagedTensor, which begins with a DLTensor; it
        // lives as long as the capsule, whose name we do not change, so that its own destructor
        // frees it.
        let tensor = unsafe { pointer.cast::<DlTensor>().as_ref() };
        if !matches!(tensor.device_type, HOST | PINNED) {
            return Err(PyValueError::new_err("the tensor is on a device; pass one on the CPU (tensor.cpu())"));
        }
        let dimensions = tensor.ndim.max(0) as usize;
        let list = |pointer: *const i64| match pointer.is_null() || dimensions == 0 {
            true => &[][..],
            // SAFETY: DLPack's shape and strides have `ndim` numbers.
            false => unsafe { std::slice::from_raw_parts(pointer, dimensions) },
        };
        let shape = list(tensor.shape);
        let strides = list(tensor.strides);
        if !is_contiguous(shape, strides) {
            return Err(PyValueError::new_err(
                "the tensor must be contiguous; tensor.contiguous() makes a copy that is",
            ));
        }
        let code = match tensor.code {
            0 => Some(Code::Signed),
            1 => Some(Code::Unsigned),
            2 => Some(Code::Float),
            _ => None,
        };
        let single = tensor.lanes == 1;
        let kind = code.filter(|_| single).and_then(|code| ElementKind::of(code, usize::from(tensor.bits) / 8));
        let kind =
            kind.ok_or_else(|| unusable(&object.getattr("dtype").map(|name| name.to_string()).unwrap_or_default()))?;
        let count = shape.iter().map(|length| *length as usize).product();
        // SAFETY: DLPack defines that the numbers begin at this address.
        let address = unsafe { tensor.data.cast::<u8>().add(tensor.byte_offset as usize) };
        Ok(Self { address, count, kind, held: Held::Capsule { _capsule: capsule.clone().into_any().unbind() } })
    }

    /// How many numbers the array has.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The numbers, as a slice of their type.
    ///
    /// # Safety
    /// `T` is the type of `kind`, and Python does not change the memory while the slice is used.
    pub unsafe fn numbers<T>(&self) -> &[T] {
        debug_assert_eq!(size_of::<T>(), self.kind.bytes());
        if self.count == 0 {
            return &[];
        }
        // SAFETY: `count` numbers lie there, and `of` checked the alignment; the caller guarantees
        // the rest.
        unsafe { std::slice::from_raw_parts(self.address.cast::<T>(), self.count) }
    }

    /// The numbers, as a slice to write.
    ///
    /// # Safety
    /// As for [`Memory::numbers`]. The memory was made for [`Use::Write`], and no other code reads
    /// or writes it meanwhile.
    #[expect(clippy::mut_from_ref, reason = "the memory is Python's, and the caller guarantees exclusive use")]
    pub unsafe fn numbers_mut<T>(&self) -> &mut [T] {
        if self.count == 0 {
            return &mut [];
        }
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast::<T>(), self.count) }
    }
}

/// `DLTensor` of DLPack, with its device and type fields inlined.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// DLPack's device types of host memory, and of host memory that is pinned for a GPU.
const HOST: i32 = 1;
const PINNED: i32 = 3;

/// Whether the tensor is contiguous, row after row. No strides means that it is.
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    if strides.is_empty() || shape.contains(&0) {
        return true;
    }
    let mut expected = 1;
    for (length, stride) in shape.iter().zip(strides).rev() {
        if *length != 1 && *stride != expected {
            return false;
        }
        expected *= length;
    }
    true
}

/// The exception for an unsupported number type.
fn unusable(kind: &str) -> PyErr {
    let text = format!(
        "numbers of type '{kind}' are neither rows of a table, which are float32, float64 or int64, nor keys, which are integers"
    );
    PyTypeError::new_err(text)
}

/// Memory that a pull writes to. Keeps the Python object alive.
pub struct Target(pub Py<Memory>);

impl PullBuffer for Target {
    fn bytes_mut(&mut self) -> &mut [u8] {
        let memory = self.0.get();
        if memory.count == 0 {
            return &mut [];
        }
        // SAFETY: the memory was made for writing, is alive, and only this pull writes it until its
        // ticket is done.
        unsafe { std::slice::from_raw_parts_mut(memory.address, memory.count * memory.kind.bytes()) }
    }
}

/// Memory that a push is sent from without a copy. Keeps the Python object alive.
pub struct Lent(pub Py<Memory>);

impl Backing for Lent {
    fn bytes(&self) -> &[u8] {
        let memory = self.0.get();
        if memory.count == 0 {
            return &[];
        }
        // SAFETY: the memory is alive, and the program does not change it until its ticket is done.
        unsafe { std::slice::from_raw_parts(memory.address, memory.count * memory.kind.bytes()) }
    }
}
