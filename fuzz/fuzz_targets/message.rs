//! As `frame`, with the check put right first, so that whatever stands behind it is reached: any
//! kind, any head, any body.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{HEADER_BYTES, VERSION, seal};

/// How the bytes are used: kind, stage, lengths of the payloads, the head's fields, then body and
/// payloads.
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
    assert_eq!(inputs::bytes_of(&frame), spelt, "{frame:?} has two spellings");
});
