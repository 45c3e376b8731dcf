//! Chunking: a memory that is too large for one etcd value is stored as chunks, under names that
//! are used once.

use crate::registry::{MEMORY_BYTES, RegistryError};
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_128;

/// The largest chunk. etcd accepts requests of at most 1.5 MiB.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// The chunks of one memory: their name, and the length and hash of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkManifest {
    /// The term in which they were written, and which of its saves wrote them.
    pub name: (u64, u64),
    /// Bytes of the whole memory.
    pub bytes: u64,
    /// Hash of the whole memory.
    hash: u128,
}

impl ChunkManifest {
    /// The manifest of `memory`.
    pub fn of(name: (u64, u64), memory: &[u8]) -> Self {
        Self { name, bytes: memory.len() as u64, hash: xxh3_128(memory) }
    }

    /// The stored form.
    pub fn to_bytes(self) -> Vec<u8> {
        let Self { name: (term, save), bytes, hash } = self;
        [&term.to_le_bytes()[..], &save.to_le_bytes(), &bytes.to_le_bytes(), &hash.to_le_bytes()].concat()
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (term, rest) = bytes.split_first_chunk()?;
        let (save, rest) = rest.split_first_chunk()?;
        let (bytes, rest) = rest.split_first_chunk()?;
        let name = (u64::from_le_bytes(*term), u64::from_le_bytes(*save));
        let bytes = u64::from_le_bytes(*bytes);
        let hash = u128::from_le_bytes(rest.try_into().ok()?);
        (bytes <= MEMORY_BYTES as u64).then_some(Self { name, bytes, hash })
    }

    /// The number of chunks.
    pub fn count(self) -> usize {
        (self.bytes as usize).div_ceil(CHUNK_BYTES)
    }

    /// Returns the memory if its length and hash match the manifest.
    pub fn check(self, memory: Vec<u8>, place: &str) -> Result<Vec<u8>, RegistryError> {
        if memory.len() as u64 == self.bytes && xxh3_128(&memory) == self.hash {
            return Ok(memory);
        }
        let reason = "its chunks are not those that were written together".to_owned();
        Err(RegistryError::Damaged { place: place.to_owned(), reason })
    }
}

/// The etcd keys of a job.
#[derive(Clone, Debug)]
pub(crate) struct EtcdKeys {
    /// The leader's address. The key ends with the leader's etcd lease.
    pub leader: String,
    /// The memory, or the manifest of its chunks.
    pub memory: String,
}

impl EtcdKeys {
    /// The keys under the job's path.
    pub fn new(path: &str) -> Self {
        Self { leader: format!("{path}/leader"), memory: format!("{path}/memory") }
    }

    /// The key of one chunk.
    pub fn chunk(&self, (term, save): (u64, u64), index: usize) -> String {
        format!("{}/{term:020}-{save:010}/{index:05}", self.memory)
    }

    /// Ranges of keys that cover all chunks except those of this name. Names have equal length, so
    /// their text order is their numeric order. The character `0` follows `/`.
    pub fn other_chunks(&self, name: Option<(u64, u64)>) -> Vec<Range<String>> {
        let first = format!("{}/", self.memory);
        let end = format!("{}0", self.memory);
        match name {
            None => vec![first..end],
            Some((term, save)) => {
                let own = format!("{}/{term:020}-{save:010}", self.memory);
                vec![first..format!("{own}/"), format!("{own}0")..end]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn other_chunks_covers_all_chunks_except_those_of_the_name() {
        let keys = EtcdKeys::new("/jobs/clicks");
        let own = (7, 3);
        let covered = |key: &String, name| {
            keys.other_chunks(name).iter().filter(|range: &&Range<String>| range.contains(key)).count()
        };
        for index in [0, 1, 99_999] {
            assert_eq!(covered(&keys.chunk(own, index), Some(own)), 0);
            assert_eq!(covered(&keys.chunk(own, index), None), 1);
            for other in [(7, 2), (7, 4), (6, 3), (8, 3), (0, 0), (u64::MAX, 9_999_999_999)] {
                assert_eq!(covered(&keys.chunk(other, index), Some(own)), 1, "{other:?}");
            }
        }
        for kept in [&keys.leader, &keys.memory] {
            assert_eq!(covered(kept, Some(own)) + covered(kept, None), 0, "{kept}");
        }
    }

    #[test]
    fn chunks_that_do_not_match_the_manifest_are_damage() {
        let memory = vec![5; 2 * CHUNK_BYTES + 1];
        let chunks = ChunkManifest::of((1, 2), &memory);
        assert_eq!(ChunkManifest::from_bytes(&chunks.to_bytes()), Some(chunks));
        assert_eq!(chunks.count(), 3);
        assert_eq!(chunks.check(memory.clone(), "here"), Ok(memory.clone()));
        let mut other = memory.clone();
        other[CHUNK_BYTES] = 6;
        for wrong in [other, memory[1..].to_vec(), Vec::new()] {
            assert!(matches!(chunks.check(wrong, "here"), Err(RegistryError::Damaged { .. })));
        }
    }

    proptest! {
        #[test]
        fn manifest_from_any_bytes_is_within_bounds_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Some(chunks) = ChunkManifest::from_bytes(&bytes) {
                prop_assert!(chunks.count() <= MEMORY_BYTES / CHUNK_BYTES);
                prop_assert_eq!(chunks.to_bytes(), bytes);
            }
        }
    }
}
