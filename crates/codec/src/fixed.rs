//! Fixed point of 1 to 16 bits with stochastic rounding. Each block of values has a step of its
//! own, and a value is sent as a whole multiple of it. Rounding is random and unbiased: the
//! expected decoded value is the encoded one.
//!
//! A block is its step as an f32, then the levels of its values as a stream of bits. With b ≥ 2
//! bits the levels are −m … m with m = 2^(b−1) − 1, and zero is exact. With one bit they are −1 and
//! 1.

use crate::{
    DecodeError,
    bits::{pack_stream, stream_bytes, unpack_stream},
    error::expect_length,
    random::BlockKey,
    twin::twin,
};

/// Values that share a step. Enough that the four bytes of the step cost little, and few enough
/// that one large value coarsens few others.
pub const BLOCK: usize = 512;

/// Words of a block: four levels are packed into each.
const WORDS: usize = BLOCK / 4;

/// Adding this to a whole number below 2²² leaves that number in the lowest bits of the f32 sum.
const WHOLE: f32 = 12_582_912.0;

/// The number of bits for each value, 1 to 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedBits(u8);

impl FixedBits {
    /// `None` outside 1 to 16.
    #[must_use]
    pub fn new(bits: u8) -> Option<Self> {
        (1..=16).contains(&bits).then_some(Self(bits))
    }

    /// The number of bits.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }

    /// The highest level m: the number of steps from zero to the largest magnitude of a block.
    #[must_use]
    pub fn highest(self) -> u16 {
        if self.0 == 1 { 1 } else { (1 << (self.0 - 1)) - 1 }
    }
}

/// What the random numbers follow from. The same seed and sequence number round the same values in
/// the same way; no two batches of a stream share a sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The seed of the stream.
    pub seed: u64,
    /// The number of the batch in the stream.
    pub sequence: u64,
}

/// The encoded size of `count` values in bytes.
#[must_use]
pub fn encoded_bytes(count: usize, bits: FixedBits) -> usize {
    let blocks = count / BLOCK;
    let rest = count % BLOCK;
    let tail = if rest == 0 { 0 } else { 4 + stream_bytes(rest, bits.0.into()) };
    blocks * (4 + stream_bytes(BLOCK, bits.0.into())) + tail
}

/// Replaces `out` with the encoded `values`. A block with a value that is not finite decodes to
/// NaNs.
pub fn encode(values: &[f32], bits: FixedBits, draw: Draw, out: &mut Vec<u8>) {
    out.resize(encoded_bytes(values.len(), bits), 0);
    encode_blocks(values, bits, draw, out);
}

/// Decodes `out.len()` values.
pub fn decode(bytes: &[u8], bits: FixedBits, out: &mut [f32]) -> Result<(), DecodeError> {
    expect_length(encoded_bytes(out.len(), bits), bytes.len())?;
    decode_blocks(bytes, bits, out);
    Ok(())
}

twin! {
pub(crate) fn encode_blocks, encode_blocks_plain(values: &[f32], bits: FixedBits, draw: Draw, out: &mut [u8]) {
    let block_bytes = 4 + stream_bytes(BLOCK, bits.0.into());
    for (block, (values, out)) in values.chunks(BLOCK).zip(out.chunks_mut(block_bytes)).enumerate() {
        let (head, body) = out.split_at_mut(4);
        let step = step_of(values, bits);
        head.copy_from_slice(&step.to_le_bytes());
        if step > 0.0 {
            let mut levels = [0; BLOCK];
            let key = BlockKey::new(draw.seed, draw.sequence, block as u64);
            let levels = &mut levels[..values.len()];
            match bits {
                FixedBits(1) => draw_signs(values, step, key, levels),
                _ => draw_levels(values, step, f32::from(bits.highest()), key, levels),
            }
            pack(levels, bits.0.into(), body);
        } else {
            body.fill(0);
        }
    }
}
}

/// The step of a block: 0 if all values are 0, NaN if one is not finite.
#[inline(always)]
fn step_of(values: &[f32], bits: FixedBits) -> f32 {
    // Magnitudes sort as their bits do, with NaNs last.
    let magnitudes = values.iter().map(|value| value.to_bits() & 0x7FFF_FFFF);
    let largest = f32::from_bits(magnitudes.fold(0, u32::max));
    if !largest.is_finite() {
        return f32::NAN;
    }
    let highest = f32::from(bits.highest());
    let step = largest / highest;
    // Rounds up if the highest level would fall short of the largest value, as it may among the
    // smallest numbers.
    if f64::from(step) * f64::from(highest) < f64::from(largest) { step.next_up() } else { step }
}

