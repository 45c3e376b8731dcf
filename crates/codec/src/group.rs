//! Groups of values that share reconstruction levels, and helpers that handle eight values at a
//! time without branches.

/// A row of at least this many values is a group of its own: its levels cost little beside its
/// bits.
pub(crate) const WIDE_ROW: usize = 64;

/// Narrower rows share a group of about this many values.
const SHARED: usize = 512;

/// The number of values in a group, for rows of `width` values: one wide row, or several whole
/// narrow rows.
#[must_use]
pub fn group_values(width: usize) -> usize {
    if width >= WIDE_ROW { width } else { SHARED / width.max(1) * width.max(1) }
}

/// The bytes of `count` values in groups of `group`. `count_bytes` gives the bytes of one group
/// from its number of values.
pub(crate) fn grouped_bytes(count: usize, group: usize, count_bytes: impl Fn(usize) -> usize) -> usize {
    let rest = count % group;
    count / group * count_bytes(group) + if rest == 0 { 0 } else { count_bytes(rest) }
}

/// Values handled at a time: their bits fill a byte.
pub(crate) const EIGHT: usize = 8;

/// Calls `each` for every eight values, with the index of the eight and the sums g + e. The last
/// eight are filled up with zeros.
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

/// A mask of all ones if the sign bit is set, else zero.
#[inline(always)]
pub(crate) fn negative(value: f32) -> u32 {
    (value.to_bits() as i32 >> 31) as u32
}

/// `chosen` if `mask` is all ones, `other` if it is zero.
#[inline(always)]
pub(crate) fn select(mask: u32, chosen: f32, other: f32) -> f32 {
    f32::from_bits(chosen.to_bits() & mask | other.to_bits() & !mask)
}

/// A mask of all ones if bit `lane` of `byte` is set, else zero.
#[inline(always)]
pub(crate) fn bit_mask(byte: u8, lane: usize) -> u32 {
    0u32.wrapping_sub(u32::from(byte) >> lane & 1)
}

/// A byte with one bit from each of eight masks.
#[inline(always)]
pub(crate) fn gathered(masks: [u32; EIGHT]) -> u8 {
    let mut bits = [0; EIGHT];
    for lane in 0..EIGHT {
        bits[lane] = masks[lane] & (1 << lane);
    }
    bits.iter().fold(0, |byte, bit| byte | bit) as u8
}

/// The sum of all lanes, added in the same order on every machine.
#[inline(always)]
pub(crate) fn total(lanes: [f64; EIGHT]) -> f64 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}
