//! Checks a table's spec: its policies, and its codecs with them.

use crate::TableCodecs;
use types::{SpecError, TableSpec};

/// Checks a spec as a whole and returns its codecs.
///
/// ```
/// use types::{Codecs, TableSpec};
/// let spec = TableSpec::dense("layer", 10, 100);
/// assert!(codec::check_spec(&spec).is_ok());
/// assert!(codec::check_spec(&spec.codecs(Codecs::up(["2bits"]))).is_err());
/// ```
pub fn check_spec(spec: &TableSpec) -> Result<TableCodecs, SpecError> {
    spec.check()?;
    TableCodecs::of(spec)
}
