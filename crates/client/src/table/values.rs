//! The number types of tables, and the memory that a push takes its values from.

use std::sync::Arc;
use update::Number;
use wire::Payload;
use worker::PullTarget;

/// A number that tables can hold: `f32`, `f64` or `i64`. A program never needs to implement it.
///
/// ```
/// use slackwater::{Error, Keys, Table};
/// use slackwater::table::TargetNumber;
///
/// /// The first number of a table of any type.
/// fn first<T: TargetNumber>(table: &Table<T>) -> Result<T, Error> {
///     Ok(table.pull(&Keys::run(0..1))?.wait()?.values()[0])
/// }
/// # use slackwater::{RunSize, Session, TableSpec};
/// # use slackwater::policy::NumberType;
/// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
/// let table = session.table::<i64>(TableSpec::dense("t", 1, 1).number(NumberType::I64))?;
/// assert_eq!(first(&table)?, 0);
/// # session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
pub trait TargetNumber: Number {
    #[doc(hidden)]
    fn to_target(values: Vec<Self>) -> PullTarget;
    #[doc(hidden)]
    fn from_target(target: PullTarget) -> Vec<Self>;
}

macro_rules! target_numbers {
    ($($kind:ty => $variant:ident),*) => {$(
        impl TargetNumber for $kind {
            fn to_target(values: Vec<Self>) -> PullTarget {
                PullTarget::$variant(values)
            }
            fn from_target(target: PullTarget) -> Vec<Self> {
                match target {
                    PullTarget::$variant(values) => values,
                    // The pull wrote them into the caller's buffer.
                    PullTarget::Buffer(..) => Vec::new(),
                    _ => unreachable!("a table brings its own numbers"),
                }
            }
        }
    )*};
}
target_numbers!(f32 => F32, f64 => F64, i64 => I64);

/// Values to push. Owned memory is sent as it is. Borrowed memory is copied once, part by part. In
/// an embedded run, borrowed memory of more than 4 MiB is used in place, and the push returns when
/// every shard is done with it.
///
/// ```
/// # use slackwater::{Keys, RunSize, Session, TableSpec};
/// # use std::sync::Arc;
/// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
/// # let table = session.table::<f32>(TableSpec::dense("t", 2, 1))?;
/// table.push(&Keys::run(0..2), vec![1.0, 2.0])?.wait()?;                        // owned
/// table.push(&Keys::run(0..2), Arc::<[f32]>::from([1.0, 2.0]))?.wait()?;        // shared, and never changed
/// table.push(&Keys::run(0..2), &[1.0, 2.0])?.wait()?;                           // borrowed, and free again when the push returns
/// assert_eq!(table.pull(&Keys::run(0..2))?.wait()?.values(), [3.0, 6.0]);
/// # session.close()?;
/// # Ok::<(), slackwater::Error>(())
/// ```
pub enum PushValues<'a, T> {
    /// Memory that no thread changes any more.
    Owned(Payload),
    /// Memory that the caller keeps, and may change as soon as the push returns.
    Borrowed(&'a [T]),
}

impl<T: Number> From<Vec<T>> for PushValues<'_, T> {
    fn from(values: Vec<T>) -> Self {
        Self::Owned(Payload::new(values))
    }
}

impl<T: Number> From<Arc<[T]>> for PushValues<'_, T> {
    fn from(values: Arc<[T]>) -> Self {
        Self::Owned(Payload::new(values))
    }
}

impl<'a, T: Number> From<&'a [T]> for PushValues<'a, T> {
    fn from(values: &'a [T]) -> Self {
        Self::Borrowed(values)
    }
}

impl<'a, T: Number, const N: usize> From<&'a [T; N]> for PushValues<'a, T> {
    fn from(values: &'a [T; N]) -> Self {
        Self::Borrowed(values)
    }
}

impl<'a, T: Number> From<&'a Vec<T>> for PushValues<'a, T> {
    fn from(values: &'a Vec<T>) -> Self {
        Self::Borrowed(values)
    }
}
