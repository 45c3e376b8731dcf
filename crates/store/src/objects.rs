//! Files of checkpoints in whatever keeps them, for threads that may wait.
//!
//! A file is written from pieces that the caller keeps: at most [`PARTS_UNDER_WAY`] parts of it are
//! copied at a time. It is read a part at a time, so many ahead. Both take its checksum as its
//! bytes pass.

use crate::fault::{explain, explain_io, is_missing};
use crate::location::{Located, Place, StoreSettings};
use crate::manifest::{Checksum, FILE};
use crate::{FileEntry, StoreError, s3::passes};
use futures_util::{StreamExt, TryStreamExt, stream, stream::FuturesUnordered};
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload, path::Path};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io};
use tokio::runtime::{Builder, Runtime};
use xxhash_rust::xxh3::Xxh3;

/// One part of a file that is written or read: what an object store takes at least is 5 MiB.
const PART_BYTES: usize = 8 << 20;
/// An object store takes no more than so many of one file; a longer one has larger parts.
const MOST_PARTS: u64 = 10_000;
/// Parts of one file that are on their way at a time.
const PARTS_UNDER_WAY: usize = 4;
/// Threads that read and write files of a folder, where parts are not sent by one thread.
const BLOCKING_THREADS: usize = 8;
/// Between an answer that did not come whole and the next try; twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Objects {
    runtime: Runtime,
    objects: Arc<dyn ObjectStore>,
    root: Path,
    pub place: Place,
    retry_for: Duration,
}

/// A file that is there.
pub(crate) struct Stat {
    pub bytes: u64,
    pub modified: SystemTime,
}

impl Objects {
    pub fn new(located: Located, settings: &StoreSettings) -> Result<Self, StoreError> {
        let Located { place, objects, root } = located;
        // Threads that call in drive it themselves, so it needs none of its own.
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS).build();
        let runtime = runtime.map_err(|error| explain_io("start the runtime of a store".to_owned(), &error))?;
        Ok(Self { runtime, objects, root, place, retry_for: settings.retry_for })
    }

    /// The names of the folders there are.
    pub fn folders(&self) -> Result<Vec<String>, StoreError> {
        let root = (!self.root.as_ref().is_empty()).then_some(&self.root);
        let listed =
            self.run(|| format!("list {}", self.place), async || self.objects.list_with_delimiter(root).await)?;
        Ok(listed.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned)).collect())
    }

    /// The files of a folder with their lengths.
    pub fn files(&self, folder: &str) -> Result<BTreeMap<String, u64>, StoreError> {
        let path = self.root.clone().join(folder);
        let doing = || format!("list {folder} in {}", self.place);
        let listed = self.run(doing, async || self.objects.list_with_delimiter(Some(&path)).await)?;
        let file = |object: object_store::ObjectMeta| Some((object.location.filename()?.to_owned(), object.size));
        Ok(listed.objects.into_iter().filter_map(file).collect())
    }

    /// A file, if it is there.
    pub fn stat(&self, folder: &str, file: &str) -> Result<Option<Stat>, StoreError> {
        let path = self.path(folder, file);
        let found = self.run(self.doing("look for", folder, file), async || match self.objects.head(&path).await {
            Err(error) if is_missing(&error) => Ok(None),
            found => found.map(Some),
        })?;
        Ok(found.map(|object| Stat { bytes: object.size, modified: object.last_modified.into() }))
    }

    /// Writes a file from its pieces. It is there whole, or not at all.
    pub fn write(&self, folder: &str, file: &str, pieces: &[&[u8]]) -> Result<FileEntry, StoreError> {
        let (path, mut parts) = (self.path(folder, file), Parts::new(pieces));
        let begun = Instant::now();
        let written = self.runtime.block_on(async {
            if parts.bytes > PART_BYTES as u64 {
                return self.write_in_parts(&path, &mut parts).await;
            }
            let whole = PutPayload::from(parts.next(PART_BYTES).unwrap_or_default());
            self.again(async || self.objects.put(&path, whole.clone()).await).await.map(drop)
        });
        match written {
            Ok(()) => Ok(FileEntry { name: file.to_owned(), bytes: parts.bytes, checksum: parts.checksum() }),
            Err(error) => Err(explain(&self.place, self.doing("write", folder, file)(), &error, begun.elapsed())),
        }
    }

    async fn write_in_parts(&self, path: &Path, parts: &mut Parts<'_>) -> object_store::Result<()> {
        let mut upload = self.again(async || self.objects.put_multipart(path).await).await?;
        if let Err(error) = send_parts(upload.as_mut(), parts).await {
            upload.abort().await.ok();
            return Err(error);
        }
        let Err(error) = upload.complete().await else { return Ok(()) };
        // The answer may be lost of what was done. Nobody else writes a file of this name.
        match self.again(async || self.objects.head(path).await).await {
            Ok(object) if object.size == parts.bytes => Ok(()),
            _ => {
                upload.abort().await.ok();
                Err(error)
            }
        }
    }

    /// Hands over the first `bytes` of a file, in order and in pieces of any length, and says what
    /// they come to. None where the file is not there or not as long.
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
            let (mut hash, mut came) = (Xxh3::new(), 0);
            while let Some(part) = arriving.try_next().await? {
                hash.update(&part);
                came += part.len() as u64;
                take(&part);
            }
            Ok((came == bytes).then(|| Checksum(hash.digest())))
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

    /// Removes a file, if it is there.
    pub fn remove(&self, folder: &str, file: &str) -> Result<(), StoreError> {
        let path = self.path(folder, file);
        self.run(self.doing("remove", folder, file), async || match self.objects.delete(&path).await {
            Err(error) if is_missing(&error) => Ok(()),
            removed => removed,
        })
    }

    /// Removes a folder with all its files, the manifest first: from then on there is no such
    /// checkpoint.
    pub fn remove_folder(&self, folder: &str) -> Result<(), StoreError> {
        self.remove(folder, FILE)?;
        if let Place::Folder(root) = &self.place {
            // What a killed process was writing has names that the object store does not list.
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

    /// The object store itself sends a request again that was not answered; this, one whose answer
    /// did not come whole.
    async fn again<T>(&self, mut request: impl AsyncFnMut() -> object_store::Result<T>) -> object_store::Result<T> {
        let (begun, mut pause) = (Instant::now(), FIRST_PAUSE);
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

/// Without its manifest in any case, should the power fail before the rest is gone.
fn remove_durably(folder: &std::path::Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()?;
    fs::remove_dir_all(folder)
}

/// The bytes of a file, copied part by part from the pieces it is made of.
struct Parts<'a> {
    pieces: &'a [&'a [u8]],
    /// What is left of the first piece.
    rest: &'a [u8],
    /// Of all pieces.
    bytes: u64,
    /// Of those, not given out yet.
    left: u64,
    hash: Xxh3,
}

impl<'a> Parts<'a> {
    fn new(pieces: &'a [&'a [u8]]) -> Self {
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self { pieces, rest: &[], bytes, left: bytes, hash: Xxh3::new() }
    }

    /// The next so many bytes, or what is left.
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

    /// What all that was given out comes to.
    fn checksum(&self) -> Checksum {
        Checksum(self.hash.digest())
    }
}
