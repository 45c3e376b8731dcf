//! A seeded stream of numbers that is the same on every platform: SplitMix64 (Steele, Lea and
//! Flood, 2014).

use crate::SplitMix64;

/// A stream of random numbers; equal seeds give equal streams.
#[derive(Clone, Debug)]
pub struct Random {
    stream: SplitMix64,
}

impl Random {
    /// The stream that belongs to a seed.
    pub fn new(seed: u64) -> Self {
        Self { stream: SplitMix64::new(seed) }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.stream.draw()
    }

    /// A number in `0..bound`. Its bias is below bound / 2⁶⁴: nothing that a demonstration could
    /// notice.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `[0, 1)`, a multiple of 2⁻⁵³.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number that is normal to the eye (mean 0, variance 1): the sum of twelve uniform ones.
    /// Additions alone, because the logarithm and cosine of the usual methods differ in their last
    /// bit from one platform to the next.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// Puts the items in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        let mut random = Random::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([random.bits(), random.bits(), random.bits()], expected);
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let mut random = Random::new(1);
        let draws: Vec<f64> = (0..100_000).map(|_| random.normal()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "mean {mean}, variance {variance}");
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..1000).collect();
        Random::new(2).shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
    }
}
