//! Random numbers from a seed: xoshiro256** (Blackman and Vigna), its state seeded by SplitMix64.

use types::SplitMix64;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Xoshiro256 {
    state: [u64; 4],
}

impl Xoshiro256 {
    /// The stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut seeds = SplitMix64::new(seed);
        Self { state: std::array::from_fn(|_| seeds.draw()) }
    }

    /// A number from all of `u64`.
    pub fn number(&mut self) -> u64 {
        let result = self.state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = self.state[1] << 17;
        self.state[2] ^= self.state[0];
        self.state[3] ^= self.state[1];
        self.state[1] ^= self.state[2];
        self.state[0] ^= self.state[3];
        self.state[2] ^= t;
        self.state[3] = self.state[3].rotate_left(45);
        result
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        ((self.number() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// Some of `items`, in their order: each with this probability, and at least one.
    pub fn some_of<T: Copy>(&mut self, items: &[T], probability: f64) -> Vec<T> {
        let mut chosen: Vec<T> = items.iter().copied().filter(|_| self.chance(probability)).collect();
        if chosen.is_empty() && !items.is_empty() {
            chosen.push(items[self.below(items.len() as u64) as usize]);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_numbers() {
        let take = |seed| {
            let mut random = Xoshiro256::new(seed);
            (0..8).map(|_| random.number()).collect::<Vec<_>>()
        };
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
    }

    #[test]
    fn random_numbers_keep_their_chances_and_bounds() {
        let mut random = Xoshiro256::new(3);
        let hits = (0..10_000).filter(|_| random.chance(0.25)).count();
        assert!((2_200..2_800).contains(&hits), "{hits}");
        assert!((0..1_000).all(|_| random.below(7) < 7));
        assert_eq!(random.some_of(&[1, 2, 3], 0.0).len(), 1);
    }
}
