//! A memory that is too large for one request to etcd is kept in pieces, under names that are used once.

use crate::registry::{MEMORY_BYTES, RegistryError};
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_128;

/// The largest piece. etcd takes requests of 1.5 MiB, all told.
pub const PIECE_BYTES: usize = 1 << 20;

/// Where the pieces of a memory are, and what they make together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// The term in which they were written, and which of its saves wrote them.
    pub name: (u64, u64),
    /// Of the whole memory.
    pub bytes: u64,
    hash: u128,
}

impl Pieces {
    /// Those of `memory`.
    pub fn of(name: (u64, u64), memory: &[u8]) -> Self {
        Self { name, bytes: memory.len() as u64, hash: xxh3_128(memory) }
    }

    /// As it is stored.
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

    /// How many there are.
    pub fn count(self) -> usize {
        (self.bytes as usize).div_ceil(PIECE_BYTES)
    }

    /// The memory, if these bytes are it.
    pub fn check(self, memory: Vec<u8>, place: &str) -> Result<Vec<u8>, RegistryError> {
        if memory.len() as u64 == self.bytes && xxh3_128(&memory) == self.hash {
            return Ok(memory);
        }
        let reason = "its pieces are not those that were written together".to_owned();
        Err(RegistryError::Damaged { place: place.to_owned(), reason })
    }
}

/// The keys of a job.
#[derive(Clone, Debug)]
pub struct Keys {
    /// Held by the lease of the one that leads.
    pub leader: String,
    /// A memory, or where its pieces are.
    pub memory: String,
}

impl Keys {
    /// Under the job's path.
    pub fn new(path: &str) -> Self {
        Self { leader: format!("{path}/leader"), memory: format!("{path}/memory") }
    }

    /// One piece.
    pub fn piece(&self, (term, save): (u64, u64), index: usize) -> String {
        format!("{}/{term:020}-{save:010}/{index:05}", self.memory)
    }

    /// All pieces but those of this name: keys from, and up to. Names are of equal length, so that their order is that of text; `0`
    /// follows `/`.
    pub fn other_pieces(&self, name: Option<(u64, u64)>) -> Vec<Range<String>> {
        let (first, end) = (format!("{}/", self.memory), format!("{}0", self.memory));
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
    fn other_pieces_are_all_but_those_of_the_name() {
        let keys = Keys::new("/jobs/clicks");
        let own = (7, 3);
        let covered = |key: &String, name| {
            keys.other_pieces(name).iter().filter(|range: &&Range<String>| range.contains(key)).count()
        };
        for index in [0, 1, 99_999] {
            assert_eq!(covered(&keys.piece(own, index), Some(own)), 0);
            assert_eq!(covered(&keys.piece(own, index), None), 1);
            for other in [(7, 2), (7, 4), (6, 3), (8, 3), (0, 0), (u64::MAX, 9_999_999_999)] {
                assert_eq!(covered(&keys.piece(other, index), Some(own)), 1, "{other:?}");
            }
        }
        for kept in [&keys.leader, &keys.memory] {
            assert_eq!(covered(kept, Some(own)) + covered(kept, None), 0, "{kept}");
        }
    }

    #[test]
    fn pieces_that_do_not_belong_together_are_damage() {
        let memory = vec![5; 2 * PIECE_BYTES + 1];
        let pieces = Pieces::of((1, 2), &memory);
        assert_eq!(Pieces::from_bytes(&pieces.to_bytes()), Some(pieces));
        assert_eq!(pieces.count(), 3);
        assert_eq!(pieces.check(memory.clone(), "here"), Ok(memory.clone()));
        let mut other = memory.clone();
        other[PIECE_BYTES] = 6;
        for wrong in [other, memory[1..].to_vec(), Vec::new()] {
            assert!(matches!(pieces.check(wrong, "here"), Err(RegistryError::Damaged { .. })));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_name_pieces_within_bounds_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Some(pieces) = Pieces::from_bytes(&bytes) {
                prop_assert!(pieces.count() <= MEMORY_BYTES / PIECE_BYTES);
                prop_assert_eq!(pieces.to_bytes(), bytes);
            }
        }
    }
}
