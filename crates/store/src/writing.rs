//! A checkpoint that is being written: files by whoever has them, and then the manifest, by one.

use crate::manifest::{FILE, Manifest, ResidualsEntry, ShardEntry};
use crate::name::random;
use crate::residuals::residuals_head;
use crate::{CheckpointName, CheckpointShard, FileEntry, Problem, Store, StoreError};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// The most of a table's or worker's name that becomes part of a file's.
const MOST_NAME: usize = 80;

/// A checkpoint that is being written. It exists once its manifest is published, and not before.
///
/// Several threads may write at once, and several processes: one begins the checkpoint, the others
/// [join](Store::join) it by its name, and each hands what it gets for a file to the one who
/// publishes. No two ever write a file of the same name, so a shard that is written again by
/// another server does not disturb the first.
///
/// A call takes up to 32 MiB beside what it is given, whatever the shard's size up to 80 GB (and
/// twice its size where the store is memory).
#[derive(Clone, Debug)]
pub struct Writing {
    store: Store,
    name: CheckpointName,
    /// Part of the name of every file that is written here.
    tag: u32,
}

impl Writing {
    pub(crate) fn new(store: Store, name: CheckpointName) -> Self {
        Self { store, name, tag: random() }
    }

    /// The name under which others join.
    #[must_use]
    pub fn name(&self) -> CheckpointName {
        self.name
    }

    /// Writes one shard of one table, and says what the manifest will say of it.
    ///
    /// # Errors
    /// When its rows are not as many as its positions, or the store does not take it.
    pub fn shard(&self, shard: &CheckpointShard) -> Result<ShardEntry, StoreError> {
        let file = format!("table-{}-{:05}-{:08x}.safetensors", plain(&shard.table), shard.index, self.tag);
        let written = shard.with_pieces(|pieces| self.write(&file, pieces)).map_err(|problem| self.wrong(problem))?;
        Ok(ShardEntry { index: shard.index, rows: shard.positions.count(), file: written? })
    }

    /// Writes what a worker's codecs have still to send: bytes by names that differ.
    ///
    /// # Errors
    /// When two names are the same, or the store does not take it.
    pub fn residuals(&self, worker: &str, residuals: &[(&str, &[u8])]) -> Result<ResidualsEntry, StoreError> {
        let head = residuals_head(worker, residuals).map_err(|problem| self.wrong(problem))?;
        let file = format!("residuals-{}-{:08x}.safetensors", plain(worker), self.tag);
        let pieces: Vec<&[u8]> = std::iter::once(&head[..]).chain(residuals.iter().map(|(_, bytes)| *bytes)).collect();
        Ok(ResidualsEntry { worker: worker.to_owned(), file: self.write(&file, &pieces)? })
    }

    /// Sees that every file is there as long as it was written, and writes the manifest: now the
    /// checkpoint exists.
    ///
    /// # Errors
    /// When the manifest does not hang together, a file is missing or of another length, or the
    /// store does not take it.
    pub fn publish(&self, manifest: &Manifest) -> Result<(), StoreError> {
        manifest.check().map_err(|problem| self.wrong(problem))?;
        let there = self.store.objects().files(&self.name.to_string())?;
        if let Some(problem) = missing(manifest, &there) {
            return Err(StoreError::Incomplete { name: self.name, problem: Box::new(problem) });
        }
        self.write(FILE, &[&manifest.to_bytes()]).map(drop)
    }

    /// Removes what was written, as after an error, once nobody writes along any more. A checkpoint
    /// that was published goes, too.
    ///
    /// # Errors
    /// When the store does not let go of it.
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

/// The first file of a manifest that is not among those there, or is of another length.
pub(crate) fn missing(manifest: &Manifest, there: &BTreeMap<String, u64>) -> Option<Problem> {
    manifest.files().find_map(|(file, holds)| {
        let (name, wanted) = (file.name.clone(), file.bytes);
        match there.get(&name) {
            None => Some(Problem::Missing { file: name, holds }),
            Some(&found) if found != wanted => Some(Problem::Length { file: name, holds, found, wanted }),
            Some(_) => None,
        }
    })
}

/// A name as part of a file's: letters, digits, `-` and `_`. One that has to be changed for that is
/// told from others by a hash.
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
    fn any_name_becomes_part_of_a_files_and_different_names_stay_different() {
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
