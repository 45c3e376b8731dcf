//! SplitMix64 (Steele, Lea and Flood, 2014): a mixing function, and a stream of random numbers made
//! from it. It gives the same numbers on every platform. Seeds and checkpoints depend on it, so it
//! must not change.

/// The golden ratio as a fraction of 2⁶⁴.
const INCREMENT: u64 = 0x9E37_79B9_7F4A_7C15;

/// A bijection of u64 in which every bit of `number` changes every bit of the result.
///
/// ```
/// assert_eq!(types::mix(0), 0xE220_A839_7B1D_CDAF);
/// ```
#[inline]
#[must_use]
pub const fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(INCREMENT);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// A stream of random numbers; equal seeds give equal streams.
///
/// ```
/// let mut stream = types::SplitMix64::new(1_234_567);
/// assert_eq!([stream.draw(), stream.draw()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
/// ```
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The stream of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number, uniform over u64.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        let number = mix(self.state);
        self.state = self.state.wrapping_add(INCREMENT);
        number
    }
}
