//! Table specs: the name, shape and policies of a table.

mod check;

use crate::{Codecs, Combine, Consistency, Placement, Position, PositionRange, UpdaterSpec};
pub use check::SpecError;
use std::fmt;

/// The largest number of bytes of values in one part.
pub const PART_BYTES: usize = 1 << 20;

/// The type of a table's numbers.
///
/// ```
/// use types::{NumberType, TableSpec};
///
/// assert_eq!(TableSpec::dense("t", 1, 1).number, NumberType::F32);
/// assert_eq!(NumberType::I64.to_string(), "i64");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumberType {
    /// 32-bit floating point.
    #[default]
    F32,
    /// 64-bit floating point.
    F64,
    /// 64-bit signed integer.
    I64,
}

impl NumberType {
    /// Bytes of one number.
    ///
    /// ```
    /// use types::NumberType;
    ///
    /// assert_eq!((NumberType::F32.bytes(), NumberType::F64.bytes(), NumberType::I64.bytes()), (4, 8, 8));
    /// ```
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }
}

impl fmt::Display for NumberType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I64 => "i64",
        })
    }
}

/// Which keys a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableShape {
    /// Rows 0 to `rows` − 1, all there from the start.
    Dense {
        /// How many rows there are.
        rows: u64,
    },
    /// Any 64-bit key. A row is created when it is first written, or first read if the table has
    /// random initial values.
    Sparse {
        /// The order in which keys are placed and sorted.
        placement: Placement,
        /// The largest number of rows of each shard. It refuses further ones.
        max_rows: u64,
    },
}

impl TableShape {
    /// The order in which this table sorts its keys.
    #[must_use]
    pub fn placement(self) -> Placement {
        match self {
            Self::Dense { .. } => Placement::Ordered,
            Self::Sparse { placement, .. } => placement,
        }
    }

    /// The positions this table can have.
    #[must_use]
    pub fn extent(self) -> PositionRange {
        match self {
            Self::Dense { rows } => PositionRange { first: Position(0), last: Position(rows.saturating_sub(1)) },
            Self::Sparse { .. } => PositionRange::ALL,
        }
    }
}

/// What a row holds before the first update.
///
/// ```
/// use types::{Initial, TableSpec};
///
/// let factors = TableSpec::sparse("factors", 8).initial(Initial::Normal { seed: 1, scale: 0.05 });
/// assert!(factors.check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Initial {
    /// Zeros. A sparse key that was never written reads as zero and takes no memory.
    #[default]
    Zero,
    /// Uniform in ±`scale`; follows from seed, key and column alone.
    Uniform {
        /// The seed.
        seed: u64,
        /// Half the width of the interval.
        scale: f64,
    },
    /// Normal with standard deviation `scale`; follows from seed, key and column alone.
    Normal {
        /// The seed.
        seed: u64,
        /// The standard deviation.
        scale: f64,
    },
}

/// Whether a worker caches the rows that it has read.
///
/// ```
/// use types::{CacheSpec, TableSpec};
///
/// let spec = TableSpec::sparse("t", 1);
/// assert_eq!((spec.cache, spec.cached(100).cache), (CacheSpec::Off, CacheSpec::Rows { max_rows: 100 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSpec {
    /// Every pull goes to the shards.
    Off,
    /// The worker caches rows and answers pulls from them while the read rule admits it.
    Rows {
        /// The largest number of cached rows in a worker.
        max_rows: u64,
    },
}

/// A table: its name, its shape and its policies.
///
/// ```
/// use types::{Consistency, TableSpec, UpdaterSpec};
/// let spec = TableSpec::sparse("weights", 1)
///     .consistency(Consistency::slack(3))
///     .updater(UpdaterSpec::Adagrad { rate: 0.1, epsilon: 1e-8 });
/// assert!(spec.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TableSpec {
    /// The name by which all workers know the table.
    pub name: String,
    /// The type of its numbers.
    pub number: NumberType,
    /// Which keys it has.
    pub shape: TableShape,
    /// Numbers in a row.
    pub width: u32,
    /// What a row holds before the first update.
    pub initial: Initial,
    /// How fresh a read must be.
    pub consistency: Consistency,
    /// When and how pushes are applied.
    pub combine: Combine,
    /// The rule by which a shard applies gradients.
    pub updater: UpdaterSpec,
    /// Whether workers cache rows.
    pub cache: CacheSpec,
    /// The codecs of its messages.
    pub codecs: Codecs,
}

