//! The token file of a run that a launcher starts: mode 0600, in a private folder (mode 0700), and
//! gone with the launcher.

use identity::{JobToken, TokenError};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A new job token in a file and a folder of its own. Dropping it removes both, unless that happens
/// in another process: a fork has this object, too.
///
/// ```
/// use launch::RunToken;
///
/// let token = RunToken::create()?;
/// let path = token.path().to_owned();
/// assert!(path.exists());
/// drop(token);
/// assert!(!path.exists());
/// # Ok::<(), launch::RunTokenError>(())
/// ```
#[derive(Debug)]
pub struct RunToken {
    path: PathBuf,
    /// The process that made it.
    maker: u32,
}

/// Why a run has no token.
#[derive(Debug, thiserror::Error)]
pub enum RunTokenError {
    /// No token could be made.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The file could not be written.
    #[error("cannot write the token file of the run, {}: {error}; set TMPDIR to a folder that can be written", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

impl RunToken {
    /// Makes a token and writes it to a file that only this user can read.
    pub fn create() -> Result<Self, RunTokenError> {
        let token = JobToken::create()?;
        let folder = std::env::temp_dir().join(format!("slackwater-{}-{}", std::process::id(), token.job()));
        let path = folder.join("job.token");
        let write = || {
            // Fails if it exists: never uses a folder that another process made.
            DirBuilder::new().mode(0o700).create(&folder)?;
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(token.text().as_bytes())
        };
        match write() {
            Ok(()) => Ok(Self { path, maker: std::process::id() }),
            Err(error) => Err(RunTokenError::File { path, error }),
        }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunToken {
    fn drop(&mut self) {
        if self.maker != std::process::id() {
            return;
        }
        let folder = || self.path.parent().map_or(Ok(()), std::fs::remove_dir);
        if let Err(error) = std::fs::remove_file(&self.path).and_then(|()| folder()) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the token file of the run; remove it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn token_file_is_for_its_user_only_and_differs_for_each_run() {
        let [one, other] = [RunToken::create().expect("a token"), RunToken::create().expect("a token")];
        assert_ne!(one.path(), other.path());
        let mode = |path: &Path| std::fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
        let folder = one.path().parent().expect("a folder").to_owned();
        assert_eq!((mode(one.path()), mode(&folder)), (0o600, 0o700));
        assert!(matches!(identity::Token::read(one.path()), Ok(identity::Token::Job(_))));
        drop(one);
        assert!(!folder.exists(), "the folder goes with the file");
    }
}
