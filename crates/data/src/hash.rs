//! Feature hashing: turns names into keys. The same seed gives the same keys on every machine.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Hashes names into 2^bits keys: 0 … 2^bits − 1.
///
/// The hash is XXH3 with 64 bits. A feature is a name within a space (a column, a namespace). The
/// space's name is hashed with the seed, and the feature's name with the hash of the space; the
/// lowest `bits` bits are the key. So equal names in two spaces are two features. With 64 bits the
/// whole hash is the key.
///
/// ```
/// use data::FeatureHash;
///
/// let hash = FeatureHash::new(7, 18).unwrap();
/// let city = hash.space(b"city");
/// let home = hash.space(b"home");
/// assert!(hash.key(city, b"Delft") < 1 << 18);
/// assert_eq!(hash.key(city, b"Delft"), hash.key(city, b"Delft"));
/// assert_ne!(hash.key(city, b"Delft"), hash.key(home, b"Delft"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureHash {
    seed: u64,
    mask: u64,
}

/// A space of names: the hash of a column's or a namespace's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space(u64);

impl FeatureHash {
    /// A hash into 2^`bits` keys, or none unless `bits` is from 1 to 64.
    #[must_use]
    pub fn new(seed: u64, bits: u32) -> Option<Self> {
        let mask = u64::MAX.checked_shr(64_u32.checked_sub(bits)?)?;
        Some(Self { seed, mask })
    }

    /// How many bits a key has.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.mask.count_ones()
    }

    /// The space with this name.
    #[must_use]
    pub fn space(self, name: &[u8]) -> Space {
        Space(xxh3_64_with_seed(name, self.seed))
    }

    /// The key of the feature with this name in a space.
    #[must_use]
    pub fn key(self, space: Space, name: &[u8]) -> u64 {
        xxh3_64_with_seed(name, space.0) & self.mask
    }

    /// The key of a space that is one feature by itself, such as a numeric column.
    #[must_use]
    pub fn key_of_space(self, space: Space) -> u64 {
        space.0 & self.mask
    }
}

/// Seed 0 and 64 bits: keys for a sparse table, in which two names hardly ever collide.
impl Default for FeatureHash {
    fn default() -> Self {
        Self { seed: 0, mask: u64::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_never_change_between_releases() {
        let hash = FeatureHash::default();
        // The reference value of XXH3 for empty input and seed 0.
        assert_eq!(hash.space(b""), Space(0x2D06_8005_38D3_94C2));
        assert_eq!(
            hash.key(hash.space(b""), b"a"),
            8_745_009_104_447_747_809,
            "keys have changed, so saved models no longer fit their data"
        );
    }

    #[test]
    fn fewer_bits_keep_the_lowest_bits_of_the_same_hash() {
        let wide = FeatureHash::new(3, 64).unwrap();
        let space = wide.space(b"x");
        for bits in 1..=64 {
            let narrow = FeatureHash::new(3, bits).unwrap();
            assert_eq!(narrow.bits(), bits);
            for name in [&b"a"[..], b"b", b"a much longer name than the others"] {
                let folded = u128::from(wide.key(space, name)) % (1_u128 << bits);
                assert_eq!(u128::from(narrow.key(space, name)), folded, "{bits} bits");
            }
        }
        assert_eq!(FeatureHash::new(3, 0), None);
        assert_eq!(FeatureHash::new(3, 65), None);
    }

    #[test]
    fn a_seed_gives_other_keys() {
        let [one, two] = [1, 2].map(|seed| FeatureHash::new(seed, 32).unwrap());
        assert_ne!(one.key(one.space(b"x"), b"a"), two.key(two.space(b"x"), b"a"));
    }
}
