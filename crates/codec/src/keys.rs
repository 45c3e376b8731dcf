//! Delta encoding of sorted keys: the gaps between neighbours, bit-packed, with runs as ranges.
//!
//! The first key takes 8 bytes. The gaps that follow (next − previous − 1) come in pieces, each
//! with a tag:
//! - 0 … 64: a block of 256 gaps of that many bits, in four lanes;
//! - 65: a run of gaps of zero, that is, of consecutive keys; their count follows as a varint;
//! - 128 … 192: a short block, a byte with its count (1 … 255), then a stream of gaps of tag − 128
//!   bits.
//!
//! So a range of any length takes about ten bytes. The count of keys is not part of the bytes: the
//! caller of the decoder passes it.

use crate::{
    DecodeError,
    bits::{BLOCK, WIDEST, pack_lanes, pack_stream, stream_bytes, unpack_lanes, unpack_stream, width_of},
    twin::twin,
};

const RUN: u8 = 65;
const SHORT: u8 = 128;

/// The encoder probes for runs at this distance. It may miss shorter runs.
const PROBE: usize = 32;

/// Replaces `out` with the encoded `keys`, which must rise strictly.
pub fn encode(keys: &[u64], out: &mut Vec<u8>) {
    out.clear();
    append(keys, out);
}

/// Decodes `out.len()` keys. They rise strictly.
pub fn decode(bytes: &[u8], out: &mut [u64]) -> Result<(), DecodeError> {
    match read(bytes, out)? {
        [] => Ok(()),
        _ => Err(DecodeError::Trailing),
    }
}

/// Appends the encoded `keys` to `out`.
pub(crate) fn append(keys: &[u64], out: &mut Vec<u8>) {
    debug_assert!(keys.is_sorted_by(|a, b| a < b), "keys rise");
    let Some(first) = keys.first() else { return };
    // Three bits more than the mean gap takes are usually enough. If not, the vector grows.
    let mean_gap = (keys[keys.len() - 1] - first) / keys.len() as u64;
    out.reserve(16 + keys.len() * (width_of(mean_gap) as usize + 3) / 8);
    out.extend_from_slice(&first.to_le_bytes());
    let mut rest = keys;
    while rest.len() > 1 {
        let gaps = (rest.len() - 1).min(BLOCK);
        let taken = match run_within(&rest[..=gaps]) {
            Some(0) => append_run(rest, out),
            Some(start) => append_short(&rest[..=start], out),
            None if gaps == BLOCK => append_block(&rest[..=BLOCK], out),
            None => append_short(&rest[..=gaps], out),
        };
        rest = &rest[taken..];
    }
}

/// Whether the first `gaps` gaps of `keys` are all zero. One comparison tells, because keys rise.
fn is_run(keys: &[u64], gaps: usize) -> bool {
    keys.get(gaps).is_some_and(|last| last - keys[0] == gaps as u64)
}

/// The index in `keys` at which a run begins that is worth a piece of its own.
fn run_within(keys: &[u64]) -> Option<usize> {
    let probe = (0..keys.len()).step_by(PROBE).find(|&place| is_run(&keys[place..], PROBE))?;
    let start = (1..=probe).rev().find(|&place| keys[place] - keys[place - 1] != 1);
    Some(start.unwrap_or_default())
}

/// Appends the run at the start of `keys`. Returns its number of gaps.
fn append_run(keys: &[u64], out: &mut Vec<u8>) -> usize {
    let mut within = PROBE;
    let mut beyond = keys.len();
    while within + 1 < beyond {
        let middle = within.midpoint(beyond);
        if is_run(keys, middle) { within = middle } else { beyond = middle }
    }
    out.push(RUN);
    append_varint(within as u64, out);
    within
}

fn append_short(keys: &[u64], out: &mut Vec<u8>) -> usize {
    let mut gaps = [0; BLOCK];
    let gaps = &mut gaps[..keys.len() - 1];
    let width = width_of(gaps_of(keys, gaps));
    out.extend_from_slice(&[SHORT + width as u8, gaps.len() as u8]);
    let start = out.len();
    out.resize(start + stream_bytes(gaps.len(), width), 0);
    pack_stream(gaps, width, &mut out[start..]);
    gaps.len()
}