impl TableSpec {
    /// A table for any 64-bit key, with `width` f32 numbers a row. Defaults: updater sum,
    /// lock-step, no cache.
    ///
    /// ```
    /// use types::{Placement, TableSpec};
    ///
    /// let spec = TableSpec::sparse("weights", 2);
    /// assert_eq!((spec.width, spec.shape.placement()), (2, Placement::Spread));
    /// ```
    #[must_use]
    pub fn sparse(name: &str, width: u32) -> Self {
        let shape = TableShape::Sparse { placement: Placement::Spread, max_rows: u64::from(u32::MAX) - 1 };
        Self::new(name, shape, width)
    }

    /// A table of rows 0 to `rows` − 1, with `width` f32 numbers each. Defaults: updater sum,
    /// lock-step, no cache.
    ///
    /// ```
    /// use types::{TableShape, TableSpec};
    ///
    /// assert_eq!(TableSpec::dense("layer", 10, 3).shape, TableShape::Dense { rows: 10 });
    /// ```
    #[must_use]
    pub fn dense(name: &str, rows: u64, width: u32) -> Self {
        Self::new(name, TableShape::Dense { rows }, width)
    }

    fn new(name: &str, shape: TableShape, width: u32) -> Self {
        Self {
            name: name.to_owned(),
            number: NumberType::F32,
            shape,
            width,
            initial: Initial::Zero,
            consistency: Consistency::LOCK_STEP,
            combine: Combine::Each,
            updater: UpdaterSpec::Sum,
            cache: CacheSpec::Off,
            codecs: Codecs::default(),
        }
    }

    /// Sets the type of number.
    ///
    /// ```
    /// use types::{NumberType, TableSpec};
    ///
    /// assert_eq!(TableSpec::dense("counts", 10, 1).number(NumberType::I64).row_bytes(), 8);
    /// ```
    #[must_use]
    pub fn number(mut self, number: NumberType) -> Self {
        self.number = number;
        self
    }

    /// Sets the initial values of rows.
    ///
    /// ```
    /// use types::{Initial, NumberType, TableSpec};
    ///
    /// let spec = TableSpec::sparse("factors", 8).initial(Initial::Uniform { seed: 1, scale: 0.1 });
    /// assert!(spec.check().is_ok());
    /// assert!(spec.number(NumberType::I64).check().is_err());   // there is no such i64
    /// ```
    #[must_use]
    pub fn initial(mut self, initial: Initial) -> Self {
        self.initial = initial;
        self
    }

