//! Where checkpoints are kept: in memory, in a folder, or in a bucket of an object store.

use crate::fault::explain_io;
use crate::{StoreError, s3};
use object_store::{ObjectStore, local::LocalFileSystem, memory::InMemory, path::Path};
use std::{fmt, fs, io, path::PathBuf, sync::Arc, time::Duration};

/// How a store is reached, beside its location.
///
/// ```
/// use std::time::Duration;
/// use store::{StoreSettings, Store};
///
/// let settings = StoreSettings { retry_for: Duration::from_secs(5), ..StoreSettings::from_environment() };
/// let store = Store::open_with("memory:", &settings)?;
/// # Ok::<(), store::StoreError>(())
/// ```
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// The variables that say how to reach an object store, with their values: AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL, AWS_ALLOW_HTTP,
    /// AWS_SKIP_SIGNATURE, …
    pub variables: Vec<(String, String)>,
    /// How long a request that fails is sent again before it is given up.
    pub retry_for: Duration,
    /// How long one attempt may take: for 8 MiB, of which four are under way at a time.
    pub request_timeout: Duration,
}

impl StoreSettings {
    /// With the variables of this process, half a minute of trying again, and a minute for each
    /// attempt.
    #[must_use]
    pub fn from_environment() -> Self {
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| name.starts_with("AWS_"))
            .collect();
        Self { variables, retry_for: Duration::from_secs(30), request_timeout: Duration::from_secs(60) }
    }
}

/// Where a store is, as messages name it.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Memory,
    Folder(PathBuf),
    #[cfg_attr(not(feature = "s3"), expect(dead_code, reason = "there is none without S3"))]
    Bucket {
        bucket: String,
        prefix: String,
        endpoint: String,
    },
}

/// What is behind a location: objects, and the path under which all of ours stand.
pub(crate) struct Located {
    pub place: Place,
    pub objects: Arc<dyn ObjectStore>,
    pub root: Path,
}

/// Makes out what a location means. Nothing is written, and no server is asked.
pub(crate) fn locate(location: &str, settings: &StoreSettings) -> Result<Located, StoreError> {
    let wrong = |problem: &str| StoreError::Location { location: location.to_owned(), problem: problem.to_owned() };
    if location.is_empty() {
        return Err(wrong("it is empty"));
    }
    if location == "memory:" {
        return Ok(Located { place: Place::Memory, objects: Arc::new(InMemory::new()), root: Path::default() });
    }
    if let Some(rest) = location.strip_prefix("s3://") {
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(wrong("it names no bucket: s3://BUCKET/FOLDER"));
        }
        let root = Path::parse(prefix).map_err(|error| wrong(&error.to_string()))?;
        return s3::bucket_at(bucket, root, settings).map_err(|problem| wrong(&problem));
    }
    let path = match location.split_once("://") {
        Some(("file", _)) => {
            let url = url::Url::parse(location).map_err(|error| wrong(&error.to_string()))?;
            url.to_file_path().map_err(|()| wrong("it names no folder of this machine: file:///PATH"))?
        }
        Some(_) => return Err(wrong("it should be a folder, file:///PATH, s3://BUCKET/FOLDER or memory:")),
        None => PathBuf::from(location),
    };
    folder_at(&path, &wrong)
}

/// A folder that need not be there yet: the deepest one that is becomes the object store's, and the
/// rest of the path the root in it.
fn folder_at(path: &std::path::Path, wrong: &dyn Fn(&str) -> StoreError) -> Result<Located, StoreError> {
    let path = std::path::absolute(path).map_err(|error| wrong(&error.to_string()))?;
    let doing = || format!("open the folder {}", path.display());
    for there in path.ancestors() {
        match fs::metadata(there) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            // Below a plain file: the file itself comes next.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => continue,
            Err(error) => return Err(explain_io(doing(), &error)),
            Ok(metadata) if !metadata.is_dir() => {
                return Err(StoreError::NotAFolder { doing: doing(), path: there.display().to_string() });
            }
            Ok(_) => {
                let rest = path.strip_prefix(there).unwrap_or(&path).to_str();
                let rest = rest.ok_or_else(|| wrong("its name is not UTF-8"))?;
                let root = Path::parse(rest).map_err(|error| wrong(&format!("{error}; make the folder yourself")))?;
                let objects = LocalFileSystem::new_with_prefix(there).map_err(|error| wrong(&error.to_string()))?;
                // A checkpoint that was reported as written is there after the power has failed.
                let objects = Arc::new(objects.with_fsync(true));
                return Ok(Located { place: Place::Folder(path), objects, root });
            }
        }
    }
    Err(wrong("no part of the path is there"))
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Folder(path) => write!(f, "{}", path.display()),
            Self::Bucket { bucket, prefix, endpoint } => write!(f, "s3://{bucket}/{prefix} ({endpoint})"),
        }
    }
}
