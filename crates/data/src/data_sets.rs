//! Where tests and benchmarks find the published data sets that they learn from.

use std::env::var_os;
use std::path::PathBuf;

/// The folder of published data sets: the one that `SLACKWATER_DATA` names, or `shared/data` beside
/// the repository whose tests or benchmarks cargo runs. `None` if neither is there.
#[doc(hidden)]
#[must_use]
pub fn data_sets() -> Option<PathBuf> {
    if let Some(named) = var_os("SLACKWATER_DATA") {
        return Some(PathBuf::from(named));
    }
    // Cargo sets this for what it runs.
    let package = PathBuf::from(var_os("CARGO_MANIFEST_DIR")?);
    package.ancestors().map(|folder| folder.join("shared/data")).find(|folder| folder.is_dir())
}

/// The folder of one data set, or why a test is skipped without it.
#[doc(hidden)]
pub fn data_set(name: &str) -> Result<PathBuf, String> {
    let folder = data_sets().map(|all| all.join(name)).filter(|folder| folder.is_dir());
    folder.ok_or_else(|| format!("the data set {name} is missing; set SLACKWATER_DATA to the folder of data sets"))
}
