//! Writes a checkpoint: several writers write its files, and then one writes the manifest.

use crate::manifest::{FILE, Manifest, ResidualsEntry, ShardEntry};
use crate::name::random;
use crate::residuals::residuals_head;
use crate::{CheckpointName, CheckpointShard, FileEntry, Problem, Store, StoreError};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// The most bytes of a table's or worker's name that become part of a file's name.
const MOST_NAME: usize = 80;

/// A checkpoint that is being written. It exists once its manifest is published, and not before.
///
/// Several threads and several processes may write at once. One process begins the checkpoint, and
/// the others [join](Store::join) it by its name. Each passes the entry that it gets for a file to
/// the process that publishes. No two writers use the same file name, so a second server that
/// writes a shard again does not overwrite the first file.
///
/// A call takes up to 32 MiB beside its arguments, for shards of up to 80 GB. Where the store is
/// memory, it takes twice the shard's size.
#[derive(Clone, Debug)]
pub struct Writing {
    store: Store,
    name: CheckpointName,
    /// A random part of the name of every file that this writer writes.
    tag: u32,
}

impl Writing {
    pub(crate) fn new(store: Store, name: CheckpointName) -> Self {
        Self { store, name, tag: random() }
    }

    /// The checkpoint's name, by which other processes join.
    #[must_use]
    pub fn name(&self) -> CheckpointName {
        self.name
    }

    /// Writes one shard of one table, and returns its entry for the manifest.
    ///
    /// # Errors
    /// When the numbers of rows and positions differ, or the store cannot be written.
    pub fn shard(&self, shard: &CheckpointShard) -> Result<ShardEntry, StoreError> {
        let file = format!("table-{}-{:05}-{:08x}.safetensors", plain(&shard.table), shard.index, self.tag);
        let written = shard.with_pieces(|pieces| self.write(&file, pieces)).map_err(|problem| self.wrong(problem))?;
        Ok(ShardEntry { index: shard.index, rows: shard.positions.count(), file: written? })
    }

    /// Writes the residuals of a worker's codecs, with a name for each.
    ///
    /// # Errors
    /// When two names are the same, or the store cannot be written.
    pub fn residuals(&self, worker: &str, residuals: &[(&str, &[u8])]) -> Result<ResidualsEntry, StoreError> {
        let head = residuals_head(worker, residuals).map_err(|problem| self.wrong(problem))?;
        let file = format!("residuals-{}-{:08x}.safetensors", plain(worker), self.tag);
        let pieces: Vec<&[u8]> = std::iter::once(&head[..]).chain(residuals.iter().map(|(_, bytes)| *bytes)).collect();
        Ok(ResidualsEntry { worker: worker.to_owned(), file: self.write(&file, &pieces)? })
    }

    /// Checks that every file exists with its length, and writes the manifest: now the checkpoint
    /// exists.
    ///
    /// # Errors
    /// When the manifest is inconsistent, a file is missing or has another length, or the store
    /// cannot be written.
    pub fn publish(&self, manifest: &Manifest) -> Result<(), StoreError> {
        manifest.check().map_err(|problem| self.wrong(problem))?;
        let there = self.store.objects().files(&self.name.to_string())?;
        if let Some(problem) = missing(manifest, &there) {
            return Err(StoreError::Incomplete { name: self.name, problem: Box::new(problem) });
        }
        self.write(FILE, &[&manifest.to_bytes()]).map(drop)
    }

    /// Removes all files of the checkpoint, even if it was published. Call it after an error, once
    /// no other process writes to it.
    ///
    /// # Errors
    /// When the removal fails.
    pub fn abandon(self) -> Result<(), StoreError> {
        self.store.objects().remove_folder(&self.name.to_string())
    }

    fn write(&self, file: &str, pieces: &[&[u8]]) -> Result<FileEntry, StoreError> {
        self.store.objects().write(&self.name.to_string(), file, pieces)
    }

    fn wrong(&self, problem: String) -> StoreError {
        StoreError::Wrong { name: self.name, problem }
    }
}

/// The first file of a manifest that is missing from `there` or has another length.
pub(crate) fn missing(manifest: &Manifest, there: &BTreeMap<String, u64>) -> Option<Problem> {
    manifest.files().find_map(|(file, holds)| {
        let name = file.name.clone();
        let wanted = file.bytes;
        match there.get(&name) {
            None => Some(Problem::Missing { file: name, holds }),
            Some(&found) if found != wanted => Some(Problem::Length { file: name, holds, found, wanted }),
            Some(_) => None,
        }
    })
}

/// A name as part of a file name: letters, digits, `-` and `_`. A name that has to be changed gets
/// a hash, so that different names stay different.
fn plain(name: &str) -> String {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if !name.is_empty() && name.len() <= MOST_NAME && name.bytes().all(allowed) {
        return name.to_owned();
    }
    let letters = name.bytes().map(|byte| if allowed(byte) { char::from(byte) } else { '_' });
    format!("{}-{:016x}", letters.take(MOST_NAME).collect::<String>(), xxh3_64(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_name_parts_are_plain_and_distinct() {
        assert_eq!(plain("user_factors-2"), "user_factors-2");
        let long = "x".repeat(300);
        let names = ["", "..", "a/b", "a_b", "a b", "ä", "layer.0", &long, &long[1..]];
        let plain_ones: std::collections::HashSet<String> = names.iter().map(|name| plain(name)).collect();
        assert_eq!(plain_ones.len(), names.len(), "{plain_ones:?}");
        for name in &plain_ones {
            assert!(
                name.len() <= 100 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
            );
        }
    }
}
