//! A store of checkpoints: probes it, lists, begins, opens and checks checkpoints, and prunes old
//! and unfinished ones.

use crate::location::{StoreSettings, locate};
use crate::manifest::FILE;
use crate::objects::Objects;
use crate::writing::missing;
use crate::{CheckpointName, Manifest, Opened, Problem, StoreError, Writing, name};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::SystemTime;

/// The longest manifest that is read. It has room for some hundred thousand files and as many
/// leases.
const MOST_MANIFEST_BYTES: u64 = 256 << 20;

/// A store of checkpoints. A clone is the same store; threads may share it.
///
/// Calls block until they are done. Call them from plain threads: inside an asynchronous runtime
/// they panic.
#[derive(Clone)]
pub struct Store {
    objects: Arc<Objects>,
}

/// A checkpoint in a store, published or only begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: CheckpointName,
    /// When it was published, or `None` if it was only begun.
    pub published: Option<SystemTime>,
}

/// The checkpoints that [`Store::prune`] removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Published ones, older than those to keep.
    pub old: Vec<CheckpointName>,
    /// Those that were begun before the newest and never published.
    pub unfinished: Vec<CheckpointName>,
}

impl Store {
    /// Opens the store at a location:
    /// - a folder or `file:///PATH`; the first write creates the folder,
    /// - `s3://BUCKET/FOLDER`, reached by the AWS_… variables of this process,
    /// - `memory:`, a new store each time.
    ///
    /// ```
    /// let store = store::Store::open("memory:")?;
    /// assert_eq!(store.list()?, []);
    /// assert!(store::Store::open("ftp://host/folder").is_err());
    /// # Ok::<(), store::StoreError>(())
    /// ```
    ///
    /// # Errors
    /// When it is no such location. Opening makes no request; [`probe`](Self::probe) does.
    pub fn open(location: &str) -> Result<Self, StoreError> {
        Self::open_with(location, &StoreSettings::from_environment())
    }

