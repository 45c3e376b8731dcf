//! Fixed point for narrow rows, column by column. Values of one column are of a similar size, while
//! another column may hold values a thousand times as large. Encoded together, a weight beside its
//! gradient would be rounded to the steps of gradients.
//!
//! Each column is encoded by [`fixed`]. Rows wide enough for steps of their own, and values that
//! are not whole rows, are encoded by [`fixed`] in row order.

use crate::{
    DecodeError,
    error::expect_length,
    fixed::{self, BLOCK, Draw, FixedBits},
    group::WIDE_ROW,
};

/// The number of columns into which `count` values are split.
fn columns(count: usize, width: usize) -> usize {
    if (2..WIDE_ROW).contains(&width) && count.is_multiple_of(width) { width } else { 1 }
}

/// The encoded size of `count` values in bytes.
fn encoded_bytes(count: usize, width: usize, bits: FixedBits) -> usize {
    let columns = columns(count, width);
    columns * fixed::encoded_bytes(count / columns, bits)
}

/// Values that share a step lie within a block of this many values.
pub(crate) fn block_values(width: usize) -> usize {
    BLOCK * columns(0, width)
}

/// Replaces `out` with the encoded `values` of rows that are `width` wide. `scratch` is scratch
/// memory.
pub(crate) fn encode(
    values: &[f32],
    width: usize,
    bits: FixedBits,
    draw: Draw,
    scratch: &mut Vec<f32>,
    out: &mut Vec<u8>,
) {
    let columns = columns(values.len(), width);
    if columns == 1 {
        return fixed::encode(values, bits, draw, out);
    }
    out.resize(encoded_bytes(values.len(), width, bits), 0);
    let bytes = out.len() / columns;
    for (column, out) in (0..columns).zip(out.chunks_exact_mut(bytes.max(1))) {
        scratch.clear();
        scratch.extend(values.iter().skip(column).step_by(columns));
        // Each column draws other random numbers.
        let seed = draw.seed.wrapping_add((column as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        fixed::encode_blocks(scratch, bits, Draw { seed, ..draw }, out);
    }
}

/// Decodes `out.len()` values of rows that are `width` wide.
pub(crate) fn decode(bytes: &[u8], width: usize, bits: FixedBits, out: &mut [f32]) -> Result<(), DecodeError> {
    let columns = columns(out.len(), width);
    if columns == 1 {
        return fixed::decode(bytes, bits, out);
    }
    expect_length(encoded_bytes(out.len(), width, bits), bytes.len())?;
    let block_bytes = fixed::encoded_bytes(BLOCK, bits);
    let mut block = [0.0; BLOCK];
    for (column, bytes) in bytes.chunks_exact((bytes.len() / columns).max(1)).enumerate() {
        for (rows, bytes) in out.chunks_mut(BLOCK * columns).zip(bytes.chunks(block_bytes)) {
            let block = &mut block[..rows.len() / columns];
            fixed::decode(bytes, bits, block)?;
            rows.iter_mut().skip(column).step_by(columns).zip(block).for_each(|(out, value)| *out = *value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    const DRAW: Draw = Draw { seed: 11, sequence: 5 };

    fn round(values: &[f32], width: usize, bits: FixedBits) -> Vec<f32> {
        let mut bytes = vec![1; 3];
        let mut out = vec![f32::NAN; values.len()];
        encode(values, width, bits, DRAW, &mut Vec::new(), &mut bytes);
        assert_eq!(bytes.len(), encoded_bytes(values.len(), width, bits));
        decode(&bytes, width, bits, &mut out).unwrap();
        if !bytes.is_empty() {
            assert!(decode(&bytes[1..], width, bits, &mut out).is_err());
        }
        out
    }

    #[test]
    fn columns_have_steps_of_their_own() {
        let bits = FixedBits::new(8).unwrap();
        for (rows, width) in [(1, 2), (2, 63), (511, 2), (512, 3), (513, 2), (1500, 5)] {
            let mut values = noise(rows * width, 1);
            // Each of the first five columns is a thousand times as large as the one before.
            let scale = |column: usize| 1000f32.powi(column.min(4) as i32);
            values.chunks_mut(width).for_each(|row| {
                row.iter_mut().enumerate().for_each(|(column, value)| *value *= scale(column));
            });
            let largest = values.iter().step_by(width).fold(0f32, |largest, value| largest.max(value.abs()));
            for (value, again) in values.iter().zip(round(&values, width, bits)).step_by(width) {
                assert!((value - again).abs() <= largest / 120.0, "{rows} rows of {width}: {value} became {again}");
            }
        }
    }

    #[test]
    fn columns_leave_wide_rows_and_partial_rows_to_fixed() {
        let bits = FixedBits::new(5).unwrap();
        for (count, width) in [(0, 2), (7, 2), (640, 64), (600, 1), (1000, 0)] {
            let values = noise(count, 2);
            let mut plain = Vec::new();
            let mut out = vec![0.0; count];
            fixed::encode(&values, bits, DRAW, &mut plain);
            fixed::decode(&plain, bits, &mut out).unwrap();
            assert_eq!(round(&values, width, bits), out, "{count} values of rows of {width}");
        }
    }
}