fn append_block(keys: &[u64], out: &mut Vec<u8>) -> usize {
    let mut gaps = [0; BLOCK];
    let width = width_of(gaps_of(keys, &mut gaps));
    out.push(width as u8);
    let start = out.len();
    out.resize(start + stream_bytes(BLOCK, width), 0);
    pack_lanes(&gaps, width, &mut out[start..]);
    BLOCK
}

twin! {
/// Writes the gaps between `keys`. Returns the bitwise or of all gaps.
fn gaps_of, gaps_of_plain(keys: &[u64], gaps: &mut [u64]) -> u64 {
    let mut all = 0;
    for (gap, (key, next)) in gaps.iter_mut().zip(keys.iter().zip(&keys[1..])) {
        *gap = next.wrapping_sub(*key).wrapping_sub(1);
        all |= *gap;
    }
    all
}
}

fn append_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Decodes `out.len()` keys from the front of `bytes`. Returns the remaining bytes.
pub(crate) fn read<'a>(bytes: &'a [u8], out: &mut [u64]) -> Result<&'a [u8], DecodeError> {
    let Some((first, mut out)) = out.split_first_mut() else { return Ok(bytes) };
    let (head, mut bytes) = bytes.split_first_chunk().ok_or(DecodeError::Truncated)?;
    *first = u64::from_le_bytes(*head);
    let mut last = *first;
    while !out.is_empty() {
        let (&tag, rest) = bytes.split_first().ok_or(DecodeError::Truncated)?;
        let (count, after);
        (count, last, after) = match tag {
            RUN => read_run(rest, last, out)?,
            SHORT.. => read_short(tag - SHORT, rest, last, out)?,
            _ => read_block(tag, rest, last, out)?,
        };
        (bytes, out) = (after, &mut out[count..]);
    }
    Ok(bytes)
}

/// The number of keys in a piece, its last key, and the bytes after it.
type Piece<'a> = Result<(usize, u64, &'a [u8]), DecodeError>;

fn read_run<'a>(bytes: &'a [u8], last: u64, out: &mut [u64]) -> Piece<'a> {
    let (count, after) = read_varint(bytes)?;
    let end = last.checked_add(count).ok_or(DecodeError::OutOfRange)?;
    let room = out.len();
    let count =
        usize::try_from(count).ok().filter(|count| (1..=room).contains(count)).ok_or(DecodeError::OutOfRange)?;
    // An open range would overflow at the last key, u64::MAX.
    out[..count].iter_mut().enumerate().for_each(|(place, out)| *out = last + 1 + place as u64);
    Ok((count, end, after))
}

fn read_short<'a>(width: u8, bytes: &'a [u8], last: u64, out: &mut [u64]) -> Piece<'a> {
    let width = checked_width(width)?;
    let (&count, bytes) = bytes.split_first().ok_or(DecodeError::Truncated)?;
    let count = usize::from(count);
    let out = out.get_mut(..count).filter(|out| !out.is_empty()).ok_or(DecodeError::OutOfRange)?;
    let (stream, after) = bytes.split_at_checked(stream_bytes(count, width)).ok_or(DecodeError::Truncated)?;
    let mut gaps = [0; BLOCK];
    unpack_stream(stream, width, &mut gaps[..count]);
    Ok((count, rise(&gaps[..count], last, out).ok_or(DecodeError::OutOfRange)?, after))
}

fn read_block<'a>(width: u8, bytes: &'a [u8], last: u64, out: &mut [u64]) -> Piece<'a> {
    let width = checked_width(width)?;
    let out = out.get_mut(..BLOCK).ok_or(DecodeError::OutOfRange)?;
    let (lanes, after) = bytes.split_at_checked(stream_bytes(BLOCK, width)).ok_or(DecodeError::Truncated)?;
    let mut gaps = [0; BLOCK];
    unpack_lanes(lanes, width, &mut gaps)?;
    Ok((BLOCK, rise(&gaps, last, out).ok_or(DecodeError::OutOfRange)?, after))
}

fn checked_width(width: u8) -> Result<u32, DecodeError> {
    if u32::from(width) <= WIDEST { Ok(width.into()) } else { Err(DecodeError::Tag(width)) }
}

/// Adds the gaps to `last` and writes the keys. Returns the last key, or `None` if a key would
/// exceed u64.
fn rise(gaps: &[u64], last: u64, out: &mut [u64]) -> Option<u64> {
    let mut last = last;
    let mut fell = false;
    for (gap, out) in gaps.iter().zip(out) {
        let next = last.wrapping_add(gap.wrapping_add(1));
        fell |= next <= last;
        (last, *out) = (next, next);
    }
    (!fell).then_some(last)
}

