//! A folder for a test's files, which is removed when the test ends.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers the folders, because two tests that run at once may give theirs the same name.
static FOLDERS: AtomicU32 = AtomicU32::new(0);

/// A folder in the system's folder for temporary files. Dropping it removes it.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("slackwater-data-{}-{number}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