    /// Sets the rule for reads.
    ///
    /// ```
    /// use types::{Consistency, TableSpec};
    ///
    /// let spec = TableSpec::sparse("t", 1);
    /// assert_eq!(spec.consistency, Consistency::LOCK_STEP);
    /// assert_eq!(spec.consistency(Consistency::slack(3)).consistency.bound(), Some(3));
    /// ```
    #[must_use]
    pub fn consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = consistency;
        self
    }

    /// Sets when and how pushes are applied.
    ///
    /// ```
    /// use types::{Combine, Reduce, TableSpec};
    ///
    /// let spec = TableSpec::dense("gradients", 10, 1).combine(Combine::Clock(Reduce::Sum));
    /// assert_eq!(spec.combine, Combine::Clock(Reduce::Sum));
    /// ```
    #[must_use]
    pub fn combine(mut self, combine: Combine) -> Self {
        self.combine = combine;
        self
    }

    /// Sets the updater.
    ///
    /// ```
    /// use types::{TableSpec, UpdaterSpec};
    ///
    /// let spec = TableSpec::dense("weights", 10, 1).updater(UpdaterSpec::Momentum { rate: 0.1, momentum: 0.9 });
    /// assert_eq!(spec.updater.to_string(), "momentum(rate 0.1, momentum 0.9)");
    /// ```
    #[must_use]
    pub fn updater(mut self, updater: UpdaterSpec) -> Self {
        self.updater = updater;
        self
    }

    /// Gives each worker a cache of up to `max_rows` rows.
    ///
    /// ```
    /// use types::{Consistency, TableSpec};
    ///
    /// let spec = TableSpec::sparse("t", 1).cached(1_000);
    /// assert!(spec.clone().consistency(Consistency::slack(2)).check().is_ok());
    /// assert!(spec.consistency(Consistency::Unbounded).check().is_err());   // nothing would ever refresh it
    /// ```
    #[must_use]
    pub fn cached(mut self, max_rows: u64) -> Self {
        self.cache = CacheSpec::Rows { max_rows };
        self
    }

    /// Sets the codecs, named in the order keys, values, bytes. The session checks that they go
    /// together, and with this table, when it makes the table.
    ///
    /// ```
    /// use types::{Codecs, TableSpec};
    /// let spec = TableSpec::dense("layer", 256, 785).codecs(Codecs::up(["1bit"]));
    /// assert_eq!(spec.codecs.up, ["1bit"]);
    /// ```
    #[must_use]
    pub fn codecs(mut self, codecs: Codecs) -> Self {
        self.codecs = codecs;
        self
    }

    /// Sorts keys by their own order, so that range calls are possible. No effect on a dense table,
    /// whose keys are always in order.
    ///
    /// ```
    /// use types::{Placement, TableSpec};
    ///
    /// assert_eq!(TableSpec::sparse("t", 1).ordered().shape.placement(), Placement::Ordered);
    /// ```
    #[must_use]
    pub fn ordered(mut self) -> Self {
        if let TableShape::Sparse { placement, .. } = &mut self.shape {
            *placement = Placement::Ordered;
        }
        self
    }

    /// Sets the largest number of rows in each shard of a sparse table.
    ///
    /// ```
    /// use types::TableSpec;
    ///
    /// assert!(TableSpec::sparse("t", 1).max_rows(1_000_000).check().is_ok());
    /// assert!(TableSpec::sparse("t", 1).max_rows(0).check().is_err());
    /// ```
    #[must_use]
    pub fn max_rows(mut self, rows: u64) -> Self {
        if let TableShape::Sparse { max_rows, .. } = &mut self.shape {
            *max_rows = rows;
        }
        self
    }

    /// Whether a worker's reads hold its own earlier pushes. They do in bounded tables that apply
    /// every push by itself.
    ///
    /// ```
    /// use types::{Combine, Consistency, Reduce, TableSpec};
    ///
    /// let spec = TableSpec::sparse("t", 1);
    /// assert!(spec.reads_own_pushes());
    /// assert!(!spec.clone().consistency(Consistency::Unbounded).reads_own_pushes());
    /// assert!(!spec.combine(Combine::Clock(Reduce::Sum)).reads_own_pushes());
    /// ```
    #[must_use]
    pub fn reads_own_pushes(&self) -> bool {
        self.consistency.bound().is_some() && !self.combine.holds_clocks()
    }

    /// Bytes of one row's values.
    ///
    /// ```
    /// use types::TableSpec;
    ///
    /// assert_eq!(TableSpec::sparse("t", 3).row_bytes(), 12);
    /// ```
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.width as usize * self.number.bytes()
    }

    /// Whether checkpoints hold the table. A table whose name begins with a dot is bookkeeping of
    /// one run: checkpoints leave it out, and a resumed run starts with it empty.
    ///
    /// ```
    /// use types::TableSpec;
    ///
    /// assert!(TableSpec::sparse("weights", 1).is_checkpointed());
    /// assert!(!TableSpec::sparse(".progress", 1).is_checkpointed());
    /// ```
    #[must_use]
    pub fn is_checkpointed(&self) -> bool {
        !self.name.starts_with('.')
    }
}
