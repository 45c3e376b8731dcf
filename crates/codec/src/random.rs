//! Counter-based random numbers: a number follows from (seed, sequence, block, index) alone, not
//! from earlier draws.

use types::mix;

/// The two halves of a block's key. A value's random number is mixed from them and the value's
/// index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockKey(u32, u32);

impl BlockKey {
    pub(crate) fn new(seed: u64, sequence: u64, block: u64) -> Self {
        let key = mix(mix(mix(seed).wrapping_add(sequence)).wrapping_add(block));
        Self(key as u32, (key >> 32) as u32)
    }

    /// A number uniform over the multiples of 2⁻²⁴ in [0, 1). Each is an f32, so comparing with it
    /// is exact.
    #[inline(always)]
    pub(crate) fn uniform(self, index: u32) -> f32 {
        let mut x = index.wrapping_mul(0x9E37_79B9) ^ self.0;
        x = (x ^ (x >> 16)).wrapping_mul(0x85EB_CA6B) ^ self.1;
        x = (x ^ (x >> 13)).wrapping_mul(0xC2B2_AE35);
        ((x ^ (x >> 16)) >> 8) as i32 as f32 * (1.0 / 16_777_216.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_uniform_within_a_block_and_over_blocks_and_sequences() {
        let in_block = |key: BlockKey| (0..512).map(move |index| key.uniform(index));
        let draws = [
            in_block(BlockKey::new(7, 0, 0)).collect::<Vec<f32>>(),
            (0..4096).flat_map(|block| in_block(BlockKey::new(7, 3, block)).take(1)).collect(),
            (0..4096).flat_map(|sequence| in_block(BlockKey::new(7, sequence, 3)).take(1)).collect(),
            (0..400).flat_map(|sequence| in_block(BlockKey::new(sequence, sequence, sequence))).collect(),
        ];
        for draws in draws {
            let n = draws.len() as f64;
            assert!(draws.iter().all(|draw| (0.0..1.0).contains(draw)));
            let mean = draws.iter().map(|&draw| f64::from(draw)).sum::<f64>() / n;
            // Five standard deviations of a mean of n uniform numbers.
            assert!((mean - 0.5).abs() < 5.0 / (12.0 * n).sqrt(), "mean {mean} of {n}");
            let mut tenths = [0.0; 10];
            draws.iter().for_each(|draw| tenths[(draw * 10.0) as usize] += 1.0);
            let chi: f64 = tenths.iter().map(|count| (count - n / 10.0) * (count - n / 10.0) / (n / 10.0)).sum();
            // With 9 degrees of freedom, a value beyond 33.7 occurs once in ten thousand.
            assert!(chi < 33.7, "tenths {tenths:?}");
        }
    }

    #[test]
    fn neighbours_are_not_correlated() {
        let key = BlockKey::new(1, 2, 3);
        let n = 100_000;
        let product = |index: u32| (f64::from(key.uniform(index)) - 0.5) * (f64::from(key.uniform(index + 1)) - 0.5);
        let covariance = (0..n).map(product).sum::<f64>() / f64::from(n);
        assert!(covariance.abs() < 5.0 / 12.0 / f64::from(n).sqrt(), "{covariance}");
    }

    #[test]
    fn every_bit_of_an_index_flips_every_bit_of_its_number_half_the_time() {
        let number = |key: BlockKey, index| (key.uniform(index) * 16_777_216.0) as u32;
        let keys: Vec<BlockKey> = (0..2000).map(|sequence| BlockKey::new(5, sequence, 9)).collect();
        for bit in 0..9 {
            let mut flips = [0; 24];
            for (place, key) in keys.iter().enumerate() {
                let index = place as u32 % 512;
                let changed = number(*key, index) ^ number(*key, index ^ 1 << bit);
                flips.iter_mut().enumerate().for_each(|(place, flips)| *flips += changed >> place & 1);
            }
            // Six standard deviations of 2000 tosses.
            assert!(flips.iter().all(|flips| (866..=1134).contains(flips)), "bit {bit}: {flips:?}");
        }
    }
}
