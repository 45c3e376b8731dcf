//! Bit packing: stores numbers of `width` bits one after the other.
//!
//! There are two layouts:
//! - A *stream* holds any count of numbers, lowest bit first.
//! - *Lanes* hold exactly [`BLOCK`] numbers as four streams whose 64-bit words alternate. Number i
//!   is in stream i mod 4, so a step handles four numbers.

use crate::{DecodeError, error::expect_length, twin::twin};

/// Numbers in a block of lanes.
pub(crate) const BLOCK: usize = 256;

const LANES: usize = 4;

/// The largest width in bits.
pub(crate) const WIDEST: u32 = 64;

/// The number of bits that `number` needs.
#[inline(always)]
pub(crate) fn width_of(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

/// The bytes of a stream. A block of lanes takes as many as a stream of [`BLOCK`] numbers.
#[inline(always)]
pub(crate) fn stream_bytes(count: usize, width: u32) -> usize {
    (count * width as usize).div_ceil(8)
}

/// Writes `numbers`, each below 2^`width`, to `out`. The caller sizes `out` by [`stream_bytes`].
#[inline(always)]
pub(crate) fn pack_stream(numbers: &[u64], width: u32, out: &mut [u8]) {
    let (words, mut rest) = out.as_chunks_mut::<8>();
    let mut words = words.iter_mut();
    let mut put = |word: u64| match words.next() {
        Some(out) => *out = word.to_le_bytes(),
        None => {
            // Takes `rest`, so that a further word of zeros writes nothing.
            let rest = std::mem::take(&mut rest);
            rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
        }
    };
    let mut word = 0u64;
    let mut filled = 0;
    for &number in numbers {
        word |= number << filled;
        filled += width;
        if filled >= 64 {
            put(word);
            filled -= 64;
            word = number.unbounded_shr(width - filled);
        }
    }
    if filled > 0 {
        put(word);
    }
}

/// Reads `out.len()` numbers from `bytes`, whose length is as [`stream_bytes`] says.
#[inline(always)]
pub(crate) fn unpack_stream(bytes: &[u8], width: u32, out: &mut [u64]) {
    let mask = u64::MAX.unbounded_shr(64 - width);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let mut words = words.iter().chain([&last]).map(|bytes| u64::from_le_bytes(*bytes));
    let mut word = 0u64;
    let mut left = 0;
    for out in out {
        if left >= width {
            *out = word & mask;
            word = word.unbounded_shr(width);
            left -= width;
        } else {
            let next = words.next().unwrap_or_default();
            *out = (word | next.unbounded_shl(left)) & mask;
            word = next.unbounded_shr(width - left);
            left += 64 - width;
        }
    }
}

twin! {
/// Writes `numbers`, each below 2^`width`, to `out`, which has `width` × 32 bytes.
pub(crate) fn pack_lanes, pack_lanes_plain(numbers: &[u64; BLOCK], width: u32, out: &mut [u8]) {
    let mut words = out.chunks_exact_mut(8 * LANES);
    let mut word = [0u64; LANES];
    let mut filled = 0;
    for numbers in numbers.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            word[lane] |= numbers[lane] << filled;
        }
        filled += width;
        if filled >= 64 {
            if let Some(out) = words.next() {
                out.copy_from_slice(bytemuck::must_cast_slice(&word.map(u64::to_le)));
            }
            filled -= 64;
            for lane in 0..LANES {
                word[lane] = if filled == 0 { 0 } else { numbers[lane] >> (width - filled) };
            }
        }
    }
}
}

/// Reads a block of lanes. Refuses bytes of a wrong length.
pub(crate) fn unpack_lanes(bytes: &[u8], width: u32, out: &mut [u64; BLOCK]) -> Result<(), DecodeError> {
    expect_length(stream_bytes(BLOCK, width), bytes.len())?;
    let words = bytes.as_chunks::<{ 8 * LANES }>().0;
    if words.is_empty() {
        out.fill(0);
        return Ok(());
    }
    #[cfg(target_arch = "x86_64")]
    if crate::twin::has_avx2() {
        // SAFETY: the processor has every feature that the wide twin is compiled for; asked on the
        // line above.
        unsafe { wide::read_lanes(words, width, out) };
        return Ok(());
    }
    read_lanes_plain(words, width, out);
    Ok(())
}

