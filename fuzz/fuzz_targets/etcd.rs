//! Any answer of an etcd gateway is read or refused, and takes memory in proportion to its length.
#![no_main]

use libfuzzer_sys::fuzz_target;

/// Bytes of the largest allocation for each byte of an answer, and beside them: numbers and names
/// of JSON take more as values than as text.
const PER_BYTE: usize = 128;
const BESIDE: usize = 64 << 10;

fuzz_target!(|bytes: &[u8]| {
    let Some((&[high, low], answer)) = bytes.split_first_chunk() else { return };
    let most = PER_BYTE * answer.len() + BESIDE;
    // A status that is mostly one of etcd's.
    let status = if high < 200 { [200, 400, 404, 503][usize::from(low % 4)] } else { u16::from_be_bytes([high, low]) };
    inputs::within(most, || node::registry::read_etcd_answer(status, answer));
    // With the header that every answer has, so that its body is looked at.
    let mut whole = br#"{"header":{"cluster_id":"7","revision":"3"},"succeeded":true,"#.to_vec();
    whole.extend_from_slice(answer);
    whole.push(b'}');
    inputs::within(most + BESIDE, || node::registry::read_etcd_answer(status, &whole));
});
