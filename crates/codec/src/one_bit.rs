//! One bit a value, with error feedback: the sign of x = g + e, and for each row the means of either side.
//!
//! After Seide et al., "1-bit stochastic gradient descent" (2014): what is sent for x is the mean of its side, and the residual
//! e′ = x − sent stays behind for the next time. A group (see [`group_values`](crate::group_values)) is the mean of the values
//! whose sign bit is clear, the mean of the others, and the sign bits, eight to a byte. A group in which a value or a sum is
//! not finite decodes to NaNs, so that whoever receives it refuses it, and its residual stays as it was.

use crate::{
    DecodeError,
    error::expect_length,
    group::{EIGHT, bit_mask, grouped_bytes, negative, select},
    sides::sides,
    twin::twin,
};

/// Two means.
const HEAD: usize = 8;

fn group_bytes(count: usize) -> usize {
    HEAD + count.div_ceil(EIGHT)
}

/// The bytes that `count` values take.
#[must_use]
pub fn encoded_bytes(count: usize, group: usize) -> usize {
    grouped_bytes(count, group, group_bytes)
}

/// Replaces `out` by the encoded sums of `values` and `residual`, and `residual` by what was not sent.
///
/// # Panics
/// If `values` and `residual` differ in length, or `group` is 0.
pub fn encode(values: &[f32], residual: &mut [f32], group: usize, out: &mut Vec<u8>) {
    assert_eq!(values.len(), residual.len(), "a residual for every value");
    out.resize(encoded_bytes(values.len(), group), 0);
    encode_groups(values, residual, group, out);
}

/// Decodes as many values as `out` is long.
///
/// # Panics
/// If `group` is 0.
pub fn decode(bytes: &[u8], group: usize, out: &mut [f32]) -> Result<(), DecodeError> {
    expect_length(encoded_bytes(out.len(), group), bytes.len())?;
    decode_groups(bytes, group, out);
    Ok(())
}

fn encode_groups(values: &[f32], residual: &mut [f32], group: usize, out: &mut [u8]) {
    let groups = values.chunks(group).zip(residual.chunks_mut(group)).zip(out.chunks_mut(group_bytes(group)));
    for ((values, residual), out) in groups {
        let (head, signs) = out.split_at_mut(HEAD);
        let means = sides(values, residual, signs).means();
        let finite = means.iter().all(|mean| mean.is_finite());
        let means = if finite { means } else { [f32::NAN; 2] };
        head.copy_from_slice(bytemuck::must_cast_slice(&means.map(f32::to_le_bytes)));
        if finite {
            keep_rest(values, residual, means);
        }
    }
}

twin! {
/// e′ = x − sent.
fn keep_rest, keep_rest_plain(values: &[f32], residual: &mut [f32], means: [f32; 2]) {
    let [above, below] = means;
    for (value, residual) in values.iter().zip(residual) {
        let sum = value + *residual;
        *residual = sum - select(negative(sum), below, above);
    }
}
}

twin! {
fn decode_groups, decode_groups_plain(bytes: &[u8], group: usize, out: &mut [f32]) {
    for (bytes, out) in bytes.chunks(group_bytes(group)).zip(out.chunks_mut(group)) {
        let Some((head, signs)) = bytes.split_first_chunk::<HEAD>() else { return };
        let [above, below] = bytemuck::must_cast::<_, [[u8; 4]; 2]>(*head).map(f32::from_le_bytes);
        let (eights, rest) = out.as_chunks_mut::<EIGHT>();
        for (out, &byte) in eights.iter_mut().zip(signs) {
            for (lane, out) in out.iter_mut().enumerate() {
                *out = select(bit_mask(byte, lane), below, above);
            }
        }
        for (lane, out) in rest.iter_mut().enumerate() {
            *out = select(bit_mask(signs[eights.len()], lane), below, above);
        }
    }
}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{awkward, noise};

    #[test]
    fn the_means_of_each_side_are_sent_and_the_rest_stays() {
        let (mut bytes, mut residual, mut sent) = (Vec::new(), vec![0.0, 0.0, 1.0, 0.0, 0.0], [0.0; 5]);
        encode(&[1.0, -2.0, 2.0, -4.0, 2.0], &mut residual, 5, &mut bytes);
        decode(&bytes, 5, &mut sent).unwrap();
        assert_eq!(sent, [2.0, -3.0, 2.0, -3.0, 2.0]);
        assert_eq!(residual, [-1.0, 1.0, 1.0, -1.0, 0.0]);
        assert_eq!(bytes.len(), 9);
    }

    #[test]
    fn a_group_that_is_not_finite_says_so_and_keeps_its_residual() {
        for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
            let (mut bytes, mut sent) = (Vec::new(), [0.0; 4]);
            let mut residual = vec![1.0, f32::MAX, 1.0, 1.0];
            encode(&[1.0, bad, 1.0, 3.0], &mut residual, 2, &mut bytes);
            decode(&bytes, 2, &mut sent).unwrap();
            assert!(sent[0].is_nan() && sent[1].is_nan(), "{bad}: {sent:?}");
            assert_eq!((sent[2], sent[3]), (3.0, 3.0));
            assert_eq!(residual, [1.0, f32::MAX, -1.0, 1.0]);
        }
    }

    #[test]
    fn both_twins_agree() {
        // A NaN's own bits may differ.
        let bits = |values: &[f32]| -> Vec<u32> {
            values.iter().map(|value| if value.is_nan() { 0 } else { value.to_bits() }).collect()
        };
        for (length, group) in [(0, 5), (1, 5), (7, 7), (64, 64), (1000, 129), (999, 512), (100, 3)] {
            for (values, kept) in [(noise(length, 1), noise(length, 3)), (awkward(length, 2), noise(length, 4))] {
                let (mut bytes, mut residual, mut residual_plain) = (Vec::new(), kept.clone(), kept.clone());
                keep_rest(&values, &mut residual, [0.3, -0.2]);
                keep_rest_plain(&values, &mut residual_plain, [0.3, -0.2]);
                assert_eq!(bits(&residual), bits(&residual_plain));
                residual.clone_from(&kept);
                encode(&values, &mut residual, group, &mut bytes);
                let (mut out, mut out_plain) = (vec![0f32; length], vec![0f32; length]);
                decode(&bytes, group, &mut out).unwrap();
                decode_groups_plain(&bytes, group, &mut out_plain);
                assert_eq!(bits(&out), bits(&out_plain));
            }
        }
    }

    #[test]
    fn a_wrong_length_is_refused() {
        assert_eq!(decode(&[0; 8], 3, &mut [0.0; 2]), Err(DecodeError::Length { expected: 9, found: 8 }));
    }
}
