//! Files that hold a secret: only their owner may read them, as ssh asks of its keys.
//!
//! A file of root's may also be readable by its group: so an orchestrator hands a secret to a
//! process that is not root.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bits of a mode that let users other than the owner do anything.
const OTHERS: u32 = 0o077;
/// The same bits without the one that lets the group read.
const OTHERS_BUT_GROUP_READS: u32 = 0o037;
const ROOT: u32 = 0;

/// A file with a secret that other users can read or change.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} is a secret and has mode {mode:04o}, so other users can use it: if they may have read it, make another; else run \
     chmod 600 {}",
    path.display(),
    path.display()
)]
pub struct PrivateFileError {
    /// The file.
    pub path: PathBuf,
    /// Its mode.
    pub mode: u32,
}

/// Whether a file of this mode and owner keeps its content from other users.
fn is_private(mode: u32, owner: u32) -> bool {
    let forbidden = if owner == ROOT { OTHERS_BUT_GROUP_READS } else { OTHERS };
    mode & forbidden == 0
}

/// Refuses a file that other users can read or change. What is no file, such as a pipe, passes.
pub(crate) fn check(path: &Path) -> Result<(), PrivateFileError> {
    let Some(found) = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file) else { return Ok(()) };
    let mode = found.mode() & 0o7777;
    if is_private(mode, found.uid()) { Ok(()) } else { Err(PrivateFileError { path: path.to_owned(), mode }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_may_use_a_secret_and_the_group_may_read_one_of_roots() {
        const USER: u32 = 1000;
        for (mode, owner, expected) in [
            (0o600, USER, true),
            (0o400, USER, true),
            (0o640, USER, false),
            (0o604, USER, false),
            (0o620, USER, false),
            (0o644, USER, false),
            (0o640, ROOT, true),
            (0o440, ROOT, true),
            (0o660, ROOT, false),
            (0o644, ROOT, false),
        ] {
            assert_eq!(is_private(mode, owner), expected, "{mode:o} of user {owner}");
        }
    }
}