/// level = ⌊y⌋ + [u < y − ⌊y⌋] with y = x / step and u uniform in [0, 1): E[level] = y. Stored as
/// level + m.
#[inline(always)]
fn draw_levels(values: &[f32], step: f32, highest: f32, key: BlockKey, levels: &mut [u16]) {
    for (index, (value, out)) in values.iter().zip(levels).enumerate() {
        let y = value / step;
        let floor = y.floor();
        let level = floor + if key.uniform(index as u32) < y - floor { 1.0 } else { 0.0 };
        // Rounding may put y slightly beyond the highest level.
        *out = (level.clamp(-highest, highest) + highest + WHOLE).to_bits() as u16;
    }
}

/// One bit: 1 with probability (1 + x / step) / 2.
#[inline(always)]
fn draw_signs(values: &[f32], step: f32, key: BlockKey, levels: &mut [u16]) {
    for (index, (value, out)) in values.iter().zip(levels).enumerate() {
        *out = u16::from(key.uniform(index as u32) < 0.5 + 0.5 * (value / step));
    }
}

/// Writes the levels as a stream of `width` bits each. Packs eight levels, or four wide ones, into
/// a word, then the words into the stream.
#[inline(always)]
fn pack(levels: &[u16], width: u32, out: &mut [u8]) {
    if width <= 8 { pack_by::<8>(levels, width, out) } else { pack_by::<4>(levels, width, out) }
}

#[inline(always)]
fn pack_by<const TOGETHER: usize>(levels: &[u16], width: u32, out: &mut [u8]) {
    let mut words = [0; WORDS];
    let (whole, rest) = levels.as_chunks::<TOGETHER>();
    for (word, levels) in words.iter_mut().zip(whole) {
        *word = word_of(*levels, width);
    }
    if !rest.is_empty() {
        let mut levels = [0; TOGETHER];
        levels[..rest.len()].copy_from_slice(rest);
        words[whole.len()] = word_of(levels, width);
    }
    pack_stream(&words[..levels.len().div_ceil(TOGETHER)], TOGETHER as u32 * width, out);
}

#[inline(always)]
fn word_of<const TOGETHER: usize>(levels: [u16; TOGETHER], width: u32) -> u64 {
    let fours = levels.as_chunks::<4>().0.iter().enumerate();
    fours.fold(0, |word, (place, four)| word | squeeze(*four, width) << (4 * place as u32 * width))
}

#[inline(always)]
fn squeeze(four: [u16; 4], width: u32) -> u64 {
    const EVEN: u64 = 0x0000_FFFF_0000_FFFF;
    let four = four.map(u64::from);
    let word = four[0] | four[1] << 16 | four[2] << 32 | four[3] << 48;
    let pairs = (word & EVEN) | ((word >> 16) & EVEN) << width;
    (pairs & 0xFFFF_FFFF) | (pairs >> 32) << (2 * width)
}

twin! {
fn decode_blocks, decode_blocks_plain(bytes: &[u8], bits: FixedBits, out: &mut [f32]) {
    let width = u32::from(bits.0);
    let block_bytes = 4 + stream_bytes(BLOCK, width);
    for (bytes, out) in bytes.chunks(block_bytes).zip(out.chunks_mut(BLOCK)) {
        let Some((head, body)) = bytes.split_first_chunk::<4>() else { return };
        let step = f32::from_le_bytes(*head);
        if step == 0.0 || !step.is_finite() {
            out.fill(if step == 0.0 { 0.0 } else { f32::NAN });
            continue;
        }
        let mut words = [0; WORDS];
        unpack_stream(body, 4 * width, &mut words[..out.len().div_ceil(4)]);
        let (scale, middle) = if width == 1 { (2.0, 1.0) } else { (1.0, f32::from(bits.highest())) };
        widen(&words, width, step, scale, middle, out);
    }
}
}

