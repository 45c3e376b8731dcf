//! Grouped sign quantisation (`1bit`, `2bit`) with error feedback. It sends the sign of each x = g
//! + e, where g is the new value and e its residual, and a few levels for each group of values.
//!
//! After Seide et al., "1-bit stochastic gradient descent" (2014). With one bit, x is sent as the
//! mean of its side of zero. With two, a second bit says whether x is *far*, that is, beyond its
//! side's mean; x is sent as the mean of that quarter. The new residual is e′ = x − sent.
//!
//! The bytes of a group (see [`group_values`](crate::group_values)), in order:
//! - its levels as f32: above zero, then below; with two bits, near and then far of each side;
//! - the sign bits, eight to a byte;
//! - with two bits, the bits that say "far", eight to a byte.
//!
//! A group in which a value or a sum is not finite decodes to NaNs, so that the receiver refuses
//! it. Its residual does not change.
//!
//! The number of bits is a const parameter of each function, so that each width gets loops of its
//! own.

use crate::{
    DecodeError,
    error::expect_length,
    group::{EIGHT, bit_mask, grouped_bytes, negative, select},
    sides::{beyond, is_beyond, sides},
    twin::twin,
};

/// The levels of a group: `[above zero, below zero]`, each `[near, far]`. With one bit, near and
/// far are the same.
type Levels = [[f32; 2]; 2];

/// The bytes of a group's levels: one f32 for each side with one bit, two with two.
const fn head_bytes<const BITS: usize>() -> usize {
    const { assert!(BITS == 1 || BITS == 2) };
    8 * BITS
}

fn group_bytes<const BITS: usize>(count: usize) -> usize {
    head_bytes::<BITS>() + BITS * count.div_ceil(EIGHT)
}

/// The encoded size of `count` values in bytes.
#[must_use]
pub fn encoded_bytes<const BITS: usize>(count: usize, group: usize) -> usize {
    grouped_bytes(count, group, group_bytes::<BITS>)
}

/// Replaces `out` with the encoded sums of `values` and `residual`, and `residual` with what was
/// not sent.
///
/// # Panics
/// If `values` and `residual` differ in length, or `group` is 0.
pub fn encode<const BITS: usize>(values: &[f32], residual: &mut [f32], group: usize, out: &mut Vec<u8>) {
    assert_eq!(values.len(), residual.len(), "a residual for every value");
    out.resize(encoded_bytes::<BITS>(values.len(), group), 0);
    encode_groups::<BITS>(values, residual, group, out);
}

/// Decodes `out.len()` values.
///
/// # Panics
/// If `group` is 0.
pub fn decode<const BITS: usize>(bytes: &[u8], group: usize, out: &mut [f32]) -> Result<(), DecodeError> {
    expect_length(encoded_bytes::<BITS>(out.len(), group), bytes.len())?;
    decode_groups::<BITS>(bytes, group, out);
    Ok(())
}

fn encode_groups<const BITS: usize>(values: &[f32], residual: &mut [f32], group: usize, out: &mut [u8]) {
    let groups = values.chunks(group).zip(residual.chunks_mut(group)).zip(out.chunks_mut(group_bytes::<BITS>(group)));
    for ((values, residual), out) in groups {
        let (head, planes) = out.split_at_mut(head_bytes::<BITS>());
        // With one bit, `far` is empty.
        let (signs, far) = planes.split_at_mut(planes.len() / BITS);
        let all = sides(values, residual, signs);
        let means = all.means();
        if !means.iter().all(|mean| mean.is_finite()) {
            far.fill(0);
            write_levels::<BITS>([[f32::NAN; 2]; 2], head);
            continue;
        }
        let levels = if BITS == 1 {
            means.map(|mean| [mean; 2])
        } else {
            let beyond = beyond(values, residual, means, far);
            let [above_far, below_far] = beyond.means();
            let [above, below] = all.without(beyond).means();
            [[above, above_far], [below, below_far]]
        };
        write_levels::<BITS>(levels, head);
        keep_rest::<BITS>(values, residual, means, levels);
    }
}

