//! Any bytes, by every codec: values, keys or a fault, never a panic, and nothing longer than was
//! asked for. What is read is read again from what is written of it, where the codec is exact.
#![no_main]

use codec::{BytesDecoder, PayloadFormat, ValueFormat, keys, sparse, zeros};
use libfuzzer_sys::fuzz_target;

/// The longest that a receiver asks for here: beyond the blocks of every format.
const MOST: usize = 2000;

fuzz_target!(|bytes: &[u8]| {
    let Some((&[id, width, low, high], rest)) = bytes.split_first_chunk() else { return };
    let count = usize::from(u16::from_le_bytes([low, high])) % MOST;
    // Any number names some format, so that no input is wasted.
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

fn keys_rise(bytes: &[u8], count: usize) {
    let mut list = vec![0; count];
    if keys::decode(bytes, &mut list).is_err() {
        return;
    }
    assert!(list.is_sorted_by(|a, b| a < b), "{list:?}");
    let (mut encoded, mut again) = (Vec::new(), vec![0; count]);
    keys::encode(&list, &mut encoded);
    assert_eq!(keys::decode(&encoded, &mut again), Ok(()));
    assert_eq!(list, again);
}

fn values(format: ValueFormat, bytes: &[u8], width: usize, count: usize) {
    let mut out = vec![0f32; count];
    if format.decode(bytes, width, &mut out).is_err() || format != ValueFormat::Sparse {
        return;
    }
    let (mut encoded, mut again) = (Vec::new(), vec![0f32; count]);
    zeros::encode(&out, &mut Vec::new(), &mut encoded);
    assert_eq!(sparse::decode(&encoded, &mut again), Ok(()));
    assert!(out.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()));
}
