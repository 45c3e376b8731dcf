//! As `frame`, with the right checksum, so that the fuzzer reaches the code behind it: any kind,
//! any head, any body.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{HEADER_BYTES, VERSION, seal};

/// Bytes before body and payloads: 8 for kind, stage and lengths of the payloads, 60 for the fields
/// of the head.
const HEAD: usize = 8 + 60;

fuzz_target!(|bytes: &[u8]| {
    let Some((head, rest)) = bytes.split_at_checked(HEAD) else { return };
    let positions = usize::from(head[2]).min(rest.len());
    let values = usize::from(head[3]).min(rest.len() - positions);
    let body = rest.len() - positions - values;
    let mut spelt = Vec::with_capacity(HEADER_BYTES + rest.len());
    spelt.extend_from_slice(b"SLKW");
    spelt.extend_from_slice(&VERSION.to_le_bytes());
    spelt.extend_from_slice(&head[..2]);
    for length in [body, positions, values] {
        spelt.extend_from_slice(&(length as u32).to_le_bytes());
    }
    spelt.extend_from_slice(&head[8..]);
    spelt.resize(HEADER_BYTES, 0);
    spelt.extend_from_slice(&rest[..body]);
    seal(&mut spelt);
    spelt.extend_from_slice(&rest[body..]);
    let Some((Ok(frame), taken)) = inputs::cut(&spelt) else { return };
    assert_eq!(taken, spelt.len());
    assert_eq!(inputs::bytes_of(&frame), spelt, "{frame:?} has two encodings");
});
