//! The locations that a process may use for checkpoints, whatever another process names.
//!
//! A location is allowed if it is one of a list, or lies beneath one. Folders are compared after
//! symbolic links are resolved, and the resolved folder is the one to open.

use crate::{CheckpointName, StoreError};
use std::path::{Component, Path, PathBuf};

/// The locations that a process may use.
///
/// ```
/// use store::AllowedLocations;
///
/// let allowed = AllowedLocations::within(["s3://runs/clicks"]);
/// assert!(allowed.resolve("s3://runs/clicks/today").is_ok());
/// assert!(allowed.resolve("s3://runs/other").is_err());
/// assert!(AllowedLocations::Any.resolve("s3://runs/other").is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowedLocations {
    /// Every location: other processes are trusted.
    #[default]
    Any,
    /// These, and what lies beneath them.
    Within(Vec<String>),
}

/// A location in a form that can be compared.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Folder(PathBuf),
    /// The bucket, and the parts of the path in it.
    Bucket(Vec<String>),
}

impl AllowedLocations {
    /// These locations. Folders are made absolute. The location of a single checkpoint stands for
    /// the folder that it lies in.
    pub fn within<L: AsRef<str>>(locations: impl IntoIterator<Item = L>) -> Self {
        Self::Within(locations.into_iter().map(|location| folder_of(&absolute(location.as_ref()))).collect())
    }

    /// The location to open for `location`, with symbolic links resolved.
    ///
    /// # Errors
    /// [`StoreError::NotAllowed`] if it is not allowed.
    pub fn resolve(&self, location: &str) -> Result<String, StoreError> {
        let Self::Within(allowed) = self else { return Ok(location.to_owned()) };
        let refused = |problem: &str| StoreError::NotAllowed {
            location: location.to_owned(),
            problem: problem.to_owned(),
            allowed: if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") },
        };
        let place = place(location).map_err(|problem| refused(&problem))?;
        // An entry that cannot be resolved now, such as one without permission, allows nothing.
        let is_within = allowed.iter().filter_map(|one| self::place(one).ok()).any(|one| place.is_within(&one));
        if !is_within {
            return Err(refused("it is not among the locations that this process may use"));
        }
        match place {
            Place::Bucket(_) => Ok(location.to_owned()),
            Place::Folder(path) => path.into_os_string().into_string().map_err(|_| refused("its name is not UTF-8")),
        }
    }
}

impl Place {
    fn is_within(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Folder(own), Self::Folder(other)) => own.starts_with(other),
            (Self::Bucket(own), Self::Bucket(other)) => own.starts_with(other),
            (Self::Folder(_), Self::Bucket(_)) | (Self::Bucket(_), Self::Folder(_)) => false,
        }
    }
}

/// The folder of a location, if that names a single checkpoint in it.
fn folder_of(location: &str) -> String {
    let parts = location.trim_end_matches('/').rsplit_once('/');
    let folder = parts.filter(|(_, name)| name.parse::<CheckpointName>().is_ok()).map(|(folder, _)| folder);
    folder.unwrap_or(location).to_owned()
}

/// A folder's location as an absolute path; other locations as they are.
#[must_use]
pub fn absolute(location: &str) -> String {
    if location.contains("://") || location.starts_with("memory:") {
        return location.to_owned();
    }
    let path = std::path::absolute(location).ok();
    path.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_else(|| location.to_owned())
}

fn place(location: &str) -> Result<Place, String> {
    const DOTS: &str = "it goes through `.` or `..`";
    if let Some(rest) = location.strip_prefix("s3://") {
        let parts: Vec<String> = rest.trim_end_matches('/').split('/').map(str::to_owned).collect();
        let is_plain = |part: &String| !matches!(&part[..], "" | "." | "..");
        return if parts.iter().all(is_plain) { Ok(Place::Bucket(parts)) } else { Err(DOTS.to_owned()) };
    }
    let path = match location.split_once("://") {
        Some(("file", _)) => {
            let url = url::Url::parse(location).map_err(|error| error.to_string())?;
            url.to_file_path().map_err(|()| "it names no folder of this machine".to_owned())?
        }
        Some((scheme, _)) => return Err(format!("{scheme}:// is neither a folder nor s3://")),
        None => PathBuf::from(location),
    };
    if !path.is_absolute() {
        return Err("it is neither an absolute path nor s3://".to_owned());
    }
    if path.components().any(|part| matches!(part, Component::ParentDir | Component::CurDir)) {
        return Err(DOTS.to_owned());
    }
    resolved(&path).map(Place::Folder)
}

