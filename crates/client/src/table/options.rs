//! Options of the operations on a table: one struct with a `Default` for each operation.

use super::TargetNumber;
use crate::Tickets;
use crate::data_leases::DataLease;
use worker::{PullBuffer, PullTarget};

/// Options of a push: see [`Table::push_opts`](crate::Table::push_opts).
///
/// ```
/// use slackwater::table::PushOptions;
///
/// let options = PushOptions { examples: 32, ..PushOptions::default() };
/// assert!(options.examples == 32 && options.lease.is_none());
/// ```
#[derive(Clone, Debug)]
pub struct PushOptions<'a> {
    /// How many examples the values were computed from: 1 unless set.
    pub examples: u64,
    /// The data lease that the values were computed from. If a worker is lost and another processes
    /// the lease again, each of its pushes still counts once. For that every pass over a lease must
    /// push the same keys in the same order, to each table: see
    /// [`DataLeases`](crate::data_leases::DataLeases).
    pub lease: Option<&'a DataLease>,
    /// Tickets to wait for before the worker sends the push. None unless set.
    pub after: Tickets,
}

impl Default for PushOptions<'_> {
    fn default() -> Self {
        Self { examples: 1, lease: None, after: Tickets::none() }
    }
}

/// Options of a pull: see [`Table::pull_opts`](crate::Table::pull_opts).
///
/// ```
/// use slackwater::table::PullOptions;
///
/// let options = PullOptions { into: Some(vec![0f32; 6].into()), ..PullOptions::default() };
/// assert!(!options.row_state);
/// ```
#[derive(Debug)]
pub struct PullOptions<T> {
    /// The caller's memory for the rows, of exactly their size. The table allocates its own unless
    /// set.
    pub into: Option<PullInto<T>>,
    /// Tickets to wait for before the worker sends the pull. None unless set.
    pub after: Tickets,
    /// Whether to pull row state: each row's weights followed by its updater's state, in the form
    /// that [`Table::set`](crate::Table::set) takes. Such a pull bypasses the cache and the codecs,
    /// and cannot write into the caller's memory.
    pub row_state: bool,
}

impl<T> Default for PullOptions<T> {
    fn default() -> Self {
        Self { into: None, after: Tickets::none(), row_state: false }
    }
}

/// Options of a push_pull: see [`Table::push_pull_opts`](crate::Table::push_pull_opts).
///
/// ```
/// use slackwater::table::PushPullOptions;
///
/// let options = PushPullOptions { examples: 32, ..PushPullOptions::<f32>::default() };
/// assert!(options.examples == 32 && options.into.is_none());
/// ```
#[derive(Debug)]
pub struct PushPullOptions<T> {
    /// How many examples the values were computed from: 1 unless set.
    pub examples: u64,
    /// The caller's memory for the rows, of exactly their size. The table allocates its own unless
    /// set.
    pub into: Option<PullInto<T>>,
    /// Tickets to wait for before the worker sends the push_pull. None unless set.
    pub after: Tickets,
}

impl<T> Default for PushPullOptions<T> {
    fn default() -> Self {
        Self { examples: 1, into: None, after: Tickets::none() }
    }
}

/// Options of a set: see [`Table::set_opts`](crate::Table::set_opts).
///
/// ```
/// use slackwater::Tickets;
/// use slackwater::table::SetOptions;
///
/// let at_once = SetOptions { after: Tickets::none() };    // as `SetOptions::default()`
/// # drop(at_once);
/// ```
#[derive(Clone, Debug, Default)]
pub struct SetOptions {
    /// Tickets to wait for before the worker sends the rows. None unless set.
    pub after: Tickets,
}

/// Options of a delete: see [`Table::delete_opts`](crate::Table::delete_opts).
///
/// ```
/// use slackwater::Tickets;
/// use slackwater::table::DeleteOptions;
///
/// let at_once = DeleteOptions { after: Tickets::none() };    // as `DeleteOptions::default()`
/// # drop(at_once);
/// ```
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// Tickets to wait for before the worker sends the deletion. None unless set.
    pub after: Tickets,
}

/// Options of a scan: see [`Table::scan_opts`](crate::Table::scan_opts).
///
/// ```
/// use slackwater::table::ScanOptions;
///
/// let options = ScanOptions { row_state: true, ..ScanOptions::default() };
/// # drop(options);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ScanOptions {
    /// Tickets to wait for before the worker sends the scan. None unless set.
    pub after: Tickets,
    /// Whether to read row state: see [`PullOptions::row_state`].
    pub row_state: bool,
}

/// The caller's memory, which a pull writes its rows to.
///
/// ```
/// use slackwater::table::{PullBuffer, PullInto};
/// /// Memory that another language allocated and owns.
/// struct Foreign(&'static mut [u8]);
/// impl PullBuffer for Foreign {
///     fn bytes_mut(&mut self) -> &mut [u8] { self.0 }
/// }
///
/// let vector: PullInto<f32> = vec![0.0; 2].into();
/// let foreign: PullInto<f32> = PullInto::Buffer(Box::new(Foreign(Box::leak(vec![0; 8].into_boxed_slice()))));
/// # drop((vector, foreign));
/// ```
#[derive(Debug)]
pub enum PullInto<T> {
    /// A vector, which [`Rows::into_values`](crate::Rows::into_values) gives back.
    Vector(Vec<T>),
    /// Memory that is not a vector, such as an array of another language. The pull writes rows in
    /// place, and [`Rows::values`](crate::Rows::values) is empty. The buffer is dropped when the
    /// ticket is done, or when no thread can write to it any more.
    Buffer(Box<dyn PullBuffer>),
}

impl<T> From<Vec<T>> for PullInto<T> {
    fn from(values: Vec<T>) -> Self {
        Self::Vector(values)
    }
}

impl<T> From<Box<dyn PullBuffer>> for PullInto<T> {
    fn from(buffer: Box<dyn PullBuffer>) -> Self {
        Self::Buffer(buffer)
    }
}

impl<T: TargetNumber> PullInto<T> {
    pub(super) fn target(self) -> PullTarget {
        match self {
            Self::Vector(values) => T::to_target(values),
            Self::Buffer(buffer) => PullTarget::Buffer(T::TYPE, buffer),
        }
    }
}
