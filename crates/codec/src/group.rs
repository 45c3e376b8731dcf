//! Which values share reconstruction values, and eight of them at a time.

/// Rows at least this wide have reconstruction values of their own; what those cost is lost among
/// so many bits.
pub(crate) const WIDE_ROW: usize = 64;

/// Narrower rows share them, about so many values together.
const SHARED: usize = 512;

/// The values that share reconstruction values in a table whose rows are `width` wide: a row, or
/// whole narrow rows.
#[must_use]
pub fn group_values(width: usize) -> usize {
    if width >= WIDE_ROW { width } else { SHARED / width.max(1) * width.max(1) }
}

/// The bytes of `count` values in groups of `group`, where `count_bytes` says how many one group of
/// so many takes.
pub(crate) fn grouped_bytes(count: usize, group: usize, count_bytes: impl Fn(usize) -> usize) -> usize {
    let rest = count % group;
    count / group * count_bytes(group) + if rest == 0 { 0 } else { count_bytes(rest) }
}

pub(crate) const EIGHT: usize = 8;

/// The next eight of each, missing ones as zeros, with g + e: `each` is handed the place of the
/// eight and the sums.
#[inline(always)]
pub(crate) fn each_eight(values: &[f32], residual: &[f32], mut each: impl FnMut(usize, [f32; EIGHT])) {
    let (values, values_rest) = values.as_chunks::<EIGHT>();
    let (residual, residual_rest) = residual.as_chunks::<EIGHT>();
    for (place, (values, residual)) in values.iter().zip(residual).enumerate() {
        let mut sums = [0.0; EIGHT];
        for lane in 0..EIGHT {
            sums[lane] = values[lane] + residual[lane];
        }
        each(place, sums);
    }
    if !values_rest.is_empty() {
        let mut sums = [0.0; EIGHT];
        for (sum, (value, residual)) in sums.iter_mut().zip(values_rest.iter().zip(residual_rest)) {
            *sum = value + residual;
        }
        each(values.len(), sums);
    }
}

/// All ones where the sign bit is set.
#[inline(always)]
pub(crate) fn negative(value: f32) -> u32 {
    (value.to_bits() as i32 >> 31) as u32
}

/// `chosen` where `mask` is all ones, `other` where it is zero.
#[inline(always)]
pub(crate) fn select(mask: u32, chosen: f32, other: f32) -> f32 {
    f32::from_bits(chosen.to_bits() & mask | other.to_bits() & !mask)
}

/// Bit `lane` of `byte`, spread over a whole mask.
#[inline(always)]
pub(crate) fn bit_mask(byte: u8, lane: usize) -> u32 {
    0u32.wrapping_sub(u32::from(byte) >> lane & 1)
}

/// The lowest bits of eight masks.
#[inline(always)]
pub(crate) fn gathered(masks: [u32; EIGHT]) -> u8 {
    let mut bits = [0; EIGHT];
    for lane in 0..EIGHT {
        bits[lane] = masks[lane] & (1 << lane);
    }
    bits.iter().fold(0, |byte, bit| byte | bit) as u8
}

/// The sum of all lanes, in one order on every machine.
#[inline(always)]
pub(crate) fn total(lanes: [f64; EIGHT]) -> f64 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}
