//! How a name becomes a key: the same on every machine, for the same seed.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Hashes names into 2^bits keys: 0 … 2^bits − 1.
///
/// The hash is XXH3 (64 bits). A feature is a name within a space (a column, a namespace): the
/// space's name is hashed with the seed, the feature's name with what that gave, and the lowest
/// `bits` bits are the key. So equal names in two spaces are two features, and with 64 bits nothing
/// is folded.
///
/// ```
/// use data::FeatureHash;
///
/// let hash = FeatureHash::new(7, 18).unwrap();
/// let (city, home) = (hash.space(b"city"), hash.space(b"home"));
/// assert!(hash.key(city, b"Delft") < 1 << 18);
/// assert_eq!(hash.key(city, b"Delft"), hash.key(city, b"Delft"));
/// assert_ne!(hash.key(city, b"Delft"), hash.key(home, b"Delft"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureHash {
    seed: u64,
    mask: u64,
}

/// What features are named within: the hash of a column's or a namespace's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space(u64);

impl FeatureHash {
    /// A hash into 2^`bits` keys. There is none unless `bits` is from 1 to 64.
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

    /// The space of that name.
    #[must_use]
    pub fn space(self, name: &[u8]) -> Space {
        Space(xxh3_64_with_seed(name, self.seed))
    }

    /// The key of a feature that has a name.
    #[must_use]
    pub fn key(self, space: Space, name: &[u8]) -> u64 {
        xxh3_64_with_seed(name, space.0) & self.mask
    }

    /// The key of a space that is one feature by itself, as a column of numbers is.
    #[must_use]
    pub fn key_of_space(self, space: Space) -> u64 {
        space.0 & self.mask
    }
}

/// Seed 0 and 64 bits: keys for a sparse table, where two names hardly ever meet.
impl Default for FeatureHash {
    fn default() -> Self {
        Self { seed: 0, mask: u64::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_fixed_for_ever() {
        let hash = FeatureHash::default();
        // XXH3's own figure for nothing at all, with seed 0.
        assert_eq!(hash.space(b""), Space(0x2D06_8005_38D3_94C2));
        assert_eq!(hash.key(hash.space(b""), b"a"), 8_745_009_104_447_747_809, "a model would no longer fit its data");
    }

    #[test]
    fn fewer_bits_fold_the_same_hash() {
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