#[inline(always)]
fn write_levels<const BITS: usize>(levels: Levels, head: &mut [u8]) {
    for (place, bytes) in head.as_chunks_mut::<4>().0.iter_mut().enumerate().take(2 * BITS) {
        *bytes = levels[place / BITS][place % BITS].to_le_bytes();
    }
}

#[inline(always)]
fn read_levels<const BITS: usize>(head: &[u8]) -> Levels {
    let level = |place: usize| head.as_chunks::<4>().0.get(place).map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
    [0, BITS].map(|side| [level(side), level(side + BITS - 1)])
}

twin! {
/// e′ = x − sent.
fn keep_rest, keep_rest_plain<BITS>(values: &[f32], residual: &mut [f32], means: [f32; 2], levels: Levels) {
    for (value, residual) in values.iter().zip(residual) {
        let sum = value + *residual;
        let far = if BITS == 1 { 0 } else { is_beyond(sum, means) };
        *residual = sum - chosen(negative(sum), far, levels);
    }
}
}

/// Selects a level by masks: `below` chooses the side, `far` the level within it. The compiler
/// drops the choice by a constant `far` of 0.
#[inline(always)]
fn chosen(below: u32, far: u32, levels: Levels) -> f32 {
    let [above_zero, below_zero] = levels.map(|[near, beyond]| select(far, beyond, near));
    select(below, below_zero, above_zero)
}