/// Where each round of four numbers begins: its word, the next word, and the bit within the first.
/// After the last word the next is the last again; its bits are then masked off.
#[inline(always)]
fn rounds(width: u32, words: usize) -> impl Iterator<Item = (usize, usize, u32)> {
    (0..BLOCK / LANES).map(move |round| {
        let bit = round * width as usize;
        ((bit / 64).min(words - 1), (bit / 64 + 1).min(words - 1), bit as u32 % 64)
    })
}

fn read_lanes_plain(words: &[[u8; 8 * LANES]], width: u32, out: &mut [u64; BLOCK]) {
    let mask = u64::MAX >> (64 - width);
    let word = |place: usize| bytemuck::must_cast::<_, [[u8; 8]; LANES]>(words[place]).map(u64::from_le_bytes);
    for ((low, high, shift), out) in rounds(width, words.len()).zip(out.as_chunks_mut::<LANES>().0) {
        let low = word(low);
        let high = word(high);
        for lane in 0..LANES {
            out[lane] = (low[lane] >> shift | high[lane].unbounded_shl(64 - shift)) & mask;
        }
    }
}

/// The AVX2 twin, with the four lanes in one register. The compiler does not find this layout: it
/// would vectorise over several rounds instead.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m256i, _mm_cvtsi32_si128, _mm256_and_si256, _mm256_or_si256, _mm256_set1_epi64x, _mm256_sll_epi64,
        _mm256_srl_epi64,
    };

    use super::{BLOCK, LANES, rounds};

    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
    pub fn read_lanes(words: &[[u8; 8 * LANES]], width: u32, out: &mut [u64; BLOCK]) {
        let mask = _mm256_set1_epi64x((u64::MAX >> (64 - width)) as i64);
        for ((low, high, shift), out) in rounds(width, words.len()).zip(out.as_chunks_mut::<LANES>().0) {
            let low: __m256i = bytemuck::must_cast(words[low]);
            let high: __m256i = bytemuck::must_cast(words[high]);
            // This instruction gives zero for a shift by 64.
            let low = _mm256_srl_epi64(low, _mm_cvtsi32_si128(shift as i32));
            let high = _mm256_sll_epi64(high, _mm_cvtsi32_si128(64 - shift as i32));
            *out = bytemuck::must_cast(_mm256_and_si256(_mm256_or_si256(low, high), mask));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, width: u32) -> Vec<u64> {
        let mask = u64::MAX.unbounded_shr(64 - width);
        (1..=count as u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17) & mask).collect()
    }

    #[test]
    fn streams_of_every_width_and_length_are_read_as_written() {
        for width in 0..=WIDEST {
            for count in (0..40).chain([255, 256]) {
                let numbers = numbers(count, width);
                let mut bytes = vec![0xAA; stream_bytes(count, width)];
                pack_stream(&numbers, width, &mut bytes);
                let mut again = vec![7; count];
                unpack_stream(&bytes, width, &mut again);
                assert_eq!(numbers, again, "{count} of {width} bits");
            }
        }
    }

    #[test]
    fn streams_store_the_lowest_bit_first() {
        let mut bytes = [0; 3];
        pack_stream(&[0b101, 0b011, 0b111, 0b000, 0b001, 0b110], 3, &mut bytes);
        assert_eq!(bytes, [0b1101_1101, 0b0001_0001, 0b11]);
    }

    #[test]
    fn lanes_of_every_width_are_read_as_written_and_both_twins_agree() {
        for width in 0..=WIDEST {
            let numbers: [u64; BLOCK] = numbers(BLOCK, width).try_into().unwrap();
            let mut bytes = vec![0xAA; stream_bytes(BLOCK, width)];
            let mut plain = bytes.clone();
            pack_lanes(&numbers, width, &mut bytes);
            pack_lanes_plain(&numbers, width, &mut plain);
            assert_eq!(bytes, plain, "{width} bits");
            let mut again = [7; BLOCK];
            let mut again_plain = [7; BLOCK];
            unpack_lanes(&bytes, width, &mut again).unwrap();
            assert_eq!(numbers, again, "{width} bits");
            if width > 0 {
                read_lanes_plain(bytes.as_chunks().0, width, &mut again_plain);
                assert_eq!(again, again_plain);
            }
        }
    }
}
