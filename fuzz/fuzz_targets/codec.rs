//! Decodes any bytes with every codec: the result is values, keys or an error, never a panic, and
//! never longer than requested. Exact codecs encode the result and decode it to the same again.
#![no_main]

use codec::{BytesDecoder, PayloadFormat, ValueFormat, keys, sparse, zeros};
use libfuzzer_sys::fuzz_target;

/// The longest result that this target requests: longer than the blocks of every format.
const MOST: usize = 2000;

fuzz_target!(|bytes: &[u8]| {
    let Some((&[id, width, low, high], rest)) = bytes.split_first_chunk() else { return };
    let count = usize::from(u16::from_le_bytes([low, high])) % MOST;
    // Every number names a format, so that no input is wasted.
    let format = PayloadFormat::from_id(id % 33).unwrap_or(PayloadFormat::Keys);
    match format {
        PayloadFormat::Keys => keys_rise(rest, count),
        PayloadFormat::Bytes => {
            let mut out = Vec::new();
            if BytesDecoder::default().decode(rest, count, &mut out).is_ok() {
                assert!(out.len() <= count);
            }
            assert!(out.capacity() <= count.max(64));
        }
        PayloadFormat::Values(format) => values(format, rest, usize::from(width), count),
    }
});

/// Decoded keys are in rising order, and survive encoding.
fn keys_rise(bytes: &[u8], count: usize) {
    let mut list = vec![0; count];
    if keys::decode(bytes, &mut list).is_err() {
        return;
    }
    assert!(list.is_sorted_by(|a, b| a < b), "{list:?}");
    let mut encoded = Vec::new();
    let mut again = vec![0; count];
    keys::encode(&list, &mut encoded);
    assert_eq!(keys::decode(&encoded, &mut again), Ok(()));
    assert_eq!(list, again);
}

/// Sparse values survive encoding.
fn values(format: ValueFormat, bytes: &[u8], width: usize, count: usize) {
    let mut out = vec![0f32; count];
    if format.decode(bytes, width, &mut out).is_err() || format != ValueFormat::Sparse {
        return;
    }
    let mut encoded = Vec::new();
    let mut again = vec![0f32; count];
    zeros::encode(&out, &mut Vec::new(), &mut encoded);
    assert_eq!(sparse::decode(&encoded, &mut again), Ok(()));
    assert!(out.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()));
}
