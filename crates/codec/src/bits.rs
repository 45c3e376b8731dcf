//! Numbers of a given width in bits, one after the other.
//!
//! Two layouts. A *stream* holds any count, lowest bit first: the plainest form there is. *Lanes* hold exactly [`BLOCK`] numbers
//! as four streams side by side, number i in stream i mod 4, their 64-bit words taking turns: four numbers at a step.

use crate::{DecodeError, error::expect_length, twin::twin};

/// Numbers in a block of lanes.
pub(crate) const BLOCK: usize = 256;

const LANES: usize = 4;

/// The widest number.
pub(crate) const WIDEST: u32 = 64;

/// The bits that `number` takes.
#[inline(always)]
pub(crate) fn width_of(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

/// The bytes of a stream; those of a block of lanes are as many as for a stream of [`BLOCK`].
#[inline(always)]
pub(crate) fn stream_bytes(count: usize, width: u32) -> usize {
    (count * width as usize).div_ceil(8)
}

/// Writes `numbers`, each below 2^`width`, to `out`, which is as long as [`stream_bytes`] says.
#[inline(always)]
pub(crate) fn pack_stream(numbers: &[u64], width: u32, out: &mut [u8]) {
    let (words, mut rest) = out.as_chunks_mut::<8>();
    let mut words = words.iter_mut();
    let mut put = |word: u64| match words.next() {
        Some(out) => *out = word.to_le_bytes(),
        None => {
            // Taken, so that zeros beyond the last number do not come here again.
            let rest = std::mem::take(&mut rest);
            rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
        }
    };
    let (mut word, mut filled) = (0u64, 0);
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

/// Reads as many numbers as `out` is long. `bytes` are as many as [`stream_bytes`] says.
#[inline(always)]
pub(crate) fn unpack_stream(bytes: &[u8], width: u32, out: &mut [u64]) {
    let mask = u64::MAX.unbounded_shr(64 - width);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let mut words = words.iter().chain([&last]).map(|bytes| u64::from_le_bytes(*bytes));
    let (mut word, mut left) = (0u64, 0);
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
/// Writes `numbers`, each below 2^`width`, to `out`, which is `width` × 32 bytes long.
pub(crate) fn pack_lanes, pack_lanes_plain(numbers: &[u64; BLOCK], width: u32, out: &mut [u8]) {
    let mut words = out.chunks_exact_mut(8 * LANES);
    let (mut word, mut filled) = ([0u64; LANES], 0);
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

twin! {
/// Reads a block of lanes. `bytes` are `width` × 32.
fn read_lanes, read_lanes_plain(bytes: &[u8], width: u32, out: &mut [u64; BLOCK]) {
    if width == 0 {
        return out.fill(0);
    }
    let mask = u64::MAX >> (64 - width);
    let mut words = bytes.as_chunks::<{ 8 * LANES }>().0.iter();
    let mut word = [0u64; LANES];
    let mut left = 0;
    for out in out.as_chunks_mut::<LANES>().0 {
        if left >= width {
            for lane in 0..LANES {
                out[lane] = word[lane] & mask;
                word[lane] = word[lane].unbounded_shr(width);
            }
            left -= width;
            continue;
        }
        let next: [[u8; 8]; LANES] = words.next().map(|bytes| bytemuck::must_cast(*bytes)).unwrap_or_default();
        let next = next.map(u64::from_le_bytes);
        for lane in 0..LANES {
            out[lane] = (word[lane] | next[lane] << left) & mask;
            word[lane] = next[lane].unbounded_shr(width - left);
        }
        left += 64 - width;
    }
}
}

/// Reads a block of lanes off the front of `bytes`.
pub(crate) fn unpack_lanes(bytes: &[u8], width: u32, out: &mut [u64; BLOCK]) -> Result<(), DecodeError> {
    expect_length(stream_bytes(BLOCK, width), bytes.len())?;
    read_lanes(bytes, width, out);
    Ok(())
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
    fn a_stream_is_lowest_bit_first() {
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
            let (mut again, mut again_plain) = ([7; BLOCK], [7; BLOCK]);
            unpack_lanes(&bytes, width, &mut again).unwrap();
            read_lanes_plain(&bytes, width, &mut again_plain);
            assert_eq!(numbers, again, "{width} bits");
            assert_eq!(again, again_plain);
        }
    }
}
