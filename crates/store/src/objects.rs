//! Reads, writes, lists and removes the files of checkpoints in an object store, with blocking
//! calls. Retries a request whose answer did not arrive whole.
//!
//! A file is written from pieces that the caller keeps; at most [`PARTS_UNDER_WAY`] parts of it are
//! copied at a time. It is read part by part, with up to [`PARTS_UNDER_WAY`] requests at a time.
//! Both ways compute its checksum as its bytes pass.

use crate::fault::{explain, explain_io, is_missing};
use crate::location::{FileModes, Located, Place, StoreSettings};
use crate::manifest::{Checksum, FILE};
use crate::{FileEntry, StoreError, s3::passes};
use futures_util::{StreamExt, TryStreamExt, stream, stream::FuturesUnordered};
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload, path::Path};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io};
use tokio::runtime::{Builder, Runtime};
use xxhash_rust::xxh3::Xxh3;

/// The size of one part of a file. S3 accepts parts of 5 MiB and more.
const PART_BYTES: usize = 8 << 20;
/// The most parts that S3 accepts for one file. A file that would need more has larger parts.
const MOST_PARTS: u64 = 10_000;
/// How many parts of one file are under way at a time.
const PARTS_UNDER_WAY: usize = 4;
/// How many threads read and write files of a folder.
const BLOCKING_THREADS: usize = 8;
/// The pause before the first retry; it doubles with each retry.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Objects {
    runtime: Runtime,
    objects: Arc<dyn ObjectStore>,
    root: Path,
    pub place: Place,
    retry_for: Duration,
    modes: FileModes,
}

/// The length and time of an existing file.
pub(crate) struct Stat {
    pub bytes: u64,
    pub modified: SystemTime,
}

