//! An open checkpoint: its manifest, and the data of its files, read one file at a time and
//! compared with the manifest.

use crate::manifest::{FileEntry, Manifest};
use crate::residuals::{self, ResidualBytes, residuals_from_contents};
use crate::tensors::{Contents, Decoder};
use crate::{CheckpointName, CheckpointShard, Problem, Store, StoreError, StoreSettings, shard};
use std::fmt::Write;

/// An open checkpoint. Everything that is read from it is first compared with its manifest.
#[derive(Clone, Debug)]
pub struct Opened {
    store: Store,
    name: CheckpointName,
    manifest: Manifest,
    unfinished: Vec<CheckpointName>,
}

impl Opened {
    pub(crate) fn new(store: Store, name: CheckpointName, manifest: Manifest, unfinished: Vec<CheckpointName>) -> Self {
        Self { store, name, manifest, unfinished }
    }

    /// Opens the checkpoint at a location: a checkpoint's own folder, or a store, of which it opens
    /// the newest.
    ///
    /// # Errors
    /// As [`Store::open`], [`Store::open_named`] and [`Store::newest`].
    pub fn at(location: &str, settings: &StoreSettings) -> Result<Self, StoreError> {
        let location = location.trim_end_matches('/');
        let one = location.rsplit_once('/').map_or((".", location), |(store, name)| (store, name));
        match one.1.parse() {
            Ok(name) => Store::open_with(one.0, settings)?.open_named(name, None),
            Err(_) => Store::open_with(location, settings)?.newest(None),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> CheckpointName {
        self.name
    }

    /// Its manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Checkpoints that were begun after it and never published. Empty unless it was opened as the
    /// newest.
    #[must_use]
    pub fn unfinished(&self) -> &[CheckpointName] {
        &self.unfinished
    }

    /// Reads one shard of one table. While reading, it takes up to 32 MiB beside the shard's own
    /// memory.
    ///
    /// # Errors
    /// When there is no such shard, the store cannot be read, or the file is damaged.
    pub fn shard(&self, table: &str, shard: u32) -> Result<CheckpointShard<'static>, StoreError> {
        let holds = shard::holds(table, shard);
        let tables = self.manifest.tables.iter().find(|entry| entry.name == table);
        let entry = tables.and_then(|table| Some((table, table.shards.get(shard as usize)?)));
        let (table_entry, entry) = entry.ok_or_else(|| self.absent(&holds))?;
        let contents = self.contents(&entry.file, &holds)?;
        let read = CheckpointShard::from_contents(table, shard, contents).and_then(|read| {
            let found = (read.positions.count(), read.stride as u64, read.rows.number());
            match found == (entry.rows, table_entry.stride, table_entry.number) {
                true => Ok(read),
                false => Err(format!("it has {} rows of {} {}", found.0, found.1, found.2)),
            }
        });
        read.map_err(|problem| self.damaged(Problem::Contents { file: entry.file.name.clone(), holds, problem }))
    }

    /// Reads the residuals of a worker's codecs.
    ///
    /// # Errors
    /// As [`shard`](Self::shard).
    pub fn residuals(&self, worker: &str) -> Result<ResidualBytes, StoreError> {
        let holds = residuals::holds(worker);
        let entry = self.manifest.residuals.iter().find(|entry| entry.worker == worker);
        let entry = entry.ok_or_else(|| self.absent(&holds))?;
        let read = residuals_from_contents(worker, self.contents(&entry.file, &holds)?);
        read.map_err(|problem| self.damaged(Problem::Contents { file: entry.file.name.clone(), holds, problem }))
    }

    /// Reads every file and compares its checksum with the manifest's, in constant memory.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] with the first problem.
    pub fn verify(&self) -> Result<(), StoreError> {
        match self.store.check(self.name, None)? {
            Ok(manifest) if manifest == self.manifest => {}
            Ok(_) => {
                let problem = "it was replaced after it was opened".to_owned();
                return Err(self.damaged(Problem::Manifest { problem }));
            }
            Err(problem) => return Err(self.damaged(problem)),
        }
        self.manifest.files().try_for_each(|(file, holds)| self.read(file, &holds, |_| ()))
    }

    /// What the checkpoint holds, as lines for people.
    #[must_use]
    pub fn summary(&self) -> String {
        let Manifest { job, clock, shards, tables, residuals, .. } = &self.manifest;
        let bytes: u64 = self.manifest.files().map(|(file, _)| file.bytes).sum();
        let mut text = format!(
            "{} in {}\njob {job}, clock {clock}, {shards} shards, {bytes} bytes in {} files\n",
            self.name,
            self.store.location(),
            self.manifest.files().count(),
        );
        for table in tables {
            let rows: u64 = table.shards.iter().map(|entry| entry.rows).sum();
            writeln!(text, "table `{}`: {rows} rows of {} {}", table.name, table.stride, table.number).ok();
        }
        for entry in residuals {
            writeln!(text, "{}: {} bytes", residuals::holds(&entry.worker), entry.file.bytes).ok();
        }
        text
    }

    fn contents(&self, file: &FileEntry, holds: &str) -> Result<Contents, StoreError> {
        let mut decoder = Decoder::new(file.bytes);
        let mut fed = Ok(());
        self.read(file, holds, |piece| {
            if fed.is_ok() {
                fed = decoder.feed(piece);
            }
        })?;
        let contents = fed.and_then(|()| decoder.finish());
        let file = file.name.clone();
        let holds = holds.to_owned();
        contents.map_err(|problem| self.damaged(Problem::Contents { file, holds, problem }))
    }

    /// Passes the bytes of a file to `take`, and compares its checksum at its end.
    fn read(&self, file: &FileEntry, holds: &str, take: impl FnMut(&[u8])) -> Result<(), StoreError> {
        let folder = self.name.to_string();
        let name = file.name.clone();
        let holds = holds.to_owned();
        match self.store.objects().read(&folder, &name, file.bytes, take)? {
            Some(checksum) if checksum == file.checksum => Ok(()),
            Some(_) => Err(self.damaged(Problem::Checksum { file: name, holds })),
            None => Err(self.damaged(match self.store.objects().stat(&folder, &name)? {
                Some(stat) => Problem::Length { file: name, holds, found: stat.bytes, wanted: file.bytes },
                None => Problem::Missing { file: name, holds },
            })),
        }
    }

    fn damaged(&self, problem: Problem) -> StoreError {
        self.store.damaged(self.name, problem, Some(&self.manifest.job))
    }

    fn absent(&self, holds: &str) -> StoreError {
        let problem = "the checkpoint has none".to_owned();
        StoreError::Failed { doing: format!("read {holds} of {} in {}", self.name, self.store.location()), problem }
    }
}