/// x = (scale · level − middle) · step, clamped to finite numbers.
#[inline(always)]
fn widen(words: &[u64; WORDS], width: u32, step: f32, scale: f32, middle: f32, out: &mut [f32]) {
    let mask = (1u64 << width) - 1;
    let value = |word: u64, place: u32| {
        let level = ((word >> (place * width)) & mask) as i32 as f32;
        ((scale * level - middle) * step).clamp(f32::MIN, f32::MAX)
    };
    let (fours, rest) = out.as_chunks_mut::<4>();
    for (&word, out) in words.iter().zip(fours.iter_mut()) {
        *out = [value(word, 0), value(word, 1), value(word, 2), value(word, 3)];
    }
    for (place, out) in rest.iter_mut().enumerate() {
        *out = value(words[fours.len()], place as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{awkward, noise};

    const DRAW: Draw = Draw { seed: 11, sequence: 5 };

    fn decoded(values: &[f32], bits: FixedBits, draw: Draw) -> Vec<f32> {
        let mut bytes = Vec::new();
        let mut out = vec![f32::NAN; values.len()];
        encode(values, bits, draw, &mut bytes);
        assert_eq!(bytes.len(), encoded_bytes(values.len(), bits));
        decode(&bytes, bits, &mut out).unwrap();
        out
    }

    #[test]
    fn fixed_point_is_unbiased_over_many_draws() {
        let values: Vec<f32> = [0.0, 1.0, -1.0, 0.3, -0.3, 1e-3, -1e-3, 0.999_9, 1e-20].to_vec();
        for bits in 1..=16 {
            let bits = FixedBits::new(bits).unwrap();
            let draws = 20_000;
            let mut sums = vec![0f64; values.len()];
            for sequence in 0..draws {
                let round = decoded(&values, bits, Draw { seed: 3, sequence });
                sums.iter_mut().zip(round).for_each(|(sum, value)| *sum += f64::from(value));
            }
            let step = 1.0 / f64::from(bits.highest()) * if bits.get() == 1 { 2.0 } else { 1.0 };
            for (value, sum) in values.iter().zip(sums) {
                // A level is off by at most a step, with variance at most step² / 4. Allows five
                // standard deviations.
                let allowed = 5.0 * step / 2.0 / (draws as f64).sqrt() + 1e-6;
                let bias = sum / draws as f64 - f64::from(*value);
                assert!(bias.abs() <= allowed, "{bits:?}: {value} is off by {bias} on average");
            }
        }
    }

    #[test]
    fn fixed_point_keeps_zero_and_the_largest_exact_from_two_bits() {
        for bits in 2..=16 {
            let round = decoded(&[0.0, 3.0, -3.0, -0.0], FixedBits::new(bits).unwrap(), DRAW);
            assert_eq!(round[0], 0.0);
            assert!((round[1] - 3.0).abs() < 1e-6 && (round[2] + 3.0).abs() < 1e-6, "{bits}: {round:?}");
        }
    }

    #[test]
    fn fixed_point_draws_follow_from_seed_and_sequence() {
        let values = noise(2000, 1);
        let bits = FixedBits::new(4).unwrap();
        let first = decoded(&values, bits, DRAW);
        assert_eq!(first, decoded(&values, bits, DRAW));
        assert_ne!(first, decoded(&values, bits, Draw { sequence: 6, ..DRAW }));
        assert_ne!(first, decoded(&values, bits, Draw { seed: 12, ..DRAW }));
    }

    #[test]
    fn both_twins_agree() {
        for bits in (1..=16).filter_map(FixedBits::new) {
            for length in [0, 1, 3, 511, 512, 513, 1500] {
                for values in [noise(length, 1), awkward(length, 2)] {
                    let mut bytes = Vec::new();
                    let mut plain = vec![0; encoded_bytes(length, bits)];
                    encode(&values, bits, DRAW, &mut bytes);
                    encode_blocks_plain(&values, bits, DRAW, &mut plain);
                    assert_eq!(bytes, plain);
                    let mut out = vec![0f32; length];
                    let mut out_plain = vec![0f32; length];
                    decode(&bytes, bits, &mut out).unwrap();
                    decode_blocks_plain(&bytes, bits, &mut out_plain);
                    let as_bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                    assert_eq!(as_bits(&out), as_bits(&out_plain));
                }
            }
        }
    }

    #[test]
    fn fixed_point_turns_only_the_block_that_is_not_finite_into_nan() {
        let mut values = noise(3 * BLOCK, 4);
        values[BLOCK + 7] = f32::INFINITY;
        let round = decoded(&values, FixedBits::new(8).unwrap(), DRAW);
        let (good, bad): (Vec<usize>, Vec<usize>) = (0..3 * BLOCK).partition(|&index| round[index].is_finite());
        assert_eq!(bad, (BLOCK..2 * BLOCK).collect::<Vec<_>>());
        assert_eq!(good.len(), 2 * BLOCK);
    }

    #[test]
    fn a_wrong_length_is_refused() {
        let bits = FixedBits::new(3).unwrap();
        assert_eq!(decode(&[0; 5], bits, &mut [0.0; 4]), Err(DecodeError::Length { expected: 6, found: 5 }));
    }
}