twin! {
fn decode_groups, decode_groups_plain<BITS>(bytes: &[u8], group: usize, out: &mut [f32]) {
    for (bytes, out) in bytes.chunks(group_bytes::<BITS>(group)).zip(out.chunks_mut(group)) {
        let Some((head, planes)) = bytes.split_at_checked(head_bytes::<BITS>()) else { return };
        let levels = read_levels::<BITS>(head);
        let (eights, rest) = out.as_chunks_mut::<EIGHT>();
        // Two loops: one loop for both would read two planes with one bit, too, at half the speed.
        if BITS == 1 {
            let [[above, _], [below, _]] = levels;
            for (out, &signs) in eights.iter_mut().zip(planes) {
                for (lane, out) in out.iter_mut().enumerate() {
                    *out = select(bit_mask(signs, lane), below, above);
                }
            }
        } else {
            let (signs, far) = planes.split_at(planes.len() / 2);
            for (out, (&signs, &far)) in eights.iter_mut().zip(signs.iter().zip(far)) {
                for (lane, out) in out.iter_mut().enumerate() {
                    *out = chosen(bit_mask(signs, lane), bit_mask(far, lane), levels);
                }
            }
        }
        let (signs, far) = planes.split_at(planes.len() / BITS);
        for (lane, out) in rest.iter_mut().enumerate() {
            let far = if BITS == 1 { 0 } else { bit_mask(far[eights.len()], lane) };
            *out = chosen(bit_mask(signs[eights.len()], lane), far, levels);
        }
    }
}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{awkward, noise};

    #[test]
    fn one_bit_sends_the_mean_of_each_side_and_keeps_the_rest() {
        let mut bytes = Vec::new();
        let mut residual = vec![0.0, 0.0, 1.0, 0.0, 0.0];
        let mut sent = [0.0; 5];
        encode::<1>(&[1.0, -2.0, 2.0, -4.0, 2.0], &mut residual, 5, &mut bytes);
        decode::<1>(&bytes, 5, &mut sent).unwrap();
        assert_eq!(sent, [2.0, -3.0, 2.0, -3.0, 2.0]);
        assert_eq!(residual, [-1.0, 1.0, 1.0, -1.0, 0.0]);
        assert_eq!(bytes.len(), 9);
    }

    #[test]
    fn two_bits_send_the_mean_of_each_quarter_and_keep_the_rest() {
        let values = [1.0, 2.0, 9.0, 11.0, -1.0, -3.0, -8.0, 0.0, -0.0];
        let mut bytes = Vec::new();
        let mut residual = vec![0.0; 9];
        let mut sent = [0.0; 9];
        encode::<2>(&values, &mut residual, 9, &mut bytes);
        decode::<2>(&bytes, 9, &mut sent).unwrap();
        // −0 + 0 is 0, which counts as above zero.
        assert_eq!(sent, [0.75, 0.75, 10.0, 10.0, -2.0, -2.0, -8.0, 0.75, 0.75]);
        assert_eq!(residual[2], -1.0);
        assert_eq!(bytes.len(), 16 + 4);
    }

    #[test]
    fn groups_are_levels_then_signs_then_far_bits() {
        let values = [1.0, -2.0, 3.0];
        let levels = |levels: &[f32]| levels.iter().flat_map(|level| level.to_le_bytes()).collect::<Vec<u8>>();
        let mut bytes = Vec::new();
        encode::<1>(&values, &mut [0.0; 3], 3, &mut bytes);
        assert_eq!(bytes, [levels(&[2.0, -2.0]), vec![0b010]].concat());
        encode::<2>(&values, &mut [0.0; 3], 3, &mut bytes);
        assert_eq!(bytes, [levels(&[1.0, 3.0, -2.0, 0.0]), vec![0b010, 0b100]].concat());
    }

    #[test]
    fn groups_that_are_not_finite_decode_to_nan_and_keep_their_residual() {
        for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
            let mut bytes = Vec::new();
            let mut sent = [0.0; 4];
            let mut residual = vec![1.0, f32::MAX, 1.0, 1.0];
            encode::<1>(&[1.0, bad, 1.0, 3.0], &mut residual, 2, &mut bytes);
            decode::<1>(&bytes, 2, &mut sent).unwrap();
            assert!(sent[0].is_nan() && sent[1].is_nan(), "{bad}: {sent:?}");
            assert_eq!((sent[2], sent[3]), (3.0, 3.0));
            assert_eq!(residual, [1.0, f32::MAX, -1.0, 1.0]);
        }
        let mut bytes = Vec::new();
        let mut sent = [0.0; 4];
        let mut residual = vec![1.0; 4];
        encode::<2>(&[1.0, f32::NAN, 1.0, 3.0], &mut residual, 2, &mut bytes);
        decode::<2>(&bytes, 2, &mut sent).unwrap();
        assert!(sent[0].is_nan() && sent[1].is_nan());
        assert_eq!((sent[2], sent[3], residual), (2.0, 4.0, vec![1.0, 1.0, 0.0, 0.0]));
    }

    fn compare_twins<const BITS: usize>() {
        // The bits of a NaN may differ between twins.
        let bits = |values: &[f32]| -> Vec<u32> {
            values.iter().map(|value| if value.is_nan() { 0 } else { value.to_bits() }).collect()
        };
        for (length, group) in [(0, 5), (1, 5), (7, 7), (64, 64), (1000, 129), (999, 512), (100, 3)] {
            for (values, kept) in [(noise(length, 1), noise(length, 3)), (awkward(length, 2), noise(length, 4))] {
                let mut bytes = Vec::new();
                let mut residual = kept.clone();
                let mut residual_plain = kept.clone();
                let means = [0.3, -0.2];
                let levels = [[0.1, 0.5], [-0.1, -0.4]];
                keep_rest::<BITS>(&values, &mut residual, means, levels);
                keep_rest_plain::<BITS>(&values, &mut residual_plain, means, levels);
                assert_eq!(bits(&residual), bits(&residual_plain));
                residual.clone_from(&kept);
                encode::<BITS>(&values, &mut residual, group, &mut bytes);
                let mut out = vec![0f32; length];
                let mut out_plain = vec![0f32; length];
                decode::<BITS>(&bytes, group, &mut out).unwrap();
                decode_groups_plain::<BITS>(&bytes, group, &mut out_plain);
                assert_eq!(bits(&out), bits(&out_plain));
            }
        }
    }

    #[test]
    fn both_twins_agree() {
        compare_twins::<1>();
        compare_twins::<2>();
    }

    #[test]
    fn a_wrong_length_is_refused() {
        let refused = |expected| Err(DecodeError::Length { expected, found: 8 });
        assert_eq!(decode::<1>(&[0; 8], 3, &mut [0.0; 2]), refused(9));
        assert_eq!(decode::<2>(&[0; 8], 3, &mut [0.0; 2]), refused(18));
    }
}