/// The path with symbolic links resolved, as far as it exists.
fn resolved(path: &Path) -> Result<PathBuf, String> {
    for there in path.ancestors() {
        match there.canonicalize() {
            Ok(real) => return Ok(real.join(path.strip_prefix(there).unwrap_or(Path::new("")))),
            // A symbolic link that leads nowhere exists itself, and may lead somewhere later.
            Err(error) if there.symlink_metadata().is_ok() => return Err(format!("{}: {error}", there.display())),
            Err(_) => {}
        }
    }
    Err("no part of the path exists".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A folder of its own, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("slackwater-allowed-{}", std::process::id()));
            std::fs::create_dir_all(path.join("runs/clicks")).unwrap();
            std::fs::create_dir_all(path.join("other")).unwrap();
            Self(path.canonicalize().unwrap())
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn locations_are_allowed_beneath_those_of_the_list_only() {
        let folder = Folder::new();
        let path = |rest: &str| format!("{}/{rest}", folder.0.display());
        symlink(path("runs"), path("link")).unwrap();
        symlink(path("other"), path("runs/out")).unwrap();
        symlink("/nowhere/at/all", path("runs/dangling")).unwrap();
        let list = [path("link"), "s3://bucket/runs".to_owned()];
        let allowed = AllowedLocations::within(&list);
        for (location, opens) in [
            (path("runs"), path("runs")),
            (path("runs/"), path("runs/")),
            (path("link/clicks"), path("runs/clicks")),
            (path("runs/new/deep"), path("runs/new/deep")),
            (format!("file://{}", path("runs/clicks")), path("runs/clicks")),
            ("s3://bucket/runs".to_owned(), "s3://bucket/runs".to_owned()),
            ("s3://bucket/runs/a/".to_owned(), "s3://bucket/runs/a/".to_owned()),
        ] {
            let resolved = allowed.resolve(&location).unwrap_or_else(|error| panic!("{location}: {error}"));
            assert_eq!(resolved.trim_end_matches('/'), opens.trim_end_matches('/'), "{location}");
        }
        for (location, words) in [
            (path(""), "not among"),
            (path("other"), "not among"),
            (path("runs2"), "not among"),
            (path("runs/out"), "not among"),
            (path("runs/out/deep"), "not among"),
            (path("runs/../other"), "`..`"),
            (path("runs/clicks/../../other"), "`..`"),
            (path("runs/dangling"), "dangling"),
            (path("runs/dangling/deep"), "dangling"),
            (format!("file://{}", path("runs/%2e%2e/other")), "not among"),
            ("/".to_owned(), "not among"),
            ("runs".to_owned(), "absolute"),
            ("../runs".to_owned(), "absolute"),
            (String::new(), "absolute"),
            ("memory:".to_owned(), "absolute"),
            ("http://bucket/runs".to_owned(), "http://"),
            ("file://host/runs".to_owned(), "no folder"),
            ("s3://bucket".to_owned(), "not among"),
            ("s3://bucket/runs2".to_owned(), "not among"),
            ("s3://bucket/runs/../other".to_owned(), "`..`"),
            ("s3://bucket//runs".to_owned(), "`..`"),
            ("s3://other/runs".to_owned(), "not among"),
        ] {
            let error = allowed.resolve(&location).expect_err(&location).to_string();
            let is_told = error.contains(words) && error.contains("--checkpoint-location");
            assert!(is_told, "{location}: {error}");
        }
        let error = AllowedLocations::within::<&str>([]).resolve(&path("runs")).expect_err("nothing is allowed");
        assert!(error.to_string().contains("allowed here: none"), "{error}");
        assert_eq!(AllowedLocations::Any.resolve("anything").ok().as_deref(), Some("anything"));
    }

    #[test]
    fn location_of_one_checkpoint_stands_for_its_folder() {
        let of = |location: &str| AllowedLocations::within([location]);
        assert_eq!(of("/runs/a/checkpoint-00000012-0a1b2c3d"), of("/runs/a"));
        assert_eq!(of("s3://runs/a/checkpoint-00000012-0a1b2c3d/"), of("s3://runs/a"));
        assert_ne!(of("/runs/a/checkpoint-12"), of("/runs/a"));
        assert_eq!(of("relative"), of(&absolute("relative")));
    }
}
