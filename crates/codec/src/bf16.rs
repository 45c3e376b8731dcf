//! bf16: the upper half of an f32, rounded to nearest even. Two bytes a value.
//!
//! Finite values stay finite: a value beyond the largest bf16 is sent as the largest. Infinities
//! and NaNs are preserved.

use crate::{DecodeError, error::expect_length, twin::twin};

/// Values converted in one step.
const STEP: usize = 16;

const INFINITE: u32 = 0x7F80_0000;
/// The largest f32 that does not round up to infinity.
const LARGEST: u32 = 0x7F7F_7FFF;

/// Replaces `out` by the encoded `values`.
pub fn encode(values: &[f32], out: &mut Vec<u8>) {
    out.resize(2 * values.len(), 0);
    narrow(values, out);
}

/// Decodes `out.len()` values.
pub fn decode(bytes: &[u8], out: &mut [f32]) -> Result<(), DecodeError> {
    expect_length(2 * out.len(), bytes.len())?;
    widen(bytes, out);
    Ok(())
}

twin! {
fn narrow, narrow_plain(values: &[f32], out: &mut [u8]) {
    let (steps, rest) = values.as_chunks::<STEP>();
    let (wide, narrow_rest) = out.split_at_mut(2 * STEP * steps.len());
    for (values, out) in steps.iter().zip(wide.chunks_exact_mut(2 * STEP)) {
        let mut halves = [0u16; STEP];
        for (half, value) in halves.iter_mut().zip(values) {
            *half = narrowed(*value).to_le();
        }
        out.copy_from_slice(bytemuck::must_cast_slice(&halves));
    }
    for (value, out) in rest.iter().zip(narrow_rest.chunks_exact_mut(2)) {
        out.copy_from_slice(&narrowed(*value).to_le_bytes());
    }
}
}

twin! {
fn widen, widen_plain(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}
}

#[inline(always)]
fn narrowed(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = bits & 0x8000_0000;
    let magnitude = bits & 0x7FFF_FFFF;
    let finite = magnitude.min(LARGEST);
    // Rounds to nearest. At a tie, the last remaining bit decides: it becomes even.
    let rounded = finite + 0x7FFF + ((finite >> 16) & 1);
    // Sets the quiet bit, so that a NaN with an empty upper half does not become infinite.
    let special = magnitude | if magnitude > INFINITE { 0x0040_0000 } else { 0 };
    ((sign | if magnitude < INFINITE { rounded } else { special }) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{awkward, noise};

    fn round_trip(values: &[f32]) -> Vec<f32> {
        let mut bytes = Vec::new();
        let mut decoded = vec![f32::NAN; values.len()];
        encode(values, &mut bytes);
        decode(&bytes, &mut decoded).unwrap();
        decoded
    }

    #[test]
    fn rounds_to_nearest_even_and_keeps_finite_values_finite() {
        let bits = f32::from_bits;
        let table = [
            (1.0, 1.0),
            (-0.0, -0.0),
            (bits(0x3F80_8000), bits(0x3F80_0000)),
            (bits(0x3F81_8000), bits(0x3F82_0000)),
            (bits(0x3F80_8001), bits(0x3F81_0000)),
            (bits(1), 0.0),
            (bits(0x8000_8001), bits(0x8001_0000)),
            (f32::MAX, bits(0x7F7F_0000)),
            (f32::MIN, bits(0xFF7F_0000)),
            (f32::INFINITY, f32::INFINITY),
            (f32::NEG_INFINITY, f32::NEG_INFINITY),
        ];
        for (value, expected) in table {
            assert_eq!(round_trip(&[value])[0].to_bits(), expected.to_bits(), "{value:e}");
        }
        assert!(round_trip(&[f32::NAN, bits(0x7F80_0001), bits(0xFF80_0001)]).iter().all(|value| value.is_nan()));
    }

    #[test]
    fn both_twins_agree() {
        for length in [0, 1, 15, 16, 17, 1000] {
            for values in [noise(length, 1), awkward(length, 2)] {
                let mut wide = vec![0; 2 * length];
                let mut plain = vec![0; 2 * length];
                narrow(&values, &mut wide);
                narrow_plain(&values, &mut plain);
                assert_eq!(wide, plain);
                let mut wide = vec![0f32; length];
                let mut wide_plain = vec![0f32; length];
                widen(&plain, &mut wide);
                widen_plain(&plain, &mut wide_plain);
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&wide), bits(&wide_plain));
            }
        }
    }

    #[test]
    fn a_wrong_length_is_refused() {
        let mut out = [0.0; 2];
        assert_eq!(decode(&[0; 3], &mut out), Err(DecodeError::Length { expected: 4, found: 3 }));
        assert_eq!(decode(&[0; 5], &mut out), Err(DecodeError::Length { expected: 4, found: 5 }));
    }
}