impl Objects {
    pub fn new(located: Located, settings: &StoreSettings) -> Result<Self, StoreError> {
        let Located { place, objects, root } = located;
        // The calling threads drive the runtime, so it needs no worker threads.
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS).build();
        let runtime = runtime.map_err(|error| explain_io("start the runtime of a store".to_owned(), &error))?;
        Ok(Self { runtime, objects, root, place, retry_for: settings.retry_for, modes: settings.modes })
    }

    /// The names of all folders.
    pub fn folders(&self) -> Result<Vec<String>, StoreError> {
        let root = (!self.root.as_ref().is_empty()).then_some(&self.root);
        let listed =
            self.run(|| format!("list {}", self.place), async || self.objects.list_with_delimiter(root).await)?;
        Ok(listed.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned)).collect())
    }

    /// The files of a folder, with their lengths in bytes.
    pub fn files(&self, folder: &str) -> Result<BTreeMap<String, u64>, StoreError> {
        let path = self.root.clone().join(folder);
        let doing = || format!("list {folder} in {}", self.place);
        let listed = self.run(doing, async || self.objects.list_with_delimiter(Some(&path)).await)?;
        let file = |object: object_store::ObjectMeta| Some((object.location.filename()?.to_owned(), object.size));
        Ok(listed.objects.into_iter().filter_map(file).collect())
    }

    /// The length and time of a file, if it exists.
    pub fn stat(&self, folder: &str, file: &str) -> Result<Option<Stat>, StoreError> {
        let path = self.path(folder, file);
        let found = self.run(self.doing("look for", folder, file), async || match self.objects.head(&path).await {
            Err(error) if is_missing(&error) => Ok(None),
            found => found.map(Some),
        })?;
        Ok(found.map(|object| Stat { bytes: object.size, modified: object.last_modified.into() }))
    }

    /// Writes a file from its pieces. Afterwards it exists whole, or not at all.
    pub fn write(&self, folder: &str, file: &str, pieces: &[&[u8]]) -> Result<FileEntry, StoreError> {
        let path = self.path(folder, file);
        self.make_folder(folder)?;
        let mut parts = Parts::new(pieces);
        let begun = Instant::now();
        let written = self.runtime.block_on(async {
            if parts.bytes > PART_BYTES as u64 {
                return self.write_in_parts(&path, &mut parts).await;
            }
            let whole = PutPayload::from(parts.next(PART_BYTES).unwrap_or_default());
            self.again(async || self.objects.put(&path, whole.clone()).await).await.map(drop)
        });
        match written {
            Ok(()) => {
                self.keep_private(folder, file)?;
                Ok(FileEntry { name: file.to_owned(), bytes: parts.bytes, checksum: parts.checksum() })
            }
            Err(error) => Err(explain(&self.place, self.doing("write", folder, file)(), &error, begun.elapsed())),
        }
    }

    /// Makes the folder of a file, so that it has the right mode before the file is in it.
    fn make_folder(&self, folder: &str) -> Result<(), StoreError> {
        let Place::Folder(root) = &self.place else { return Ok(()) };
        let path = root.join(folder);
        if path.is_file() {
            let doing = format!("write to {folder}");
            return Err(StoreError::NotAFolder { doing, path: path.display().to_string() });
        }
        self.modes
            .create_folder(&path)
            .map_err(|error| explain_io(format!("make the folder {}", path.display()), &error))
    }

    /// Takes a written file from other users, if files are private. Its folder may be older, and
    /// open to them.
    fn keep_private(&self, folder: &str, file: &str) -> Result<(), StoreError> {
        let Place::Folder(root) = &self.place else { return Ok(()) };
        if self.modes == FileModes::Umask {
            return Ok(());
        }
        let path = root.join(folder).join(file);
        let set = fs::set_permissions(&path, fs::Permissions::from_mode(self.modes.file()));
        set.map_err(|error| explain_io(format!("keep {} from other users", path.display()), &error))
    }

    async fn write_in_parts(&self, path: &Path, parts: &mut Parts<'_>) -> object_store::Result<()> {
        let mut upload = self.again(async || self.objects.put_multipart(path).await).await?;
        if let Err(error) = send_parts(upload.as_mut(), parts).await {
            upload.abort().await.ok();
            return Err(error);
        }
        let Err(error) = upload.complete().await else { return Ok(()) };
        // The answer may be lost although the server completed the upload. No other writer uses
        // this name, so a file of this length is the one.
        match self.again(async || self.objects.head(path).await).await {
            Ok(object) if object.size == parts.bytes => Ok(()),
            _ => {
                upload.abort().await.ok();
                Err(error)
            }
        }
    }

    /// Passes the first `bytes` of a file to `take`, in order and in pieces of any length, and
    /// returns their checksum. Returns `None` if the file is missing or shorter.
    pub fn read(
        &self,
        folder: &str,
        file: &str,
        bytes: u64,
        mut take: impl FnMut(&[u8]),
    ) -> Result<Option<Checksum>, StoreError> {
        let path = self.path(folder, file);
        let parts = (0..bytes.div_ceil(PART_BYTES as u64)).map(|part| part * PART_BYTES as u64);
        let parts = parts.map(|start| start..bytes.min(start + PART_BYTES as u64));
        let begun = Instant::now();
        let read = self.runtime.block_on(async {
            let part = |range: std::ops::Range<u64>| {
                let path = &path;
                async move { self.again(async || self.objects.get_range(path, range.clone()).await).await }
            };
            let mut arriving = stream::iter(parts).map(part).buffered(PARTS_UNDER_WAY);
            let mut hash = Xxh3::new();
            let mut received = 0;
            while let Some(part) = arriving.try_next().await? {
                hash.update(&part);
                received += part.len() as u64;
                take(&part);
            }
            Ok((received == bytes).then(|| Checksum(hash.digest())))
        });
        match read {
            Ok(checksum) => Ok(checksum),
            Err(error) => match self.stat(folder, file)? {
                Some(stat) if stat.bytes >= bytes => {
                    Err(explain(&self.place, self.doing("read", folder, file)(), &error, begun.elapsed()))
                }
                _ => Ok(None),
            },
        }
    }

    /// Removes a file, if it exists.
    pub fn remove(&self, folder: &str, file: &str) -> Result<(), StoreError> {
        let path = self.path(folder, file);
        self.run(self.doing("remove", folder, file), async || match self.objects.delete(&path).await {
            Err(error) if is_missing(&error) => Ok(()),
            removed => removed,
        })
    }

    /// Removes a folder with all its files. The manifest goes first, and with it the checkpoint.
    pub fn remove_folder(&self, folder: &str) -> Result<(), StoreError> {
        self.remove(folder, FILE)?;
        if let Place::Folder(root) = &self.place {
            // The object store does not list the temporary files of a killed process, so remove
            // the folder itself.
            let path = root.join(folder);
            return match remove_durably(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(explain_io(format!("remove {}", path.display()), &error))
                }
                _ => Ok(()),
            };
        }
        self.files(folder)?.keys().try_for_each(|file| self.remove(folder, file))
    }

    fn path(&self, folder: &str, file: &str) -> Path {
        self.root.clone().join(folder).join(file)
    }

    fn doing<'a>(&'a self, what: &'a str, folder: &'a str, file: &'a str) -> impl Fn() -> String + 'a {
        move || format!("{what} {folder}/{file} in {}", self.place)
    }

    fn run<T>(
        &self,
        doing: impl Fn() -> String,
        request: impl AsyncFnMut() -> object_store::Result<T>,
    ) -> Result<T, StoreError> {
        let begun = Instant::now();
        let done = self.runtime.block_on(self.again(request));
        done.map_err(|error| explain(&self.place, doing(), &error, begun.elapsed()))
    }

    /// Retries a request whose answer did not arrive whole. (The object store itself retries a
    /// request that got no answer.)
    async fn again<T>(&self, mut request: impl AsyncFnMut() -> object_store::Result<T>) -> object_store::Result<T> {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            match request().await {
                Err(error) if passes(&error) && begun.elapsed() + pause < self.retry_for => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                done => return done,
            }
        }
    }
}