fn read_varint(bytes: &[u8]) -> Result<(u64, &[u8]), DecodeError> {
    let mut number = 0;
    for (place, &byte) in bytes.iter().enumerate().take(10) {
        let part = u64::from(byte & 0x7F);
        number |= part << (7 * place);
        // The tenth byte has room for one bit.
        if place == 9 && part > 1 {
            return Err(DecodeError::OutOfRange);
        }
        if byte < 0x80 {
            return Ok((number, &bytes[place + 1..]));
        }
    }
    Err(if bytes.len() < 10 { DecodeError::Truncated } else { DecodeError::OutOfRange })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(keys: &[u64]) -> usize {
        let mut bytes = vec![9; 3];
        let mut again = vec![7; keys.len()];
        encode(keys, &mut bytes);
        decode(&bytes, &mut again).unwrap();
        assert!(keys == again, "{} keys differ", keys.len());
        bytes.len()
    }

    fn spread(count: u64) -> Vec<u64> {
        let mut keys: Vec<u64> = (0..count).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn keys_of_every_count_round_trip() {
        for count in (0..70).chain(250..270).chain(505..530).chain([10_000]) {
            round_trip(&spread(count));
            round_trip(&(0..count).map(|i| i * i).collect::<Vec<_>>());
            // Up to u64::MAX: the fuzzer found a run that was counted past it.
            round_trip(&(u64::MAX - count..=u64::MAX).collect::<Vec<_>>());
            round_trip(&(0..count).map(|i| i + i / 100 * 5).collect::<Vec<_>>());
        }
        round_trip(&[0, u64::MAX]);
        round_trip(&[u64::MAX]);
    }

    #[test]
    fn keys_encode_ranges_in_few_bytes() {
        assert!(round_trip(&(5..1_000_005).collect::<Vec<_>>()) <= 8 + 4);
        let ranges: Vec<u64> = (0..10).flat_map(|i| i * 1_000_000..i * 1_000_000 + 1000).collect();
        assert!(round_trip(&ranges) <= 8 + 10 * (3 + 5));
        let mut mixed = spread(1000);
        mixed.extend(50..60_000);
        mixed.sort_unstable();
        mixed.dedup();
        assert!(round_trip(&mixed) < 7900);
    }

    #[test]
    fn keys_that_are_spread_take_few_bits_more_than_their_gaps() {
        let bytes = round_trip(&spread(100_000));
        assert!(bytes < 100_000 * 51 / 8, "{bytes} bytes for gaps of 2^47.4");
    }

    #[test]
    fn key_decoder_says_how_bytes_are_damaged() {
        let first = |rest: &[u8]| [&[5, 0, 0, 0, 0, 0, 0, 0], rest].concat();
        let table = [
            (vec![], DecodeError::Truncated),
            (first(&[])[..7].to_vec(), DecodeError::Truncated),
            (first(&[]), DecodeError::Truncated),
            (first(&[66]), DecodeError::Tag(66)),
            (first(&[193, 1]), DecodeError::Tag(65)),
            (first(&[RUN, 0]), DecodeError::OutOfRange),
            (first(&[RUN, 3]), DecodeError::OutOfRange),
            (first(&[RUN, 0x80]), DecodeError::Truncated),
            (first(&[RUN, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2]), DecodeError::OutOfRange),
            (first(&[SHORT, 0]), DecodeError::OutOfRange),
            (first(&[SHORT, 3]), DecodeError::OutOfRange),
            (first(&[SHORT + 8, 2, 0]), DecodeError::Truncated),
            (first(&[[SHORT + 64, 2].as_slice(), &[255; 16]].concat()), DecodeError::OutOfRange),
            (first(&[0]), DecodeError::OutOfRange),
            (first(&[RUN, 2, 0]), DecodeError::Trailing),
        ];
        for (bytes, error) in table {
            assert_eq!(decode(&bytes, &mut [0; 3]), Err(error), "{bytes:?}");
        }
    }

    #[test]
    fn both_twins_agree() {
        let keys = spread(257);
        let mut wide = [0; 256];
        let mut plain = [0; 256];
        assert_eq!(gaps_of(&keys, &mut wide), gaps_of_plain(&keys, &mut plain));
        assert_eq!(wide, plain);
    }
}
