//! f16: IEEE half precision, rounded to nearest even. Two bytes a value.
//!
//! Finite values stay finite: a value beyond 65504 is sent as 65504. Infinities and NaNs are
//! preserved.

use crate::{DecodeError, error::expect_length};

/// The largest finite f16.
pub const LARGEST: f32 = 65504.0;

/// Replaces `out` by the encoded `values`.
pub fn encode(values: &[f32], out: &mut Vec<u8>) {
    out.resize(2 * values.len(), 0);
    #[cfg(target_arch = "x86_64")]
    if wide::is_there() {
        // SAFETY: the processor has AVX and F16C; asked on the line above.
        return unsafe { wide::narrow(values, out) };
    }
    narrow_plain(values, out);
}

/// Decodes `out.len()` values.
pub fn decode(bytes: &[u8], out: &mut [f32]) -> Result<(), DecodeError> {
    expect_length(2 * out.len(), bytes.len())?;
    #[cfg(target_arch = "x86_64")]
    if wide::is_there() {
        // SAFETY: the processor has AVX and F16C; asked on the line above.
        unsafe { wide::widen(bytes, out) };
        return Ok(());
    }
    widen_plain(bytes, out);
    Ok(())
}

fn narrow_plain(values: &[f32], out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.chunks_exact_mut(2)) {
        out.copy_from_slice(&narrowed(*value).to_le_bytes());
    }
}

fn widen_plain(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
        *out = widened(u16::from_le_bytes(*bytes));
    }
}

fn narrowed(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7FFF_FFFF;
    if magnitude >= 0x7F80_0000 {
        let quiet = if magnitude > 0x7F80_0000 { 0x0200 } else { 0 };
        return sign | 0x7C00 | quiet | (magnitude >> 13) as u16 & 0x03FF;
    }
    let magnitude = magnitude.min(LARGEST.to_bits());
    let exponent = magnitude >> 23;
    // The number of significand bits that are lost: 13 for a normal f16, more below 2^-14, where
    // f16 is subnormal.
    let dropped = if exponent > 112 { 13 } else { 126 - exponent };
    if dropped > 24 {
        return sign;
    }
    let significand = if exponent > 112 { magnitude - (112 << 23) } else { magnitude & 0x007F_FFFF | 0x0080_0000 };
    let kept = significand >> dropped;
    let rest = significand & ((1 << dropped) - 1);
    let half = 1 << (dropped - 1);
    // Rounds to nearest, ties to even.
    sign | (kept + u32::from(rest > half || (rest == half && kept & 1 == 1))) as u16
}

fn widened(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7FFF) << 13;
    let bits = if magnitude < 0x0F80_0000 {
        // Multiplying by 2^112 is exact, and correct for subnormals too.
        (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits()
    } else {
        magnitude | 0x7F80_0000 | if magnitude > 0x0F80_0000 { 0x0040_0000 } else { 0 }
    };
    f32::from_bits(sign | bits)
}

