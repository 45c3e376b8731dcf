//! Parses the location of a store: memory, a folder, or a bucket of an object store. Holds the
//! settings for reaching it.

use crate::fault::explain_io;
use crate::{StoreError, s3};
use object_store::{ObjectStore, local::LocalFileSystem, memory::InMemory, path::Path};
use std::os::unix::fs::DirBuilderExt;
use std::{fmt, fs, io, path::PathBuf, sync::Arc, time::Duration};

/// How to reach a store, beside its location.
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
    /// Names and values of the variables that say how to reach an object store: AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL, AWS_ALLOW_HTTP,
    /// AWS_SKIP_SIGNATURE, …
    pub variables: Vec<(String, String)>,
    /// How long a request that fails is retried before it counts as failed.
    pub retry_for: Duration,
    /// Who may read files and folders that are made.
    pub modes: FileModes,
    /// Time limit of one attempt. It carries at most 8 MiB, beside three others of the same file.
    pub request_timeout: Duration,
}

/// Who may read the files and folders that a process makes for itself: checkpoints and recordings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileModes {
    /// The user of the process only: files have mode 0600, folders 0700.
    #[default]
    Private,
    /// As the umask of the process says.
    Umask,
}

impl FileModes {
    /// The environment variable that chooses them: `private` or `umask`.
    pub const VARIABLE: &str = "SLACKWATER_FILE_MODES";

    /// By the umask if the environment says so, else private.
    #[must_use]
    pub fn from_environment() -> Self {
        if std::env::var_os(Self::VARIABLE).is_some_and(|word| word == "umask") { Self::Umask } else { Self::Private }
    }

    /// The mode of a file, before the umask.
    #[must_use]
    pub fn file(self) -> u32 {
        match self {
            Self::Private => 0o600,
            Self::Umask => 0o666,
        }
    }

    /// Makes a folder and those above it that do not exist, so that they survive a power failure.
    pub fn create_folder(self, path: &std::path::Path) -> io::Result<()> {
        let mode = match self {
            Self::Private => 0o700,
            Self::Umask => 0o777,
        };
        let missing: Vec<_> = path.ancestors().take_while(|folder| !folder.exists()).collect();
        fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
        missing.into_iter().filter_map(|made| made.parent()).try_for_each(|above| {
            let above = if above.as_os_str().is_empty() { std::path::Path::new(".") } else { above };
            fs::File::open(above)?.sync_all()
        })
    }
}

impl StoreSettings {
    /// The AWS_… variables and file modes of this process, 30 seconds of retries, and 60 seconds
    /// for each attempt.
    #[must_use]
    pub fn from_environment() -> Self {
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| name.starts_with("AWS_"))
            .collect();
        let modes = FileModes::from_environment();
        Self { variables, modes, retry_for: Duration::from_secs(30), request_timeout: Duration::from_secs(60) }
    }
}

/// A store's location, as messages name it.
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

/// The object store behind a location, and the path in it under which all checkpoints lie.
pub(crate) struct Located {
    pub place: Place,
    pub objects: Arc<dyn ObjectStore>,
    pub root: Path,
}

/// Parses a location. It writes nothing and makes no request.
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

/// A folder that need not exist yet. The deepest folder that exists becomes the object store's, and
/// the rest of the path the root in it.
fn folder_at(path: &std::path::Path, wrong: &dyn Fn(&str) -> StoreError) -> Result<Located, StoreError> {
    let path = std::path::absolute(path).map_err(|error| wrong(&error.to_string()))?;
    let doing = || format!("open the folder {}", path.display());
    for there in path.ancestors() {
        match fs::metadata(there) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            // The path goes through a plain file: the loop reaches that file next.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => continue,
            Err(error) => return Err(explain_io(doing(), &error)),
            Ok(metadata) if !metadata.is_dir() => {
                return Err(StoreError::NotAFolder { doing: doing(), path: there.display().to_string() });
            }
            Ok(_) => {
                let rest = path.strip_prefix(there).unwrap_or(&path).to_str();
                let rest = rest.ok_or_else(|| wrong("its name is not UTF-8"))?;
                let root = Path::parse(rest).map_err(|error| wrong(&format!("{error}; create the folder first")))?;
                let objects = LocalFileSystem::new_with_prefix(there).map_err(|error| wrong(&error.to_string()))?;
                // With fsync: a checkpoint that was reported as written survives a power failure.
                let objects = Arc::new(objects.with_fsync(true));
                return Ok(Located { place: Place::Folder(path), objects, root });
            }
        }
    }
    Err(wrong("no part of the path exists"))
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