async fn send_parts(upload: &mut dyn MultipartUpload, parts: &mut Parts<'_>) -> object_store::Result<()> {
    let part_bytes = PART_BYTES.max(parts.bytes.div_ceil(MOST_PARTS) as usize);
    let mut under_way = FuturesUnordered::new();
    loop {
        while under_way.len() >= PARTS_UNDER_WAY {
            under_way.try_next().await?;
        }
        let Some(part) = parts.next(part_bytes) else { break };
        under_way.push(upload.put_part(part.into()));
    }
    while under_way.try_next().await?.is_some() {}
    Ok(())
}

/// Removes a folder. The sync makes the removal of its manifest durable before the rest goes.
fn remove_durably(folder: &std::path::Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()?;
    fs::remove_dir_all(folder)
}

/// The bytes of a file, copied part by part from the caller's pieces.
struct Parts<'a> {
    /// The pieces that are not begun yet.
    pieces: &'a [&'a [u8]],
    /// The rest of the piece that is begun.
    rest: &'a [u8],
    /// The bytes of all pieces.
    bytes: u64,
    /// The bytes that are not returned yet.
    left: u64,
    hash: Xxh3,
}

impl<'a> Parts<'a> {
    fn new(pieces: &'a [&'a [u8]]) -> Self {
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self { pieces, rest: &[], bytes, left: bytes, hash: Xxh3::new() }
    }

    /// The next `bytes` bytes, or all that are left.
    fn next(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let bytes = self.left.min(bytes as u64) as usize;
        let mut part = Vec::with_capacity(bytes);
        while part.len() < bytes {
            if self.rest.is_empty() {
                let (first, others) = self.pieces.split_first()?;
                (self.rest, self.pieces) = (first, others);
            }
            let (now, rest) = self.rest.split_at(self.rest.len().min(bytes - part.len()));
            part.extend_from_slice(now);
            self.rest = rest;
        }
        self.left -= bytes as u64;
        self.hash.update(&part);
        (!part.is_empty()).then_some(part)
    }

    /// The checksum of all bytes that were returned.
    fn checksum(&self) -> Checksum {
        Checksum(self.hash.digest())
    }
}