    /// The same, with other settings.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(location: &str, settings: &StoreSettings) -> Result<Self, StoreError> {
        let objects = Objects::new(locate(location, settings)?, settings)?;
        Ok(Self { objects: Arc::new(objects) })
    }

    /// Checks that a file can be written, read back and removed there. Call it before a run, so
    /// that the first checkpoint does not fail.
    ///
    /// # Errors
    /// When one of these fails.
    pub fn probe(&self) -> Result<(), StoreError> {
        const WORDS: &[u8] = b"Slackwater checks whether checkpoints can be written here.\n";
        let folder = format!("probe-{:08x}", name::random());
        self.objects.folders()?;
        let written = self.objects.write(&folder, "probe", &[WORDS]);
        let read = written.and_then(|entry| self.objects.read(&folder, "probe", entry.bytes, |_| ()));
        let removed = self.objects.remove_folder(&folder);
        read.and(removed)
    }

    /// All checkpoints, oldest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>, StoreError> {
        let names = self.names()?.into_iter().map(|name| {
            let manifest = self.objects.stat(&name.to_string(), FILE)?;
            Ok(Listed { name, published: manifest.map(|stat| stat.modified) })
        });
        names.collect()
    }

    /// Begins a checkpoint of a job. Its name follows those of all others.
    ///
    /// # Errors
    /// When the store cannot be read, or holds another job's checkpoints.
    pub fn begin(&self, job: &str) -> Result<Writing, StoreError> {
        let names = self.names()?;
        for &name in names.iter().rev() {
            // A manifest that cannot be read belongs to no job.
            let Ok(manifest) = self.manifest(name)? else { continue };
            if manifest.job != job {
                let location = self.location();
                let found = manifest.job;
                return Err(StoreError::OtherJob { location, name, found, job: job.to_owned() });
            }
            break;
        }
        let number = names.last().map_or(1, |name| name.number().saturating_add(1));
        Ok(self.join(CheckpointName::new(number)))
    }

    /// Joins a checkpoint that another process has begun, to write some of its files.
    #[must_use]
    pub fn join(&self, name: CheckpointName) -> Writing {
        Writing::new(self.clone(), name)
    }

    /// Opens the newest checkpoint, of `job` if one is named. It checks that all files exist with
    /// the right lengths. Checksums are compared when files are read, or by [`Opened::verify`].
    ///
    /// # Errors
    /// [`StoreError::Empty`] when there is none. [`StoreError::Damaged`] when it cannot be used;
    /// the error names an older one for [`open_named`](Self::open_named).
    pub fn newest(&self, job: Option<&str>) -> Result<Opened, StoreError> {
        let listed = self.list()?;
        let Some(newest) = listed.iter().rev().find(|one| one.published.is_some()) else {
            let unfinished_ones = listed.iter().map(|one| one.name).collect();
            return Err(StoreError::Empty { location: self.location(), unfinished_ones });
        };
        let unfinished = listed.iter().map(|one| one.name).filter(|name| *name > newest.name).collect();
        let manifest = self.whole_manifest(newest.name, job)?;
        Ok(Opened::new(self.clone(), newest.name, manifest, unfinished))
    }

    /// Opens one checkpoint, of `job` if one is named.
    ///
    /// # Errors
    /// [`StoreError::NoSuch`] when it does not exist, [`StoreError::Damaged`] when it cannot be
    /// used.
    pub fn open_named(&self, name: CheckpointName, job: Option<&str>) -> Result<Opened, StoreError> {
        let there = self.names()?;
        if !there.contains(&name) {
            return Err(StoreError::NoSuch { name, location: self.location(), there });
        }
        Ok(Opened::new(self.clone(), name, self.whole_manifest(name, job)?, Vec::new()))
    }

    /// Removes all but the newest `keep` checkpoints, and those that were begun before the newest
    /// and never published.
    ///
    /// # Errors
    /// When a removal fails. The checkpoints to keep are untouched.
    pub fn prune(&self, keep: NonZeroUsize) -> Result<Pruned, StoreError> {
        self.prune_sparing(keep, None)
    }

    /// The same, except for one published checkpoint that is still needed.
    ///
    /// # Errors
    /// As [`prune`](Self::prune).
    pub fn prune_sparing(&self, keep: NonZeroUsize, spared: Option<CheckpointName>) -> Result<Pruned, StoreError> {
        let listed = self.list()?;
        let published: Vec<_> = listed.iter().filter(|one| one.published.is_some()).map(|one| one.name).collect();
        let Some(newest) = published.last() else { return Ok(Pruned::default()) };
        let mut old = published[..published.len().saturating_sub(keep.get())].to_vec();
        old.retain(|name| Some(*name) != spared);
        let unfinished = listed.iter().filter(|one| one.published.is_none() && one.name < *newest);
        let unfinished: Vec<_> = unfinished.map(|one| one.name).collect();
        for name in old.iter().chain(&unfinished) {
            self.objects.remove_folder(&name.to_string())?;
        }
        Ok(Pruned { old, unfinished })
    }

    /// Removes every checkpoint that was begun and never published. Call it when a run starts that
    /// alone writes here: the remains of a killed run may fill the disk.
    ///
    /// # Errors
    /// When a removal fails.
    pub fn remove_unfinished(&self) -> Result<Vec<CheckpointName>, StoreError> {
        let unfinished: Vec<_> =
            self.list()?.into_iter().filter(|one| one.published.is_none()).map(|one| one.name).collect();
        for name in &unfinished {
            self.objects.remove_folder(&name.to_string())?;
        }
        Ok(unfinished)
    }

    /// The store's location, in words.
    #[must_use]
    pub fn location(&self) -> String {
        self.objects.place.to_string()
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }

    /// The error for a checkpoint with a problem. It names the newest older checkpoint that has all
    /// its files.
    pub(crate) fn damaged(&self, name: CheckpointName, problem: Problem, job: Option<&str>) -> StoreError {
        let older = self.names().unwrap_or_default().into_iter().rev().filter(|older| *older < name);
        let previous = older.map(|older| (older, self.check(older, job))).find_map(|(older, checked)| match checked {
            Ok(Ok(_)) => Some(older),
            _ => None,
        });
        StoreError::Damaged { name, location: self.location(), problem: Box::new(problem), previous }
    }

    fn whole_manifest(&self, name: CheckpointName, job: Option<&str>) -> Result<Manifest, StoreError> {
        self.check(name, job)?.map_err(|problem| self.damaged(name, problem, job))
    }

    /// A checkpoint's manifest, if its job matches and all files exist with the right lengths.
    pub(crate) fn check(
        &self,
        name: CheckpointName,
        job: Option<&str>,
    ) -> Result<Result<Manifest, Problem>, StoreError> {
        let manifest = match self.manifest(name)? {
            Ok(manifest) => manifest,
            Err(problem) => return Ok(Err(problem)),
        };
        if let Some(wanted) = job.filter(|job| *job != manifest.job) {
            return Ok(Err(Problem::OtherJob { found: manifest.job, wanted: wanted.to_owned() }));
        }
        let there = self.objects.files(&name.to_string())?;
        Ok(match missing(&manifest, &there) {
            Some(problem) => Err(problem),
            None => Ok(manifest),
        })
    }

    /// A checkpoint's manifest, if it can be read.
    fn manifest(&self, name: CheckpointName) -> Result<Result<Manifest, Problem>, StoreError> {
        let folder = name.to_string();
        let Some(stat) = self.objects.stat(&folder, FILE)? else { return Ok(Err(Problem::Unfinished)) };
        if stat.bytes > MOST_MANIFEST_BYTES {
            let problem = format!("it has {} bytes, and at most {MOST_MANIFEST_BYTES} are allowed", stat.bytes);
            return Ok(Err(Problem::Manifest { problem }));
        }
        let mut bytes = Vec::new();
        match self.objects.read(&folder, FILE, stat.bytes, |piece| bytes.extend_from_slice(piece))? {
            Some(_) => Ok(Manifest::from_bytes(&bytes)),
            None => Ok(Err(Problem::Unfinished)),
        }
    }

    /// The names of all checkpoints, published or only begun, oldest first.
    fn names(&self) -> Result<Vec<CheckpointName>, StoreError> {
        let mut names: Vec<CheckpointName> =
            self.objects.folders()?.iter().filter_map(|folder| folder.parse().ok()).collect();
        names.sort_unstable();
        Ok(names)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.objects.place)
    }
}
