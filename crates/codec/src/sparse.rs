//! Sparse values: the places of the values that are present, and the values. All others are zero.
//! The codecs top-k, threshold and zeros share this form.
//!
//! The first byte is a tag that says how the places are encoded:
//! - 0: no value is present;
//! - 1: a bitmap, lowest bit first;
//! - 2: a count (u32), then the places as [`keys`];
//! - 3: all values are present.
//!
//! The values follow unchanged. The encoder takes the shortest form.

use bytemuck::Pod;

use crate::{DecodeError, error::expect_length, keys, places::ZeroElide};

const NONE: u8 = 0;
const MAP: u8 = 1;
const LIST: u8 = 2;
const ALL: u8 = 3;

/// A list may be shorter than a bitmap if at most one value in this many is present.
const LIST_PAYS: usize = 5;

/// Replaces `out` with the encoded `values` at `places`.
pub(crate) fn encode<T: Pod>(values: &[T], places: &[u64], out: &mut Vec<u8>) {
    out.clear();
    if places.is_empty() {
        return out.push(NONE);
    }
    if places.len() == values.len() {
        out.push(ALL);
        return out.extend_from_slice(bytemuck::cast_slice(values));
    }
    if places.len() * LIST_PAYS > values.len() || !append_list(places, values.len(), out) {
        append_map(places, values.len(), out);
    }
    out.reserve(size_of_val(values) / values.len() * places.len());
    for &place in places {
        out.extend_from_slice(bytemuck::bytes_of(&values[place as usize]));
    }
}

/// Appends the places as a list. Returns false, and leaves `out` empty, if a bitmap is shorter.
fn append_list(places: &[u64], count: usize, out: &mut Vec<u8>) -> bool {
    out.push(LIST);
    out.extend_from_slice(&(places.len() as u32).to_le_bytes());
    keys::append(places, out);
    let pays = out.len() <= 1 + count.div_ceil(8);
    if !pays {
        out.clear();
    }
    pays
}

fn append_map(places: &[u64], count: usize, out: &mut Vec<u8>) {
    out.push(MAP);
    out.resize(1 + count.div_ceil(8), 0);
    let map = &mut out[1..];
    for &place in places {
        map[place as usize / 8] |= 1 << (place % 8);
    }
}

/// Decodes `out.len()` values.
pub fn decode<T: ZeroElide>(bytes: &[u8], out: &mut [T]) -> Result<(), DecodeError> {
    let (&tag, rest) = bytes.split_first().ok_or(DecodeError::Truncated)?;
    match tag {
        NONE => {
            expect_length(0, rest.len())?;
            out.fill(T::zeroed());
            Ok(())
        }
        MAP => decode_map(rest, out),
        LIST => decode_list(rest, out),
        ALL => {
            expect_length(size_of_val(out), rest.len())?;
            bytemuck::cast_slice_mut(out).copy_from_slice(rest);
            Ok(())
        }
        _ => Err(DecodeError::Tag(tag)),
    }
}

fn decode_map<T: ZeroElide>(bytes: &[u8], out: &mut [T]) -> Result<(), DecodeError> {
    let (map, values) = bytes.split_at_checked(out.len().div_ceil(8)).ok_or(DecodeError::Truncated)?;
    let set: usize = map.iter().map(|byte| byte.count_ones() as usize).sum();
    expect_length(set * size_of::<T>(), values.len())?;
    let beyond = map.last().is_some_and(|&last| !out.len().is_multiple_of(8) && last >> (out.len() % 8) != 0);
    if beyond {
        return Err(DecodeError::OutOfRange);
    }
    out.fill(T::zeroed());
    let mut values = values.chunks_exact(size_of::<T>());
    for (eight, &byte) in out.chunks_mut(8).zip(map) {
        let mut left = byte;
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            // The length was checked against the number of set bits, so there is always a next
            // value.
            eight[lane] = values.next().map(bytemuck::pod_read_unaligned).unwrap_or_else(T::zeroed);
            left &= left - 1;
        }
    }
    Ok(())
}