/// The wide twins: the processor's own conversions (F16C), eight at a time.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m128i, __m256, _CMP_EQ_OQ, _MM_FROUND_TO_NEAREST_INT, _mm256_and_ps, _mm256_andnot_ps, _mm256_blendv_ps,
        _mm256_cmp_ps, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_min_ps, _mm256_or_ps, _mm256_set1_ps,
    };

    use super::{LARGEST, narrow_plain, widen_plain};

    const LANES: usize = 8;

    #[inline]
    pub fn is_there() -> bool {
        is_x86_feature_detected!("avx") && is_x86_feature_detected!("f16c")
    }

    #[target_feature(enable = "avx,f16c")]
    pub fn narrow(values: &[f32], out: &mut [u8]) {
        let (steps, rest) = values.as_chunks::<LANES>();
        let (wide, plain) = out.split_at_mut(2 * LANES * steps.len());
        for (values, out) in steps.iter().zip(wide.chunks_exact_mut(2 * LANES)) {
            let halves: __m128i = narrowed(bytemuck::must_cast(*values));
            out.copy_from_slice(bytemuck::bytes_of(&halves));
        }
        narrow_plain(rest, plain);
    }

    #[inline]
    #[target_feature(enable = "avx,f16c")]
    fn narrowed(values: __m256) -> __m128i {
        let signs = _mm256_and_ps(values, _mm256_set1_ps(-0.0));
        let magnitudes = _mm256_andnot_ps(_mm256_set1_ps(-0.0), values);
        // The minimum passes a NaN through as its second operand, but limits an infinity, which the
        // next lines restore.
        let held = _mm256_min_ps(_mm256_set1_ps(LARGEST), magnitudes);
        let infinite = _mm256_cmp_ps::<_CMP_EQ_OQ>(magnitudes, _mm256_set1_ps(f32::INFINITY));
        let held = _mm256_blendv_ps(held, magnitudes, infinite);
        _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_or_ps(held, signs))
    }

    #[target_feature(enable = "avx,f16c")]
    pub fn widen(bytes: &[u8], out: &mut [f32]) {
        let (steps, rest) = bytes.as_chunks::<{ 2 * LANES }>();
        let (wide, plain) = out.split_at_mut(LANES * steps.len());
        for (bytes, out) in steps.iter().zip(wide.chunks_exact_mut(LANES)) {
            let values: [f32; LANES] = bytemuck::must_cast(_mm256_cvtph_ps(bytemuck::must_cast(*bytes)));
            out.copy_from_slice(&values);
        }
        widen_plain(rest, plain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{awkward, noise};

    #[test]
    fn every_f16_round_trips() {
        let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let mut values = vec![0.0; 1 << 16];
        let mut again = Vec::new();
        decode(&halves, &mut values).unwrap();
        encode(&values, &mut again);
        for (half, again) in halves.chunks(2).zip(again.chunks(2)) {
            let half = u16::from_le_bytes([half[0], half[1]]);
            let quiet = if half & 0x7FFF > 0x7C00 { 0x0200 } else { 0 };
            assert_eq!(half | quiet, u16::from_le_bytes([again[0], again[1]]));
        }
    }

    #[test]
    fn rounds_to_nearest_even_and_keeps_finite_values_finite() {
        let table = [
            (1.0 + 1.0 / 2048.0, 1.0),
            (1.0 + 3.0 / 2048.0, 1.0 + 2.0 / 1024.0),
            (65519.0, 65504.0),
            (65520.0, 65504.0),
            (f32::MIN, -65504.0),
            (f32::INFINITY, f32::INFINITY),
            (-0.0, -0.0),
            (2f32.powi(-24), 2f32.powi(-24)),
            (2f32.powi(-25), 0.0),
            (2f32.powi(-25) * 1.5, 2f32.powi(-24)),
            (2f32.powi(-14) - 2f32.powi(-25), 2f32.powi(-14)),
            (-f32::from_bits(1), -0.0),
        ];
        for (value, expected) in table {
            let mut bytes = Vec::new();
            let mut decoded = [0.0; 9];
            encode(&[value; 9], &mut bytes);
            decode(&bytes, &mut decoded).unwrap();
            assert_eq!(decoded.map(f32::to_bits), [expected; 9].map(f32::to_bits), "{value:e}");
        }
    }

    #[test]
    fn both_twins_agree() {
        for length in [0, 1, 7, 8, 9, 1000, 100_000] {
            for values in [noise(length, 1), awkward(length, 2)] {
                let mut bytes = Vec::new();
                let mut plain = vec![0; 2 * length];
                encode(&values, &mut bytes);
                narrow_plain(&values, &mut plain);
                assert_eq!(bytes, plain);
                let mut decoded = vec![0f32; length];
                let mut decoded_plain = vec![0f32; length];
                decode(&plain, &mut decoded).unwrap();
                widen_plain(&plain, &mut decoded_plain);
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&decoded), bits(&decoded_plain));
            }
        }
    }

    #[test]
    fn a_wrong_length_is_refused() {
        assert_eq!(decode(&[0; 3], &mut [0.0]), Err(DecodeError::Length { expected: 2, found: 3 }));
    }
}
