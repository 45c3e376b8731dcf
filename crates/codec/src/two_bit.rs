//! Two bits a value, with error feedback: the side of x = g + e as for one bit, and whether x lies beyond its side's mean.
//!
//! What is sent for x is the mean of its quarter; e′ = x − sent stays behind. A group is the four means (above: near, far;
//! below: near, far), the sign bits, and the bits that say "far". As for one bit, a group that is not finite decodes to NaNs.

use crate::{
    DecodeError,
    error::expect_length,
    group::{EIGHT, bit_mask, grouped_bytes, negative, select},
    sides::{beyond, is_beyond, sides},
    twin::twin,
};

/// Four means.
const HEAD: usize = 16;

fn group_bytes(count: usize) -> usize {
    HEAD + 2 * count.div_ceil(EIGHT)
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
        let (head, planes) = out.split_at_mut(HEAD);
        let (signs, far) = planes.split_at_mut(planes.len() / 2);
        let all = sides(values, residual, signs);
        let sides = all.means();
        let finite = sides.iter().all(|mean| mean.is_finite());
        let means = if finite {
            let beyond = beyond(values, residual, sides, far);
            let ([above_far, below_far], [above, below]) = (beyond.means(), all.without(beyond).means());
            [above, above_far, below, below_far]
        } else {
            far.fill(0);
            [f32::NAN; 4]
        };
        head.copy_from_slice(bytemuck::must_cast_slice(&means.map(f32::to_le_bytes)));
        if finite {
            keep_rest(values, residual, sides, means);
        }
    }
}

twin! {
/// e′ = x − sent.
fn keep_rest, keep_rest_plain(values: &[f32], residual: &mut [f32], sides: [f32; 2], means: [f32; 4]) {
    for (value, residual) in values.iter().zip(residual) {
        let sum = value + *residual;
        *residual = sum - chosen(negative(sum), is_beyond(sum, sides), means);
    }
}
}

#[inline(always)]
fn chosen(below: u32, beyond: u32, means: [f32; 4]) -> f32 {
    select(below, select(beyond, means[3], means[2]), select(beyond, means[1], means[0]))
}

twin! {
fn decode_groups, decode_groups_plain(bytes: &[u8], group: usize, out: &mut [f32]) {
    for (bytes, out) in bytes.chunks(group_bytes(group)).zip(out.chunks_mut(group)) {
        let Some((head, planes)) = bytes.split_first_chunk::<HEAD>() else { return };
        let means = bytemuck::must_cast::<_, [[u8; 4]; 4]>(*head).map(f32::from_le_bytes);
        let (signs, far) = planes.split_at(planes.len() / 2);
        let (eights, rest) = out.as_chunks_mut::<EIGHT>();
        for (out, (&signs, &far)) in eights.iter_mut().zip(signs.iter().zip(far)) {
            for (lane, out) in out.iter_mut().enumerate() {
                *out = chosen(bit_mask(signs, lane), bit_mask(far, lane), means);
            }
        }
        for (lane, out) in rest.iter_mut().enumerate() {
            let place = eights.len();
            *out = chosen(bit_mask(signs[place], lane), bit_mask(far[place], lane), means);
        }
    }
}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{awkward, noise};

    #[test]
    fn the_means_of_each_quarter_are_sent_and_the_rest_stays() {
        let values = [1.0, 2.0, 9.0, 11.0, -1.0, -3.0, -8.0, 0.0, -0.0];
        let (mut bytes, mut residual, mut sent) = (Vec::new(), vec![0.0; 9], [0.0; 9]);
        encode(&values, &mut residual, 9, &mut bytes);
        decode(&bytes, 9, &mut sent).unwrap();
        // −0 + 0 is 0, which stands above.
        assert_eq!(sent, [0.75, 0.75, 10.0, 10.0, -2.0, -2.0, -8.0, 0.75, 0.75]);
        assert_eq!(residual[2], -1.0);
        assert_eq!(bytes.len(), 16 + 4);
    }

    #[test]
    fn a_group_that_is_not_finite_says_so_and_keeps_its_residual() {
        let (mut bytes, mut sent, mut residual) = (Vec::new(), [0.0; 4], vec![1.0; 4]);
        encode(&[1.0, f32::NAN, 1.0, 3.0], &mut residual, 2, &mut bytes);
        decode(&bytes, 2, &mut sent).unwrap();
        assert!(sent[0].is_nan() && sent[1].is_nan());
        assert_eq!((sent[2], sent[3], residual), (2.0, 4.0, vec![1.0, 1.0, 0.0, 0.0]));
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
                let (sides, means) = ([0.3, -0.2], [0.1, 0.5, -0.1, -0.4]);
                keep_rest(&values, &mut residual, sides, means);
                keep_rest_plain(&values, &mut residual_plain, sides, means);
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
        assert_eq!(decode(&[0; 8], 3, &mut [0.0; 2]), Err(DecodeError::Length { expected: 18, found: 8 }));
    }
}