fn decode_list<T: ZeroElide>(bytes: &[u8], out: &mut [T]) -> Result<(), DecodeError> {
    let (count, rest) = bytes.split_first_chunk().ok_or(DecodeError::Truncated)?;
    let count = u32::from_le_bytes(*count) as usize;
    // Each place needs a value in the bytes, so this bounds the list by the bytes received.
    if count > out.len() || count > rest.len() / size_of::<T>() {
        return Err(DecodeError::OutOfRange);
    }
    let mut places = vec![0; count];
    let values = keys::read(rest, &mut places)?;
    expect_length(count * size_of::<T>(), values.len())?;
    if places.last().is_some_and(|&last| last >= out.len() as u64) {
        return Err(DecodeError::OutOfRange);
    }
    out.fill(T::zeroed());
    for (&place, value) in places.iter().zip(values.chunks_exact(size_of::<T>())) {
        out[place as usize] = bytemuck::pod_read_unaligned(value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(count: usize, places: &[u64]) -> u8 {
        let mut values = vec![0f32; count];
        places.iter().for_each(|&place| values[place as usize] = place as f32 + 0.5);
        let mut bytes = Vec::new();
        let mut again = vec![f32::NAN; count];
        encode(&values, places, &mut bytes);
        decode(&bytes, &mut again).unwrap();
        assert_eq!(values, again);
        bytes[0]
    }

    #[test]
    fn sparse_encoding_takes_the_shortest_form() {
        assert_eq!(round_trip(0, &[]), NONE);
        assert_eq!(round_trip(9, &[]), NONE);
        assert_eq!(round_trip(1, &[0]), ALL);
        assert_eq!(round_trip(9, &[0, 8]), MAP);
        assert_eq!(round_trip(100, &(0..50).collect::<Vec<_>>()), MAP);
        assert_eq!(round_trip(10_000, &[3, 500, 9_999]), LIST);
        assert_eq!(round_trip(10_000, &(0..100).map(|i| i * 99).collect::<Vec<_>>()), LIST);
        assert_eq!(round_trip(10_000, &(0..1999).map(|i| i * 3 + i / 200 * 400).collect::<Vec<_>>()), MAP);
    }

    #[test]
    fn sparse_decoder_says_how_bytes_are_damaged() {
        let list = |count: u8, first: u8, values: usize| {
            [vec![LIST, count, 0, 0, 0, first, 0, 0, 0, 0, 0, 0, 0], vec![0; 4 * values]].concat()
        };
        let table = [
            (vec![], DecodeError::Truncated),
            (vec![4], DecodeError::Tag(4)),
            (vec![NONE, 0], DecodeError::Length { expected: 0, found: 1 }),
            (vec![ALL, 0], DecodeError::Length { expected: 12, found: 1 }),
            (vec![MAP], DecodeError::Truncated),
            (vec![MAP, 1], DecodeError::Length { expected: 4, found: 0 }),
            (vec![MAP, 8, 0, 0, 0, 0], DecodeError::OutOfRange),
            (vec![LIST, 1, 0], DecodeError::Truncated),
            (vec![LIST, 1, 0, 0, 0], DecodeError::OutOfRange),
            (vec![LIST, 1, 0, 0, 0, 0, 0, 0, 0], DecodeError::Truncated),
            (list(1, 0, 0), DecodeError::Length { expected: 4, found: 0 }),
            (list(1, 3, 1), DecodeError::OutOfRange),
            (list(4, 0, 4), DecodeError::OutOfRange),
            (vec![LIST, 255, 255, 255, 255, 0, 0, 0, 0], DecodeError::OutOfRange),
        ];
        for (bytes, error) in table {
            assert_eq!(decode(&bytes, &mut [0f32; 3]), Err(error), "{bytes:?}");
        }
    }
}
